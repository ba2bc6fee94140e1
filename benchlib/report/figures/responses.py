"""How a metric responds: to the number of clients, and to a setting's values; and the quantiles of latency."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.transforms import offset_copy

from benchlib.plan.metrics import confidence_words, described, percent_words
from benchlib.report.figures.figure import Figure, render
from benchlib.report.figures.frames import amount, extremes, finding, good, known, short, signed, span
from benchlib.report.figures.layout import change_axis, panels, places_axis, styled, tell, value_axis
from benchlib.report.figures.style import BAND, INK, Look, looks
from benchlib.stats import Analysis
from benchlib.stats.descriptive import geometric_mean

QUANTILES = {
    "p50": "latency_p50_ms",
    "p95": "latency_p95_ms",
    "p99": "latency_p99_ms",
    "p99.9": "latency_p999_ms",
}
"""What a quantile is called on the axis, and its column in the frame of trials."""

Words = Callable[[float], str]
Labels = Mapping[float, str]
"""What the places of curves are called, by rising place."""
_ENDS = ["value", "low", "high"]
_MARKS = "Geometric means over the trials; bars: 95 % intervals, which include the host's drift."


def _points(trials: pd.DataFrame, x: str, metric: str) -> pd.DataFrame:
    """The geometric mean of a level's trials at each `x`, with its interval."""
    rows = [
        (*group, *geometric_mean(values.dropna().astype(float).tolist()))
        for group, values in trials.groupby(["level", x], sort=False)[metric]
    ]
    return pd.DataFrame(rows, columns=["series", "x", *_ENDS]).sort_values("x", kind="stable")


def _curves(
    points: pd.DataFrame, hands: Mapping[str, Look], x: str, labels: Labels, value_words: Words = amount
) -> tuple[Drawing, Axes]:
    """A curve with intervals for each series, its marks a little beside those of the next; `x` is what the places are of.

    `points`: `series, x, value, low, high`.
    """
    import seaborn as sns  # takes long to import, and only these charts need it

    drawing, (axes,) = panels([("", "")], 260, keyed=hands if len(hands) > 1 else {})
    for place, (name, look) in enumerate(hands.items()):
        of = points[points["series"] == name]
        aside = 5 * place - 2.5 * (len(hands) - 1)
        moved = offset_copy(axes.transData, axes.get_figure(root=True), x=aside, units="points")
        style: dict[str, Any] = {"color": look.colour, "transform": moved}
        axes.vlines(of["x"], of["low"], of["high"], linewidth=1.8, **style)
        style |= {"marker": look.marker, "markersize": 6}
        sns.lineplot(of, x="x", y="value", estimator=None, ax=axes, **style)
        for at, value, *ends in of.dropna(subset="value")[["x", *_ENDS]].to_numpy(float):
            bounds = f" ({' to '.join(map(value_words, ends))})" if known(*ends) else ""
            style = {"color": "none", "markersize": 15, "markeredgewidth": 0, "zorder": 5}
            (reach,) = axes.plot(at, value, "o", transform=moved, **style)
            tell(reach, f"{name} {x} {labels[at]}: {value_words(value)}{bounds}".strip())
    axes.set(xlabel=x + places_axis(axes, labels), ylabel="")
    return drawing, axes


@styled
def quantile_ladder(trials: pd.DataFrame, levels: Sequence[str], note: str = "") -> Figure:
    """The latency below which so many of a level's transactions stay, with intervals.

    ``trials``: ``level``, and the columns of :data:`QUANTILES` in ms. At most :data:`benchlib.report.figures.style.FEW`
    levels. ``note`` ends the caption.
    """
    names: Labels = dict(enumerate(QUANTILES))
    place = {column: number for number, column in enumerate(QUANTILES.values())}
    long = trials[trials["level"].isin(levels)].melt("level", [*place], "x", "ms")
    points = _points(long.assign(x=long["x"].map(place)), "x", "ms")
    drawing, axes = _curves(points, looks(levels), "quantile", names)
    ends = pd.Series(points[_ENDS].to_numpy(float).ravel())
    axes.set(ylabel=f"latency, ms{value_axis(axes, ends, ends)}")
    points["x"] = points["x"].map(names)
    p99 = points[points["x"] == "p99"].set_index("series")["value"]
    title = f"Latency, p99: {extremes(p99, ' ms') or 'not known'}"
    return render("latency-quantiles", drawing, title, f"{_MARKS} {note}".rstrip(), points)


