"""Statistics of a study: pure functions from frames to verdicts."""

from benchlib.stats.analysis import Analysis
from benchlib.stats.limits import Concern
from benchlib.stats.verdicts import analyze

__all__ = ["Analysis", "Concern", "analyze"]
