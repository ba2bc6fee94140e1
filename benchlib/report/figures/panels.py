"""Small panels side by side, and what tells several levels apart inside one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from benchlib.report.figures.figure import Canvas
from benchlib.report.figures.frames import plain, wrapped
from benchlib.report.figures.style import SERIES

_MARKERS = (("o", "●"), ("s", "■"), ("^", "▲"), ("D", "◆"), ("v", "▼"), ("X", "✖"))
FEW = len(SERIES)
"""So many levels can be told apart in one panel."""


@dataclass(frozen=True)
class Look:
    """How a level is drawn: colour, matplotlib marker, and the sign that stands for the marker in text."""

    colour: str
    marker: str
    sign: str


def looks(levels: Sequence[str]) -> dict[str, Look]:
    """A look for each level; there are :data:`FEW`."""
    return {
        level: Look(colour, *marker) for level, colour, marker in zip(levels, SERIES, _MARKERS, strict=False)
    }


Places = dict[str, tuple[float, float, str]]


def key(canvas: Canvas, signs: Mapping[str, str], line: float) -> tuple[Places, float]:
    """Where each name with its sign goes, line after line, and how far down that reaches."""
    places, x, y = {}, 0.0, line / 2
    for name, sign in signs.items():
        text = f"{sign} {wrapped(name, canvas.chars(canvas.width - 20), 1)[0]}"
        width = canvas.wide_as(text)
        if x and x + width > canvas.width:
            x, y = 0.0, y + line
        places[name] = (x, y, text)
        x += width + 12
    return places, y + line / 2 if signs else 0.0


class Grid:
    """Equal panels in rows, each under a bold title and a muted note; sets the canvas's height.

    ``top`` points are left free above. The panels share the axis on the left, unless each has an ``own_y``.
    """

    def __init__(
        self,
        canvas: Canvas,
        titles: Sequence[str],
        *,
        columns: int,
        tall: float,
        top: float,
        x_title: str,
        own_y: bool = False,
    ) -> None:
        self._canvas, self._columns, self._tall, self._own_y = canvas, columns, tall, own_y
        self._left = 5.2 * canvas.font
        self._gap = self._left if own_y else 14.0
        self.width = (canvas.width - self._left - 12 - self._gap * (columns - 1)) / columns
        self._line = 1.3 * canvas.font
        room = self.width + (0.75 * self._left if own_y else -0.1 * self.width)
        self._titles = [wrapped(title, canvas.chars(room), 5) for title in titles]
        rows = [self._titles[start : start + columns] for start in range(0, len(titles), columns)]
        self._heads = [(max(len(title) for title in row) + 1) * self._line + 4 for row in rows]
        self._top = top
        total = top + sum(self._heads) + len(rows) * (tall + 18) + 16
        canvas.height(total)
        canvas.note(canvas.width / 2, total - 8, x_title, ha="center")

    def panel(self, number: int, note: str) -> Axes:
        """The axes of a panel, its words written."""
        row, column = divmod(number, self._columns)
        x = self._left + column * (self.width + self._gap)
        y = self._top + row * (self._tall + 18) + sum(self._heads[:row])
        title = self._titles[number]
        words = x - 0.75 * self._left if self._own_y else x
        for i, text in enumerate(title):
            self._canvas.text(words, y + (i + 0.5) * self._line, text, fontweight="bold")
        self._canvas.note(words, y + (len(title) + 0.5) * self._line, note)
        axes = self._canvas.axes(x, y + self._heads[row], self.width, self._tall)
        axes.locator_params(axis="both", nbins=4)
        axes.yaxis.set_major_formatter(plain)
        axes.grid(axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(labelleft=self._own_y or column == 0)
        return axes


def columns_for(canvas: Canvas, panels: int) -> int:
    """How many panels stand in a row."""
    return 1 if panels == 1 else 2 if canvas.narrow or panels in (2, 4) else 3


def binned(frame: pd.DataFrame, clock: str, bins: int) -> tuple[pd.DataFrame, float]:
    """The means of each trial in at most ``bins`` spans of whole seconds, and how long a span is.

    ``frame``: columns ``level, block``, ``clock`` (seconds, at the end of what was read), and figures.
    """
    end = float(frame[clock].max()) if len(frame) else 1.0
    step = max(float(np.ceil(end / bins)), 1.0)
    spans = frame.assign(**{clock: np.ceil(frame[clock] / step - 1e-6) * step})
    return spans.groupby(["level", "block", clock]).mean().reset_index(), step
