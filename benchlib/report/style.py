"""Colours and marks for light and dark pages and for colour-blind readers.

The hues follow Okabe and Ito's palette, with a contrast of 4.5:1 on both pages.
"""

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
"""The colours by name, on a light page and on a dark one."""

INK, MUTED, BAND, PAPER = (LIGHT[name] for name in ("ink", "muted", "band", "paper"))
BLUE, ORANGE = LIGHT["blue"], LIGHT["orange"]
SERIES = ("blue", "orange", "green", "purple", "ochre", "violet")
"""Names of the colours of levels, in order."""


@dataclass(frozen=True)
class Look:
    """The look of a mark: colour, matplotlib marker, sign in text."""

    hue: str
    marker: str = "o"
    sign: str = "●"
    filled: bool = True

    @property
    def colour(self) -> str:
        """The colour on a light page."""
        return LIGHT[self.hue]

    @property
    def face(self) -> str:
        """The colour inside the mark."""
        return self.colour if self.filled else PAPER


_UNKNOWN = Look("muted", "o", "–", filled=False)
MARKS = {
    "faster": Look("blue", "^", "▲"),
    "slower": Look("orange", "v", "▼"),
    "equivalent": Look("green", "s", "■"),
    "inconclusive": Look("muted", "o", "○", filled=False),
    "stands out": Look("ochre", "D", "◇", filled=False),
    "invalid": Look("purple", "X", "✕"),
    "differs by host": Look("purple", "D", "◆"),
}


def mark_of(verdict: object) -> Look:
    """Return a verdict's look; an unknown one is a hollow grey circle."""
    return MARKS.get(str(verdict), _UNKNOWN)
