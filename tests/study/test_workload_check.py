"""Workloads tried: each script once, with its plans, and what must hold."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchlib.cli import cli
from benchlib.load.workloads import load_workload
from benchlib.study.workload_check import try_scripts

pytestmark = [pytest.mark.pg, pytest.mark.usefixtures("ready_clusters", "unguarded")]

OWN = """
name = "own"
title = "Own"
pgbench_tables = false
load_sql = "CREATE TABLE t AS SELECT i FROM generate_series(1, 1000 * :scale) AS i; CREATE INDEX ON t (i)"
vacuum = ["t"]
scripts = [
  {sql = "\\\\set i random(1, 1000 * :scale)\\nSELECT * FROM t\\nWHERE i = :i AND i = ANY (ARRAY[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23]);"},
  {sql = "INSERT INTO t VALUES (0);", weight = 3},
  {sql = "SELECT * FROM missing;"},
  {sql = "BEGIN; INSERT INTO t VALUES (1); INSERT INTO t VALUES (2); END;"},
]

[invariant]
count = "SELECT count(*) FROM t"
per_transaction = [0, 1, 0, 1]
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "own.toml").write_text(OWN)


def test_each_script_is_tried_with_the_plans_of_what_the_server_got(own: None) -> None:
    tried = list(try_scripts(load_workload("own"), print))
    (reads, plans), (inserts, _), (fails, none), (lies, _) = tried
    assert (reads, inserts) == ("", "")
    (plan,) = plans
    assert "WHERE i = " in plan
    assert "Index" in plan
    assert "11, 12, 1…])" in plan.splitlines()[1], "a long list is cut"
    assert "missing" in fails
    assert none == []
    assert "holds 2 new rows (wanted 1)" in lies


def test_the_command_tells_all_and_fails_where_a_script_does(own: None) -> None:
    result = CliRunner().invoke(cli, ["workload", "check", "own"])
    assert "script 1, weight 1: runs" in result.output
    assert "script 3, weight 1: pgbench ended with status" in result.output
    assert "what must hold afterwards was tried" in result.output
    assert "2 of 4 scripts fail" in str(result.exception)
