"""A setting took, or it did not: units, spellings, rounding; and what is written can be read back."""

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from benchlib.plan.settings import ServerSetting, conf_text, differences, took

BYTES = {"B": 1, "kB": 1024, "MB": 1024**2, "GB": 1024**3, "TB": 1024**4}
MICROSECONDS = {"us": 1, "ms": 1000, "s": 10**6, "min": 60 * 10**6, "h": 3600 * 10**6, "d": 86400 * 10**6}


def whole(value: str, unit: str | None = None, name: str = "x") -> ServerSetting:
    return ServerSetting(name, value, unit, "integer")


def real(value: str, unit: str | None = None) -> ServerSetting:
    return ServerSetting("x", value, unit, "real")


def enum(value: str, name: str = "x") -> ServerSetting:
    return ServerSetting(name, value, None, "enum")


def text(value: str) -> ServerSetting:
    return ServerSetting("x", value, None, "string")


def boolean(value: str) -> ServerSetting:
    return ServerSetting("x", value, None, "bool")


# Each line was seen on a server: PostgreSQL 18.4 shows what stands on the right.
@pytest.mark.parametrize(
    ("wanted", "server"),
    [
        ("4GB", whole("524288", "8kB")),
        (" 4 GB ", whole("524288", "8kB")),
        (524288, whole("524288", "8kB")),
        ("524288", whole("524288", "8kB")),
        ("15min", whole("900", "s")),
        ("0.3h", whole("1080", "s")),
        ("90.5s", whole("90500", "ms")),
        ("1.6ms", whole("2", "ms")),
        ("1500us", real("1.5", "ms")),
        ("30.1GB", whole("31561728", "kB")),
        ("1MB", whole("1048576", "B")),
        ("1GB", whole("64", "16MB")),
        (16.4, whole("16")),
        ("4.0", whole("4")),
        ("1e3", whole("1000")),
        ("0x40", whole("64")),
        ("010MB", whole("1024", "8kB")),
        ("-1", whole("-1", "kB")),
        ("0700", whole("0700")),
        ("0777", whole("0777")),
        (511, whole("0777")),
        (0, whole("0")),
        (1.1, real("1.1")),
        ("1e0", real("1")),
        (".5", real("0.5")),
        (1.23456789, real("1.23457")),
        (0.0000001, real("1e-07")),
        (0, real("0")),
        ("010", real("10")),
        (True, boolean("on")),
        (0, boolean("off")),
        ("fals", boolean("off")),
        ("YES", boolean("on")),
        ("Logical", enum("logical")),
        ("on", enum("on")),
        (True, enum("on")),
        (False, enum("off")),
        ("remote_apply", enum("remote_apply")),
        ("on", enum("pglz", "wal_compression")),
        (True, enum("pglz", "wal_compression")),
        ("hot_standby", enum("replica", "wal_level")),
        ("debug", enum("debug2", "log_min_messages")),
        (-1, whole("512", "8kB", "wal_buffers")),
        ("0", whole("32", "8kB", "transaction_buffers")),
        ("utc", text("UTC")),
        ("iso,mdy", text("ISO, MDY")),
        ("auto_explain , pg_stat_statements", text("auto_explain,pg_stat_statements")),
        ("", text("")),
    ],
)
def test_one_value_in_two_spellings_took(wanted: object, server: ServerSetting) -> None:
    assert took(wanted, server)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "server"),
    [
        ("4GB", whole("524287", "8kB")),
        ("4GB", whole("4", "8kB")),
        ("4gb", whole("524288", "8kB")),
        ("4GB", whole("4294967296")),
        ("5min", whole("5", "kB")),
        ("4kB", whole("4", "ms")),
        ("1kB", whole("1024", "s")),
        ("2min", whole("120", "B")),
        ("5 pigs", whole("5", "ms")),
        ("15min", whole("901", "s")),
        ("0700", whole("0777")),
        ("0700", whole("700")),
        (700, whole("0700")),
        ("1e999", whole("0")),
        ("nan", real("0")),
        ("4GB", real("4")),
        (1.1, real("1.2")),
        (1.23456789, real("1.23456")),
        (0, real("1e-07")),
        ("many", whole("0")),
        ("", whole("0")),
        (True, boolean("off")),
        ("of", boolean("on")),
        ("maybe", boolean("off")),
        ("o", boolean("off")),
        ("local", enum("on")),
        ("on", enum("pglz")),
        ("on", enum("replica", "wal_level")),
        ("lz4", enum("pglz", "wal_compression")),
        ("off", enum("try", "huge_pages")),
        (-1, whole("512", "8kB", "work_mem")),
        (0, whole("512", "8kB", "wal_buffers")),
        ("a,b", text("b,a")),
        ("", text("x")),
        ("1", text("1.0")),
    ],
)
def test_another_value_did_not_take(wanted: object, server: ServerSetting) -> None:
    assert not took(wanted, server)  # type: ignore[arg-type]


