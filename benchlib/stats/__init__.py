"""The statistics. Names load on first use: scipy takes a second."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchlib.stats.analysis import Analysis
    from benchlib.stats.limits import Concern
    from benchlib.stats.verdicts import analyze

_HOMES = {"Analysis": "analysis", "Concern": "limits", "analyze": "verdicts"}
__all__ = ["Analysis", "Concern", "analyze"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"benchlib.stats.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'benchlib.stats' has no attribute {name!r}")
