"""Speed and latencies over time inside the trials, and the host's drift between them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns

from benchlib.load.latency import EDGES_US, Latency
from benchlib.plan.metrics import metric_or_guess
from benchlib.report.figures.figure import Figure, render
from benchlib.report.figures.forms import heat
from benchlib.report.figures.frames import (
    amount,
    axis_words,
    binned,
    good,
    opening,
    percent_of_mean,
    signed,
)
from benchlib.report.figures.layout import canvas, columns_for, log_axis, panels, styled
from benchlib.report.figures.style import BAND, BLUE, FEW, INK, MUTED, ORANGE, PURPLE, Look, looks

_POINTS = 6000  # of all thin lines together; more only makes the page heavy
_STRIP = 0.16  # of a panel's height: for checkpoints
_RAREST = 1e-4  # a share of transactions below this has the lightest shade

Trial = tuple[str, int]


@styled
def timeline(
    progress: pd.DataFrame,
    *,
    warmup_s: float = 0.0,
    metric: str = "tps",
    levels: Sequence[str] | None = None,
    checkpoints: pd.DataFrame | None = None,
    relative: bool = False,
) -> Figure:
    """Throughput inside the trials. `progress`: columns `level`, `block`, `elapsed_s`, and `metric`.

    Seconds before `warmup_s` are shaded as not counted. `levels` sets their order. `checkpoints`: columns `level`,
    `block`, `start_s` and `end_s` (null for one that had begun before, or had not ended); None where nobody would know.
    With `relative` each level is drawn in percent of its own mean: those of several workloads have no scale in common.
    """
    progress = progress.assign(level=progress["level"].astype(str))[["level", "block", "elapsed_s", metric]]
    names = list(levels) if levels is not None else list(progress["level"].unique())
    progress, measured = progress.dropna(subset=metric), metric_or_guess(metric)
    trials = max(progress.groupby(["level", "block"]).ngroups, 1)
    end = float(progress["elapsed_s"].max()) if len(progress) else 1.0
    thin, step = binned(progress, "elapsed_s", max(min(_POINTS // trials, 120), 12))
    counted = thin[thin["elapsed_s"] > warmup_s].groupby("level")[metric].median()
    typical = {
        str(level): f"median {amount(value)} {measured.unit}".rstrip() for level, value in counted.items()
    }
    if relative:
        thin[metric] = percent_of_mean(thin, metric)
    marked = pd.DataFrame() if checkpoints is None else checkpoints[checkpoints["level"].isin(names)]
    of = [] if marked.empty else marked["level"].tolist()
    written = {name: of.count(name) for name in names if name in of}
    columns = columns_for(len(names))
    drawing = canvas(30 + 135 * -(-len(names) // columns))
    titles = [(name, typical.get(name, "no readings")) for name in names]
    for name, axes in zip(names, panels(drawing, titles, columns, sharex=True, sharey=True), strict=True):
        readings = thin[thin["level"] == name]
        thick = {"linewidth": 0.7, "alpha": 0.4, "marker": "o" if thin["elapsed_s"].nunique() == 1 else None}
        every: dict[str, Any] = {"x": "elapsed_s", "y": metric, "color": BLUE, "ax": axes}
        if len(readings):
            sns.lineplot(readings, units="block", estimator=None, **every, **thick)
            sns.lineplot(readings, estimator="median", errorbar=None, linewidth=2, **every)
        axes.set(xlabel="", ylabel="", xlim=(0, 1.01 * end))
        axes.axvspan(0, warmup_s, color=BAND, linewidth=0, zorder=0.5)
        bars_of = marked[marked["level"] == name].groupby("block") if len(marked) else ()
        for row, (_, spans) in enumerate(bars_of):
            start, stop = spans["start_s"].fillna(0.0).clip(0), spans["end_s"].fillna(end).clip(upper=end)
            bars = list(zip(start, (stop - start).clip(end / 200), strict=True))
            height = _STRIP / len(bars_of)
            axes.broken_barh(
                bars, (1 - (row + 0.9) * height, 0.8 * height), transform=axes.get_xaxis_transform(),
                color=ORANGE, linewidth=0,
            )  # fmt: skip
    high = float(thin[metric].max()) if len(thin) else 1.0
    axes.set_ylim(0, 1.05 * high / (1 - _STRIP * bool(written)))
    drawing.supylabel(
        f"{measured.title}, % of the level's mean" if relative else axis_words(measured), color=MUTED
    )
    drawing.supxlabel("seconds since the trial began", color=MUTED)
    results = "; ".join(f"{name}: {typical[name]}" for name in names if name in typical)
    return render(
        f"timeline-{metric}",
        drawing,
        alt=f"{opening(measured.title)} over {amount(end)} seconds inside the trials, by level. "
        f"{results or 'No readings'}."
        + (" Each in percent of its own mean." if relative else "")
        + (f" Checkpoints: {', '.join(f'{level} {n}' for level, n in written.items())}." if written else ""),
        caption=f"Thin: one trial each{f', means of {step:g} s' if step > 1 else ''}; bold: the median over blocks."
        + (f" Shaded: the first {warmup_s:g} s, not counted." if warmup_s > 0 else "")
        + (" Bars at the top, a row per trial: while a checkpoint was written." if written else "")
        + (" No checkpoint was written meanwhile." if checkpoints is not None and not written else ""),
    )


@styled
def drift(trials: pd.DataFrame, metric: str = "tps", levels: Sequence[str] | None = None) -> Figure:
    """Each trial against its own level's mean, in the order they were run: what the host did meanwhile.

    `trials`: columns `block`, `level`, `metric`, and `started_s` (seconds) or else in their order.
    `levels` sets the order of the colours.
    """
    timed = "started_s" in trials and bool(trials["started_s"].notna().all())
    order = trials.sort_values("started_s") if timed else trials
    starts = (order["started_s"] - order["started_s"].min()) / 60 if timed else range(1, len(order) + 1)
    order = order.assign(x=list(starts), level=order["level"].astype(str))
    fine = good(order, metric)
    fine = fine.assign(percent=percent_of_mean(fine, metric) - 100)
    failed = order.drop(fine.index)
    spans = order.groupby("block", sort=False)["x"].agg(["min", "max"])
    spans["mean"] = fine.groupby("block")["percent"].mean()
    names = list(levels) if levels is not None else sorted(order["level"].unique())
    hands = {name: Look(look.hue) for name, look in looks(names).items()} if len(names) <= FEW else {}
    drawing = canvas(210, hands)
    axes = drawing.subplots()
    if len(fine):
        colours = {"hue": "level", "palette": {name: look.colour for name, look in hands.items()}}
        sns.scatterplot(
            fine, x="x", y="percent", **(colours if hands else {"color": MUTED}), alpha=0.85, s=24, linewidth=0,
            legend=False, ax=axes,
        )  # fmt: skip
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
    seconds = max((len(each) for all_of in counts.values() for each in all_of), default=1)
    # of each level by second since each trial's first and by bin
    totals = {
        level: np.sum([np.pad(each, ((0, seconds - len(each)), (0, 0))) for each in all_of], axis=0)
        for level, all_of in counts.items()
        if all_of
    }
    by_bin = np.sum([np.zeros(len(EDGES_US)), *(total.sum(axis=0) for total in totals.values())], axis=0)
    instant = 100 * by_bin[0] / max(by_bin.sum(), 1)
    used = np.flatnonzero(by_bin[1:]) + 1  # a log scale has no place for what is logged as 0
    first, last = (int(used[0]), int(used[-1])) if len(used) else (1, 2)
    edges_ms = np.array([*EDGES_US, 10 * EDGES_US[-1]])[first : last + 2] / 1000
    step = max(math.ceil(seconds / 48), 1)
    columns = columns_for(len(levels))
    drawing = canvas(30 + 150 * -(-len(levels) // columns))
    notes = [
        f"{len(counts[level])} trial{'s' * (len(counts[level]) != 1)}" if counts[level] else "no log was kept"
        for level in levels
    ]
    titles = list(zip(levels, notes, strict=True))
    for level, axes in zip(levels, panels(drawing, titles, columns, sharex=True, sharey=True), strict=True):
        log_axis(axes, "y", edges_ms[0], edges_ms[-1], 5)
        axes.set_xlim(0, seconds)
        if level in totals:
            spans = np.add.reduceat(totals[level], np.arange(0, seconds, step), axis=0)
            shares = spans / np.maximum(spans.sum(axis=1, keepdims=True), 1)
            x = np.minimum(np.arange(0, seconds + step, step), seconds)
            heat(axes, x, edges_ms, shares[:, first : last + 1], _RAREST)
    drawing.supylabel("latency, ms (log scale)", color=MUTED)
    drawing.supxlabel("seconds since the load began", color=MUTED)
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


def _usual(counts: Any) -> str:
    """The bin of the median of all transactions, in words."""
    total = counts.sum(axis=0)
    place = int(np.searchsorted(np.cumsum(total), total.sum() / 2))
    return f"about {amount(float(EDGES_US[place]) / 1000)} ms"
