"""Frames and verdicts become figures; nothing here reads or writes a file."""

from benchlib.report.figures.comparisons import forest, paired_blocks, shares, summary_forest
from benchlib.report.figures.designs import half_normal, interaction, waterfall
from benchlib.report.figures.figure import FIGURE_CSS, Figure
from benchlib.report.figures.flush_rates import flush_rates
from benchlib.report.figures.machines import device_panels, lag_over_time
from benchlib.report.figures.responses import client_sweep, quantile_ladder, setting_curve
from benchlib.report.figures.timelines import drift, latency_over_time, timeline
from benchlib.report.figures.waits import waits_by_level, waits_over_time

__all__ = [
    "FIGURE_CSS",
    "Figure",
    "client_sweep",
    "device_panels",
    "drift",
    "flush_rates",
    "forest",
    "half_normal",
    "interaction",
    "lag_over_time",
    "latency_over_time",
    "paired_blocks",
    "quantile_ladder",
    "setting_curve",
    "shares",
    "summary_forest",
    "timeline",
    "waits_by_level",
    "waits_over_time",
    "waterfall",
]