@styled
def client_sweep(trials: pd.DataFrame, metric: str = "tps", name: str = "") -> Figure:
    """A curve per level over the number of clients, with 95 % intervals over the trials.

    ``trials``: ``clients, level``, the metric and ``error``; a row per trial. The levels are at
    most :data:`benchlib.report.figures.style.FEW`, in the order of their first rows. ``name`` is what it is of, where there are several.
    """
    measured, levels = described(metric), trials["level"].unique().tolist()
    hands, fine = looks(levels), good(trials, metric)
    points = _points(fine[fine["level"].isin([*hands])], "clients", metric)
    labels = {count: amount(count) for count in sorted(trials["clients"].unique())}
    drawing, axes = _curves(points, hands, "clients", labels)
    ends = pd.Series(points[_ENDS].to_numpy(float).ravel())
    scale = value_axis(axes, ends, points.groupby("series")["value"].max())
    axes.set(ylabel=f"{measured.title}, {measured.unit}".rstrip(", ") + scale)
    of_series = points.groupby("series", sort=False)["value"]
    unit = f" {measured.unit}".rstrip()
    ranges = [
        f"{span(float(f'{value:.3g}') for value in of)}{unit}{f' ({short(str(each))})' * (len(hands) > 1)}"
        for each, of in of_series
    ]
    caption = _MARKS
    if len(levels) > len(hands):
        caption += f" Of {len(levels)} curves the first {len(hands)} are drawn."
    first, *others = ranges or ["not known"]
    of_name = f" of {name}" if name else ""
    title = f"{measured.title}{of_name}, {span(points['x'])} clients: {first}"
    title = finding(title, *(f", {each}" for each in others))
    numbers = points.rename(columns={"x": "clients"})
    return render(f"clients-{name or metric}", drawing, title, caption, numbers)


def change_by_clients(changes: pd.DataFrame, analysis: Analysis) -> Figure:
    """What a change brings at each number of clients: a curve for each series, with the verdicts' intervals.

    ``changes``: ``series, x`` (clients), ``value, low, high`` (percent), and ``against``, what it is compared with.
    """
    changes = changes.sort_values("x", kind="stable").assign(bends=False)
    ranges = [f"{short(str(name))}: {_range(of)}" for name, of in changes.groupby("series", sort=False)]
    title = finding(ranges[0], *(f"; {each}" for each in ranges[1:]))
    note = f"Against {' and '.join(changes['against'].unique())} with as many clients."
    return setting_curve(changes, "clients", analysis, amount, title=title, note=note)


def _range(changes: pd.DataFrame) -> str:
    """The smallest and the largest of some changes: `+127 % to +167 %`."""
    ends = changes.sort_values("value").iloc[[0, -1]][_ENDS].to_numpy(float)
    return " to ".join(dict.fromkeys(percent_words(*row)[0] for row in ends))


@styled
def setting_curve(
    points: pd.DataFrame, setting: str, analysis: Analysis, value_words: Words, *, title: str, note: str
) -> Figure:
    """What the values of ``setting`` bring: a curve for each series, at most :data:`benchlib.report.figures.style.FEW`.

    ``points``: ``series``, ``x`` (the value), ``value, low, high`` (the change, percent; that of a reference is 0 and has no
    interval), and ``bends``, whether the curve does there. ``note`` ends the caption.
    """
    hands, margin = looks(points["series"].unique().tolist()), analysis.margin
    points = points[points["series"].isin([*hands])]
    labels = {value: value_words(value) for value in sorted(points["x"].unique().tolist())}
    factors = points.assign(**{end: 1 + points[end] / 100 for end in _ENDS})
    drawing, axes = _curves(factors, hands, setting, labels, lambda factor: signed(100 * factor - 100))
    unit = change_axis(axes, "y", [*factors[_ENDS].to_numpy().flat, 1 - 1.2 * margin, 1 + 1.2 * margin])
    axes.set(ylabel=f"change of {analysis.metric.title}{unit}")
    axes.axhline(1, color=INK, linewidth=1, zorder=1.5)
    axes.axhspan(1 - margin, 1 + margin, color=BAND, linewidth=0, zorder=0.5)
    caption = f"Bars: adjusted {confidence_words(analysis.alpha)} intervals."
    rings = factors[factors["bends"]]
    if len(rings):
        axes.plot(rings["x"], rings["value"], "o", markersize=13, markerfacecolor="none", markeredgecolor=INK)
        caption += f" Ring: the smallest value whose mean no larger one beats by more than {100 * margin:g} %. Shaded: that margin."
    numbers = points.rename(columns={"x": setting})
    return render(f"curve-{setting}", drawing, title, f"{caption} {note}", numbers)
