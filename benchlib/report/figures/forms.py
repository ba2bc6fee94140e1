"""The five forms of charts: rows with intervals, panels over time, curves, stacked shares, heat.

Each draws a tidy frame on axes; the charts choose the frame, the axes' scale and the words.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure as Drawing
from matplotlib.transforms import offset_copy
from numpy.typing import NDArray

from benchlib.report.figures.frames import amount, known, plain, wrapped
from benchlib.report.figures.layout import LINE, WIDTH, canvas, tell, tell_rows, width_of, write
from benchlib.report.figures.style import BAND, INK, MUTED, PAPER, Look

Cell = tuple[str, str]
"""A text, and its colour's value; a colour other than ink and muted makes it bold."""

_BELOW = 40.0  # points for an axis's ticks and its title
_ROW = 22.0


@dataclass(frozen=True)
class Label:
    """What a row is called; muted words below it; the cells to the right of its marks; how many characters a line has."""

    name: str
    quiet: str = ""
    cells: Sequence[Cell] = ()
    heading: bool = False
    chars: int = 28

    @property
    def lines(self) -> tuple[list[str], list[str]]:
        """The name and the muted words, on lines that fit."""
        return wrapped(self.name, 40 if self.heading else self.chars), wrapped(self.quiet, self.chars)


def rows(
    labels: Sequence[Label],
    marks: pd.DataFrame,
    scale: Callable[[Axes], str],
    title: str,
    *,
    heads: Sequence[str] = (),
    keyed: Mapping[str, Look] | None = None,
    band: tuple[float, float] | None = None,
    origin: float = 0.0,
) -> tuple[Drawing, Axes, list[float]]:
    """Rows of names, marks with intervals, and cells: the forest.

    `marks`: `row` (number), `value, low, high` (null where not known), `look`, and where there are several in a row
    `lift` (in steps of 5 points, downwards). `scale` sets the horizontal axis, with a line at `origin`, and returns what
    the title adds; `heads` stand above the columns of cells, the last one of which is aligned left where it has no head.
    Returns the drawing, its axes, whose vertical unit is a point, and each row's middle.
    """
    table = [[(head, MUTED) for head in heads], *(label.cells for label in labels)]
    columns = list(zip_longest(*table, fillvalue=("", INK)))
    widths = [max(width_of(text, _bold(colour)) for text, colour in column) for column in columns]
    right = 24 + sum(width + 10 for width in widths)
    fig, axes, middles = row_axes(labels, right=right, above=LINE * bool(heads), keyed=keyed)
    axes.set(xlabel=title + scale(axes))
    axes.grid(axis="x")
    axes.axvline(origin, color=INK, linewidth=1, zorder=1.5)
    if band:
        axes.axvspan(*band, color=BAND, linewidth=0, zorder=0.5)
    x = 10.0
    for number, (column, width) in enumerate(zip(columns, widths, strict=True)):
        to_right = number + 1 < len(columns) or bool(heads) or len(columns) == 1
        place, align = x + width * to_right, "right" if to_right else "left"
        write(axes, column[0][0], (1, 1), (place, LINE / 2), "axes fraction", color=MUTED, ha=align)
        for (text, colour), y in zip(column[1:], middles, strict=True):
            style = {"color": colour, "ha": align, "fontweight": "bold" if _bold(colour) else "normal"}
            write(axes, text, (1, y), (place, 0), ("axes fraction", "data"), **style)
        x += width + 10
    lift = 5.0 * marks["lift"] if "lift" in marks else 0.0
    _draw(axes, marks.assign(y=np.array(middles)[marks["row"].astype(int)] + lift))
    tell_rows(axes, [_row_text(label, heads) for label in labels], middles, _ROW / 2)
    return fig, axes, middles


def row_axes(
    labels: Sequence[Label], *, right: float, above: float = 0.0, keyed: Mapping[str, Look] | None = None
) -> tuple[Drawing, Axes, list[float]]:
    """Axes with named rows, whose vertical unit is a point, so much room beside and above them; and each row's middle."""
    tall = np.array([max(len([*chain(*label.lines)]) * LINE + 6, _ROW) for label in labels])
    ends = np.cumsum(tall)
    middles, bottom = (ends - tall / 2).tolist(), float(ends[-1])
    left = 12 + max(width_of(line, label.heading) for label in labels for line in chain(*label.lines))
    fig = canvas(bottom + above + _BELOW, keyed)
    high = 72 * fig.get_figheight()
    axes = fig.add_axes((left / WIDTH, _BELOW / high, 1 - (left + right) / WIDTH, bottom / high))
    axes.set(ylim=(bottom, 0), yticks=[])
    for label, y in zip(labels, middles, strict=True):
        name, quiet = label.lines
        style: dict[str, Any] = {"coords": ("axes fraction", "data")}
        weight = "bold" if label.heading else "normal"
        write(axes, "\n".join(name), (0, y), (4 - left, len(quiet) * LINE / 2), fontweight=weight, **style)
        write(axes, "\n".join(quiet), (0, y), (4 - left, -len(name) * LINE / 2), color=MUTED, **style)
    return fig, axes, middles


