"""The five forms of charts: rows with intervals, panels over time, curves, stacked shares, heat.

Each draws a tidy frame on axes; the charts choose the frame, the axes' scale and the words.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure as Drawing
from matplotlib.transforms import offset_copy
from numpy.typing import NDArray

from benchlib.report.figures.frames import amount, plain, wrapped
from benchlib.report.figures.layout import LINE, add_to_label, canvas, describe, width_of, write
from benchlib.report.figures.style import BAND, INK, MUTED, PAPER, Look

Cell = tuple[str, str]
"""A text, and its colour's value; a colour other than ink and muted makes it bold."""


@dataclass(frozen=True)
class Label:
    """What a row is called; muted words below it; the cells to the right of its marks."""

    name: str
    quiet: str = ""
    cells: Sequence[Cell] = ()
    heading: bool = False

    @property
    def lines(self) -> tuple[list[str], list[str]]:
        """The name and the muted words, on lines that fit."""
        return wrapped(self.name, 40 if self.heading else 28), wrapped(self.quiet)


def rows(
    labels: Sequence[Label],
    marks: pd.DataFrame,
    scale: Callable[[Axes], str],
    title: str,
    *,
    heads: Sequence[str] = (),
    keyed: Mapping[str, Look] | None = None,
    band: tuple[float, float] | None = None,
) -> tuple[Drawing, Axes, list[float]]:
    """Rows of names, marks with intervals, and cells: the forest.

    `marks`: `row` (number), `value, low, high` (null where not known), `look`, and where there are several in a row
    `lift` (in steps of 5 points, downwards). `scale` sets the horizontal axis and returns what the title adds;
    `heads` stand above the columns of cells, the last one of which is aligned left where it has no head. Returns the
    drawing, its axes, whose vertical unit is a point, and each row's middle.
    """
    middles, bottom = row_places(labels)
    fig = canvas(bottom + 44 + LINE * bool(heads), keyed)
    axes = fig.subplots()
    axes.set(ylim=(bottom, 0), yticks=[], xlabel=title + scale(axes))
    axes.grid(axis="x")
    axes.axvline(0, color=INK, linewidth=1, zorder=1.5)
    if band:
        axes.axvspan(*band, color=BAND, linewidth=0, zorder=0.5)
    name_rows(axes, labels, middles)
    _cells(axes, labels, middles, heads)
    lift = 5.0 * marks["lift"] if "lift" in marks else 0.0
    _draw(axes, marks.assign(y=np.array(middles)[marks["row"].astype(int)] + lift))
    add_to_label(axes, "; ".join(_row_text(label, heads) for label in labels))
    return fig, axes, middles


def _row_text(label: Label, heads: Sequence[str]) -> str:
    """A row for the alt text."""
    cells = [
        f"{cell[0]} {head}".strip()
        for cell, head in zip_longest(label.cells, heads[: len(label.cells)], fillvalue="")
        if cell[0]
    ]
    return ": ".join(filter(None, (f"{label.name} {label.quiet}".strip(), ", ".join(cells))))


def row_places(labels: Sequence[Label]) -> tuple[list[float], float]:
    """The middle of each row, and where the last one ends, in points from the top."""
    tall = np.array([max(len([*chain(*label.lines)]) * LINE + 6, 22) for label in labels])
    ends = np.cumsum(tall)
    return (ends - tall / 2).tolist(), float(ends[-1])


def name_rows(axes: Axes, labels: Sequence[Label], middles: Sequence[float]) -> None:
    """The rows' names, left of the axes."""
    left = -8 - max(width_of(line, label.heading) for label in labels for line in chain(*label.lines))
    for label, y in zip(labels, middles, strict=True):
        name, quiet = label.lines
        style: dict[str, Any] = {"coords": ("axes fraction", "data")}
        weight = "bold" if label.heading else "normal"
        write(axes, "\n".join(name), (0, y), (left, len(quiet) * LINE / 2), fontweight=weight, **style)
        write(axes, "\n".join(quiet), (0, y), (left, -len(name) * LINE / 2), color=MUTED, **style)


def _cells(axes: Axes, labels: Sequence[Label], middles: Sequence[float], heads: Sequence[str]) -> None:
    """Columns of text, right of the axes."""
    count = max((len(label.cells) for label in labels), default=0)
    x = 10.0
    for column in range(count):
        cells = [label.cells[column] if column < len(label.cells) else ("", INK) for label in labels]
        head = heads[column] if column < len(heads) else ""
        width = max(width_of(head), *(width_of(text, _bold(colour)) for text, colour in cells))
        right = column + 1 < count or bool(heads) or count == 1
        style: dict[str, Any] = {"ha": "right" if right else "left"}
        place = x + width * right
        if head:
            write(axes, head, (1, 1), (place, LINE / 2), "axes fraction", color=MUTED, **style)
        for (text, colour), y in zip(cells, middles, strict=True):
            style |= {"color": colour, "fontweight": "bold" if _bold(colour) else "normal"}
            write(axes, text, (1.0, y), (place, 0.0), ("axes fraction", "data"), **style)
        x += width + 10