@given(st.integers(0, 2**40), st.sampled_from([BYTES, MICROSECONDS]), st.data())
def test_a_value_in_any_unit_is_itself_in_another(
    number: int, units: dict[str, int], data: st.DataObject
) -> None:
    given_unit, own = (data.draw(st.sampled_from(sorted(units))) for _ in range(2))
    times = data.draw(st.sampled_from([1, 8, 16])) if units is BYTES else 1
    smallest = number * units[given_unit]
    assume(smallest < 2**53)
    shown, rest = divmod(smallest, units[own] * times)
    assume(rest == 0)
    server = whole(str(shown), f"{times if times > 1 else ''}{own}")
    assert took(f"{number}{given_unit}", server)
    assert not took(f"{number}{given_unit}", server._replace(value=str(shown + 1)))


@given(st.integers(-(2**31), 2**31 - 1))
def test_a_whole_number_without_a_unit_is_in_the_parameter_s_own(number: int) -> None:
    for unit in (None, "8kB", "ms"):
        assert took(number, whole(str(number), unit))
        assert not took(number, whole(str(number + 1), unit))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_real_is_shown_with_six_digits(number: float) -> None:
    assert took(number, real(f"{number:g}"))


@given(st.text(max_size=12), st.sampled_from(["integer", "real", "bool", "enum", "string", "new"]))
def test_any_text_gets_an_answer(wanted: str, vartype: str) -> None:
    value = "0" if vartype in ("integer", "real") else "off"
    assert took(wanted, ServerSetting("x", value, "ms", vartype)) in (True, False)


def test_a_value_is_shown_with_its_unit() -> None:
    assert whole("524288", "8kB").shown() == "524288 x 8kB"
    assert whole("300", "s").shown() == "300 s"
    assert boolean("on").shown() == "on"


def test_what_did_not_take_is_told_by_name_with_both_values() -> None:
    server = {"work_mem": whole("4096", "kB", "work_mem"), "fsync": boolean("on")}
    assert differences({"work_mem": "4MB", "fsync": True}, server) == []
    assert differences({"Work_Mem": "8MB", "fsync": "on", "wokr_mem": 1}, server) == [
        "Work_Mem: asked for 8MB, the server runs with 4096 kB",
        "wokr_mem: the server has no such parameter",
    ]


# --- the file ---------------------------------------------------------------------


def read_conf(text: str) -> dict[str, str]:
    """A configuration file as PostgreSQL reads it: guc-file.l and GUC_scanstr, the part that is used."""
    values = {}
    escapes = {"n": "\n", "r": "\r"}
    for line in text.splitlines() if "\r" not in text else text.split("\n")[:-1]:
        match = re.fullmatch(r"([A-Za-z_][\w.$]*) = '((?:[^'\\\n]|\\.|'')*)'", line)
        assert match, f"the server would refuse {line!r}"
        values[match.group(1)] = re.sub(
            r"\\(.)|''", lambda m: escapes.get(m[1], m[1]) if m[1] else "'", match.group(2)
        )
    return values


def test_values_are_written_as_the_server_wants_them() -> None:
    settings = {
        "fsync": False,
        "jit": True,
        "work_mem": "8MB",
        "max_connections": 120,
        "random_page_cost": 1.1,
    }
    assert conf_text(settings) == (
        "fsync = 'off'\njit = 'on'\nwork_mem = '8MB'\nmax_connections = '120'\nrandom_page_cost = '1.1'\n"
    )
    assert conf_text({"a": "it's", "b": "C:\\x\\", "c": "x'\nfsync = off"}) == (
        "a = 'it''s'\nb = 'C:\\\\x\\\\'\nc = 'x''\\nfsync = off'\n"
    )
    assert conf_text({}) == ""


@given(
    st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\0\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")
    )
)
def test_quotes_backslashes_and_line_ends_come_back_as_they_were(value: str) -> None:
    assert read_conf(conf_text({"log_line_prefix": value, "jit": "on"})) == {
        "log_line_prefix": value,
        "jit": "on",
    }
