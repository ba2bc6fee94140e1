"""Frames and verdicts become figures; nothing here reads or writes a file."""

from benchlib.report.figures.changes import card as card
from benchlib.report.figures.changes import forest as forest
from benchlib.report.figures.changes import half_normal as half_normal
from benchlib.report.figures.changes import index_panels as index_panels
from benchlib.report.figures.changes import shares as shares
from benchlib.report.figures.changes import waterfall as waterfall
from benchlib.report.figures.figure import FIGURE_CSS as FIGURE_CSS
from benchlib.report.figures.figure import Figure as Figure
from benchlib.report.figures.flush_rates import flush_rates as flush_rates
from benchlib.report.figures.over_time import device_panels as device_panels
from benchlib.report.figures.over_time import drift as drift
from benchlib.report.figures.over_time import latency_over_time as latency_over_time
from benchlib.report.figures.over_time import replay_lag as replay_lag
from benchlib.report.figures.over_time import timeline as timeline
from benchlib.report.figures.over_time import waits_by_level as waits_by_level
from benchlib.report.figures.responses import change_by_clients as change_by_clients
from benchlib.report.figures.responses import client_sweep as client_sweep
from benchlib.report.figures.responses import interaction as interaction
from benchlib.report.figures.responses import quantile_ladder as quantile_ladder
from benchlib.report.figures.responses import setting_curve as setting_curve
