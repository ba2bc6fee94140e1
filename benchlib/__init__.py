"""Does this change make my PostgreSQL faster, by how much, and am I sure?

Names load on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchlib.load.parse import parse_text
    from benchlib.report import plot
    from benchlib.stats.analysis import Analysis
    from benchlib.stats.effects import compare
    from benchlib.stats.verdicts import analyze

__version__ = "0.1.0"

_HOMES = {
    "analyze": "benchlib.stats.verdicts", "Analysis": "benchlib.stats.analysis",
    "compare": "benchlib.stats.effects", "parse_text": "benchlib.load.parse",
}  # fmt: skip
__all__ = ["Analysis", "analyze", "compare", "parse_text", "plot"]


def __getattr__(name: str) -> Any:
    if name == "plot":
        return import_module("benchlib.report.plot")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'benchlib' has no attribute {name!r}")
