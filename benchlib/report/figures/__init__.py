"""Frames and verdicts become figures; nothing here reads or writes a file."""

from benchlib.report.figures.devices import device_panels
from benchlib.report.figures.effects import forest, shares
from benchlib.report.figures.factorial import half_normal, interaction, waterfall
from benchlib.report.figures.figure import FIGURE_CSS, Figure, render
from benchlib.report.figures.latency import latency_over_time, quantile_ladder
from benchlib.report.figures.pairs import paired_blocks
from benchlib.report.figures.runs import drift, timeline
from benchlib.report.figures.sweep import client_sweep
from benchlib.report.figures.waits import waits_by_level, waits_over_time

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
