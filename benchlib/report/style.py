"""One look for every figure and page: colours that survive dark mode and colour blindness, and a quiet axis.

Hues descend from Okabe and Ito's palette, darkened until each reaches 4.5:1 on the light page and
lightened for the dark one. A colour is never the only carrier of a meaning: verdicts also differ
by marker and by word, levels by marker and label.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_COLOURS = {
    "ink": ("#1a1a1a", "#e8e8ea"),
    "muted": ("#5c6370", "#a3a9b5"),
    "grid": ("#dde0e6", "#343840"),
    "band": ("#e0e5ed", "#262b33"),
    "paper": ("#ffffff", "#15171b"),
    "blue": ("#0068a5", "#56b4e9"),
    "orange": ("#b04400", "#ff9a52"),
    "green": ("#007556", "#2fc79a"),
    "purple": ("#a1266b", "#f08fc0"),
    "ochre": ("#855f00", "#e6b450"),
    "violet": ("#5b4fa2", "#b3a8f5"),
}
LIGHT, DARK = ({name: pair[page] for name, pair in _COLOURS.items()} for page in (0, 1))
"""Name of each colour, and what it is on a light page and on a dark one."""

INK, MUTED, GRID, BAND, PAPER = (LIGHT[name] for name in ("ink", "muted", "grid", "band", "paper"))
BLUE, ORANGE = LIGHT["blue"], LIGHT["orange"]
SERIES = ("blue", "orange", "green", "purple", "ochre", "violet")
"""Names of the colours of levels, in order."""

FEW = len(SERIES)
"""So many levels can be told apart in one panel."""

FONT = 9.5
"""Size of all text, in points; a page shows a point as 1.4 pixels."""


@dataclass(frozen=True)
class Look:
    """How a mark is drawn: colour's name, matplotlib marker, the sign that text uses, filled or hollow."""

    hue: str
    marker: str = "o"
    sign: str = "●"
    filled: bool = True

    @property
    def colour(self) -> str:
        """The colour on a light page."""
        return LIGHT[self.hue]


_UNKNOWN = Look("muted", "o", "–", filled=False)
MARKS = {
    "faster": Look("blue", "^", "▲"),
    "slower": Look("orange", "v", "▼"),
    "equivalent": Look("green", "s", "■"),
    "inconclusive": Look("muted", "o", "○", filled=False),
    "invalid": Look("purple", "X", "✕"),
    "differs by host": Look("purple", "D", "◆"),
}


def mark_of(verdict: object) -> Look:
    """How to draw `verdict`; a missing or unknown one is a hollow grey circle."""
    return MARKS.get(str(verdict), _UNKNOWN)


def looks(levels: Sequence[str]) -> dict[str, Look]:
    """A look for each of the first :data:`FEW` levels."""
    return {
        level: Look(hue, marker)
        for level, hue, marker in zip(levels, SERIES, ("o", "s", "^", "D", "v", "X"), strict=False)
    }
