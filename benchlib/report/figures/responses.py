"""How a metric responds: to the number of clients, to the values of a setting; and the quantiles of latency."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator

from benchlib.plan.metrics import METRICS, Metric, metric_or_guess
from benchlib.plan.words import size_words
from benchlib.report.figures.figure import Figure, render
from benchlib.report.figures.forms import curves
from benchlib.report.figures.frames import amount, axis_words, good, interval, known, opening, plain, signed
from benchlib.report.figures.layout import WIDTH, canvas, log_axis, percent_axis, styled, width_of, write
from benchlib.report.figures.style import BAND, INK, MUTED, PAPER, looks
from benchlib.stats import Analysis
from benchlib.stats.means import geometric_mean

QUANTILES = {
    "p50": "latency_p50_ms",
    "p95": "latency_p95_ms",
    "p99": "latency_p99_ms",
    "p99.9": "latency_p999_ms",
}
"""What a quantile is called on the axis, and its column in the frame of trials."""

_FAR = 8.0  # from this quotient of the largest by the smallest on, values are spread by multiples
_ENDS = ["low", "high", "least", "most"]


def _points(trials: pd.DataFrame, by: list[str], metric: str) -> pd.DataFrame:
    """The geometric mean of each group's trials with its interval, as `curves` wants it."""
    rows = [
        (*group, *geometric_mean(values.dropna().astype(float).tolist()))
        for group, values in trials.groupby(by, sort=False)[metric]
    ]
    return pd.DataFrame(rows, columns=["series", "x", "value", "low", "high"])


def _in_words(points: pd.DataFrame, levels: Sequence[str], word: Callable[[Any], str]) -> str:
    """The curves' means for the alt text."""
    return "; ".join(
        f"{level}: {', '.join(map(word, of.itertuples())) or 'not measured'}"
        for level in levels
        for of in [points[points["series"] == level]]
    )


def _value_axis(axes: Axes, labels: Mapping[float, str]) -> str:
    """The horizontal axis of these values, labelled where there is room; returns what its title adds.

    Values that differ by multiples are spread by them; 0 has no logarithm, and stands apart on the left.
    """
    values = np.array(list(labels))
    positive, title = values[values > 0], ""
    if len(positive) > 1 and positive[-1] / positive[0] >= _FAR and values[0] >= 0:
        title = " (log scale)" if values[0] else " (log scale, 0 apart)"
        apart: dict[str, Any] = {} if values[0] else {"linthresh": positive[0], "linscale": 0.5}
        axes.set_xscale("symlog" if apart else "log", **apart)
    to_axis = axes.xaxis.get_transform()
    first, last = to_axis.transform(values[[0, -1]])
    pad = 0.06 * (last - first) or 0.1
    axes.set_xlim(*to_axis.inverted().transform([first - pad, last + pad]))
    axes.set_xticks(values, _with_room(axes, labels))
    axes.xaxis.set_minor_locator(NullLocator())
    return title


def _with_room(axes: Axes, texts: Mapping[float, str]) -> list[str]:
    """The texts at these values from left to right; empty where one would touch the one before."""
    low, *places, high = axes.xaxis.get_transform().transform(
        [axes.get_xlim()[0], *texts, axes.get_xlim()[1]]
    )
    kept, free = [], -np.inf
    for place, text in zip(places, texts.values(), strict=True):
        middle, half = (place - low) / (high - low) * (WIDTH - 70), width_of(text) / 2
        kept.append(text if middle - half >= free else "")
        free = middle + half + 5 if kept[-1] else free
    return kept


@styled
def quantile_ladder(trials: pd.DataFrame, levels: Sequence[str], note: str = "") -> Figure:
    """The latency below which so many of a level's transactions stay, with intervals; on a log scale.

    ``trials``: ``level``, and the columns of :data:`QUANTILES` in ms. At most :data:`benchlib.report.figures.style.FEW`
    levels. ``note`` ends the caption.
    """
    place = {column: number for number, column in enumerate(QUANTILES.values())}
    long = trials[trials["level"].isin(levels)].melt("level", [*place], "quantile", "ms")
    points = _points(long.assign(x=long["quantile"].map(place)), ["level", "x"], "ms")
    hands = looks(levels)
    drawing = canvas(240, hands)
    axes = drawing.subplots()
    curves(axes, points, hands, 7.0)
    ends = points[["value", "low", "high"]].to_numpy(float)
    log_axis(axes, "y", np.nanmin(ends) / 1.3, np.nanmax(ends) * 1.3)
    axes.set(xlabel="share of transactions that were faster", ylabel="latency, ms (log scale)")
    axes.set(xlim=(-0.5, len(QUANTILES) - 0.5))
    axes.set_xticks(range(len(QUANTILES)), list(QUANTILES))
    return render(
        "latency-quantiles",
        drawing,
        alt="Latency quantiles by level. "
        + _in_words(points, levels, lambda point: f"{list(QUANTILES)[point.x]} {amount(point.value)} ms")
        + ".",
        caption="p99 is the time that 99 % of a trial's transactions did not exceed. Marks: geometric means over the trials; bars: "
        "their 95 % intervals, which hold the host's drift between blocks too, unlike those of the verdicts."
        + (f" {note}" if note else ""),
    )


