"""Latencies of single transactions: quantiles of the levels, and all of them over time."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from numpy.typing import NDArray
from scipy.stats import t

from benchlib.load.latency import EDGES_US, Latency
from benchlib.report.figures.figure import Canvas, Figure, render
from benchlib.report.figures.frames import amount, known, plain
from benchlib.report.figures.panels import Grid, columns_for, key, looks
from benchlib.report.figures.style import LIGHT

QUANTILES = {
    "p50": "latency_p50_ms",
    "p95": "latency_p95_ms",
    "p99": "latency_p99_ms",
    "p99.9": "latency_p999_ms",
}
"""What a quantile is called on the axis, and its column in the frame of trials."""

_SPANS, _SHADES = 48, 7
_RAREST = 1e-4  # a share below this has the lightest shade

Trial = tuple[str, int]


def interval_of_mean(values: Sequence[float], alpha: float = 0.05) -> tuple[float, float, float]:
    """The geometric mean of positive values, and the interval that Student's t gives it; NaN where there is none."""
    logs = np.log(np.asarray(values, float))
    mean = float(logs.mean()) if len(logs) else math.nan
    if len(logs) < 2:
        return math.exp(mean), math.nan, math.nan
    half = float(t.ppf(1 - alpha / 2, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs)))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def quantile_ladder(trials: pd.DataFrame, levels: Sequence[str], note: str = "") -> Figure:
    """The latency below which so many of a level's transactions stay, with intervals; on a log scale.

    ``trials``: ``level``, and the columns of :data:`QUANTILES` in ms. At most :data:`benchlib.report.figures.panels.FEW`
    levels. ``note`` ends the caption.
    """
    hands = looks(levels)
    found = {
        level: [
            interval_of_mean(trials.loc[trials["level"] == level, column].dropna().astype(float).tolist())
            for column in QUANTILES.values()
        ]
        for level in levels
    }
    ends = [value for rungs in found.values() for rung in rungs for value in rung if known(value)] or [1.0]

    def draw(canvas: Canvas) -> None:
        line, left = 1.35 * canvas.font, 4.6 * canvas.font
        places, top = key(canvas, {level: hand.sign for level, hand in hands.items()}, line)
        top, tall = top + line + 6, 190.0
        canvas.height(top + tall + 40)
        for level, (x, y, text) in places.items():
            canvas.text(x, y, text, color=hands[level].colour)
        canvas.note(0, top - line / 2 - 2, "latency, ms (log scale)")
        width = canvas.width - left - 8
        axes = canvas.axes(left, top, width, tall)
        axes.set(yscale="log", xlim=(-0.5, len(QUANTILES) - 0.5), ylim=(min(ends) / 1.3, max(ends) * 1.3))
        axes.set_yticks(log_ticks(min(ends) / 1.3, max(ends) * 1.3))
        axes.yaxis.set_major_formatter(plain)
        axes.minorticks_off()
        axes.set_xticks(range(len(QUANTILES)), list(QUANTILES))
        axes.grid(axis="y")
        axes.spines["left"].set_visible(False)
        for place, (level, hand) in enumerate(hands.items()):
            at = np.arange(len(QUANTILES)) + 0.11 * (place - (len(hands) - 1) / 2)
            middle, low, high = np.array(found[level]).T
            axes.plot(at, middle, color=hand.colour, linewidth=0.8, alpha=0.6)
            axes.vlines(at, low, high, color=hand.colour, linewidth=1.8)
            axes.plot(at, middle, hand.marker, color=hand.colour, markersize=5)
        canvas.note(left + width / 2, top + tall + 30, "share of transactions that were faster", ha="center")

    said = "; ".join(
        f"{level}: {', '.join(f'{name} {amount(r[0])} ms' for name, r in zip(QUANTILES, rungs, strict=True))}"
        for level, rungs in found.items()
    )
    return render(
        "latency-quantiles",
        draw,
        alt=f"Latency quantiles by level. {said}.",
        caption="p99 is the time that 99 % of a trial's transactions did not exceed. Marks: geometric means over the trials; bars: "
        "their 95 % intervals, which hold the host's drift between blocks too, unlike those of the verdicts."
        + (f" {note}" if note else ""),
    )


