"""The benchmarks of the suite itself run, tiny; what they say here means nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import benchlib

TABLE = Path(__file__).parent.parent / "benchmarks" / "table.py"
TINY = "--rounds 1 --lines 20000 --blocks 3 --short 1 --long 2 --observer-blocks 3 --tool-rounds 1 --tool-seconds 1"


@pytest.mark.pg
@pytest.mark.long
def test_the_table_of_what_the_suite_costs(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST", "COV_"))}
    done = subprocess.run(
        [sys.executable, TABLE, *TINY.split(), "--out", tmp_path / "out"],
        env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    table = pd.read_csv(tmp_path / "out" / "table.csv")
    assert list(table["unit"]) == ["s", "×", "×", "%", "%", "s", "×", "%"]
    assert table[["median", "low", "high"]].notna().all(axis=None)
    assert len(done.stdout.splitlines()) == 2 + len(table)
    kept = {path.stem for path in (tmp_path / "out").iterdir()}
    assert kept == {"table", "logs", "tpcc_client", "observer"}
    trials = pd.read_csv(tmp_path / "out" / "observer.csv")
    analysis = benchlib.analyze(trials, baseline="unobserved", controls=["control"], margin=0.02)
    change = analysis.table.set_index("level").loc["observed", "percent_change"]
    assert change == pytest.approx(table["median"].iloc[-1], rel=1e-3)
