"""Charts of frames, drawn with seaborn.

The title names the chart, the caption explains it; findings stand in the tables. Axes stay open for changes, such as
``ax.set_title(...)``.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from benchlib.plan.metrics import METRICS, ends_on_axis, signed
from benchlib.report.display import two_families
from benchlib.report.drawing import COUNTS, ENDS, PERCENT, WIDTH, axes_of, done, rows_of, styled, titled
from benchlib.report.grids import CHANGES, ON_CELL, heat, multiples
from benchlib.report.style import BAND, BLUE, INK, LIGHT, ORANGE, SERIES, mark_of

__all__ = [
    "beside", "correlation", "curve", "dots", "effects", "heat", "lag", "latency", "multiples", "panels", "timeline", "trials", "waits", "waterfall",
]  # fmt: skip

_FACTORS = 300
"""From this change in percent on, an axis of changes shows factors."""
_WIDE = 30
"""From this ratio of the largest to the smallest trial on, the axis of trials is logarithmic."""
_MOST = 8
"""The most levels, or waits, in one chart."""
_SEEN = 0.01
"""A wait with a smaller share of every level's sessions is among the others."""
_CI: dict[str, Any] = {"errorbar": ("ci", 95), "seed": 1, "n_boot": 400}
"""The interval of a single mean; it describes, and the study's error rate does not change it."""
_PALETTE = [LIGHT[name] for name in SERIES]
_GREYS = ["#6e7480", "#8f95a0", "#b3b8c1"]
"""Further colours, for light and dark pages."""


def _label(metric: str) -> str:
    known = METRICS.get(metric)
    return f"{known.title}, {known.unit}".rstrip(", ") if known else metric.replace("_", " ")


def _title(metric: str) -> str:
    words = METRICS[metric].title if metric in METRICS else metric.replace("_", " ")
    return words[:1].upper() + words[1:]


def _order(frame: pd.DataFrame, column: str = "level") -> list[str]:
    return list(dict.fromkeys(frame[column].astype(str)))


def _by(column: str | None, names: Sequence[str]) -> dict[str, Any]:
    if not column:
        return {"color": BLUE}
    return {"hue": column, "hue_order": names, "palette": dict(zip(names, cycle(_PALETTE), strict=False))}


def _log_ticks(axis: Axis, form: Any = COUNTS) -> None:
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(form)
    axis.set_minor_locator(NullLocator())


@styled
def trials(trials: pd.DataFrame, y: str = "tps", ax: Axes | None = None) -> Axes:
    """Draw a point a trial, and each level's mean with its 95 % interval."""
    rows = rows_of(trials, y)
    levels = _order(rows)
    ax = axes_of(ax, len(levels))
    points = {"x": y, "y": "level", "order": levels, "ax": ax}
    sns.stripplot(rows, **points, jitter=False, size=6, alpha=0.5, color=BLUE)
    mark = {"markers": "|", "markersize": 14, "err_kws": {"linewidth": 1.4}}
    sns.pointplot(rows, **points, **_CI, linestyle="none", color=INK, **mark)
    ax.set(xlabel=_label(y), ylabel="")
    wide = bool(0 < rows[y].min() < rows[y].max() / _WIDE)
    if wide:
        ax.set_xscale("log")
        _log_ticks(ax.xaxis)
    else:
        ax.set_xlim(0, None)
        ax.xaxis.set_major_formatter(COUNTS)
    summary = rows.groupby("level", sort=False)[y].agg(["count", "mean", "std"]).reset_index()
    caption = f"A point is one trial. The bar is the mean with its {_CI['errorbar'][1]} % interval."
    caption += " The axis is logarithmic." if wide else ""
    return done(ax, f"{_title(y)} of each trial, by level", caption, summary)


