"""Statistics of a study: pure functions from frames to verdicts."""

from benchlib.stats.analysis import Analysis, analyze
from benchlib.stats.concerns import Concern

__all__ = ["Analysis", "Concern", "analyze"]
