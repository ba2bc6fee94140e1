"""What charts are made of: the canvas, panels with their titles, rows with intervals, what marks say, text beside them, and axes."""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import text_to_path
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from benchlib.report.figures.frames import MINUS, NOTHING, amount, known, wrapped
from benchlib.report.figures.style import FONT, GRID, INK, MUTED, PAPER, Look

WIDTH = 504.0
"""Of every figure, in points."""
LINE = 1.35 * FONT
"""From one line of text to the next, in points."""
ROW = 22.0
"""The least height of a row with a name, in points."""
_KEYED = 50  # characters
_LONG = 16
"""More rows than these do not fit a screen."""
FAR = 5.0
"""Times that values differ by where an axis becomes logarithmic."""

Pair = tuple[str, str]
"""A text and its colour's value (one other than ink and muted makes it bold), or a title and muted words below it."""
Looks = Mapping[str, Look]
"""Names, such as those of levels, each with the look that stands for it."""
Point = tuple[float, float]


_LOOKS: dict[Any, Any] = {
    **matplotlib.rc_params_from_file(
        Path(__file__).parents[1] / "template" / "charts.mplstyle", use_default_template=False
    ),
    **dict.fromkeys(("font.size", "axes.titlesize", "figure.labelsize"), FONT),
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), MUTED),
    "text.color": INK,
    "grid.color": GRID,
}


@contextmanager
def _style() -> Iterator[None]:
    with matplotlib.rc_context(_LOOKS), warnings.catch_warnings():
        # it has the raw character in it; the reader's own fonts draw what is not in matplotlib's
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


styled = _style()
"""What a function that draws is decorated with."""

_LEFT, _RIGHT, _BELOW = 70.0, 16.0, 40.0  # points around panels, for ticks and the names of axes


def canvas(points: float, keyed: Looks = NOTHING) -> Drawing:
    """An empty drawing of this height; above it a key."""
    # long names may differ at their ends alone
    names = [
        name if len(name) <= _KEYED else f"{name[: _KEYED // 2]}…{name[-_KEYED // 2 :]}" for name in keyed
    ]
    columns = max(int(WIDTH / max([width_of(name) + 34 for name in names], default=WIDTH)), 1)
    high = points + math.ceil(len(names) / columns) * 1.3 * LINE
    fig = Drawing(figsize=(WIDTH / 72, high / 72))
    if names:
        marks = [Line2D([], [], color=of.colour, marker=of.marker, linestyle="none") for of in keyed.values()]
        fig.legend(
            marks, names, loc="upper left", ncols=columns,
            borderaxespad=0, labelspacing=0.3, columnspacing=1.2,
        )  # fmt: skip
    return fig


def panels(
    titles: Sequence[Pair], tall: float, x: str = "", y: str = "", keyed: Looks = NOTHING, sharey: bool = True
) -> tuple[Drawing, list[Axes]]:
    """A panel of this height for each title, up to three in a row, or two where they share no vertical axis.

    `x` and `y` name the axes of all.
    """
    count = len(titles)
    columns = min(count, 3 if sharey and count != 4 else 2)
    rows = math.ceil(count / columns)
    heads = [(wrapped(title, int(WIDTH / columns / (0.72 * FONT))), note) for title, note in titles]
    head = 8 + LINE * max(len(lines) + bool(note) for lines, note in heads)
    points = tall * rows + _BELOW
    fig = canvas(points, keyed)
    fig.supxlabel(x, color=MUTED)
    fig.supylabel(y, color=MUTED)
    high, gap = 72 * fig.get_figheight(), 14.0 if sharey else 56.0
    wide = (WIDTH - _LEFT - _RIGHT + gap) / columns - gap
    grid: list[Axes] = fig.subplots(rows, columns, squeeze=False, sharex=True, sharey=sharey, gridspec_kw={
        "left": _LEFT / WIDTH, "right": 1 - _RIGHT / WIDTH, "bottom": _BELOW / high, "top": (points - head) / high,
        "wspace": gap / wide, "hspace": head / (tall - head),
    }).flatten().tolist()  # fmt: skip
    for axes, (lines, note) in zip(grid, heads, strict=False):
        axes.set_title("\n".join(lines), pad=LINE + 4 if note else 4)
        write(axes, note, (0, 1), (0, 4), "axes fraction", color=MUTED, va="baseline")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_formatter(amount)
    for axes in grid[max(count - columns, 0) : count]:
        axes.tick_params(labelbottom=True)  # also above a gap in the last row
    for axes in grid[count:]:
        axes.remove()
    return fig, grid[:count]