def _bold(colour: str) -> bool:
    return colour not in (INK, MUTED)


def _draw(axes: Axes, marks: pd.DataFrame) -> None:
    """Marks at `value, y`, with a line from `low` to `high`; those of one `look` together."""
    for look, alike in marks.groupby("look", sort=False):
        assert isinstance(look, Look)
        if {"low", "high"} <= set(alike):
            axes.hlines(alike["y"], alike["low"], alike["high"], color=look.colour, linewidth=0.3 * look.size)
        face = look.colour if look.filled else PAPER
        axes.plot(
            alike["value"], alike["y"], look.marker, color=look.colour, markerfacecolor=face,
            markersize=look.size, clip_on=False, zorder=3,
        )  # fmt: skip


def medians(axes: Axes, frame: pd.DataFrame, looks: Mapping[str, Look], middle: float) -> None:
    """Over time, the median of each series at each second, and a band that holds the `middle` of the values (a share).

    `frame`: `series, second, value`; where a second has no value, the line has a gap. The axis begins at 0; a rare
    spike of a band may leave it, no line does.
    """
    highest = 0.0
    for place, (name, look) in enumerate(looks.items()):
        values = frame.loc[frame["series"] == name].groupby("second")["value"]
        low, median, high = (values.quantile(0.5 + side * middle / 2) for side in (-1, 0, 1))
        axes.fill_between(median.index, low, high, color=look.colour, alpha=0.14, linewidth=0)
        every = max(len(median) // 6, 1)
        axes.plot(
            median.index, median, color=look.colour, marker=look.marker, markersize=4,
            markevery=(place % every, every),
        )  # fmt: skip
        highest = float(np.nanmax([highest, median.max(), high.quantile(0.98)]))
    describe(axes, frame, looks)
    axes.set_ylim(-0.04 * highest, 1.08 * highest or 1.0)  # a line at 0 is one, too


def curves(
    axes: Axes,
    frame: pd.DataFrame,
    looks: Mapping[str, Look],
    words: Callable[[Any], str] = plain,
    apart: float = 4.0,
) -> None:
    """A curve with intervals for each series, its marks so many points beside those of the next; `words` writes a place.

    `frame`: `series, x, value, low, high`; with `least, most` a wider range behind the interval.
    """
    for place, (name, look) in enumerate(looks.items()):
        points = frame[frame["series"] == name]
        aside = apart * (place - (len(looks) - 1) / 2)
        moved = offset_copy(axes.transData, axes.get_figure(root=True), x=aside, units="points")
        style: dict[str, Any] = {"color": look.colour, "transform": moved}
        if "least" in points:
            axes.vlines(points["x"], points["least"], points["most"], alpha=0.22, linewidth=8, **style)
        axes.vlines(points["x"], points["low"], points["high"], linewidth=1.8, **style)
        sns.lineplot(
            points, x="x", y="value", marker=look.marker, markersize=6, linewidth=1.2, estimator=None,
            ax=axes, **style,
        )  # fmt: skip
    describe(axes, frame, looks, words)
    axes.set(xlabel="", ylabel="")


def stacked(axes: Axes, frame: pd.DataFrame, looks: Mapping[str, Look], step: float | None = None) -> None:
    """Parts on top of each other in the order of `looks`: a bar across each row `at`; with a `step`, areas over time.

    `frame`: `at` (of a time span the end) and a column of values for each part.
    """
    colours = {name: look.colour for name, look in looks.items()}
    if step is not None:
        # what was read until a second holds from the span's beginning on
        first = frame.head(1).assign(at=frame["at"] - step)
        areas = pd.concat([first, frame])
        axes.stackplot(
            areas["at"], areas[list(looks)].T, colors=list(colours.values()), linewidth=0, step="pre"
        )
        describe(axes, frame.melt("at", list(looks), "series"), looks)
        return
    sns.histplot(
        frame.melt("at", list(looks), "part", "value"), y="at", weights="value", hue="part", discrete=True,
        hue_order=list(looks)[::-1], palette=colours, multiple="stack", shrink=0.8, alpha=1, linewidth=0,
        legend=False, ax=axes,
    )  # fmt: skip
    axes.set(xlabel="", ylabel="")


def heat(axes: Axes, x: NDArray[Any], y: NDArray[Any], shares: NDArray[Any], rarest: float) -> None:
    """Shares as depths of one colour on a log scale, from `rarest` on; `x` and `y` are the cells' edges."""
    # halfway between the light page's blue and the dark one's, since a raster has one colour on both
    colours = LinearSegmentedColormap.from_list("heat", ["#2b8ec700", "#2b8ec7"])
    values = np.ma.masked_less_equal(shares, 0)
    axes.pcolormesh(x, y, values.T, cmap=colours, norm=LogNorm(rarest, 1, clip=True), rasterized=True)
    upto = np.cumsum(shares.sum(axis=0))
    ends = [
        f"{share:.0%} below {amount(y[1 + np.searchsorted(upto, share * upto[-1])])}" for share in (0.5, 0.99)
    ]
    add_to_label(axes, ", ".join(ends))
