"""What all forms of charts share: the canvas, its key, panels with their titles, what marks say, text beside them, and axes."""

import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from benchlib.report.figures.frames import MINUS, known, plain
from benchlib.report.figures.style import FONT, MUTED, PAPER, RC, Look

WIDTH = 504.0
"""Of every figure, in points."""
LINE = 1.35 * FONT
"""From one line of text to the next, in points."""
FAR = 5.0
"""Times that values differ by where an axis becomes logarithmic."""


@contextmanager
def _style() -> Iterator[None]:
    with matplotlib.rc_context(RC), warnings.catch_warnings():
        # it has the raw character in it; the reader's own fonts draw what is not in matplotlib's
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


styled = _style()
"""What a function that draws is decorated with."""

_LOWEST = -99.9  # a change of −100 % has no logarithm


def canvas(points: float, keyed: Mapping[str, Look] | None = None) -> Drawing:
    """An empty drawing of this height; above it the names in `keyed`, each with the look that stands for it."""
    names = {textwrap.shorten(name, 50, placeholder="…"): look for name, look in (keyed or {}).items()}
    widths = [width_of(name) + 34 for name in names]
    columns = next(
        (n for n in range(len(names), 1, -1) if sum(map(max, np.array_split(widths, n))) <= WIDTH - 8), 1
    )
    high = points + -(-len(names) // columns) * 1.3 * LINE
    fig = Drawing(figsize=(WIDTH / 72, high / 72))
    if names:
        fig.legend(
            [handle(look) for look in names.values()], list(names), loc="upper left",
            ncols=columns, borderaxespad=0, labelspacing=0.3, columnspacing=1.2,
        )  # fmt: skip
    return fig


def panels(
    titles: Sequence[tuple[str, str]],
    tall: float,
    x: str = "",
    y: str = "",
    *,
    columns: int = 0,
    keyed: Mapping[str, Look] | None = None,
    sharey: bool = True,
) -> tuple[Drawing, list[Axes]]:
    """A panel of this height for each title and muted note, up to three in a row; `x` and `y` name the axes of all."""
    count = len(titles)
    columns = columns or (count if count < 4 else 2 if count == 4 else 3)
    rows = -(-count // columns)
    fig = canvas(30 + tall * rows, keyed)
    fig.supxlabel(x, color=MUTED)
    fig.supylabel(y, color=MUTED)
    grid: list[Axes] = (
        fig.subplots(rows, columns, squeeze=False, sharex=True, sharey=sharey).flatten().tolist()
    )
    for axes, (title, note) in zip(grid, titles, strict=False):
        entitle(axes, title, note, columns)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_formatter(plain)
    for axes in grid[max(count - columns, 0) : count]:
        axes.tick_params(labelbottom=True)  # also above a gap in the last row
    for axes in grid[count:]:
        axes.remove()
    return fig, grid[:count]


def entitle(axes: Axes, title: str, note: str = "", columns: int = 1) -> None:
    """A panel's title and the muted note below it."""
    lines = textwrap.wrap(title, int(WIDTH / columns / (0.72 * FONT)), max_lines=3, placeholder="…")
    if lines:
        axes.set_title("\n".join(lines), pad=LINE + 4 if note else 4, y=1)
        write(axes, note, (0, 1), (0, 4), "axes fraction", color=MUTED, va="baseline")
    else:
        axes.set_title(note, fontweight="normal", color=MUTED, pad=4, y=1)
    axes.set_label("\n".join([*lines, note]).strip())


def arrange(fig: Drawing) -> None:
    """Make room around the panels of a grid for their titles, ticks and names, which matplotlib's own ways do slowly."""
    grid = fig.axes
    spec = grid[0].get_subplotspec() if grid else None
    if spec is None or fig.get_layout_engine():
        return
    rows, columns = spec.get_gridspec().get_geometry()
    width, height = 72 * fig.get_size_inches()

    def ticks(column: Sequence[Axes]) -> float:
        """The room that tick labels and names take left of these panels."""
        axis_of = [axes.yaxis for axes in column if axes.yaxis.get_tick_params()["labelleft"]]
        ends = [axis.get_major_formatter().format_ticks([*axis.get_majorticklocs()]) for axis in axis_of]
        texts = [text for of_axis in ends for text in of_axis]
        named = any(axes.get_ylabel() for axes in column)
        return max((width_of(text) for text in texts), default=0.0) + 10 + (LINE + 4) * named

    title = max(len(str(axes.get_label()).split("\n")) * LINE * bool(axes.get_label()) for axes in grid) + 8
    left = ticks(grid[::columns]) + (LINE + 6) * bool(fig.get_supylabel())
    gap = max([ticks([axes]) for number, axes in enumerate(grid) if number % columns], default=0.0) + 6
    inner = any(axes.xaxis.get_tick_params()["labelbottom"] for axes in grid[:-columns])
    between = title + (LINE + 4) * inner
    bottom = LINE + 8 + (LINE + 2) * (bool(fig.get_supxlabel()) + any(axes.get_xlabel() for axes in grid))
    top = title + sum(legend.get_window_extent().height for legend in fig.legends) * 72 / fig.dpi
    fig.subplots_adjust(
        left=left / width, right=1 - 16 / width, bottom=bottom / height, top=1 - top / height,
        wspace=gap * columns / (width - left - 16 - gap * (columns - 1)),
        hspace=between * rows / (height - top - bottom - between * (rows - 1)),
    )  # fmt: skip


def tell(artist: Artist, text: str) -> None:
    """Have a mark say `text` to whoever points at it or reaches it by the keyboard."""
    artist.set_gid(f"bl-mark-{text.encode().hex()}")


def tell_rows(axes: Axes, texts: Sequence[str], middles: Sequence[float], half: float) -> None:
    """What each row says, wherever in it one points; a row without a text says nothing."""
    for text, middle in zip(texts, middles, strict=True):
        if text:
            row = axes.axhspan(middle - half, middle + half, facecolor="none", edgecolor="none", zorder=5)
            tell(row, text)


def write(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    points: tuple[float, float],
    coords: Any = "data",
    **style: Any,
) -> None:
    """Text beside a place, moved right and up by so many points; the axes make room for it.

    Line after line: matplotlib aligns the lines of a block by its own font's widths, which the reader's font does
    not share.
    """
    lines = text.split("\n")
    style = {"va": "center_baseline", "annotation_clip": False, **style}
    for number, line in enumerate(lines):
        up = points[1] - (number - (len(lines) - 1) / 2) * LINE
        axes.annotate(line, at, (points[0], up), xycoords=coords, textcoords="offset points", **style)


def width_of(text: str, bold: bool = False) -> float:
    """How many points the longest line takes in matplotlib's font, which is wider than most that readers have."""
    font = FontProperties(family=["DejaVu Sans"], size=FONT, weight="bold" if bold else "normal")
    size_of = text_to_path.get_text_width_height_descent
    return max(float(size_of(line, font, ismath=False)[0]) for line in text.split("\n"))


def tick_words(percent: float, _: object = None) -> str:
    """`+20`, `−50`, `0`."""
    return "0" if abs(percent) < 1e-9 else f"{percent:+,.4g}".replace("-", MINUS)


def percent_axis(axes: Axes, which: str, percents: Iterable[float]) -> str:
    """An axis that shows all finite `percents` and 0: linear, or logarithmic where they are more than :data:`FAR` apart.

    Returns what its title adds: the unit and the scale.
    """
    values = [max(float(p), _LOWEST) for p in percents if known(p)]
    low, high = min([0.0, *values]), max([0.0, *values])
    if high - low < 1e-9:
        low, high = -1.0, 1.0
    axis = axes.xaxis if which == "x" else axes.yaxis
    if 100 + high <= FAR * (100 + low):
        pad = 0.06 * (high - low)
        axes.set(**{f"{which}lim": (low - pad, high + pad)})
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        axis.set_major_formatter(tick_words)
        return ", %"
    ends = np.array([_to_log(low), _to_log(high)])
    low, high = _from_log(ends + np.array([-0.06, 0.06]) * (ends[1] - ends[0]))
    (axes.set_xscale if which == "x" else axes.set_yscale)("function", functions=(_to_log, _from_log))
    axes.set(**{f"{which}lim": (low, high)})
    factors = sorted({1.0, *round_values(1 + low / 100, 1 + high / 100, 4)})
    ticks = [100 * factor - 100 for factor in factors]
    axis.set_ticks(ticks, [f"{plain(factor)}\u00a0×" for factor in factors])
    return ", as a factor (log scale)"


def log_axis(axes: Axes, which: str, low: float, high: float, most: int = 6) -> str:
    """A logarithmic axis from `low` to `high`, labelled at round values; what its title adds."""
    axes.set(**{f"{which}scale": "log", f"{which}lim": (low, high)})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(FixedLocator(round_values(low, high, most)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(plain)
    return " (log scale)"


def value_axis(axes: Axes, values: "pd.Series[float]", typical: "pd.Series[float]", room: float = 1.0) -> str:
    """A vertical axis from 0, or a logarithmic one where what is `typical` of series is more than :data:`FAR` apart.

    The values take that share of its height; what its title adds is returned.
    """
    high = float(values.max()) if values.notna().any() else 1.0
    if len(typical) and typical.max() > FAR * typical.min() > 0:
        low = max(float(values.min()), typical.min() / FAR) / 1.2
        return log_axis(axes, "y", low, low * (1.2 * high / low) ** (1 / room), 5)
    axes.set_ylim(0, 1.06 * high / room or 1.0)
    axes.yaxis.set_major_formatter(plain)
    return ""


def places_axis(axes: Axes, labels: Mapping[float, str]) -> str:
    """The horizontal axis of these values, labelled where there is room; what its title adds is returned.

    Values that differ by multiples are spread by them; 0 has no logarithm, and stands apart on the left.
    """
    values = np.array(list(labels))
    positive, title = values[values > 0], ""
    if len(positive) > 1 and positive[-1] / positive[0] >= FAR and values[0] >= 0:
        title = " (log scale)" if values[0] else " (log scale, 0 apart)"
        apart: dict[str, Any] = {} if values[0] else {"linthresh": positive[0], "linscale": 0.5}
        axes.set_xscale("symlog" if apart else "log", **apart)
    to_axis = axes.xaxis.get_transform()
    places = to_axis.transform(values)
    pad = 0.06 * (places[-1] - places[0]) or 0.1
    axes.set_xlim(*to_axis.inverted().transform([places[0] - pad, places[-1] + pad]))
    middles = (places - places[0] + pad) / (places[-1] - places[0] + 2 * pad) * (WIDTH - 70)
    texts, free = [], -np.inf
    for middle, text in zip(middles, labels.values(), strict=True):
        half = width_of(text) / 2
        texts.append(text if middle - half >= free else "")
        free = middle + half + 5 if texts[-1] else free
    axes.set_xticks(values, texts)
    axes.xaxis.set_minor_locator(NullLocator())
    return title


def factor_axis(axes: Axes, factors: NDArray[Any]) -> str:
    """A horizontal axis that shows all finite `factors`, labelled 0.5 ×, 0.8 ×, 1 × … where there is room; what its title adds."""
    shown = factors[np.isfinite(factors)]
    low, high = np.min([0.8, *shown]) / 1.1, np.max([1.25, *shown]) * 1.1
    title = log_axis(axes, "x", low, high)
    apart = 34 / (WIDTH * axes.get_position().width) * np.log(high / low)
    ticks: list[float] = []
    for value in (1, 0.5, 2, 0.2, 5, 0.1, 10, 0.8, 1.25, 0.05, 20, 0.02, 50, 0.01, 100, 200, 500, 1000):
        if low <= value <= high and all(abs(np.log(value / tick)) >= apart for tick in ticks):
            ticks.append(value)
    axes.set_xticks(ticks, [f"{plain(tick)}\u00a0×" for tick in ticks])
    return title


def round_values(low: float, high: float, most: int) -> list[float]:
    """Round values of a log scale, at most about so many: 1, 2, 5 of each decade, or fewer; between near ends any."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        values = [step * 10.0**decade for decade in decades for step in steps]
        values = [value for value in values if low <= value <= high]
        if len(values) <= most:
            break
    if len(values) < 2:
        near = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
        values = [float(value) for value in near if low <= value <= high]
    return values


def _to_log(percent: Any) -> Any:
    return np.log1p(np.maximum(percent, _LOWEST) / 100)


def _from_log(position: Any) -> Any:
    return 100 * np.expm1(position)


def handle(look: Look) -> Line2D:
    """What stands for a look in a key."""
    face = look.colour if look.filled else PAPER
    return Line2D(
        [], [], color=look.colour, marker=look.marker, markerfacecolor=face, linestyle="none", markersize=6
    )
