"""Durability's own section: how often the WAL's device can flush, beside the commits that it led to."""

from __future__ import annotations

import pandas as pd

from benchlib.report.figures import Figure
from benchlib.report.figures.flushes import flush_rates
from benchlib.report.view import Statement, View
from benchlib.study.experiment import Experiment
from benchlib.study.records import Flushes

METHODS = ("open_datasync", "fdatasync", "fsync", "fsync_writethrough", "open_sync")
"""The values of ``wal_sync_method``. Source: PostgreSQL documentation."""


def flushes(view: View) -> Figure | Statement:
    """``pg_test_fsync`` by method where the WAL lies, and the throughput of each level beside what that allows.

    Raises:
        InputError: a file is damaged.

    """
    experiment = view.experiment
    trials = experiment.by_level()
    good = trials[trials["error"].isna()]
    rates = _rates(experiment, good)
    if rates.empty:
        return Statement(
            "pg_test_fsync was not run in these trials, so how often the WAL can be flushed is not known "
            "(fsync_test = True among a profile's sizes has it run)."
        )
    return flush_rates(rates, good)


def _rates(experiment: Experiment, good: pd.DataFrame) -> pd.DataFrame:
    """The medians over the good trials: ``place, method, ops_per_s, used``; levels of one storage have one place."""
    trials = set(good[["level", "block"]].itertuples(index=False, name=None))
    place = {name: number for number, name in enumerate(experiment.plan.factor.levels)}
    measured = experiment.folder.kept().items()
    rows = []
    for trial_id, measurement in sorted(measured, key=lambda each: place[each[1].trial.level]):
        level = measurement.trial.level
        kept = Flushes.read(experiment.folder, trial_id)
        if kept is None or (level, measurement.trial.block) not in trials:
            continue
        settings = kept.durability
        rows += [
            {
                "storage": str(experiment.plan.level(level).storage),
                "level": level,
                "method": method,
                "ops_per_s": kept.per_s(method),
                "used": settings.fsync != "off" and settings.wal_sync_method == method,
            }
            for method in METHODS
        ]
    frame = pd.DataFrame(rows, columns=["storage", "level", "method", "ops_per_s", "used"]).dropna()
    by_storage = frame.groupby("storage")["level"].unique()
    frame["place"] = frame["storage"].map(
        {storage: _place(levels.tolist(), len(by_storage)) for storage, levels in by_storage.items()}
    )
    by_method = frame.groupby(["place", "method"], sort=False)
    return by_method.agg(ops_per_s=("ops_per_s", "median"), used=("used", "any")).reset_index()


def _place(levels: list[str], places: int) -> str:
    """Whose WAL lies in a place."""
    if places == 1:
        return "flushes a second, where the WAL lies"
    others = {1: "", 2: f" and “{levels[-1]}”"}.get(len(levels), f" and {len(levels) - 1} other levels")
    return f"flushes a second, where the WAL of “{levels[0]}”{others} lies"
