"""How a metric responds: to the number of clients, and to a setting's values; and the quantiles of latency."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator

from benchlib.plan.metrics import METRICS, Metric, metric_or_guess, percent_words
from benchlib.plan.words import size_words
from benchlib.report.figures.figure import Figure, render
from benchlib.report.figures.forms import curves
from benchlib.report.figures.frames import (
    amount,
    axis_words,
    extremes,
    finding,
    good,
    known,
    opening,
    plain,
    short,
    signed,
)
from benchlib.report.figures.layout import (
    canvas,
    entitle,
    log_axis,
    percent_axis,
    places_axis,
    styled,
    value_axis,
)
from benchlib.report.figures.style import BAND, INK, MUTED, Look, looks
from benchlib.stats import Analysis
from benchlib.stats.means import geometric_mean

QUANTILES = {
    "p50": "latency_p50_ms",
    "p95": "latency_p95_ms",
    "p99": "latency_p99_ms",
    "p99.9": "latency_p999_ms",
}
"""What a quantile is called on the axis, and its column in the frame of trials."""

Words = Callable[[float], str]
_ENDS = ["value", "low", "high"]
_MARKS = "Geometric means over the trials; bars: 95 % intervals, which hold the host's drift."


def _points(trials: pd.DataFrame, x: str, metric: str) -> pd.DataFrame:
    """The geometric mean of a level's trials at each `x`, with its interval, as `curves` wants it."""
    rows = [
        (*group, *geometric_mean(values.dropna().astype(float).tolist()))
        for group, values in trials.groupby(["level", x], sort=False)[metric]
    ]
    return pd.DataFrame(rows, columns=["series", "x", *_ENDS])


@styled
def quantile_ladder(trials: pd.DataFrame, levels: Sequence[str], note: str = "") -> Figure:
    """The latency below which so many of a level's transactions stay, with intervals; on a log scale.

    ``trials``: ``level``, and the columns of :data:`QUANTILES` in ms. At most :data:`benchlib.report.figures.style.FEW`
    levels. ``note`` ends the caption.
    """
    names, place = [*QUANTILES], {column: number for number, column in enumerate(QUANTILES.values())}
    long = trials[trials["level"].isin(levels)].melt("level", [*place], "x", "ms")
    points, hands = _points(long.assign(x=long["x"].map(place)), "x", "ms"), looks(levels)
    drawing = canvas(240, hands)
    axes = drawing.subplots()
    curves(axes, points, hands, lambda place: names[int(place)], apart=7.0)
    ends = points[_ENDS].to_numpy(float)
    log_axis(axes, "y", np.nanmin(ends) / 1.3, np.nanmax(ends) * 1.3)
    axes.set(xlabel="share of transactions that were faster", ylabel="latency, ms (log scale)")
    axes.set(xlim=(-0.5, len(names) - 0.5))
    axes.set_xticks(range(len(names)), names)
    points["x"] = points["x"].map(dict(enumerate(names)))
    p99 = points[points["x"] == "p99"].set_index("series")["value"]
    title = f"Latency, p99: {extremes(p99, ' ms') or 'not known'}"
    return render("latency-quantiles", drawing, title, f"{_MARKS} {note}".rstrip(), points)


@styled
def client_sweep(trials: pd.DataFrame, metric: str = "tps", name: str = "") -> Figure:
    """A curve per level over the number of clients, with 95 % intervals over the trials.

    ``trials``: ``clients, level``, the metric, and ``error`` where some failed; a row per trial. The levels are at
    most :data:`benchlib.report.figures.style.FEW`, in the order of their first rows. ``name`` is what it is of, where there are several.
    """
    measured, levels = metric_or_guess(metric), trials["level"].unique().tolist()
    hands = looks(levels)
    fine = good(trials, metric).sort_values("clients", kind="stable")
    points = _points(fine[fine["level"].isin([*hands])], "clients", metric)
    drawing, axes = _over_clients(points, hands, trials["clients"].unique())
    ends = pd.Series(points[_ENDS].to_numpy(float).ravel())
    scale = value_axis(axes, ends, points.groupby("series")["value"].max())
    axes.set(ylabel=axis_words(measured) + scale)
    best = points.loc[points.groupby("series", sort=False)["value"].idxmax()].to_dict("records")
    peaks = [f"{plain(row['x'])} clients" + f" ({short(row['series'])})" * (len(best) > 1) for row in best]
    caption = _MARKS
    if len(levels) > len(hands):
        caption += f" Of {len(levels)} curves the first {len(hands)} are drawn."
    title = f"Highest {measured.title}{f' of {name}' if name else ''}: {peaks[0] if peaks else 'not known'}"
    title = finding(title, *(f", {peak}" for peak in peaks[1:]))
    return render(
        f"clients-{name or metric}", drawing, title, caption, points.rename(columns={"x": "clients"})
    )


