"""A metric over the values of one setting: where the curve bends, and below it what bends it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from benchlib.plan.metrics import METRICS, Metric
from benchlib.plan.words import size_words
from benchlib.report.figures.figure import Canvas, Figure, render
from benchlib.report.figures.frames import amount, interval, known, opening, plain, signed
from benchlib.report.figures.panels import Look, key, looks
from benchlib.report.figures.scale import Scale, scale_for, tick_words
from benchlib.report.figures.style import BAND, INK, MUTED, PAPER
from benchlib.stats import Analysis

_FAR = 8.0  # from this quotient of the largest by the smallest on, values are spread by multiples
_PADDED = 1.12  # how much longer the axis is than the range of values
_SHOWN = ["change", "low", "high", "least", "most"]
_TALL, _SMALL = 180.0, 62.0  # points of height


@dataclass(frozen=True)
class Curve:
    """Levels that differ in one value alone.

    ``points``, by rising ``value``: ``change, low, high`` (against the reference, with its interval; percent; the reference's
    own change is 0 and has no interval), ``least, most`` (single trials against their blocks), and of each mechanism the mean.
    ``knee`` is the value at which the curve bends, None where it does not inside its range; ``words`` say so.
    """

    name: str
    points: pd.DataFrame
    knee: float | None
    words: str


def setting_curve(
    curves: Sequence[Curve],
    setting: str,
    *,
    analysis: Analysis,
    reference: str,
    mechanisms: Sequence[str],
    value_words: Callable[[float], str],
    rule: str,
) -> Figure:
    """The change of the metric over the values of ``setting``, a curve each, and a small panel for each mechanism.

    ``reference`` names what the changes are against, ``mechanisms`` are metrics; there are at most
    :data:`benchlib.report.figures.panels.FEW` curves. ``rule`` says in the caption how the knee was found.
    """
    words, margin = analysis.metric.title, analysis.margin
    hands = looks([curve.name for curve in curves])
    values = sorted({float(value) for curve in curves for value in curve.points["value"]})
    at, spread = _positions(values)
    ends = np.concatenate([curve.points[_SHOWN].to_numpy(float).ravel() for curve in curves])
    scale = scale_for([*ends, 120 * margin, -120 * margin])
    units = {name: _readable(METRICS[name], max(c.points[name].max() for c in curves)) for name in mechanisms}

    def draw(canvas: Canvas) -> None:
        line, left = 1.35 * canvas.font, 5.2 * canvas.font
        signs = {name: hand.sign for name, hand in hands.items()} if len(curves) > 1 else {}
        places, top = key(canvas, signs, line)
        top += line + 6
        gap = 1.6 * line + 8
        canvas.height(top + _TALL + len(mechanisms) * (_SMALL + gap) + 40)
        for name, (x, y, text) in places.items():
            canvas.text(x, y, text, color=hands[name].colour)
        canvas.note(0, top - line / 2 - 2, f"change of {words}, %" + (" (log scale)" if scale.log else ""))
        width = canvas.width - left - 14
        axes = canvas.axes(left, top, width, _TALL)
        _dress_changes(axes, scale, margin)
        panels = [axes]
        for number, name in enumerate(mechanisms):
            below = top + _TALL + number * (_SMALL + gap) + gap
            canvas.note(0, below - line / 2 - 2, opening(units[name].title))
            panels.append(canvas.axes(left, below, width, _SMALL))
            highest = max(float(curve.points[name].max()) for curve in curves)
            panels[-1].set_ylim(0, 1.15 * highest / units[name].divisor or 1.0)
            panels[-1].locator_params(axis="y", nbins=3)
            panels[-1].yaxis.set_major_formatter(plain)
        point = _PADDED * (at[values[-1]] - at[values[0]]) / width
        labels = {value: value_words(value) for value in values}
        ticks = _with_room([at[v] for v in values], [canvas.wide_as(labels[v]) for v in values], point)
        for panel in panels:
            _dress(panel, at, [values[tick] for tick in ticks] if panel is panels[-1] else [], labels)
        for place, curve in enumerate(curves):
            # beside each other, by less than any two values are apart
            aside = 0.012 * (at[values[-1]] - at[values[0]]) * (place - (len(curves) - 1) / 2)
            marks = [at[float(value)] + aside for value in curve.points["value"]]
            _trace(panels, curve, hands[curve.name], marks, scale, units)
            if len(curves) == 1:
                _write(canvas, axes, curve, marks, scale, point)
        canvas.note(left + width / 2, canvas.fig.get_figheight() * 72 - 10, setting + spread, ha="center")

    lead = f"change of {words} by {setting} against {reference}"
    return render(
        f"curve-{setting}",
        draw,
        alt=f"{opening(lead)}. {' '.join(_spoken(curve, value_words, units) for curve in curves)}",
        caption=f"Marks: {lead}; dark bars: {100 * (1 - analysis.alpha):.3g} % intervals of the block model, adjusted for the number of levels; light ones: "
        f"the range of single trials against their own blocks. Shaded: ±{100 * margin:g} %. {rule} "
        + " ".join(curve.words for curve in curves),
    )


@dataclass(frozen=True)
class _Unit:
    """In which unit a mechanism is shown: its figures are divided by ``divisor``."""

    title: str
    divisor: float


def _readable(metric: Metric, highest: float) -> _Unit:
    """A unit that suits the highest figure."""
    size = {"B": 1, "KiB": 1024}.get(metric.unit)
    if size is None or not known(highest):
        return _Unit(f"{metric.title}, {metric.unit}".removesuffix(", "), 1.0)
    number, unit = size_words(int(highest * size)).split("\u00a0")
    return _Unit(f"{metric.title}, {unit}", highest / float(number) if float(number) else 1.0)


def _positions(values: Sequence[float]) -> tuple[dict[float, float], str]:
    """Where each value lies on the axis, and what to say of it; 0 has no logarithm, and stands apart on the left."""
    positive = [value for value in values if value > 0]
    if len(positive) < 2 or positive[-1] / positive[0] < _FAR or values[0] < 0:
        return {value: value for value in values}, ""
    at = {value: math.log(value) for value in positive}
    if values[0] == 0:
        step = (at[positive[-1]] - at[positive[0]]) / (len(positive) - 1)
        return {0.0: at[positive[0]] - step, **at}, " (log scale, 0 apart)"
    return at, " (log scale)"


def _with_room(x: Sequence[float], widths: Sequence[float], point: float) -> list[int]:
    """Which texts of these widths in points, from the left, stand free of each other around ``x``; a ``point`` is so much of x."""
    kept: list[int] = []
    for i in range(len(x)):
        if not kept or x[i] - x[kept[-1]] >= ((widths[i] + widths[kept[-1]]) / 2 + 4) * point:
            kept.append(i)
    return kept


def _trace(
    panels: Sequence[Axes],
    curve: Curve,
    look: Look,
    at: Sequence[float],
    scale: Scale,
    units: Mapping[str, _Unit],
) -> None:
    """A curve in the large panel, and what it goes with in the small ones."""
    points = curve.points
    change, low, high, least, most = ([scale(value) for value in points[name]] for name in _SHOWN)
    panels[0].vlines(at, least, most, color=look.colour, alpha=0.22, linewidth=8)
    panels[0].vlines(at, low, high, color=look.colour, linewidth=1.8)
    panels[0].plot(at, change, color=look.colour, marker=look.marker, markersize=5, linewidth=1.2)
    for panel, (name, unit) in zip(panels[1:], units.items(), strict=True):
        y = points[name] / unit.divisor
        panel.plot(at, y, color=look.colour, marker=look.marker, markersize=4, linewidth=1.2)
    if curve.knee is not None:
        bend = points["value"].tolist().index(curve.knee)
        ring: dict[str, Any] = {
            "marker": "o",
            "markersize": 13,
            "markerfacecolor": "none",
            "markeredgecolor": INK,
        }
        panels[0].plot(at[bend], change[bend], **ring)
        for panel in panels:
            panel.axvline(at[bend], color=MUTED, linewidth=0.8, linestyle=(0, (2, 3)), zorder=0.8)


def _write(canvas: Canvas, axes: Axes, curve: Curve, x: Sequence[float], scale: Scale, point: float) -> None:
    """The changes above their marks, where there is room; the reference has none to tell."""
    changes = [float(change) for change in curve.points["change"]]
    texts = [signed(change, unit="") if change else "" for change in changes]
    ground: dict[str, Any] = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.6}
    for i in _with_room(x, [canvas.wide_as(text) for text in texts], point):
        above = scale(np.nanmax(curve.points.loc[i, _SHOWN].to_numpy(float)))
        if texts[i]:
            axes.annotate(
                texts[i],
                (x[i], above),
                (0, 6),
                textcoords="offset points",
                ha="center",
                fontsize=canvas.font,
                bbox=ground,
            )


def _dress(
    axes: Axes, at: Mapping[float, float], ticks: Sequence[float], labels: Mapping[float, str]
) -> None:
    low, high = min(at.values()), max(at.values())
    pad = (_PADDED - 1) / 2 * (high - low)
    axes.set_xlim(low - pad, high + pad)
    axes.set_xticks([at[value] for value in at], [labels[value] if value in ticks else "" for value in at])
    axes.grid(axis="y")
    axes.spines["left"].set_visible(False)


def _dress_changes(axes: Axes, scale: Scale, margin: float) -> None:
    low, high = scale(scale.low), scale(scale.high)
    axes.set_ylim(low, high + 0.08 * (high - low))
    ticks = [tick for tick in scale.ticks(2 * _TALL) if scale.low <= tick <= scale.high]
    axes.set_yticks([scale(tick) for tick in ticks], [tick_words(tick) for tick in ticks])
    axes.axhspan(scale(-100 * margin), scale(100 * margin), color=BAND, linewidth=0, zorder=0.5)
    axes.axhline(0, color=INK, linewidth=1, zorder=1.5)


def _spoken(curve: Curve, value_words: Callable[[float], str], units: Mapping[str, _Unit]) -> str:
    """A curve in words for the alt text."""
    said = []
    for point in curve.points.to_dict("records"):
        text = f"{value_words(point['value'])} {signed(point['change'], unit=' %')}"
        if known(point["low"], point["high"]):
            text += f" {interval(point['low'], point['high'])}"
        for name, unit in units.items():
            text += f", {unit.title} {amount(point[name] / unit.divisor)}"
        said.append(text)
    return f"{curve.name}{': ' if curve.name else ''}{'; '.join(said)}. {curve.words}"
