"""Frames and verdicts become figures; nothing here reads or writes a file."""

from benchlib.plots.effects import forest, shares
from benchlib.plots.factorial import half_normal, interaction, waterfall
from benchlib.plots.figure import FIGURE_CSS, Figure, render
from benchlib.plots.pairs import paired_blocks
from benchlib.plots.runs import drift, timeline

__all__ = [
    "FIGURE_CSS",
    "Figure",
    "drift",
    "forest",
    "half_normal",
    "interaction",
    "paired_blocks",
    "render",
    "shares",
    "timeline",
    "waterfall",
]
