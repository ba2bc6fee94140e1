"""Levels compared inside blocks: what pairing takes away of a drifting host."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from benchlib.report.figures.figure import Canvas, Figure, render
from benchlib.report.figures.frames import (
    axis_words,
    good,
    known,
    opening,
    plain,
    reference_words,
    rows_of,
    signed,
    spread,
    wrapped,
)
from benchlib.report.figures.scale import scale_for
from benchlib.report.figures.style import INK, LIGHT
from benchlib.stats import Analysis

_BLUE = LIGHT["blue"]
_HEAD, _FOOT = 30.0, 36.0  # points above the rows (block numbers) and below (ticks and title)

Values = Mapping[tuple[str, Any], float]


def paired_blocks(analysis: Analysis, trials: pd.DataFrame) -> Figure:
    """Each block's values joined across the levels, and each level's difference inside its blocks.

    `trials`: columns `block`, `level`, the analysis's metric and, when trials failed, `error`.
    """
    metric, baseline, rows = analysis.metric, reference_words(analysis), rows_of(analysis)
    blocks = sorted(trials["block"].unique())
    fine, differences = good(trials, metric.name), analysis.differences
    if not analysis.one_reference:  # their levels may be worlds apart
        fine = fine.assign(**{metric.name: fine[metric.name] / fine.groupby("level")[metric.name].transform("mean") * 100})  # fmt: skip
    values = _by_trial(fine, metric.name)
    paired = _by_trial(differences, "percent")
    failures = trials.drop(fine.index)["level"].astype(str).value_counts()
    failed = {level: int(failures[level]) for level in rows if level in failures}
    changes = {level: row["percent_change"] for level, row in rows.items() if known(row["percent_change"])}
    # Later blocks stand out more, so that a host that slows down or speeds up shows as an order.
    shade = dict(zip(blocks, np.linspace(0.45, 1.0, len(blocks)).tolist(), strict=True))
    scale = scale_for([*paired.values(), *changes.values()])

    def draw(canvas: Canvas) -> None:
        left = 0.3 * canvas.width
        names = [wrapped(level, canvas.chars(left - 10), 5) for level in rows]
        line = 1.3 * canvas.font
        heights = [max((len(n) + (v in failed)) * line + 6, 24) for n, v in zip(names, rows, strict=True)]
        ends = np.cumsum(heights)
        middles = dict(zip(rows, (ends - np.array(heights) / 2).tolist(), strict=True))
        tall = float(ends[-1])
        room = canvas.width - left - 8
        panel = _HEAD + tall + _FOOT
        canvas.height(2 * panel if canvas.narrow else panel)
        # Side by side where there is room, else one above the other.
        width, x, top = (room, left, panel) if canvas.narrow else (room * 0.54, left + room * 0.54 + 22, 0.0)
        for start in {0.0, top}:
            for lines, (level, middle) in zip(names, middles.items(), strict=True):
                first = _HEAD + start + middle - (len(lines) + (level in failed) - 1) * line / 2
                for number, text in enumerate(lines):
                    canvas.text(0, first + number * line, text)
                if level in failed:
                    text = f"{failed[level]} failed"
                    canvas.text(0, first + len(lines) * line, text, color=LIGHT["purple"])
        _lines(canvas, values, middles, shade, (left, width, tall))
        words = axis_words(metric) if analysis.one_reference else f"{metric.title}, % of the level's mean"
        canvas.note(left + width / 2, panel - 8, words, ha="center")

        span = canvas.width - 8 - x
        axes = canvas.axes(x, top + _HEAD, span, tall)
        axes.set_ylim(tall, 0)
        scale.dress(axes, span, [(0, tall)])
        for (level, block), percent in paired.items():
            style = {"color": _BLUE, "alpha": shade[block], "markersize": 4.5, "markeredgewidth": 0}
            axes.plot(scale(percent), middles[level], "o", **style)
        for level, change in changes.items():
            ends_at = [middles[level] - 8, middles[level] + 8]
            axes.plot([scale(change)] * 2, ends_at, color=INK, linewidth=1.8)
        canvas.note(x + span / 2, top + _HEAD - 14, "inside each block", ha="center")
        clear = 0 if canvas.narrow else left + width * 0.75
        scale.title(canvas, "change", baseline, x + span / 2, top + panel - 8, clear)

    said = [_said(level, [v for (of, _), v in paired.items() if of == level]) for level in changes]
    lost = [f"{count} of {level}" for level, count in failed.items()]
    return render(
        "paired-blocks",
        draw,
        alt=f"{opening(metric.title)} of {len(rows)} levels in {len(blocks)} blocks. "
        f"Differences from {baseline} inside the blocks: {'; '.join(filter(None, said)) or 'none'}."
        + (f" Failed trials: {', '.join(lost)}." if lost else ""),
        caption="Each line is one block, that is every level once within a short time; later blocks stand "
        "out more. Lines far apart show a host that drifts; dots show what is left of each level's difference "
        f"from {baseline} when they are compared inside a block. The upright stroke is the estimated change.",
    )


def _by_trial(frame: pd.DataFrame, column: str) -> dict[tuple[str, Any], float]:
    rows = frame[["level", "block", column]].itertuples(index=False, name=None)
    return {(str(level), block): float(value) for level, block, value in rows if known(value)}


def _said(level: str, percents: Sequence[float]) -> str:
    if not percents:
        return ""
    above = sum(percent > 0 for percent in percents)
    ends = f"{signed(min(percents), unit='')} to {signed(max(percents), unit=' %')}"
    return f"{level} {ends}, above zero in {above} of {len(percents)}"


def _lines(
    canvas: Canvas,
    values: Values,
    middles: Mapping[str, float],
    shade: Mapping[Any, float],
    place: tuple[float, float, float],
) -> None:
    """One line per block through its levels' values, numbered above the first level."""
    left, width, tall = place
    axes = canvas.axes(left, _HEAD, width, tall)
    axes.set_ylim(tall, 0)
    for block, alpha in shade.items():
        across = [values.get((level, block), np.nan) for level in middles]
        axes.plot(across, list(middles.values()), "-o", color=_BLUE, alpha=alpha, markersize=3.5)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    axes.locator_params(axis="x", nbins=max(int(width / 45), 2))
    axes.xaxis.set_major_formatter(plain)
    low, high = axes.get_xlim()
    level = next(iter(middles))
    first = {block: values[level, block] for block in shade if (level, block) in values}
    if len(first) > 12:
        first = {block: first[block] for block in (min(first), max(first))}
    at = [left + width * (value - low) / (high - low) for value in first.values()]
    for block, x in zip(first, spread(at, 1.5 * canvas.font, left, left + width), strict=True):
        canvas.text(x, _HEAD - 14, str(block), ha="center", color=_BLUE)
        ends = low + (x - left) / width * (high - low), first[block]
        axes.plot(ends, [-7, middles[level]], color=_BLUE, alpha=0.5, linewidth=0.5, clip_on=False)
    axes.set_xlim(low, high)
    canvas.note(left - 10, _HEAD - 14, "block", ha="right")
