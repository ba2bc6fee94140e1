"""How often a device can flush, beside the commits that it led to."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from benchlib.report.figures.figure import Figure, render
from benchlib.report.figures.forms import Label, rows
from benchlib.report.figures.frames import amount, good, known, short
from benchlib.report.figures.layout import log_axis, styled
from benchlib.report.figures.style import BAND, INK, MARKS, MUTED, Look
from benchlib.stats.means import geometric_mean
from benchlib.stats.validity import implausible

_BAD = MARKS["invalid"]
_IN_USE, _UNUSED = Look("blue"), Look("muted", filled=False)


@styled
def flush_rates(rates: pd.DataFrame, trials: pd.DataFrame) -> Figure:
    """Flushes a second by each method in each place; below them, on the same log scale, the commits of each level.

    ``rates``: ``place, method, ops_per_s, used`` (whether a level flushes its WAL so), a row each, without nulls.
    ``trials``: ``level, tps, clients, flushes_per_s`` (null where no commit waits for a flush), and ``error`` where
    some failed; levels in the order of their first rows. Those that committed more than could be flushed
    (:func:`benchlib.stats.validity.implausible`) are marked.
    """
    fine = good(trials, "tps")
    levels = [_commits(str(level), fine[fine["level"] == level]) for level in trials["level"].unique()]
    labels, marks = [], []
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
        limit = (
            f"one client: at most {amount(level['flush'])}" if known(level["flush"]) else "no flush limits it"
        )
        limit = "implausible; " * level["bad"] + limit
        bounds = f"[{amount(level['low'])}, {amount(level['high'])}]" if known(level["low"]) else ""
        labels.append(Label(level["level"], limit, [(cell, colour), (bounds, MUTED)]))
    frame = pd.DataFrame(marks, columns=["row", "value", "low", "high", "look"])
    shown = [frame[["value", "low", "high"]], pd.DataFrame(levels)[["flush", "most"]]]
    ends = np.concatenate([each.to_numpy(float).ravel() for each in shown])

    def scale(axes: Axes) -> str:
        log_axis(axes, "x", np.nanmin(ends) / 1.5, 1.5 * np.nanmax(ends))
        return " (log scale)"

    drawing, axes, middles = rows(labels, frame, scale, "a second", origin=np.nan)
    for level, y in zip(levels, middles[first:], strict=True):
        if known(level["flush"]):
            axes.barh(y, level["most"] - level["flush"], 12, left=level["flush"], color=BAND, zorder=0.5)
            axes.vlines(level["flush"], y - 6, y + 6, color=INK, linewidth=1.4, zorder=1.5)
    bad = [level["level"] for level in levels if level["bad"]]
    used = rates[rates["used"]].sort_values("ops_per_s")
    title = "No level's commits wait for a flush"
    if len(used):
        slowest = used.iloc[0]
        title = f"The WAL is flushed {amount(slowest['ops_per_s'])} times a second by {slowest['method']}"
    if bad:
        title = f"“{short(bad[0])}”{f' and {len(bad) - 1} more commit' if bad[1:] else ' commits'} more than the device can flush"
    return render(
        "flushes",
        drawing,
        title,
        "Flushes of one 8 kB page where the WAL lies, by pg_test_fsync; filled: the method in use. Commits: geometric means with 95 % "
        "intervals. Line: what one client can commit; shaded: what all can, who share flushes."
        + f" {_BAD.sign} more than the device could have flushed."
        * bool(bad),
        pd.concat([rates, pd.DataFrame(levels)]),
    )


def _commits(level: str, trials: pd.DataFrame) -> dict[str, Any]:
    """A level's commits a second, beside what its flushes allow one client, and all."""
    tps, low, high = geometric_mean(trials["tps"].tolist())
    flush, clients = trials["flushes_per_s"].astype(float).median(), int(trials["clients"].max())
    bad = known(flush) and implausible(level, trials["tps"].mean(), flush, clients) is not None
    bounds = {"low": low, "high": high, "flush": flush, "most": flush * clients}
    return {"level": level, "tps": tps, "bad": bad, **bounds}
