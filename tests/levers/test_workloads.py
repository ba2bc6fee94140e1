"""Workloads: those that come along are whole, anybody's own are read, broken ones are named."""

from pathlib import Path

import pytest

from benchlib.errors import InputError
from benchlib.levers.workloads import load_workload, workload_names

OWN = """
name = "own"
title = "One’s own"
pgbench_tables = false
load_sql = "CREATE TABLE t (i integer)"

[[scripts]]
sql = "INSERT INTO t VALUES (1);"
weight = 3

[[scripts]]
builtin = "select-only"

[invariant]
count = "SELECT count(*) FROM t"
"""


@pytest.fixture
def own(tmp_path: Path):
    """Writes a workload's file and gives its name."""

    def write(text: str | bytes = OWN, name: str = "own.toml") -> str:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def refused(name: str) -> str:
    with pytest.raises(InputError) as caught:
        load_workload(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_workloads_of_the_studies_come_along() -> None:
    assert {"insert", "select-only", "simple-update", "tpcb-like"} <= set(workload_names())


@pytest.mark.parametrize("name", workload_names())
def test_each_has_its_file_s_name_prose_and_something_that_must_hold_afterwards(name: str) -> None:
    workload = load_workload(name)
    assert workload.name == name
    assert workload.title
    assert workload.prose.strip()
    assert workload.invariant.count
    assert workload.invariant.violations
    writes = workload.pgbench_tables or workload.invariant.per_transaction
    assert workload.vacuum or workload.truncate or not writes, "between trials it goes back to a known state"
    assert all(script.sql is None or script.sql.endswith("\n") for script in workload.scripts)


@pytest.mark.parametrize(
    ("name", "rows"), [("insert", 1), ("select-only", 0), ("simple-update", 1), ("tpcb-like", 1)]
)
def test_each_says_how_many_rows_a_transaction_leaves(name: str, rows: int) -> None:
    workload = load_workload(name)
    assert workload.invariant.per_transaction == rows
    if name != "insert":
        assert [script.builtin for script in workload.scripts] == [name]
    assert workload.pgbench_tables == (name != "insert")


def test_a_workload_of_one_s_own_is_given_by_its_path(own) -> None:
    workload = load_workload(own())
    assert (workload.name, workload.title) == ("own", "One’s own")
    assert [(s.builtin, s.weight) for s in workload.scripts] == [(None, 3), ("select-only", 1)]


@pytest.mark.parametrize(
    "name", ["tpcb", "TPCB-LIKE", "", "/nonexistent/x.toml", "../workloads", "tpcb-like.toml"]
)
def test_an_unknown_name_is_told_with_those_that_there_are(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    message = refused(name)
    assert message.startswith(f"no workload '{name}': there are ")
    for known in workload_names():
        assert known in message
    assert message.endswith(", or give the path of a .toml file")


@pytest.mark.parametrize("text", [b"name = ", b"[scripts", b"a = 1\na = 2\n", b'name = "\xff"', b"\x00"])
def test_a_file_that_is_not_toml_is_named(own, text: bytes) -> None:
    assert refused(own(text)).startswith("workload own.toml is not TOML: ")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (('title = "One’s own"\n', ""), "workload own.toml: title: Field required"),
        (("weight = 3", "wait = 3"), "workload own.toml: scripts.0.wait: Extra inputs are not permitted"),
        (("weight = 3", "weight = -3"), "workload own.toml: scripts.0.weight: Input should be greater"),
        (
            ('builtin = "select-only"', 'builtin = "select"'),
            "workload own.toml: scripts.1.builtin: Input should be",
        ),
        (('builtin = "select-only"', "weight = 1"), "workload own.toml: scripts.1: a script has either"),
        (("[invariant]", "[invariants]"), "workload own.toml: invariants: Extra inputs are not permitted"),
        (("pgbench_tables = false", 'pgbench_tables = "perhaps"'), "workload own.toml: pgbench_tables: "),
    ],
)
def test_a_wrong_key_is_named(own, change: tuple[str, str], why: str) -> None:
    assert change[0] in OWN
    assert refused(own(OWN.replace(*change))).startswith(why)


def test_a_file_without_scripts_or_without_anything_is_refused(own) -> None:
    assert "scripts: Field required" in refused(own('name = "own"\ntitle = "t"\n'))
    assert refused(own("")) == "workload own.toml: name: Field required (and 2 more)"
