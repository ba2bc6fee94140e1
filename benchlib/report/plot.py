"""Charts of frames: each function takes a frame, draws with seaborn, and returns matplotlib's axes.

The title says what is shown, the caption (on the page, below the figure) how to read it; findings stand in the tables. Every
function takes ``ax`` and leaves the axes to the caller, so ``ax.set_title(...)`` or ``ax.axhline(...)`` do what they always do.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from benchlib.plan.metrics import METRICS
from benchlib.report.display import described
from benchlib.report.grids import CHANGES, ON_CELL, draw_grid
from benchlib.report.style import BAND, INK, LIGHT, MUTED, SERIES, mark_of

WIDTH, ROW = 9.6, 0.42
"""Inches: the width of a figure, and the height of a row of one."""
_FACTORS = 300
"""From this change in percent on, an axis of changes is one of factors."""
_WIDE = 30
"""From this ratio of the largest to the smallest trial on, the axis of trials is logarithmic."""
_MOST = 8
"""So many levels, or waits, a chart tells apart."""
_SEEN = 0.01
"""A wait with a smaller share of every level's sessions is among the others."""
_STYLE = Path(__file__).parent / "template" / "charts.mplstyle"

LOOK = [sns.axes_style("whitegrid"), str(_STYLE)]
"""The styles of all figures, for ``matplotlib.pyplot.style``."""
_COUNTS = FuncFormatter(lambda value, _: f"{value:,.10g}".replace("-", "−"))

P = ParamSpec("P")
R = TypeVar("R")


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Draw in the suite's look, the same each time, without changing the settings of matplotlib and numpy for anything else."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> R:
        state = np.random.get_state()
        np.random.seed(1)
        with plt.style.context(LOOK):
            try:
                if isinstance(args[0], pd.DataFrame) and args[0].empty:
                    raise _NoDataError
                return draw(*args, **kwargs)
            except _NoDataError:
                ax = _empty(kwargs.get("ax"))
                return ax.get_figure() if draw.__annotations__["return"] is Figure else ax  # type: ignore[return-value]
            finally:
                np.random.set_state(state)

    return drawn


class _NoDataError(Exception):
    """A frame without a row to draw."""


