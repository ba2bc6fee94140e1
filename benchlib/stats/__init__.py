"""Statistics of a study: pure functions from frames to verdicts."""

from benchlib.stats.analysis import Analysis, Concern
from benchlib.stats.verdicts import analyze

__all__ = ["Analysis", "Concern", "analyze"]
