"""Settings are written as the server reads them; what it shows is read as bytes, seconds or a number."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchlib.plan.settings import conf_text, quantity, shown


@pytest.mark.parametrize(
    ("value", "unit", "text", "read"),
    [
        ("524288", "8kB", "524288 x 8kB", (4 << 30, "B")),
        ("4096", "kB", "4096 kB", (4 << 20, "B")),
        ("64", "16MB", "64 x 16MB", (1 << 30, "B")),
        ("300", "s", "300 s", (300, "s")),
        ("1.5", "ms", "1.5 ms", (0.0015, "s")),
        ("10", "min", "10 min", (600, "s")),
        ("-1", "kB", "-1 kB", (-1024, "B")),
        ("1e-07", None, "1e-07", (1e-7, "")),
        ("100", None, "100", (100, "")),
        ("on", None, "on", None),
        ("5", "pigs", "5 pigs", None),
        ("ISO, MDY", None, "ISO, MDY", None),
        ("", None, "", None),
    ],
)
def test_a_value_is_shown_with_its_unit_and_read_back(
    value: str, unit: str | None, text: str, read: tuple[float, str] | None
) -> None:
    assert shown(value, unit) == text
    assert quantity(text) == read


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