def _there(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows that a chart is to draw; where there are none, the chart says so."""
    if rows.empty:
        raise _NoDataError
    return rows


def _empty(ax: Any) -> Axes:
    """Return axes that say that there is nothing to draw."""
    ax = _axes(ax, 0)
    ax.set_axis_off()
    ax.text(0, 0.5, "no data of this kind in this study", color=MUTED, transform=ax.transAxes)
    return _done(ax, "", "", pd.DataFrame())


def _axes(ax: Axes | None, rows: float = 8, width: float = WIDTH) -> Axes:
    """Return the axes that are given, or new ones with room for so many rows."""
    if ax is not None:
        return ax
    _, new = plt.subplots(figsize=(width, 0.9 + ROW * rows), layout="constrained")
    return new


def _done(ax: Axes, title: str, caption: str, rows: pd.DataFrame) -> Axes:
    ax.set_title(title, loc="left")
    figure = ax.get_figure()
    if isinstance(figure, Figure):
        described(figure, caption, rows)
    return ax


def _label(metric: str) -> str:
    known = METRICS.get(metric)
    return f"{known.title}, {known.unit}".rstrip(", ") if known else metric.replace("_", " ")


def _colours(names: Sequence[str]) -> dict[str, str]:
    return {name: LIGHT[SERIES[number % len(SERIES)]] for number, name in enumerate(names)}


def _order(frame: pd.DataFrame, column: str = "level") -> list[str]:
    return list(dict.fromkeys(frame[column].astype(str)))


@styled
def trials(trials: pd.DataFrame, y: str = "tps", ax: Axes | None = None) -> Axes:
    """Draw a metric of each trial: a point a trial, and each level's mean with its 95 % interval."""
    good = _there(trials.dropna(subset=[y])).astype({y: float})
    levels = _order(good)
    ax = _axes(ax, len(levels))
    sns.stripplot(
        good, x=y, y="level", order=levels, jitter=0.16, size=5, alpha=0.55, color=LIGHT["blue"], ax=ax
    )
    sns.pointplot(
        good, x=y, y="level", order=levels, errorbar=("ci", 95), seed=1, n_boot=400, linestyle="none", color=INK,
        markers="|", markersize=14, err_kws={"linewidth": 1.4}, ax=ax,
    )  # fmt: skip
    wide = bool(0 < good[y].min() < good[y].max() / _WIDE)
    ax.set(xlabel=_label(y), ylabel="", xscale="log" if wide else "linear")
    if wide:
        ax.xaxis.set_minor_locator(NullLocator())
    else:
        ax.set_xlim(0, None)
    ax.xaxis.set_major_formatter(_COUNTS)
    summary = good.groupby("level", sort=False)[y].agg(["count", "mean", "std"]).reset_index()
    name = METRICS[y].title if y in METRICS else y
    return _done(ax, f"{name[:1].upper()}{name[1:]} of each trial, by level",
                 "A point is one trial. The bar is the mean with its 95 % interval." + " The axis is logarithmic." * wide, summary)  # fmt: skip


@styled
def dots(frame: pd.DataFrame, x: str, y: str, hue: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw a number of each row as a point: ``y`` names the row, ``hue`` the kind of the number."""
    rows = _there(frame.dropna(subset=[x])).astype({x: float})
    names = _order(rows, y)
    ax = _axes(ax, len(names))
    series = _order(rows, hue) if hue else []
    style = (
        {"hue": hue, "style": hue, "hue_order": series, "style_order": series, "palette": _colours(series)}
        if hue
        else {"color": LIGHT["blue"]}
    )
    sns.scatterplot(rows, x=x, y=y, s=60, linewidth=0, ax=ax, **style)
    ax.set(xlabel=_label(x), ylabel="", xlim=(min(0.0, rows[x].min()), None))
    ax.margins(y=0.5 / len(names))
    ax.grid(axis="y", visible=True)
    ax.xaxis.set_major_formatter(_COUNTS)
    _legend(ax)
    return _done(
        ax, f"{_sentence(x)} by {_label(y)}", "Each point is one value.", rows[[*filter(None, (y, hue, x))]]
    )


@styled
def effects(effects: pd.DataFrame, ax: Axes | None = None, label: str = "level") -> Axes:
    """Draw the change of each comparison with its interval; the shaded band is the margin.

    The thick part of an equivalent comparison is the interval that decides equivalence.
    """
    rows = _there(effects.dropna(subset=["percent_change"])).reset_index(drop=True)
    attrs = effects.attrs
    ax = _axes(ax, len(rows))
    several = rows["against"].nunique() > 1 if "against" in rows else False
    names = [
        f"{row[label]}\nagainst {row['against']}" if several else str(row[label])
        for row in rows.to_dict("records")
    ]
    sound = rows["verdict"].ne("invalid") if "verdict" in rows else pd.Series(True, rows.index)
    factors = _scale(ax, rows.loc[sound, ["percent_change", "ci_low", "ci_high"]])
    for place, row in enumerate(rows.to_dict("records")):
        look = mark_of(row.get("verdict"))
        x, low, high = (factors(row[name]) for name in ("percent_change", "ci_low", "ci_high"))
        ax.plot(
            [low, high], [place, place], color=look.colour, linewidth=1.4, solid_capstyle="butt", clip_on=True
        )
        if row.get("verdict") == "equivalent" and "equal_low" in row:
            ends = [factors(row["equal_low"]), factors(row["equal_high"])]
            ax.plot(ends, [place, place], color=look.colour, linewidth=5, solid_capstyle="butt")
        fill = look.colour if look.filled else "white"
        ax.plot(x, place, look.marker, color=look.colour, markerfacecolor=fill, markersize=7, clip_on=True)
    margin = 100 * attrs.get("margin", 0.0)
    ax.axvspan(factors(-margin), factors(margin), color=BAND, linewidth=0, zorder=0.5)
    ax.axvline(factors(0), color=INK, linewidth=0.8, zorder=0.8)
    ax.set_yticks(range(len(rows)), names)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.grid(axis="y", visible=False)
    title = attrs.get("title", "metric")
    ax.set_xlabel(f"change of {title}")
    columns = [
        name
        for name in dict.fromkeys(
            (label, "level", "against", "percent_change", "ci_low", "ci_high", "verdict")
        )
        if name in rows
    ]
    lines = f"Lines: simultaneous {100 * (1 - attrs.get('alpha', 0.05)):.4g} % intervals; thick: the interval that shows equivalence."
    caption = f"{lines} Shaded: the margin of ±{margin:g} %." if margin else "Lines: 95 % intervals."
    return _done(ax, f"Change of {title} by level", caption, rows[columns])


def _scale(ax: Axes, percents: pd.DataFrame) -> Callable[[float], float]:
    """Set up an axis of changes, in percent or, where they are large, of factors on a log scale; return the way onto it."""
    ends = percents.to_numpy(float)
    ends = ends[np.isfinite(ends)]
    if not len(ends) or ends.max() < _FACTORS:
        ax.xaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:+g} %".replace("-", "−").replace("+0 %", "0"))
        )
        return float
    ax.set_xscale("log")
    low, high = min(1 + ends.min() / 100, 1.0), 1 + ends.max() / 100
    named = (
        (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200)
        if high / low > 8
        else (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 5, 6, 7)
    )
    ticks = [tick for tick in named if low / 1.2 <= tick <= high * 1.2]
    ax.set_xticks(ticks, [f"{tick:g} ×" for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlim(low / 1.2, high * 1.2)
    return lambda percent: 1 + percent / 100


@styled
def timeline(
    seconds: pd.DataFrame, y: str = "tps", checkpoints: pd.DataFrame | None = None, levels: Sequence[str] = (),
    ax: Axes | None = None,
) -> Axes:  # fmt: skip
    """Draw a column of the frame of seconds over the time in a trial: the mean over blocks with its range; checkpoints as bars below."""
    shown = [*levels] or _order(seconds)[:_MOST]
    rows = _there(seconds[seconds["level"].isin(shown)].dropna(subset=[y]))
    rows = rows.astype({y: float, "second": float})
    colours = _colours(shown)
    ax = _axes(ax, 7)
    sns.lineplot(
        rows,
        x="second",
        y=y,
        hue="level",
        hue_order=shown,
        palette=colours,
        errorbar=("pi", 100),
        err_kws={"alpha": 0.15},
        ax=ax,
    )
    ax.set(xlabel="seconds in the trial", ylabel=_label(y), ylim=(0, None))
    ax.yaxis.set_major_formatter(_COUNTS)
    if checkpoints is not None and len(checkpoints):
        for place, level in enumerate(shown):
            of_level = checkpoints[checkpoints["level"] == level].fillna({"end_s": rows["second"].max()})
            for start, end in of_level[["start_s", "end_s"]].astype(float).itertuples(index=False):
                ax.axvspan(
                    max(start, 0.0),
                    end,
                    ymin=0.02 * place,
                    ymax=0.02 * place + 0.015,
                    color=colours[level],
                    linewidth=0,
                )
    _legend(ax)
    summary = rows.groupby(["level", "second"], sort=False)[y].mean().reset_index()
    caption = "Line: mean over blocks; shaded: lowest to highest block."
    caption += " Bars at the bottom: checkpoints." if checkpoints is not None and len(checkpoints) else ""
    return _done(ax, f"{_sentence(y)} over time", caption, summary)


@styled
def panels(seconds: pd.DataFrame, columns: Mapping[str, str], levels: Sequence[str] = ()) -> Figure:
    """Draw several columns of the frame of seconds below each other, a panel each; ``columns`` maps a column to its label."""
    there = {
        name: label for name, label in columns.items() if name in seconds and seconds[name].notna().any()
    }
    shown = [*levels] or _order(seconds)[:_MOST]
    rows = seconds[seconds["level"].isin(shown)]
    blocks = rows.groupby(["level", "second"])["block"].transform("nunique")
    # the last second may be a part of one
    rows = rows[blocks == rows.groupby("level")["block"].transform("nunique")]
    figure, axes = plt.subplots(
        max(-(-len(there) // 2), 1),
        2,
        figsize=(WIDTH, 2.1 * max(-(-len(there) // 2), 1)),
        sharex=True,
        layout="constrained",
        squeeze=False,
    )
    for ax in axes.flat[len(there) :]:
        ax.set_visible(False)
    for ax, (name, label) in zip(axes.flat, there.items(), strict=False):
        sns.lineplot(
            rows,
            x="second",
            y=name,
            hue="level",
            hue_order=shown,
            palette=_colours(shown),
            estimator="median",
            errorbar=None,
            legend=False,
            ax=ax,
        )
        ax.set(xlabel="seconds in the trial", ylabel="", ylim=(0, None))
        ax.yaxis.set_major_formatter(_COUNTS)
        ax.set_title(label, loc="left", fontweight="normal")
    lines = [Line2D([], [], color=colour) for colour in _colours(shown).values()]
    figure.legend(lines, shown, loc="outside lower left", ncols=4, frameon=False)
    means = rows.groupby("level", sort=False)[[*there]].mean(numeric_only=True).reset_index()
    figure.suptitle("Host and devices over time", x=0.01, ha="left", fontweight="bold")
    described(figure, "Medians over blocks.", means)
    return figure


@styled
def waits(waits: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw what the sessions did, a bar a level: mean number of sessions for each wait event, the most frequent first."""
    means = waits.groupby(["level", "wait"], sort=False)["sessions"].mean().unstack().fillna(0.0)
    means = means.reindex(_order(waits))
    seen = means.loc[:, means.div(means.sum(axis=1), axis=0).max() >= _SEEN]
    top = seen.mean().sort_values(ascending=False, kind="stable").index[:_MOST]
    others = means.drop(columns=top).sum(axis=1)
    rest = {"all others": others} if (others / means.sum(axis=1)).max() >= _SEEN else {}
    shown = means[top].assign(**rest)
    ax = _axes(ax, len(shown) + 1)
    palette = [*sns.color_palette([LIGHT[name] for name in SERIES]), *sns.color_palette("Greys_r", _MOST)][
        : len(shown.columns)
    ]
    shown.plot.barh(stacked=True, ax=ax, color=palette, width=0.7, linewidth=0)
    ax.invert_yaxis()
    ax.set(xlabel="sessions, mean", ylabel="")
    ax.grid(axis="y", visible=False)
    _legend(ax)
    return _done(ax, "What the sessions did, by level",
                 "Each bar is the mean number of the load's sessions; CPU: sessions that waited for nothing.", shown.reset_index())  # fmt: skip


@styled
def latency(trials: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the quantiles of latency by level (from the log of all transactions) on a log axis."""
    names = {
        "latency_p50_ms": "50 %",
        "latency_p95_ms": "95 %",
        "latency_p99_ms": "99 %",
        "latency_p999_ms": "99.9 %",
    }
    long = (
        trials.melt(["level", "block"], [*names], "quantile", "ms").dropna(subset="ms").astype({"ms": float})
    )
    long["quantile"] = _there(long)["quantile"].map(names)
    shown = _order(long)[:_MOST]
    ax = _axes(ax, 7)
    sns.pointplot(
        long[long["level"].isin(shown)], x="quantile", y="ms", hue="level", hue_order=shown, palette=_colours(shown),
        errorbar=("pi", 100), dodge=0.3, ax=ax,
    )  # fmt: skip
    ax.set(yscale="log", xlabel="share of transactions that were faster", ylabel="latency, ms")
    ax.yaxis.set_major_formatter(_COUNTS)
    ax.yaxis.set_minor_locator(NullLocator())
    _legend(ax)
    table = long.groupby(["level", "quantile"], sort=False)["ms"].median().reset_index()
    return _done(
        ax, "Latency quantiles by level", "Points: means over blocks; lines: lowest to highest block.", table
    )


@styled
def curve(
    frame: pd.DataFrame, x: str, y: str = "tps", hue: str | None = None, words: Callable[[float], str] | None = None,
    ax: Axes | None = None,
) -> Axes:  # fmt: skip
    """Draw a metric over a number, such as clients or a setting: a line for each ``hue``, with 95 % intervals of the means."""
    rows = _there(frame.dropna(subset=[x, y])).astype({x: float, y: float})
    ax = _axes(ax, 7)
    series = _order(rows, hue) if hue else []
    style = (
        {"hue": hue, "hue_order": series, "palette": _colours(series)} if hue else {"color": LIGHT["blue"]}
    )
    sns.lineplot(rows, x=x, y=y, marker="o", errorbar=("ci", 95), seed=1, n_boot=400, ax=ax, **style)
    values = sorted(rows[x].unique())
    if len(values) > 1 and values[0] > 0 and values[-1] / values[0] > 8:
        ax.set_xscale("log", base=2)
    ax.set_xticks(values, [words(value) if words else f"{value:g}" for value in values])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set(xlabel=_label(x), ylabel=_label(y))
    ax.yaxis.set_major_formatter(_COUNTS)
    if rows[y].min() >= 0:
        ax.set_ylim(0, None)
    if hue:
        _legend(ax)
    table = (
        rows.groupby([*([hue] if hue else []), x], sort=False)[y].agg(["count", "mean", "std"]).reset_index()
    )
    return _done(ax, f"{_sentence(y)} by {_label(x)}", "Points: means; bands: their 95 % intervals.", table)


@styled
def heat(effects: pd.DataFrame, design: pd.DataFrame) -> Figure:
    """Draw the changes of a grid of two dimensions as a matrix; each further dimension gives small multiples.

    ``design`` has a row a level and a column a dimension (``study.design``). Columns are the dimension that is compared, or
    the last one. A row or column of several comparisons ends in their geometric mean. Bold: shown to differ.
    """
    of_grid = effects["level"].isin(design.index) & effects["against"].isin(design.index)
    varied = [str(name) for name in design if design[name].nunique() > 1]
    if len(varied) < 2 or not of_grid.any():
        raise _NoDataError
    return draw_grid(effects[of_grid].set_index("level"), design[varied].astype(str))


@styled
def waterfall(steps: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw a ladder, what each step adds to the one before.

    ``steps`` is what ``ladder`` returned, or rows of a frame of effects with ``total_percent``, the change from the start.
    """
    rows = steps.rename(
        columns={
            "step_percent": "percent_change",
            "step_low": "ci_low",
            "step_high": "ci_high",
            "step_verdict": "verdict",
        }
    )
    totals = rows["total_percent"].map(lambda percent: f"{percent:+.1f} %".replace("-", "−"))
    rows = rows.assign(label="+ " + rows["level"] + "\n(so far " + totals + ")").drop(
        columns="against", errors="ignore"
    )
    rows.attrs = steps.attrs | {"title": steps.attrs.get("title", "throughput")}
    ax = effects.__wrapped__(rows, _axes(ax, 1.3 * len(rows)), "label")  # type: ignore[attr-defined]
    return _done(
        ax,
        "What each step adds to the step before",
        "Lines: simultaneous 95 % intervals of each step.",
        steps,
    )


@styled
def lag(replicas: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the replay lag of the replicas, a line a level, of all readings (one a second and replica), on a log axis."""
    rows = replicas.assign(ms=1000 * replicas["replay_lag_s"]).dropna(subset="ms")
    rows = _there(rows[rows["ms"] > 0])
    shown = _order(rows)
    ax = _axes(ax, len(shown))
    parts = rows.groupby("level")["ms"].quantile(np.array([0.05, 0.25, 0.5, 0.75, 0.95])).unstack().loc[shown]
    for low, high, width in ((0.05, 0.95, 1.4), (0.25, 0.75, 7)):
        ax.hlines(shown, parts[low], parts[high], color=LIGHT["blue"], linewidth=width)
    ax.plot(parts[0.5], shown, "o", color="white", markeredgecolor=INK)
    ax.invert_yaxis()
    ax.margins(y=0.5 / len(shown))
    ax.set(xlabel="replay lag, ms", ylabel="", xscale="log")
    ax.xaxis.set_major_formatter(_COUNTS)
    ax.xaxis.set_minor_locator(NullLocator())
    ax.grid(axis="x", visible=True)
    table = rows.groupby("level", sort=False)["ms"].describe(percentiles=[0.05, 0.5, 0.95]).reset_index()
    caption = (
        "Line in the box: the median reading; box: the middle half; whiskers: 5 % to 95 % of the readings."
    )
    return _done(ax, "Replay lag of the replicas, by level", caption, table)


@styled
def correlation(frame: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw rank correlations (Spearman) between the columns of a frame, a row a second or a trial."""
    matrix = frame.corr("spearman", numeric_only=True)
    ax = _axes(ax, 0.8 * len(matrix) + 1)
    sns.heatmap(
        matrix,
        annot=True,
        fmt="+.2f",
        vmin=-1,
        vmax=1,
        cmap=CHANGES,
        cbar=False,
        linewidths=2,
        annot_kws={"color": ON_CELL},
        ax=ax,
    )
    plt.setp(ax.get_xticklabels(), rotation=30, ha="right", rotation_mode="anchor")
    return _done(
        ax, "Rank correlations", "Spearman's coefficient of each pair of columns.", matrix.reset_index()
    )


@styled
def beside(rows: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw published changes beside measured ones; ``rows`` is what ``beside`` returned (those with a percentage)."""
    there = rows.dropna(subset=["percent_change"])
    there = _there(there[there["published_low"].notna()]).reset_index(drop=True)
    ax = _axes(ax, 1.2 * max(len(there), 1))
    factors = _scale(ax, there[["percent_change", "ci_low", "ci_high", "published_low", "published_high"]])
    for place, row in enumerate(there.to_dict("records")):
        ax.plot(
            [factors(row["ci_low"]), factors(row["ci_high"])],
            [place, place],
            color=LIGHT["blue"],
            linewidth=1.4,
        )
        ax.plot(
            factors(row["percent_change"]),
            place,
            "o",
            color=LIGHT["blue"],
            label="measured here" if not place else "",
        )
        ends = [factors(row["published_low"]), factors(row["published_high"])]
        ax.plot(
            ends,
            [place + 0.25] * 2,
            "D-",
            color=LIGHT["orange"],
            markersize=5,
            label="published" if not place else "",
        )
    ax.axvline(factors(0), color=INK, linewidth=0.8)
    ax.set_yticks(range(len(there)), there["figure"])
    ax.set_ylim(len(there) - 0.4, -0.6)
    if len(there):
        _legend(ax)
    ax.set_xlabel("change")
    return _done(
        ax, "Published beside measured", "Lines: 95 % intervals here; diamonds: what was published.", there
    )


def _sentence(column: str) -> str:
    words = METRICS[column].title if column in METRICS else column.replace("_", " ")
    return words[:1].upper() + words[1:]


def _legend(ax: Axes) -> None:
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        ax.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)


__all__: list[Any] = [
    "beside", "correlation", "curve", "dots", "effects", "heat", "lag", "latency", "panels", "timeline", "trials", "waits", "waterfall",
]  # fmt: skip
