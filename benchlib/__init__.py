"""Does this change make my PostgreSQL faster, by how much, and am I sure?

The public names are loaded when they are first used, so that ``import benchlib``
(and with it the command line and the guardian process) starts in milliseconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchlib.load.parse import parse_text
    from benchlib.stats import Analysis, analyze

__version__ = "0.1.0"

_HOMES = {"analyze": "benchlib.stats", "Analysis": "benchlib.stats", "parse_text": "benchlib.load.parse"}
__all__ = ["Analysis", "analyze", "parse_text"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'benchlib' has no attribute {name!r}")