@dataclass(frozen=True)
class Label:
    """What a row is called; muted words below it; the cells to the right of its marks; how many characters a line has; whether it heads those below."""

    name: str
    quiet: str = ""
    cells: Sequence[Pair] = ()
    chars: int = 28
    heading: bool = False


def rows(
    labels: Sequence[Label], marks: pd.DataFrame, title: str, also: Iterable[float], far: float = FAR
) -> tuple[Drawing, Axes, list[float]]:
    """Rows of names, marks with intervals, and cells, on an axis of factors that shows those in `also`, too: the forest.

    `marks`: `row` (number), `value, low, high` (null where not known), and `look`. Returns the drawing, its axes, whose
    vertical unit is a point, and each row's middle.
    """
    labels = labels or [Label("Nothing was compared.")]
    columns = list(zip_longest(*(label.cells for label in labels), fillvalue=("", INK)))
    ends = np.cumsum([10 + max(width_of(text, _bold(colour)) for text, colour in of) for of in columns])
    fig, axes, middles = row_axes(labels, right=24 + max(ends, default=0.0))
    shown = [*marks[["value", "low", "high"]].to_numpy(float).flat, *also]
    axes.set(xlabel=title + change_axis(axes, "x", shown, far))
    axes.grid(axis="x")
    axes.axvline(1, color=INK, linewidth=1, zorder=1.5)
    for column, end in zip(columns, ends, strict=True):
        for (text, colour), y in zip(column, middles, strict=True):
            style = {"color": colour, "ha": "right", "fontweight": "bold" if _bold(colour) else "normal"}
            write(axes, text, (1, y), (end, 0), ("axes fraction", "data"), **style)
    marks = marks.assign(y=np.array(middles)[marks["row"].astype(int)])
    for look, alike in marks.groupby("look", sort=False):
        assert isinstance(look, Look)
        axes.hlines(alike["y"], alike["low"], alike["high"], color=look.colour, linewidth=2)
        axes.plot(
            alike["value"], alike["y"], look.marker, color=look.colour, clip_on=False, zorder=3,
            markerfacecolor=look.colour if look.filled else PAPER, markersize=7,
        )  # fmt: skip
    tell_rows(axes, [_row_text(label) for label in labels], middles)
    return fig, axes, middles


def row_axes(
    labels: Sequence[Label], *, right: float, keyed: Looks = NOTHING
) -> tuple[Drawing, Axes, list[float]]:
    """Axes with named rows, whose vertical unit is a point, and so much room beside them; and each row's middle."""
    texts = [(wrapped(label.name, label.chars), wrapped(label.quiet, label.chars)) for label in labels]
    tall = np.array([max(len([*name, *quiet]) * LINE + 6, ROW) for name, quiet in texts])
    ends = np.cumsum(tall)
    middles, bottom = (ends - tall / 2).tolist(), float(ends[-1])
    beside = [texts[number] for number, label in enumerate(labels) if not label.heading] or texts
    left = 12 + max(width_of(line) for name, quiet in beside for line in (*name, *quiet))
    long = len(labels) > _LONG
    fig = canvas(bottom + _BELOW + 1.6 * LINE * long, keyed)
    high = 72 * fig.get_figheight()
    axes = fig.add_axes((left / WIDTH, _BELOW / high, 1 - (left + right) / WIDTH, bottom / high))
    axes.set(ylim=(bottom, 0), yticks=[])
    axes.tick_params(labeltop=long)  # whoever reads the first rows sees no axis below
    for label, (name, quiet), y in zip(labels, texts, middles, strict=True):
        coords, weight = ("axes fraction", "data"), "bold" if label.heading else "normal"
        write(axes, "\n".join(name), (0, y), (4 - left, len(quiet) * LINE / 2), coords, fontweight=weight)
        write(axes, "\n".join(quiet), (0, y), (4 - left, -len(name) * LINE / 2), coords, color=MUTED)
    return fig, axes, middles


def _row_text(label: Label) -> str:
    """What a row says."""
    cells = ", ".join(text for text, _ in label.cells if text)
    return ": ".join(filter(None, (f"{label.name} {label.quiet}".strip(), cells)))


def _bold(colour: str) -> bool:
    return colour not in (INK, MUTED)


def tell(artist: Artist, text: str) -> None:
    """Have a mark say `text` to whoever points at it or reaches it by the keyboard."""
    artist.set_gid(f"bl-mark-{text.encode().hex()}")


def tell_rows(axes: Axes, texts: Sequence[str], middles: Sequence[float]) -> None:
    """What each row says, wherever in it one points; a row without a text says nothing."""
    for text, middle in zip(texts, middles, strict=True):
        if text:
            ends = middle - ROW / 2, middle + ROW / 2
            area = axes.axhspan(*ends, facecolor="none", edgecolor="none", zorder=5, clip_on=False)
            tell(area, text)