@styled
def change_by_clients(changes: pd.DataFrame, metric: Metric) -> Figure:
    """What a change brings at each number of clients: a curve for each series, with the verdicts' intervals.

    ``changes``: ``series, x`` (clients), ``value, low, high`` (percent), and ``against``, what it is compared with.
    """
    changes = changes.dropna(subset="value").sort_values("x", kind="stable")
    hands = looks(list(changes["series"].unique()))
    changes = changes[changes["series"].isin([*hands])]
    drawing, axes = _over_clients(changes, hands, changes["x"].unique(), signed)
    axes.set(ylabel=f"change of {metric.title}{percent_axis(axes, 'y', changes[_ENDS].to_numpy().flat)}")
    axes.axhline(0, color=INK, linewidth=1, zorder=1.5)
    ranges = [f"{short(name)}: {_range(changes[changes['series'] == name])}" for name in hands]
    title, others = finding(ranges[0], *(f"; {each}" for each in ranges[1:])), changes["against"].unique()
    caption = f"Against {' and '.join(others)} with as many clients. Bars: adjusted intervals."
    return render("change-by-clients", drawing, title, caption, changes.rename(columns={"x": "clients"}))


def _range(changes: pd.DataFrame) -> str:
    """The smallest and the largest of some changes: `+127 % to +167 %`."""
    ends = changes.sort_values("value").iloc[[0, -1]][_ENDS].to_numpy(float)
    return " to ".join(dict.fromkeys(percent_words(*row)[0] for row in ends))


def _over_clients(
    points: pd.DataFrame, hands: Mapping[str, Look], clients: Iterable[int], value_words: Words = amount
) -> tuple[Drawing, Axes]:
    """Curves over the number of clients."""
    drawing = canvas(250, hands if len(hands) > 1 else None)
    axes = drawing.subplots()
    curves(axes, points, hands, lambda count: f"{plain(count)} clients", value_words)
    axes.set(xlabel="clients" + places_axis(axes, {n: plain(n) for n in sorted(clients)}))
    return drawing, axes


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
    bends: Sequence[Curve], setting: str, *, analysis: Analysis, reference: str, value_words: Words
) -> Figure:
    """The change of the metric over the values of ``setting``, a curve each, and a small panel for each mechanism.

    ``reference`` names what the changes are against; there are at most :data:`benchlib.report.figures.style.FEW` curves.
    """
    metric, margin = analysis.metric.title, 100 * analysis.margin
    hands = looks([curve.name for curve in bends])
    points = pd.concat([curve.points.assign(series=curve.name) for curve in bends])
    points = points.rename(columns={"value": "x", "change": "value"})
    mechanisms = [str(name) for name in points if name in METRICS]
    drawing = canvas(250 + 90 * len(mechanisms), hands if len(bends) > 1 else None)
    heights = [2.8, *[1.0] * len(mechanisms)]
    grid = drawing.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
    axes, *below = grid[:, 0]
    percents = points[[*_ENDS, "least", "most"]].to_numpy()
    unit = percent_axis(axes, "y", [*percents.flat, -1.2 * margin, 1.2 * margin])
    axes.axhspan(-margin, margin, color=BAND, linewidth=0, zorder=0.5)
    axes.axhline(0, color=INK, linewidth=1, zorder=1.5)
    entitle(axes, "", f"change of {metric}{unit}")
    curves(axes, points, hands, value_words, signed)
    for panel, name in zip(below, mechanisms, strict=True):
        heading, divisor = _readable(METRICS[name], float(points[name].max()))
        bare = points.assign(value=points[name] / divisor, low=np.nan, high=np.nan)
        entitle(panel, "", opening(heading))
        curves(panel, bare.drop(columns=["least", "most"]), hands, value_words)
        panel.set_ylim(0, 1.15 * float(bare["value"].max()) or 1.0)
        panel.yaxis.set_major_locator(MaxNLocator(3))
        panel.yaxis.set_major_formatter(plain)
    values = sorted(points["x"].unique().tolist())
    grid[-1, 0].set_xlabel(setting + places_axis(axes, {value: value_words(value) for value in values}))
    for curve in bends:
        if curve.knee is not None:
            change = curve.points.set_index("value")["change"][curve.knee]
            axes.plot(curve.knee, change, "o", markersize=13, markerfacecolor="none", markeredgecolor=INK)
            for panel in grid[:, 0]:
                panel.axvline(curve.knee, color=MUTED, linewidth=0.8, linestyle=(0, (2, 3)), zorder=0.8)
    knees = [curve.words.partition(";")[0].rstrip(".") for curve in bends]
    title = finding(knees[0], *(f"; {knee}" for knee in knees[1:]))
    caption = (
        f"Against {reference}. Dark bars: adjusted {100 * (1 - analysis.alpha):.3g} % intervals; light: trials; shaded: ±{margin:g} %. "
        f"Ring: no larger value beats it by more than {margin:g} %. {' '.join(curve.words for curve in bends)}"
    )
    return render(f"curve-{setting}", drawing, title, caption, points.rename(columns={"x": setting}))


def _readable(metric: Metric, highest: float) -> tuple[str, float]:
    """A mechanism's title with a unit that suits its highest figure, and what figures are divided by."""
    size = {"B": 1, "KiB": 1024}.get(metric.unit)
    if size is None or not known(highest):
        return axis_words(metric), 1.0
    number, unit = size_words(int(highest * size)).split("\u00a0")
    return f"{metric.title}, {unit}", highest / float(number) if float(number) else 1.0
