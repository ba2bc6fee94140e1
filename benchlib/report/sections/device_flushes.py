"""Durability's own section: how often the WAL's device can flush, beside the commits that it led to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from benchlib.report.figures.figure import Figure, render
from benchlib.report.figures.forms import Label, rows
from benchlib.report.figures.frames import amount, good, known, short
from benchlib.report.figures.layout import log_axis, styled
from benchlib.report.figures.style import BAND, INK, MARKS, MUTED, Look
from benchlib.report.sections import NothingToShowError, records, section
from benchlib.stats.means import geometric_mean
from benchlib.stats.validity import implausible
from benchlib.study.experiment import Experiment
from benchlib.study.records import Flushes

METHODS = ("open_datasync", "fdatasync", "fsync", "fsync_writethrough", "open_sync")
"""The values of ``wal_sync_method``. Source: PostgreSQL documentation."""

_ENDS = ["value", "low", "high"]
_BAD = MARKS["invalid"]
_IN_USE, _UNUSED = Look("blue"), Look("muted", filled=False)


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
    return flush_rates(rates, experiment.by_level())


def _rates(experiment: Experiment) -> pd.DataFrame:
    """The medians over the good trials: ``place, method, ops_per_s, used``; levels of one storage have one place."""
    readings = [
        (str(experiment.plan.level(level).storage), level, method, record.per_s(method),
         record.durability.fsync != "off" and record.durability.wal_sync_method == method)
        for level, _, record in records(experiment, Flushes)
        for method in METHODS
    ]  # fmt: skip
    frame = pd.DataFrame(readings, columns=["storage", "level", "method", "ops_per_s", "used"]).dropna()
    levels = frame.groupby("storage")["level"].unique()
    places = {storage: _place(of.tolist(), len(levels)) for storage, of in levels.items()}
    by_method = frame.assign(place=frame["storage"].map(places)).groupby(["place", "method"], sort=False)
    return by_method.agg(ops_per_s=("ops_per_s", "median"), used=("used", "any")).reset_index()


def _place(levels: list[str], places: int) -> str:
    """Whose WAL lies in a place."""
    if places == 1:
        return "flushes a second, where the WAL lies"
    others = {1: "", 2: f" and “{levels[-1]}”"}.get(len(levels), f" and {len(levels) - 1} other levels")
    return f"flushes a second, where the WAL of “{levels[0]}”{others} lies"


@styled
def flush_rates(rates: pd.DataFrame, trials: pd.DataFrame) -> Figure:
    """Flushes a second by each method in each place; below them, on the same log scale, the commits of each level.

    ``rates``: ``place, method, ops_per_s, used`` (whether a level flushes its WAL so), a row each, without nulls.
    ``trials``: ``level, tps, clients, flushes_per_s`` (null where no commit waits for a flush), and ``error`` where
    some failed; levels in the order of their first rows. Those that committed more than could be flushed
    (:func:`benchlib.stats.validity.implausible`) are marked.
    """
    trials = good(trials, "tps")
    levels = [_commits(str(level), of) for level, of in trials.groupby("level", sort=False)]
    labels, marks = list[Label](), list[tuple[Any, ...]]()
    for place, methods in rates.groupby("place", sort=False):
        labels.append(Label(str(place), heading=True))
        for method, rate, used in methods[["method", "ops_per_s", "used"]].itertuples(index=False, name=None):
            marks.append((len(labels), rate, np.nan, np.nan, _IN_USE if used else _UNUSED))
            labels.append(Label(f"{method}{' (in use)' if used else ''}", cells=[(amount(rate), INK)]))
    labels.append(Label("commits a second (tps), by level", heading=True))
    first = len(labels)
    for level in levels:
        look, colour = (_BAD, _BAD.colour) if level["bad"] else (_IN_USE, INK)
        marks.append((len(labels), level["tps"], level["low"], level["high"], look))
        cell = f"{_BAD.sign} " * level["bad"] + amount(level["tps"])
        limit = "no flush limits it"
        if known(level["flush"]):
            limit = f"one client: at most {amount(level['flush'])}"
        bounds = f"[{amount(level['low'])}, {amount(level['high'])}]" if known(level["low"]) else ""
        cells = [(cell, colour), (bounds, MUTED)]
        labels.append(Label(level["level"], "implausible; " * level["bad"] + limit, cells))
    frame, commits = pd.DataFrame(marks, columns=["row", *_ENDS, "look"]), pd.DataFrame(levels)
    shown = pd.concat([*(frame[name] for name in _ENDS), commits["flush"], commits["most"]])
    low, high = shown.min() / 1.5, 1.5 * shown.max()
    drawing, axes, middles = rows(
        labels, frame, lambda axes: log_axis(axes, "x", low, high), "a second", origin=np.nan
    )
    for level, y in zip(levels, middles[first:], strict=True):
        if known(level["flush"]):
            axes.barh(y, level["most"] - level["flush"], 12, left=level["flush"], color=BAND, zorder=0.5)
            axes.vlines(level["flush"], y - 6, y + 6, color=INK, linewidth=1.4, zorder=1.5)
    bad = [level["level"] for level in levels if level["bad"]]
    title = "No level's commits wait for a flush"
    for method, rate in rates[rates["used"]].nsmallest(1, "ops_per_s")[["method", "ops_per_s"]].to_numpy():
        title = f"The WAL is flushed {amount(rate)} times a second by {method}"
    if bad:
        title = f"“{short(bad[0])}”{f' and {len(bad) - 1} more commit' if bad[1:] else ' commits'} more than the device can flush"
    caption = (
        "Flushes of one 8 kB page where the WAL lies, by pg_test_fsync; filled: the method in use. Commits: geometric means with 95 % "
        "intervals. Line: what one client can commit; shaded: what all can, who share flushes."
    )
    if bad:
        caption += f" {_BAD.sign} more than the device could have flushed."
    return render("flushes", drawing, title, caption, pd.concat([rates, commits]))


def _commits(level: str, trials: pd.DataFrame) -> dict[str, Any]:
    """A level's commits a second, beside what its flushes allow one client, and all."""
    tps, low, high = geometric_mean(trials["tps"].tolist())
    flush, clients = trials["flushes_per_s"].astype(float).median(), int(trials["clients"].max())
    bad = known(flush) and implausible(level, trials["tps"].mean(), flush, clients) is not None
    bounds = {"low": low, "high": high, "flush": flush, "most": flush * clients}
    return {"level": level, "tps": tps, "bad": bad, **bounds}