def latency_over_time(latencies: Mapping[Trial, Latency], levels: Sequence[str]) -> Figure:
    """How many transactions took how long, second by second, all trials of a level together.

    ``latencies`` by level and block, in windows of one second.
    """
    shares = {
        level: _shares([found for (of, _), found in latencies.items() if of == level]) for level in levels
    }
    told = [matrix for matrix in shares.values() if matrix is not None]
    seconds = max((matrix.shape[0] for matrix in told), default=1)
    step = max(math.ceil(seconds / _SPANS), 1)
    by_bin = sum((matrix.sum(axis=0) for matrix in told), np.zeros(len(EDGES_US)))
    instant = 100 * by_bin[0] / max(by_bin.sum(), 1)
    by_bin[0] = 0  # a log scale has no place for what is logged as 0
    used = np.flatnonzero(by_bin)
    first, last = (int(used[0]), int(used[-1])) if len(used) else (0, 1)
    edges_ms = np.array([*EDGES_US, 10 * EDGES_US[-1]]) / 1000

    def draw(canvas: Canvas) -> None:
        line = 1.35 * canvas.font
        grid = Grid(
            canvas,
            levels,
            columns=columns_for(canvas, len(levels)),
            tall=96.0 if canvas.narrow else 112.0,
            top=line,
            x_title="seconds since the load began",
        )
        canvas.note(0, line / 2, "latency, ms (log scale)")
        for number, level in enumerate(levels):
            matrix = shares[level]
            count = sum(of == level for of, _ in latencies)
            axes = grid.panel(number, f"{count} trial{'s' * (count != 1)}" if count else "no log was kept")
            low, high = edges_ms[first], edges_ms[last + 1]
            axes.set(yscale="log", xlim=(0, seconds), ylim=(low, high))
            axes.set_yticks(log_ticks(low, high, 5))
            axes.yaxis.set_major_formatter(plain)
            axes.minorticks_off()
            for shade, path in _shaded(matrix, step, edges_ms).items() if matrix is not None else ():
                axes.add_patch(PathPatch(path, facecolor=LIGHT["blue"], alpha=shade, linewidth=0))

    said = "; ".join(
        f"{level}: most transactions of a second took {_usual(matrix)}"
        for level, matrix in shares.items()
        if matrix is not None
    )
    return render(
        "latency-over-time",
        draw,
        alt=f"Latencies over {seconds} seconds, by level, on a log scale. {said or 'No log was kept'}.",
        caption="The stronger the colour, the larger the share of the transactions that ended "
        + (f"in those {step} seconds" if step > 1 else "in that second")
        + " and took so long; shades are on a log scale, so that single slow transactions show too."
        + (f" Not shown: {instant:.2g} % that pgbench logged as less than 10 µs." if instant else ""),
    )


def log_ticks(low: float, high: float, most: int = 8) -> list[float]:
    """Round values of a log scale, at most about so many: 1, 2, 5 of each decade, or the decades alone."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= most:
            break
    return ticks


def _shares(trials: Sequence[Latency]) -> NDArray[Any] | None:
    """Counts by second since each trial's first and by bin, all trials together; None where there are none."""
    counts = [trial.counts for trial in trials if len(trial.counts)]
    if not counts:
        return None
    total = np.zeros((max(map(len, counts)), len(EDGES_US)))
    for one in counts:
        total[: len(one)] += one
    return total


def _shaded(matrix: NDArray[Any], step: int, edges_ms: NDArray[Any]) -> dict[float, Path]:
    """The cells of each shade as one path, neighbours of one shade in a row as one cell: light to read and to load."""
    spans = np.add.reduceat(matrix, np.arange(0, len(matrix), step), axis=0)
    share = spans / np.maximum(spans.sum(axis=1, keepdims=True), 1)
    with np.errstate(divide="ignore"):
        depth = 1 - np.log10(np.maximum(share, 1e-300)) / math.log10(_RAREST)
    shade = np.where(spans > 0, np.clip(np.ceil(depth * _SHADES), 1, _SHADES), 0).astype(int)
    cells: dict[int, list[Path]] = {}
    for column, (low, high) in enumerate(pairwise(edges_ms.tolist())):
        if not column:
            continue
        row = shade[:, column]
        cuts = np.flatnonzero(np.diff(row, prepend=-1, append=-1))
        for start, stop in pairwise(cuts):
            if row[start]:
                x, end = int(start) * step, min(int(stop) * step, len(matrix))
                corners = [(x, low), (end, low), (end, high), (x, high), (x, low)]
                cells.setdefault(int(row[start]), []).append(Path(corners, closed=True))
    return {shade / _SHADES: Path.make_compound_path(*cells[shade]) for shade in sorted(cells)}


def _usual(matrix: NDArray[Any]) -> str:
    """The bin of the median of all transactions, in words."""
    total = matrix.sum(axis=0)
    place = int(np.searchsorted(np.cumsum(total), total.sum() / 2))
    return f"about {amount(float(EDGES_US[place]) / 1000)} ms"