@styled
def client_sweep(trials: pd.DataFrame, metric: str = "tps") -> Figure:
    """A curve per level over the number of clients, with 95 % intervals over the trials.

    ``trials``: ``clients, level``, the metric, and ``error`` where some failed; a row per trial. The levels are at
    most :data:`benchlib.report.figures.style.FEW`, in the order of their first rows.
    """
    measured, levels = metric_or_guess(metric), [str(level) for level in trials["level"].unique()]
    clients = sorted(int(count) for count in trials["clients"].unique())
    fine = good(trials.assign(level=trials["level"].astype(str)), metric).sort_values(
        "clients", kind="stable"
    )
    points, hands = _points(fine, ["level", "clients"], metric), looks(levels)
    drawing = canvas(250, hands if len(levels) > 1 else None)
    axes = drawing.subplots()
    curves(axes, points, hands)
    axes.set(
        ylabel=axis_words(measured), xlabel="clients" + _value_axis(axes, {n: plain(n) for n in clients})
    )
    axes.set_ylim(0, 1.06 * np.nanmax(points[["value", "high"]].to_numpy(float), initial=1e-9))
    axes.yaxis.set_major_formatter(plain)
    return render(
        f"clients-{metric}",
        drawing,
        alt=f"{opening(axis_words(measured))} by number of clients. "
        + _in_words(points, levels, lambda point: f"{point.x} clients {amount(point.value)}")
        + ".",
        caption="Marks: geometric means over the trials; bars: their 95 % intervals, the host's drift between blocks included."
        + (f" Of {len(levels)} curves the first {len(hands)} are drawn." if len(levels) > len(hands) else ""),
    )


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


@styled
def setting_curve(
    bends: Sequence[Curve],
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
    :data:`benchlib.report.figures.style.FEW` curves. ``rule`` says in the caption how the knee was found.
    """
    metric, margin = analysis.metric.title, 100 * analysis.margin
    hands = looks([curve.name for curve in bends])
    points = pd.concat([curve.points.assign(series=curve.name) for curve in bends])
    points = points.rename(columns={"value": "x", "change": "value"})
    labels = {value: value_words(value) for value in sorted(points["x"].unique().tolist())}
    units = {name: _readable(METRICS[name], float(points[name].max())) for name in mechanisms}
    drawing = canvas(250 + 90 * len(units), hands if len(bends) > 1 else None)
    grid = drawing.subplots(
        1 + len(units), 1, sharex=True, squeeze=False, height_ratios=[2.8, *[1] * len(units)]
    )
    axes, *below = grid[:, 0]
    percents = points[["value", "low", "high", "least", "most"]].to_numpy(float)
    unit = percent_axis(axes, "y", [*percents.flat, -1.2 * margin, 1.2 * margin])
    axes.axhspan(-margin, margin, color=BAND, linewidth=0, zorder=0.5)
    axes.axhline(0, color=INK, linewidth=1, zorder=1.5)
    curves(axes, points, hands)
    axes.set_title(f"change of {metric}{unit}", fontweight="normal", color=MUTED)
    for panel, (name, (title, divisor)) in zip(below, units.items(), strict=True):
        bare = points.assign(value=points[name] / divisor, low=np.nan, high=np.nan)
        curves(panel, bare.drop(columns=["least", "most"]), hands)
        panel.set_title(opening(title), fontweight="normal", color=MUTED)
        panel.set_ylim(0, 1.15 * float(bare["value"].max()) or 1.0)
        panel.yaxis.set_major_locator(MaxNLocator(3))
        panel.yaxis.set_major_formatter(plain)
    grid[-1, 0].set_xlabel(setting + _value_axis(axes, labels))
    for curve in bends:
        if curve.knee is not None:
            change = curve.points.set_index("value")["change"][curve.knee]
            axes.plot(curve.knee, change, "o", markersize=13, markerfacecolor="none", markeredgecolor=INK)
            for panel in grid[:, 0]:
                panel.axvline(curve.knee, color=MUTED, linewidth=0.8, linestyle=(0, (2, 3)), zorder=0.8)
    if len(bends) == 1:
        texts = {
            x: signed(change, unit="") if change else ""
            for x, change in zip(points["x"], points["value"], strict=True)
        }
        for (x, text), highest in zip(
            zip(texts, _with_room(axes, texts), strict=True), np.nanmax(percents, axis=1), strict=True
        ):
            paper = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.6}
            write(axes, text, (x, highest), (0, 9), ha="center", bbox=paper if text else None)
    lead = f"change of {metric} by {setting} against {reference}"
    return render(
        f"curve-{setting}",
        drawing,
        alt=f"{opening(lead)}. {' '.join(_curve_in_words(curve, labels, units) for curve in bends)}",
        caption=f"Marks: {lead}; dark bars: {100 * (1 - analysis.alpha):.3g} % intervals of the block model, adjusted for the number of levels; light ones: "
        f"the range of single trials against their own blocks. Shaded: ±{margin:g} %. {rule} "
        + " ".join(curve.words for curve in bends),
    )


def _readable(metric: Metric, highest: float) -> tuple[str, float]:
    """A mechanism's title with a unit that suits its highest figure, and what figures are divided by."""
    size = {"B": 1, "KiB": 1024}.get(metric.unit)
    if size is None or not known(highest):
        return f"{metric.title}, {metric.unit}".removesuffix(", "), 1.0
    number, unit = size_words(int(highest * size)).split("\u00a0")
    return f"{metric.title}, {unit}", highest / float(number) if float(number) else 1.0


def _curve_in_words(curve: Curve, labels: Mapping[float, str], units: Mapping[str, tuple[str, float]]) -> str:
    points = []
    for point in curve.points.to_dict("records"):
        text = f"{labels[point['value']]} {signed(point['change'], unit=' %')}"
        if known(point["low"], point["high"]):
            text += f" {interval(point['low'], point['high'])}"
        points.append(
            text
            + "".join(
                f", {title} {amount(point[name] / divisor)}" for name, (title, divisor) in units.items()
            )
        )
    return f"{curve.name}{': ' if curve.name else ''}{'; '.join(points)}. {curve.words}"
