"""The parts of executed notebooks, and files of the site."""

from pathlib import Path
from typing import Any

from benchlib.errors import StudyError, os_errors_as
from benchlib.host import files

DATA = "application/vnd.benchlib+json"
"""The type of an output with a frame's rows: ``kind, rows, attrs``."""
ABOUT = "benchlib"
"""The metadata of a figure's output: ``title, caption, alt, csv``."""
Node = Any
"""A notebook, or a cell of one, as nbformat has it: a dictionary with attributes."""


def write_file(path: Path, text: str) -> None:
    """Write a file of the site.

    Raises:
        StudyError: the disk refused.
        PreflightError: the folder is not trusted.
    """
    advice = "free some space, make it writable, or name another folder"
    with os_errors_as(StudyError, f"cannot write {path}: {advice}"):
        files.make(path.parent)
        files.write(path, text)


def tags(cell: Node) -> set[str]:
    """Return a cell's tags."""
    return set(cell["metadata"].get("tags", []))
