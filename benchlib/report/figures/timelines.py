"""Speed and latencies over time inside the trials, and the host's drift between them."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchlib.load.latency import EDGES_US, Latency
from benchlib.plan.metrics import metric_or_guess
from benchlib.report.figures.figure import Figure, render
from benchlib.report.figures.forms import heat
from benchlib.report.figures.frames import (
    amount,
    binned,
    good,
    opening,
    percent_of_mean,
    signed,
)
from benchlib.report.figures.layout import canvas, log_axis, panels, styled
from benchlib.report.figures.style import BAND, BLUE, FEW, INK, MUTED, ORANGE, PURPLE, Look, looks

_POINTS = 6000  # of all thin lines together; more only makes the page heavy
_STRIP = 0.16  # of a panel's height: for checkpoints
_RAREST = 1e-4  # a share of transactions below this has the lightest shade

Trial = tuple[str, int]


@styled
def timeline(
    progress: pd.DataFrame,
    *,
    levels: Sequence[str],
    checkpoints: pd.DataFrame | None = None,
    relative: bool = False,
) -> Figure:
    """Throughput inside the trials. `progress`: columns `level`, `block`, `elapsed_s`, and `tps`.

    `levels` sets their order. `checkpoints`: columns `level`, `block`, `start_s` and `end_s` (null for one that had
    begun before, or had not ended); None where nobody would know. With `relative` each level is drawn in percent of
    its own mean: those of several workloads have no scale in common.
    """
    progress = progress[["level", "block", "elapsed_s", "tps"]].dropna(subset="tps")
    trials = max(progress.groupby(["level", "block"]).ngroups, 1)
    end = float(progress["elapsed_s"].max()) if len(progress) else 1.0
    thin, step = binned(progress, "elapsed_s", max(min(_POINTS // trials, 120), 12))
    medians = thin.groupby("level")["tps"].median()
    typical = {name: f"median {amount(medians[name])} tps" for name in levels if name in medians}
    if relative:
        thin["tps"] = percent_of_mean(thin, "tps")
    marked = pd.DataFrame(columns=["level", "block"]) if checkpoints is None else checkpoints
    marked = marked[marked["level"].isin(list(levels))]
    written = marked["level"].value_counts().reindex(list(levels)).dropna().astype(int)
    speed = "throughput, % of the level's mean" if relative else "throughput, tps"
    titles = [(name, typical.get(name, "no readings")) for name in levels]
    drawing, grid = panels(titles, 135, "seconds since the trial began", speed)
    for name, axes in zip(levels, grid, strict=True):
        of_level = thin[thin["level"] == name]
        dot = "o" if thin["elapsed_s"].nunique() == 1 else None
        for _, trial in of_level.groupby("block"):
            axes.plot(trial["elapsed_s"], trial["tps"], color=BLUE, linewidth=0.7, alpha=0.4, marker=dot)
        axes.plot(of_level.groupby("elapsed_s")["tps"].median(), color=BLUE, linewidth=2)
        axes.set_xlim(0, 1.01 * end)
        blocks = [spans for _, spans in marked[marked["level"] == name].groupby("block")]
        for row, spans in enumerate(blocks):
            start, stop = spans["start_s"].fillna(0.0).clip(0), spans["end_s"].fillna(end).clip(upper=end)
            bars = list(zip(start, (stop - start).clip(end / 200), strict=True))
            height = _STRIP / len(blocks)
            place = (1 - (row + 0.9) * height, 0.8 * height)
            axes.broken_barh(bars, place, transform=axes.get_xaxis_transform(), color=ORANGE, linewidth=0)
    high = float(thin["tps"].max()) if len(thin) else 1.0
    axes.set_ylim(0, 1.05 * high / (1 - _STRIP * bool(len(written))))
    results = "; ".join(f"{name}: {words}" for name, words in typical.items())
    counts = ", ".join(f"{level} {count}" for level, count in written.items())
    return render(
        "timeline-tps",
        drawing,
        alt=f"Throughput over {amount(end)} seconds inside the trials, by level. {results or 'No readings'}."
        + " Each in percent of its own mean." * relative
        + (f" Checkpoints: {counts}." if counts else ""),
        caption=f"Thin: one trial each{f', means of {step:g} s' if step > 1 else ''}; bold: the median over blocks."
        + (" Bars at the top, a row per trial: while a checkpoint was written." if counts else "")
        + (" No checkpoint was written meanwhile." if checkpoints is not None and not counts else ""),
    )


@styled
def drift(trials: pd.DataFrame, metric: str, levels: Sequence[str]) -> Figure:
    """Each trial against its own level's mean, in the order they were run: what the host did meanwhile.

    `trials`: columns `block`, `level`, `metric`, and `started_s` (seconds) or else in their order.
    `levels` sets the order of the colours.
    """
    timed = "started_s" in trials and bool(trials["started_s"].notna().all())
    order = trials.sort_values("started_s") if timed else trials
    starts = (order["started_s"] - order["started_s"].min()) / 60 if timed else range(1, len(order) + 1)
    order = order.assign(x=list(starts))
    fine = good(order, metric)
    fine = fine.assign(percent=percent_of_mean(fine, metric) - 100)
    failed = order.drop(fine.index)
    spans = order.groupby("block", sort=False)["x"].agg(["min", "max"])
    spans["mean"] = fine.groupby("block")["percent"].mean()
    named = looks(levels) if len(levels) <= FEW else {}
    hands = {name: Look(look.hue) for name, look in named.items()}
    drawing = canvas(210, hands)
    axes = drawing.subplots()
    colours = [hands[level].colour if hands else MUTED for level in fine["level"]]
    axes.scatter(fine["x"], fine["percent"], s=24, c=colours, alpha=0.85, linewidth=0)
    axes.hlines(spans["mean"], spans["min"], spans["max"], color=INK, linewidth=2.4)
    axes.axhline(0, color=INK, linewidth=1, zorder=1.5)
    for start, stop in spans[["min", "max"]].iloc[::2].itertuples(index=False):
        axes.axvspan(start, stop, color=BAND, linewidth=0, zorder=0.5)
    axes.plot(
        failed["x"], [0.0] * len(failed), "x", color=PURPLE, markersize=6, clip_on=False,
        transform=axes.get_xaxis_transform(),
    )  # fmt: skip
    axes.set(
        xlabel="minutes since the first trial" if timed else "trials in the order they were run",
        ylabel="against the level's own mean, %",
    )
    axes.yaxis.set_major_formatter(lambda value, _: signed(value, unit="").replace(".0", ""))
    shown = spans.iloc[:: math.ceil(len(spans) / 20)]
    above = axes.secondary_xaxis("top")
    above.set_xticks((shown["min"] + shown["max"]) / 2, [str(block) for block in shown.index])
    above.set_xlabel("block")
    above.spines["top"].set_visible(False)
    results = [
        f"{block}: {signed(mean, unit=' %')}" for block, mean in spans["mean"].dropna().sort_index().items()
    ]
    return render(
        f"drift-{metric}",
        drawing,
        alt=f"{opening(metric_or_guess(metric).title)} in the order of the trials, against each level's own "
        f"mean. Block means: {', '.join(results) or 'none'}."
        + (f" {len(failed)} failed." if len(failed) else ""),
        caption="Each dot is a trial, each bar a block's mean. Bars away from zero show the host drifting "
        "between blocks, which a comparison inside blocks cancels."
        + (" × marks a failed trial." if len(failed) else ""),
    )


@styled
def latency_over_time(latencies: Mapping[Trial, Latency], levels: Sequence[str]) -> Figure:
    """How many transactions took how long, second by second, all trials of a level together.

    ``latencies`` by level and block, in windows of one second.
    """
    counts = {
        level: [each.counts for (of, _), each in latencies.items() if of == level and len(each.counts)]
        for level in levels
    }
    seconds = max((len(each) for trials in counts.values() for each in trials), default=1)
    # of each level by second since each trial's first and by bin
    totals = {
        level: np.sum([np.pad(each, ((0, seconds - len(each)), (0, 0))) for each in trials], axis=0)
        for level, trials in counts.items()
        if trials
    }
    by_bin = np.sum([np.zeros(len(EDGES_US)), *(total.sum(axis=0) for total in totals.values())], axis=0)
    instant = 100 * by_bin[0] / max(by_bin.sum(), 1)
    used = np.flatnonzero(by_bin[1:]) + 1  # a log scale has no place for what is logged as 0
    first, last = (used[0], used[-1]) if len(used) else (1, 2)
    edges_ms = np.array([*EDGES_US, 10 * EDGES_US[-1]])[first : last + 2] / 1000
    step = max(math.ceil(seconds / 48), 1)
    titles = [
        (level, f"{len(trials)} trial{'s' * (len(trials) != 1)}" if trials else "no log was kept")
        for level, trials in counts.items()
    ]
    drawing, grid = panels(titles, 150, "seconds since the load began", "latency, ms (log scale)")
    for level, axes in zip(levels, grid, strict=True):
        log_axis(axes, "y", edges_ms[0], edges_ms[-1], 5)
        axes.set_xlim(0, seconds)
        if level in totals:
            spans = np.add.reduceat(totals[level], np.arange(0, seconds, step), axis=0)
            shares = spans / np.maximum(spans.sum(axis=1, keepdims=True), 1)
            x = np.minimum(np.arange(0, seconds + step, step), seconds)
            heat(axes, x, edges_ms, shares[:, first : last + 1], _RAREST)
    results = "; ".join(
        f"{level}: most transactions of a second took {_usual(total)}" for level, total in totals.items()
    )
    return render(
        "latency-over-time",
        drawing,
        alt=f"Latencies over {seconds} seconds, by level, on a log scale. {results or 'No log was kept'}.",
        caption="The stronger the colour, the larger the share of the transactions that ended "
        + (f"in those {step} seconds" if step > 1 else "in that second")
        + " and took so long; shades are on a log scale, so that single slow transactions show too."
        + (f" Not shown: {instant:.2g} % that pgbench logged as less than 10 µs." if instant else ""),
    )


def _usual(counts: NDArray[np.int64]) -> str:
    """The bin of the median of all transactions, in words. `counts`: by second and bin."""
    upto = np.cumsum(counts.sum(axis=0))
    return f"about {amount(float(EDGES_US[np.searchsorted(upto, upto[-1] / 2)]) / 1000)} ms"
