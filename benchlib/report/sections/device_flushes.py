"""Durability's own section: how often the WAL's device can flush, beside the commits that it led to."""

from __future__ import annotations

import pandas as pd

from benchlib.report.figures.figure import Figure
from benchlib.report.figures.flush_rates import flush_rates
from benchlib.report.sections import NothingToShowError, records, section
from benchlib.study.experiment import Experiment
from benchlib.study.records import Flushes

METHODS = ("open_datasync", "fdatasync", "fsync", "fsync_writethrough", "open_sync")
"""The values of ``wal_sync_method``. Source: PostgreSQL documentation."""


@section
def flushes(experiment: Experiment) -> Figure:
    """``pg_test_fsync`` by method where the WAL lies, and the throughput of each level beside what that allows.

    Raises:
        InputError: a file is damaged.

    """
    rates = _rates(experiment)
    if rates.empty:
        raise NothingToShowError(
            "pg_test_fsync was not run in these trials, so how often the WAL can be flushed is not known "
            "(fsync_test = True among a profile's sizes has it run)."
        )
    trials = experiment.by_level()
    return flush_rates(rates, trials[trials["error"].isna()])


def _rates(experiment: Experiment) -> pd.DataFrame:
    """The medians over the good trials: ``place, method, ops_per_s, used``; levels of one storage have one place."""
    rows = [
        {
            "storage": str(experiment.plan.level(level).storage),
            "level": level,
            "method": method,
            "ops_per_s": record.per_s(method),
            "used": record.durability.fsync != "off" and record.durability.wal_sync_method == method,
        }
        for level, _, record in records(experiment, Flushes)
        for method in METHODS
    ]
    frame = pd.DataFrame(rows, columns=["storage", "level", "method", "ops_per_s", "used"]).dropna()
    levels = frame.groupby("storage")["level"].unique()
    frame["place"] = frame["storage"].map(
        {name: _place(of.tolist(), len(levels)) for name, of in levels.items()}
    )
    by_method = frame.groupby(["place", "method"], sort=False)
    return by_method.agg(ops_per_s=("ops_per_s", "median"), used=("used", "any")).reset_index()


def _place(levels: list[str], places: int) -> str:
    """Whose WAL lies in a place."""
    if places == 1:
        return "flushes a second, where the WAL lies"
    others = {1: "", 2: f" and “{levels[-1]}”"}.get(len(levels), f" and {len(levels) - 1} other levels")
    return f"flushes a second, where the WAL of “{levels[0]}”{others} lies"
