"""What was measured, trial by trial: throughput over time, and the drift of the host."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from benchlib.plan.metrics import metric_or_guess
from benchlib.report.figures.figure import Canvas, Figure, render
from benchlib.report.figures.frames import amount, axis_words, good, known, opening, percent_of_mean, signed
from benchlib.report.figures.panels import Grid, columns_for, key
from benchlib.report.figures.style import BAND, INK, LIGHT, MUTED, SERIES

_POINTS = 6000  # of all thin lines together; more only makes the page heavy
_STRIP = 0.16  # of a panel's height: for checkpoints
_BLUE = LIGHT["blue"]


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
    progress = progress.assign(level=progress["level"].astype(str))
    names = list(levels) if levels is not None else list(progress["level"].unique())
    progress = progress.dropna(subset=[metric])
    trials = max(progress.groupby(["level", "block"]).ngroups, 1)
    end = float(progress["elapsed_s"].max()) if len(progress) else 1.0
    step = max(float(math.ceil(end / max(min(_POINTS // trials, 120), 12))), 1.0)
    # A reading at 10 s tells of the second before it, so it belongs to the bin that ends at 10 s.
    binned = progress.assign(elapsed_s=np.ceil(progress["elapsed_s"] / step - 1e-6) * step)
    thin = binned.groupby(["level", "block", "elapsed_s"])[metric].mean().reset_index()
    counted = thin[thin["elapsed_s"] > warmup_s].groupby("level")[metric].median()
    measured = metric_or_guess(metric)
    typical = {
        str(level): f"median {amount(value)} {measured.unit}".rstrip() for level, value in counted.items()
    }
    if relative:
        thin[metric] = percent_of_mean(thin, metric)
    bold = thin.groupby(["level", "elapsed_s"])[metric].median().reset_index()
    high = float(thin[metric].max()) * 1.05 if len(thin) and known(thin[metric].max()) else 1.0

    marked: dict[str, list[list[tuple[float, float]]]] = {}
    for (level, _), found in [] if checkpoints is None else checkpoints.groupby(["level", "block"]):
        spans = zip(found["start_s"].fillna(0.0), found["end_s"].fillna(end), strict=True)
        marked.setdefault(str(level), []).append([(max(a, 0.0), min(b, end)) for a, b in spans])
    high /= 1 - _STRIP if marked else 1
    number_of = {name: sum(map(len, marked[name])) for name in names if name in marked}

    def draw(canvas: Canvas) -> None:
        columns, line = columns_for(canvas, len(names)), 1.3 * canvas.font
        tall = 74.0 if canvas.narrow else 92.0
        title = "seconds since the trial began"
        grid = Grid(canvas, names, columns=columns, tall=tall, top=line, x_title=title)
        words = f"{measured.title}, % of the level's mean" if relative else axis_words(measured)
        canvas.note(0, line / 2, words)
        for number, name in enumerate(names):
            axes = grid.panel(number, typical.get(name, "no readings"))
            axes.set(xlim=(0, end * 1.01), ylim=(0, high))
            if warmup_s > 0:
                axes.axvspan(0, warmup_s, color=BAND, linewidth=0, zorder=0.5)
            for _, trial in thin[thin["level"] == name].groupby("block"):
                dot = "o" if len(trial) == 1 else None  # a line needs two readings
                axes.plot(
                    trial["elapsed_s"], trial[metric], color=_BLUE, alpha=0.4, linewidth=0.7, marker=dot
                )
            for row, spans in enumerate(marked.get(name, [])):
                thick = _STRIP / len(marked[name])
                bars = [(start, max(stop - start, end / 200)) for start, stop in spans]
                axes.broken_barh(
                    bars, (1 - (row + 0.9) * thick, 0.8 * thick), transform=axes.get_xaxis_transform(),
                    color=LIGHT["orange"], linewidth=0,
                )  # fmt: skip
            middle = bold[bold["level"] == name]
            axes.plot(middle["elapsed_s"], middle[metric], color=_BLUE, linewidth=2)

    said = "; ".join(f"{name}: {typical[name]}" for name in names if name in typical)
    return render(
        f"timeline-{metric}",
        draw,
        alt=f"{opening(measured.title)} over {amount(end)} seconds inside the trials, by level. "
        f"{said or 'No readings'}."
        + (" Each in percent of its own mean." if relative else "")
        + (f" Checkpoints: {', '.join(f'{level} {n}' for level, n in number_of.items())}." if marked else ""),
        caption=f"Thin: one trial each{f', means of {step:g} s' if step > 1 else ''}; bold: the median over "
        "blocks."
        + (f" Shaded: the first {warmup_s:g} s, not counted." if warmup_s > 0 else "")
        + (" Bars at the top, a row per trial: while a checkpoint was written." if marked else "")
        + (" No checkpoint was written meanwhile." if checkpoints is not None and not marked else ""),
    )


def drift(trials: pd.DataFrame, metric: str = "tps", levels: Sequence[str] | None = None) -> Figure:
    """Each trial against its own level's mean, in the order they were run: what the host did meanwhile.

    `trials`: columns `block`, `level`, `metric`, and `started_s` (seconds) or else in their order.
    `levels` sets the order of the colours.
    """
    timed = "started_s" in trials and bool(trials["started_s"].notna().all())
    order = trials.sort_values("started_s") if timed else trials
    starts = (order["started_s"] - order["started_s"].min()) / 60 if timed else range(1, len(order) + 1)
    order = order.assign(x=list(starts))
    fine = good(order, metric)
    fine = fine.assign(percent=100 * (fine[metric] / fine.groupby("level")[metric].transform("mean") - 1))
    failed = order.drop(fine.index)
    means = {str(block): float(found["percent"].mean()) for block, found in fine.groupby("block")}
    spans = {
        str(block): (float(found["x"].min()), float(found["x"].max()))
        for block, found in order.groupby("block")
    }
    measured = metric_or_guess(metric)
    names = list(levels) if levels is not None else sorted(order["level"].astype(str).unique())
    colours = dict(zip(names, SERIES, strict=False)) if len(names) <= len(SERIES) else {}

    def draw(canvas: Canvas) -> None:
        line, left = 1.35 * canvas.font, 4.6 * canvas.font
        places, bottom = key(canvas, dict.fromkeys(colours, "●"), line)
        top, tall = bottom + 2 * line + 8, 150
        canvas.height(top + tall + 40)
        for level, (x, y, text) in places.items():
            canvas.text(x, y, text, color=colours[level])
        canvas.note(0, bottom + 0.5 * line + 4, "against the level's own mean, %")
        width = canvas.width - left - 8
        axes = canvas.axes(left, top, width, tall)
        axes.axhline(0, color=INK, linewidth=1, zorder=1.5)
        axes.grid(axis="y")
        axes.spines["left"].set_visible(False)
        for name, found in fine.groupby("level"):
            colour = colours.get(str(name), MUTED)
            axes.plot(found["x"], found["percent"], "o", color=colour, markersize=4.5, mew=0, alpha=0.85)
        ends = [end for span in spans.values() for end in span] or [0.0, 1.0]
        pad = 0.02 * ((max(ends) - min(ends)) or 1)
        axes.set_xlim(min(ends) - pad, max(ends) + pad)
        every = max(math.ceil(len(spans) * 2.2 * canvas.font / width), 1)
        for number, (block, (start, stop)) in enumerate(spans.items()):
            if number % 2 == 0:
                axes.axvspan(start - pad / 2, stop + pad / 2, color=BAND, linewidth=0, zorder=0.5)
            if block in means:
                axes.plot([start, stop], [means[block]] * 2, color=INK, linewidth=2.4)
            if number % every == 0:
                x = axes.transLimits.transform(((start + stop) / 2, 0))[0]
                canvas.note(left + width * x, top - 7, block, ha="center")
        canvas.note(left - 8, top - 7, "block", ha="right")
        low, high = axes.get_ylim()
        axes.set_ylim(low, high)
        axes.yaxis.set_major_formatter(lambda v, _: signed(v, unit="").replace(".0", ""))
        if len(failed):
            at = [low] * len(failed)
            axes.plot(failed["x"], at, "x", color=LIGHT["purple"], markersize=6, clip_on=False)
        title = "minutes since the first trial" if timed else "trials in the order they were run"
        canvas.note(left + width / 2, top + tall + 30, title, ha="center")

    said = ", ".join(f"{block}: {signed(value, unit=' %')}" for block, value in means.items())
    return render(
        f"drift-{metric}",
        draw,
        alt=f"{opening(measured.title)} in the order of the trials, against each level's own "
        f"mean. Block means: {said or 'none'}." + (f" {len(failed)} failed." if len(failed) else ""),
        caption="Each dot is a trial, each bar a block's mean. Bars away from zero show the host drifting "
        "between blocks, which a comparison inside blocks cancels."
        + (" × marks a failed trial." if len(failed) else ""),
    )