def _row_text(label: Label, heads: Sequence[str]) -> str:
    """What a row says; nothing of a heading."""
    if label.heading:
        return ""
    heads = [*heads, *[""] * len(label.cells)]
    cells = [f"{text} {head}".strip() for (text, _), head in zip(label.cells, heads, strict=False) if text]
    return ": ".join(filter(None, (f"{label.name} {label.quiet}".strip(), ", ".join(cells))))


def _bold(colour: str) -> bool:
    return colour not in (INK, MUTED)


def _draw(axes: Axes, marks: pd.DataFrame) -> None:
    """Marks at `value, y`, with a line from `low` to `high`; those of one `look` together."""
    for look, alike in marks.groupby("look", sort=False):
        assert isinstance(look, Look)
        axes.hlines(alike["y"], alike["low"], alike["high"], color=look.colour, linewidth=0.3 * look.size)
        face = look.colour if look.filled else PAPER
        axes.plot(
            alike["value"], alike["y"], look.marker, color=look.colour, markerfacecolor=face,
            markersize=look.size, clip_on=False, zorder=3,
        )  # fmt: skip


def medians(axes: Axes, frame: pd.DataFrame, looks: Mapping[str, Look]) -> None:
    """Over time, the median of each series at each second, and a band that holds the middle half of the values.

    `frame`: `series, second, value`; where a second has no value, the line has a gap. The axis begins at 0; a rare
    spike of a band may leave it, no line does.
    """
    highest, quarters = 0.0, np.array([0.25, 0.5, 0.75])
    ends = frame.groupby(["series", "second"])["value"].quantile(quarters).unstack()
    axes.autoscale(False)  # which takes long, line by line
    axes.set_xlim(0, 1.01 * float(frame["second"].max()))
    for place, (name, look) in enumerate(looks.items()):
        if name not in ends.index:
            continue
        low, median, high = (ends.loc[name][quarter] for quarter in quarters)
        axes.fill_between(median.index, low, high, color=look.colour, alpha=0.2, linewidth=0)
        every = max(len(median) // 6, 1)
        axes.plot(
            median.index, median, color=look.colour, marker=look.marker, markersize=4,
            markevery=(place % every, every),
        )  # fmt: skip
        highest = float(np.nanmax([highest, median.max(), high.quantile(0.98)]))
    axes.set_ylim(-0.04 * highest, 1.08 * highest or 1.0)  # a line at 0 is one, too


def curves(
    axes: Axes,
    frame: pd.DataFrame,
    looks: Mapping[str, Look],
    words: Callable[[Any], str] = plain,
    value_words: Callable[[float], str] = amount,
    apart: float = 4.0,
) -> None:
    """A curve with intervals for each series, its marks so many points beside those of the next; `words` writes a place.

    `frame`: `series, x, value, low, high`; with `least, most` a wider range behind the interval.
    """
    import seaborn as sns  # takes long to import, and only these charts need it

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
        for x, value, *ends in points.dropna(subset="value")[["x", "value", "low", "high"]].to_numpy(float):
            bounds = f" ({' to '.join(map(value_words, ends))})" if known(*ends) else ""
            (reach,) = axes.plot(
                x, value, "o", color="none", markersize=15, markeredgewidth=0, transform=moved, zorder=5
            )
            tell(reach, f"{name} {words(x)}: {value_words(value)}{bounds}".strip())
    axes.set(xlabel="", ylabel="")


def stacked(axes: Axes, frame: pd.DataFrame, looks: Mapping[str, Look], middles: Sequence[float]) -> None:
    """A bar of parts in the order of `looks` at each of `middles`: a row of `frame`, which has a column for each part."""
    start = np.zeros(len(frame))
    for name, look in looks.items():
        values = frame[name].fillna(0.0).to_numpy()
        axes.barh(middles, values, 16, left=start, color=look.colour, linewidth=0)
        start += values


def heat(axes: Axes, x: NDArray[Any], y: NDArray[Any], shares: NDArray[Any], rarest: float) -> None:
    """Shares as depths of one colour on a log scale, from `rarest` on; `x` and `y` are the cells' edges."""
    # halfway between the light page's blue and the dark one's, since a raster has one colour on both
    colours = LinearSegmentedColormap.from_list("heat", ["#2b8ec700", "#2b8ec7"])
    values = np.ma.masked_less_equal(shares, 0)
    axes.pcolormesh(x, y, values.T, cmap=colours, norm=LogNorm(rarest, 1, clip=True), rasterized=True)