def write(axes: Axes, text: str, at: Point, points: Point, coords: Any, **style: Any) -> None:
    """Text beside a place, moved right and up by so many points; several lines are aligned left."""
    style = {"va": "center", "annotation_clip": False, **style}
    axes.annotate(text, at, points, xycoords=coords, textcoords="offset points", **style)


def width_of(text: str, bold: bool = False) -> float:
    """How many points a line takes in matplotlib's font, which is wider than most that readers have."""
    font = FontProperties(family=["DejaVu Sans"], size=FONT, weight="bold" if bold else "normal")
    return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0])


def tick_words(percent: float, _: object = None) -> str:
    """`+20`, `−50`, `0`."""
    return "0" if abs(percent) < 1e-9 else f"{percent:+,.4g}".replace("-", MINUS)


def change_axis(axes: Axes, which: str, factors: Iterable[float], far: float = FAR) -> str:
    """An axis of changes, as factors, that shows 1 and all finite ones: in percent, or logarithmic where they are more than `far` times apart.

    Returns what its title adds: the unit and the scale.
    """
    shown = [1.0, *(max(float(factor), 0.001) for factor in factors if known(factor))]
    low, high, axis = min(shown), max(shown), getattr(axes, f"{which}axis")
    if high > far * low:
        pad = (high / low) ** 0.06
        scale = log_axis(axes, which, low / pad, high * pad)
        axis.set_major_formatter(lambda factor, _: f"{amount(factor)}\u00a0×")
        return f", as a factor{scale}"
    pad = 0.06 * (high - low) or 0.01
    axes.set(**{f"{which}lim": (low - pad, high + pad)})
    axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(lambda factor, _: tick_words(100 * factor - 100))
    return ", %"


def log_axis(axes: Axes, which: str, low: float, high: float) -> str:
    """A logarithmic axis from `low` to `high`, or a little beyond, labelled at round values; what its title adds."""
    # nearer ends would have one round value between them, or none
    aside = max((FAR * low / high) ** 0.5, 1.0)
    apart, axis = aside**2 * high / low, getattr(axes, f"{which}axis")
    axes.set(**{f"{which}scale": "log", f"{which}lim": (low / aside, high * aside)})
    room = WIDTH * axes.get_position().width / 40 if which == "x" else 5.0
    powers = (1,) if apart >= 100 else (1, 3)  # of less than two decades one power of ten may be all
    subs = next((of for of in ((1, 2, 5), (1, 3)) if len(of) * np.log10(apart) < room), powers)
    axis.set_major_locator(LogLocator(subs=subs, numticks=9 if len(subs) > 1 else None))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(amount)
    return " (log scale)"


def value_axis(axes: Axes, values: "pd.Series[float]", typical: "pd.Series[float]") -> str:
    """A vertical axis from 0, or a logarithmic one where what is `typical` of series is more than :data:`FAR` apart.

    What has no logarithm would vanish from that, so 0 among the values takes the other. What the axis's title adds is returned.
    """
    high = float(values.max()) if values.notna().any() else 1.0
    if values.min() > 0 and typical.max() > FAR * typical.min():
        return log_axis(axes, "y", values.min() / 1.2, 1.2 * high)
    axes.set_ylim(-0.04 * high, 1.06 * high or 1.0)  # a line at 0 is one, too
    return ""


def places_axis(axes: Axes, labels: Mapping[float, str]) -> str:
    """The horizontal axis of these values, labelled where there is room; what its title adds is returned.

    Values that differ by multiples are spread by them; 0 has no logarithm, and stands apart on the left.
    """
    values = np.array(list(labels), float)
    positive, title = values[values > 0], ""
    if len(positive) > 1 and positive[-1] / positive[0] >= FAR and values[0] >= 0:
        axes.set_xscale("symlog", linthresh=positive[0], linscale=0.5)
        title = " (log scale)" if values[0] else " (log scale, 0 apart)"
    to_axis = axes.xaxis.get_transform()
    places = to_axis.transform(values)
    wide, last = places[-1] - places[0] or 1.0, -np.inf
    axes.set_xlim(*to_axis.inverted().transform([places[0] - 0.06 * wide, places[-1] + 0.06 * wide]))
    texts = []
    for place, text in zip(places / wide, labels.values(), strict=True):
        texts.append(text if place - last >= 0.1 else "")
        last = place if texts[-1] else last
    axes.set_xticks(values, texts)
    axes.xaxis.set_minor_locator(NullLocator())
    return title
