"""One look for every figure: colours that survive dark mode and colour blindness, and a quiet axis.

Hues descend from Okabe and Ito's palette, darkened until each reaches 4.5:1 on the light page and
lightened for the dark one. A colour is never the only carrier of a meaning: verdicts also differ
by marker and by word, levels by their label.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

LIGHT: Mapping[str, str] = MappingProxyType(
    {
        "ink": "#1a1a1a",
        "muted": "#5c6370",
        "grid": "#dde0e6",
        "band": "#e9edf2",
        "paper": "#ffffff",
        "blue": "#0068a5",
        "orange": "#b84700",
        "green": "#007a5a",
        "purple": "#a1266b",
        "ochre": "#8a6100",
        "violet": "#5b4fa2",
    }
)
"""Name of each colour, and what it is on a light page."""

DARK: Mapping[str, str] = MappingProxyType(
    {
        "ink": "#e8e8ea",
        "muted": "#a3a9b5",
        "grid": "#343840",
        "band": "#262b33",
        "paper": "#15171b",
        "blue": "#56b4e9",
        "orange": "#ff9a52",
        "green": "#2fc79a",
        "purple": "#f08fc0",
        "ochre": "#e6b450",
        "violet": "#b3a8f5",
    }
)
"""The same names on a dark page."""

INK, MUTED, GRID, BAND, PAPER = (LIGHT[name] for name in ("ink", "muted", "grid", "band", "paper"))
SERIES = tuple(LIGHT[name] for name in ("blue", "orange", "green", "purple", "ochre", "violet"))
"""Colours of levels, in order; a figure with more levels than this uses none."""

RC: Mapping[Any, Any] = MappingProxyType(
    {
        "svg.fonttype": "none",
        "svg.hashsalt": "benchlib",
        "path.simplify": True,
        # Shipped with matplotlib, so the layout is the same everywhere; the reader sees the system's font.
        "font.family": ["DejaVu Sans"],
        "text.color": INK,
        "text.parse_math": False,
        "figure.facecolor": "none",
        "savefig.facecolor": "none",
        "axes.facecolor": "none",
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.unicode_minus": True,
        "axes.axisbelow": True,
        "grid.color": GRID,
        "grid.linewidth": 0.8,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.major.size": 3,
        "ytick.major.size": 0,
        "lines.solid_capstyle": "round",
    }
)


@dataclass(frozen=True)
class Mark:
    """How a verdict is drawn: colour's name, matplotlib marker, the sign that text uses, filled or hollow."""

    hue: str
    marker: str
    sign: str
    filled: bool = True

    @property
    def colour(self) -> str:
        """The colour on a light page."""
        return LIGHT[self.hue]


_UNKNOWN = Mark("muted", "o", "–", filled=False)
MARKS: Mapping[str, Mark] = MappingProxyType(
    {
        "faster": Mark("blue", "^", "▲"),
        "slower": Mark("orange", "v", "▼"),
        "equivalent": Mark("green", "s", "■"),
        "inconclusive": Mark("muted", "o", "○", filled=False),
        "invalid": Mark("purple", "X", "✕"),
    }
)


def verdict_word(verdict: object) -> str:
    """The one of the five words that `verdict` holds ("meaningfully faster" holds "faster"), else ""."""
    words = verdict.split() if isinstance(verdict, str) else []
    return next((word for word in words if word in MARKS), "")


def mark_of(verdict: object) -> Mark:
    """How to draw `verdict`; a missing or unknown one is a hollow grey circle."""
    return MARKS.get(verdict_word(verdict), _UNKNOWN)
