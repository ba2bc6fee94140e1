"""Throughput against the number of clients: where it stops growing, and at which level."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from benchlib.plan.metrics import metric_or_guess
from benchlib.report.figures.figure import Canvas, Figure, render
from benchlib.report.figures.frames import amount, axis_words, good, known, opening, plain
from benchlib.report.figures.latency import interval_of_mean
from benchlib.report.figures.panels import key, looks


def client_sweep(trials: pd.DataFrame, metric: str = "tps") -> Figure:
    """A curve per level over the number of clients, with 95 % intervals over the trials.

    ``trials``: ``clients, level``, the metric, and ``error`` where some failed; a row per trial. The levels are at
    most :data:`benchlib.report.figures.panels.FEW`, in the order of their first rows.
    """
    fine, measured = good(trials, metric), metric_or_guess(metric)
    levels = [str(level) for level in trials["level"].unique()]
    hands = looks(levels)
    clients = sorted(int(count) for count in trials["clients"].unique())
    curves: Mapping[str, dict[int, tuple[float, float, float]]] = {
        level: {
            count: interval_of_mean(rows.loc[rows["clients"] == count, metric].tolist())
            for count in sorted(rows["clients"].unique().tolist())
        }
        for level in levels
        for rows in [fine[fine["level"].astype(str) == level]]
    }
    ends = [value for curve in curves.values() for point in curve.values() for value in point if known(value)]

    def draw(canvas: Canvas) -> None:
        line, left = 1.35 * canvas.font, 5.2 * canvas.font
        signs = {level: hand.sign for level, hand in hands.items()} if len(levels) > 1 else {}
        places, top = key(canvas, signs, line)
        top, tall = top + line + 14, 190.0
        canvas.height(top + tall + 40)
        for level, (x, y, text) in places.items():
            canvas.text(x, y, text, color=hands[level].colour)
        canvas.note(0, top - line / 2 - 10, axis_words(measured))
        width = canvas.width - left - 12
        axes = canvas.axes(left, top, width, tall)
        pad = 1.12
        axes.set(
            xscale="log", xlim=(clients[0] / pad, clients[-1] * pad), ylim=(0, max(ends, default=1.0) * 1.06)
        )
        axes.minorticks_off()
        axes.set_xticks(_apart(clients, width / canvas.wide_as("0000")))
        axes.xaxis.set_major_formatter(plain)
        axes.yaxis.set_major_formatter(plain)
        axes.locator_params(axis="y", nbins=6)
        axes.grid(axis="y")
        axes.spines["left"].set_visible(False)
        for place, (level, hand) in enumerate(hands.items()):
            if not curves[level]:
                continue
            # intervals of several levels beside each other, by less than any two counts differ
            at = np.array(list(curves[level])) * 1.012 ** (place - (len(hands) - 1) / 2)
            middle, low, high = np.array(list(curves[level].values())).T
            axes.vlines(at, low, high, color=hand.colour, linewidth=1.8)
            axes.plot(at, middle, color=hand.colour, marker=hand.marker, markersize=5, linewidth=1.2)
        canvas.note(left + width / 2, top + tall + 30, "clients (log scale)", ha="center")

    said = "; ".join(
        f"{level}: {', '.join(f'{count} clients {amount(point[0])}' for count, point in curve.items()) or 'not measured'}"
        for level, curve in curves.items()
    )
    return render(
        f"clients-{metric}",
        draw,
        alt=f"{opening(axis_words(measured))} by number of clients. {said}.",
        caption="Marks: geometric means over the trials; bars: their 95 % intervals, the host's drift between blocks included."
        + (f" Of {len(levels)} curves the first {len(hands)} are drawn." if len(levels) > len(hands) else ""),
    )


def _apart(clients: list[int], most: float) -> list[int]:
    """The counts that have room for a label on a log scale, the last one among them."""
    gap = (np.log(clients[-1]) - np.log(clients[0])) / max(most, 1)
    kept = [clients[-1]]
    for count in reversed(clients[:-1]):
        if np.log(kept[-1]) - np.log(count) >= gap:
            kept.append(count)
    return kept[::-1]
