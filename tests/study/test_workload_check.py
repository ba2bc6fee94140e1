"""The check of a workload: each script once, its plans and its invariant."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchlib.cli import cli

pytestmark = [pytest.mark.pg, pytest.mark.usefixtures("ready_clusters", "unguarded")]

OWN = rf"""
name = "own"
title = "Own"
pgbench_tables = false
load_sql = "CREATE TABLE t AS SELECT i FROM generate_series(1, 1000 * :scale) AS i; CREATE INDEX ON t (i)"
vacuum = ["t"]
scripts = [
  {{sql = "\\set i random(1, 1000 * :scale)\nSELECT * FROM t\nWHERE i = :i AND i = ANY (ARRAY{[*range(1, 24)]});"}},
  {{sql = "INSERT INTO t VALUES (0);", weight = 3}},
  {{sql = "SELECT * FROM missing;"}},
  {{sql = "BEGIN; INSERT INTO t VALUES (1); INSERT INTO t VALUES (2); END;"}},
]

[invariant]
count = "SELECT count(*) FROM t"
per_transaction = [0, 1, 0, 1]
"""


def test_each_script_runs_once_and_shows_its_plans(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.toml").write_text(OWN)
    result = CliRunner().invoke(cli, ["workload", "check", "own.toml"])
    assert "2 of 4 scripts fail" in str(result.exception)
    _, reads, inserts, fails, lies = result.output.split("\nscript ")
    assert reads.startswith("1, weight 1: runs")
    assert re.search(r"WHERE i = .*11, 12, 1…\]\)(.|\n)*Index", reads), "a long list is cut"
    assert inserts.startswith("2, weight 3: runs")
    assert "missing" in fails
    assert "holds 2 new rows (expected 1)" in lies
    assert "the invariant was checked" in result.output
