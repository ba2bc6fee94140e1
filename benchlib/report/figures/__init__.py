"""Frames and verdicts become figures; nothing here reads or writes a file."""

from benchlib.report.figures.blocks import drift, paired_blocks
from benchlib.report.figures.changes import forest, half_normal, shares, summary_forest, waterfall
from benchlib.report.figures.figure import FIGURE_CSS, Figure
from benchlib.report.figures.flush_rates import flush_rates
from benchlib.report.figures.over_time import (
    device_panels,
    lag_over_time,
    latency_over_time,
    timeline,
    waits_by_level,
    waits_over_time,
)
from benchlib.report.figures.responses import client_sweep, interaction, quantile_ladder, setting_curve

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
