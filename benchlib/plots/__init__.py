"""Frames and verdicts become figures; nothing here reads or writes a file."""

from benchlib.plots.devices import device_panels
from benchlib.plots.effects import forest, shares
from benchlib.plots.factorial import half_normal, interaction, waterfall
from benchlib.plots.figure import FIGURE_CSS, Figure, render
from benchlib.plots.latency import latency_over_time, quantile_ladder
from benchlib.plots.pairs import paired_blocks
from benchlib.plots.runs import drift, timeline
from benchlib.plots.sweep import client_sweep
from benchlib.plots.waits import waits_by_level, waits_over_time

__all__ = [
    "FIGURE_CSS",
    "Figure",
    "client_sweep",
    "device_panels",
    "drift",
    "forest",
    "half_normal",
    "interaction",
    "latency_over_time",
    "paired_blocks",
    "quantile_ladder",
    "render",
    "shares",
    "timeline",
    "waits_by_level",
    "waits_over_time",
    "waterfall",
]