@styled
def dots(frame: pd.DataFrame, x: str, y: str, hue: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw a point a row: ``y`` names the row, ``hue`` the kind of number."""
    rows = rows_of(frame, x)
    names, series = _order(rows, y), _order(rows, hue) if hue else []
    ax = axes_of(ax, len(names))
    markers = {"style": hue, "style_order": series} if hue else {}
    sns.scatterplot(rows, x=x, y=y, s=60, linewidth=0, ax=ax, **_by(hue, series), **markers)
    ax.margins(y=0.5 / len(names))
    ax.grid(axis="y", visible=True)
    ax.xaxis.set_major_formatter(COUNTS)
    table = rows[[*filter(None, (y, hue, x))]]
    settings = {"xlabel": _label(x), "ylabel": "", "xlim": (min(0.0, rows[x].min()), None)}
    return done(ax, f"{_title(x)} by {_label(y)}", "Each point is one value.", table, **settings)


@styled
def effects(effects: pd.DataFrame, ax: Axes | None = None, label: str = "level") -> Axes:
    """Draw the changes with their intervals; the shaded band is the margin.

    The thick part of an equivalent comparison is the interval that decides equivalence.
    """
    rows, attrs = rows_of(effects, "percent_change").reset_index(drop=True), effects.attrs
    ax = axes_of(ax, len(rows))
    several = "against" in rows and rows["against"].nunique() > 1
    names = rows[label].astype(str) + ("\nagainst " + rows["against"].astype(str) if several else "")
    sound = rows["verdict"].ne("invalid") if "verdict" in rows else slice(None)
    at = _scale(ax, rows.loc[sound, ENDS])
    for place, row in enumerate(rows.to_dict("records")):
        look = mark_of(row.get("verdict"))
        ax.plot([at(row["ci_low"]), at(row["ci_high"])], [place, place], color=look.colour, linewidth=1.4)
        if row.get("verdict") == "equivalent" and "equal_low" in row:
            inner = [at(row["equal_low"]), at(row["equal_high"])]
            ax.plot(inner, [place, place], color=look.colour, linewidth=5)
        x = at(row["percent_change"])
        ax.plot(x, place, look.marker, color=look.colour, markerfacecolor=look.face, markersize=7)
    margin = 100 * attrs.get("margin", 0.0)
    ax.axvspan(at(-margin), at(margin), color=BAND, linewidth=0, zorder=0.5)
    ax.axvline(at(0), color=INK, linewidth=0.8, zorder=0.8)
    ax.set_yticks(range(len(rows)), names)
    ax.grid(axis="y", visible=False)
    title = attrs.get("title", "metric")
    caption = f"Lines: {_confidence(attrs)} intervals."
    if margin:
        caption = (
            f"Lines: simultaneous {_confidence(attrs)} intervals; thick: the interval that shows equivalence. "
            f"Shaded: the margin of ±{margin:g} %."
        )
    caption = f"{caption} {two_families(rows)}".strip()
    table = rows.filter([*dict.fromkeys((label, "level", "against", *ENDS, "verdict"))])
    settings = {"xlabel": f"change of {title}", "ylabel": "", "ylim": (len(rows) - 0.5, -0.5)}
    return done(ax, f"Change of {title} by level", caption, table, **settings)


def _confidence(attrs: Mapping[Any, Any]) -> str:
    return f"{100 * (1 - attrs.get('alpha', 0.05)):.6g} %"


def _scale(ax: Axes, percents: pd.DataFrame) -> Callable[[float], float]:
    """Prepare an axis in percent, or in factors if changes are large."""
    reach = [ends_on_axis(*row) for row in percents[ENDS].to_numpy(float)]
    ends = np.append(percents.drop(columns=["ci_low", "ci_high"]).to_numpy(float), reach)
    ends = ends[np.isfinite(ends)]
    if not len(ends) or ends.max() < _FACTORS:
        ax.xaxis.set_major_formatter(PERCENT)
        return float
    ax.set_xscale("log")
    low, high = min(1 + ends.min() / 100, 1.0) / 1.2, (1 + ends.max() / 100) * 1.2
    ax.set_xlim(low, high)
    _log_ticks(ax.xaxis, "{x:g} ×")
    # what lies beyond the axis ends just beyond it
    return lambda percent: min(max(1 + percent / 100, low / 2), 2 * high)


@styled
def timeline(
    seconds: pd.DataFrame, y: str = "tps", checkpoints: pd.DataFrame | None = None, levels: Sequence[str] = (),
    ax: Axes | None = None,
) -> Axes:  # fmt: skip
    """Draw a column over the seconds of a trial, with its range over blocks.

    Without ``ax``, the study's own samples follow.
    """
    own = [name for name in map(str, seconds) if "." in name and seconds[name].notna().any()][:_MOST]
    if ax is None and own:
        height = 3.4 + 2.4 * len(own)
        figure = plt.figure(figsize=(WIDTH, height), layout="constrained")
        ax, *others = figure.subplots(1 + len(own), sharex=True)
        for other, name in zip(others, own, strict=True):
            timeline(seconds, name, None, levels, other).set_title("", loc="left")
            if legend := other.get_legend():
                legend.remove()
            other.set(xlabel="seconds in the trial" if other is others[-1] else "", ylabel=name)
    shown = [*levels] or _order(seconds)[:_MOST]
    rows = rows_of(seconds[seconds["level"].isin(shown)], y, "second")
    ax, look = axes_of(ax, 7), _by("level", shown)
    band = {"errorbar": ("pi", 100), "err_kws": {"alpha": 0.15}}
    sns.lineplot(rows, x="second", y=y, ax=ax, **look, **band)
    ax.yaxis.set_major_formatter(COUNTS)
    caption = "Line: mean over blocks; shaded: lowest to highest block."
    if checkpoints is not None and len(checkpoints):
        caption += " Bars at the bottom: checkpoints."
        bars = checkpoints.fillna({"end_s": rows["second"].max()})
        for start, end, level in bars[["start_s", "end_s", "level"]].itertuples(index=False):
            if level in shown:
                low, colour = 0.02 * shown.index(level), look["palette"][level]
                ax.axvspan(max(start, 0.0), end, ymin=low, ymax=low + 0.015, color=colour, linewidth=0)
    summary = rows.groupby(["level", "second"], sort=False)[y].mean().reset_index()
    settings = {"xlabel": "seconds in the trial", "ylabel": _label(y), "ylim": (0, None)}
    return done(ax, f"{_title(y)} over time", caption, summary, **settings)


@styled
def panels(seconds: pd.DataFrame, columns: Mapping[str, str], levels: Sequence[str] = ()) -> Figure:
    """Draw several columns of seconds, a panel each."""
    named = {
        name: label for name, label in columns.items() if name in seconds and seconds[name].notna().any()
    }
    shown = [*levels] or _order(seconds)[:_MOST]
    rows = seconds[seconds["level"].isin(shown)]
    blocks = rows.groupby(["level", "second"])["block"].transform("nunique")
    # the last second may be a part of one
    rows = rows[blocks == rows.groupby("level")["block"].transform("nunique")].rename(columns=named)
    long = rows_of(rows.melt(["level", "second"], [*named.values()], "panel", "value"), "value")
    size = {"col_wrap": 2, "height": 2.1, "aspect": WIDTH / 2 / 2.1, "facet_kws": {"sharey": False}}
    median = {"kind": "line", "estimator": "median", "errorbar": None}
    grid = sns.relplot(long, x="second", y="value", col="panel", **size, **median, **_by("level", shown))
    grid.set(xlabel="seconds in the trial", ylabel="", ylim=(0, None))
    for ax in grid.axes.flat:
        ax.yaxis.set_major_formatter(COUNTS)
    grid.set_titles("{col_name}", fontweight="normal")
    sns.move_legend(grid, "upper left", bbox_to_anchor=(0, 0), ncols=4, title=None)
    means = long.groupby(["panel", "level"], sort=False)["value"].mean().unstack("panel").reset_index()
    return titled(grid.figure, "Host and devices over time", "Medians over blocks.", means, y=1.05)


@styled
def waits(waits: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the mean number of sessions for each wait event, a bar a level."""
    means = rows_of(waits, "sessions").pivot_table("sessions", "level", "wait", fill_value=0.0, sort=False)
    shares = means.div(means.sum(axis=1), axis=0)
    seen = means.loc[:, shares.max() >= _SEEN].mean().sort_values(ascending=False, kind="stable")
    shown = means[seen.index[:_MOST]]
    if (1 - shares[shown.columns].sum(axis=1)).max() >= _SEEN:
        shown = shown.assign(**{"all others": means.sum(axis=1) - shown.sum(axis=1)})
    ax = axes_of(ax, len(shown) + 1)
    colours: Any = [*_PALETTE, *_GREYS][: len(shown.columns)]
    shown.plot.barh(stacked=True, ax=ax, color=colours, width=0.7, linewidth=0)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    caption = "Each bar is the mean number of the load's sessions; CPU: sessions that waited for nothing."
    settings = {"xlabel": "sessions, mean", "ylabel": ""}
    return done(ax, "What the sessions did, by level", caption, shown.reset_index(), **settings)


@styled
def latency(trials: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the quantiles of latency by level on a log axis."""
    names = {f"latency_p{digits}_ms": f"{of} %" for digits, of in ((50, 50), (95, 95), (99, 99), (999, 99.9))}
    renamed = trials.rename(columns=names)
    long = rows_of(renamed.melt(["level", "block"], [*names.values()], "quantile", "ms"), "ms")
    shown = _order(long)[:_MOST]
    ax = axes_of(ax, 7)
    few = long[long["level"].isin(shown)]
    range_of = {"errorbar": ("pi", 100), "dodge": 0.3}
    sns.pointplot(few, x="quantile", y="ms", ax=ax, **range_of, **_by("level", shown))
    ax.set(yscale="log", xlabel="share of transactions that were faster", ylabel="latency, ms")
    _log_ticks(ax.yaxis)
    table = long.groupby(["level", "quantile"], sort=False)["ms"].median().reset_index()
    caption = "Points: means over blocks; lines: lowest to highest block."
    return done(ax, "Latency quantiles by level", caption, table)


@styled
def curve(
    frame: pd.DataFrame, x: str, y: str = "tps", hue: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw a metric over a number, a line for each ``hue``, with 95 % intervals."""
    rows = rows_of(frame, x, y)
    ax = axes_of(ax, 7)
    sns.lineplot(rows, x=x, y=y, marker="o", ax=ax, **_CI, **_by(hue, _order(rows, hue) if hue else []))
    values = sorted(rows[x].unique())
    if len({*np.diff(values)}) > 1 and values[0] > 0 and values[-1] / values[0] > 8:
        ax.set_xscale("log", base=2)
    ax.set_xticks(values, [f"{value:g}" for value in values])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(COUNTS)
    if rows[y].min() >= 0:
        ax.set_ylim(0, None)
    table = rows.groupby([*filter(None, (hue, x))], sort=False)[y].agg(["count", "mean", "std"]).reset_index()
    caption = f"Points: means; bands: their {_CI['errorbar'][1]} % intervals."
    return done(ax, f"{_title(y)} by {_label(x)}", caption, table, xlabel=_label(x), ylabel=_label(y))


@styled
def waterfall(steps: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the change that each step adds.

    ``steps`` comes from ``ladder``, or is a frame of effects with ``total_percent``.
    """
    names = {"percent": "percent_change", "low": "ci_low", "high": "ci_high", "verdict": "verdict"}
    rows = rows_of(steps).rename(columns={f"step_{short}": name for short, name in names.items()})
    totals = rows["total_percent"].map(signed)
    rows = rows.assign(label="+ " + rows["level"] + "\n(so far " + totals + ")")
    rows = rows.drop(columns="against", errors="ignore")
    rows.attrs = {"title": "throughput", **steps.attrs}
    ax = effects(rows, axes_of(ax, 1.3 * len(rows)), "label")
    caption = f"Lines: simultaneous {_confidence(steps.attrs)} intervals of each step."
    return done(ax, "What each step adds to the step before", caption, steps)


@styled
def lag(replicas: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the replay lag of the replicas (one reading a second), a box a level."""
    readings = rows_of(replicas.assign(ms=1000 * replicas["replay_lag_s"]), "ms")
    rows = rows_of(readings.query("ms > 0"), "ms")
    shown = _order(rows)
    ax = axes_of(ax, len(shown))
    box = {"whis": (5, 95), "showfliers": False, "width": 0.5}
    look = {"color": BLUE, "linecolor": INK, "saturation": 1}
    sns.boxplot(rows, x="ms", y="level", order=shown, log_scale=True, ax=ax, **box, **look)
    _log_ticks(ax.xaxis)
    ax.grid(axis="x", visible=True)
    table = rows.groupby("level", sort=False)["ms"].describe(percentiles=[0.05, 0.5, 0.95]).reset_index()
    caption = (
        "Line in the box: the median reading; box: the middle half; whiskers: 5 % to 95 % of the readings."
    )
    if zeros := len(readings) - len(rows):
        caption += f" Not shown: {zeros:,} of {len(readings):,} readings, which were 0."
    settings = {"xlabel": "replay lag, ms", "ylabel": ""}
    return done(ax, "Replay lag of the replicas, by level", caption, table, **settings)


@styled
def correlation(frame: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw rank correlations (Spearman) between columns."""
    matrix = rows_of(frame).corr("spearman", numeric_only=True)
    ax = axes_of(ax, 0.8 * len(matrix) + 1)
    look = {"cmap": CHANGES, "cbar": False, "linewidths": 2, "annot_kws": {"color": ON_CELL}}
    sns.heatmap(matrix, annot=True, fmt="+.2f", vmin=-1, vmax=1, ax=ax, **look)
    plt.setp(ax.get_xticklabels(), rotation=30, ha="right", rotation_mode="anchor")
    caption = "Spearman's coefficient of each pair of columns."
    return done(ax, "Rank correlations", caption, matrix.reset_index())


@styled
def beside(rows: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw published changes beside measured ones, as ``beside`` returned them."""
    both = rows_of(rows, "percent_change", "published_low", "published_high").reset_index(drop=True)
    ax = axes_of(ax, 1.2 * len(both))
    numbers = both[[*ENDS, "published_low", "published_high"]]
    at = numbers.map(scale := _scale(ax, numbers))
    ax.hlines(at.index, at["ci_low"], at["ci_high"], color=BLUE, linewidth=1.4)
    ax.plot(at["percent_change"], at.index, "o", color=BLUE, label="measured here")
    ax.hlines(at.index + 0.25, at["published_low"], at["published_high"], color=ORANGE)
    ax.plot(at["published_low"], at.index + 0.25, "D", color=ORANGE, label="published")
    ax.plot(at["published_high"], at.index + 0.25, "D", color=ORANGE)
    ax.axvline(scale(0), color=INK, linewidth=0.8)
    ax.set_yticks(range(len(both)), both["figure"])
    caption = f"Lines: {_confidence(rows.attrs)} intervals here; diamonds: what was published."
    settings = {"xlabel": "change", "ylabel": "", "ylim": (len(both) - 0.4, -0.6)}
    return done(ax, "Published beside measured", caption, both, **settings)
