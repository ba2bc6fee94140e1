"""Notebooks as nbformat reads and writes them."""

from pathlib import Path
from typing import Any

from benchlib.errors import InputError, StudyError, os_errors_as
from benchlib.host import files

DATA = "application/vnd.benchlib+json"
"""The type of an output with a frame's rows: ``kind, rows, attrs``."""
ABOUT = "benchlib"
"""The metadata of a figure's output: ``title, caption, alt, csv``."""
Node = Any
"""A notebook, or a cell of one, as nbformat has it: a dictionary with attributes."""


def read_notebook(path: Path) -> Node:
    """Return the notebook in a file.

    Raises:
        InputError: the file is no notebook.
    """
    import nbformat

    try:
        return nbformat.reads(  # type: ignore[no-untyped-call]
            files.read_plain(path).decode(), as_version=4
        )
    except (OSError, ValueError, LookupError, nbformat.ValidationError) as reason:
        raise InputError(f"{path.name} is not a notebook: {str(reason).splitlines()[0]}") from None


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


def write_notebook(notebook: Node, path: Path) -> None:
    """Write a notebook, as :func:`write_file` does."""
    import nbformat

    write_file(path, nbformat.writes(notebook) + "\n")  # type: ignore[no-untyped-call]


def tags(cell: Node) -> set[str]:
    """Return a cell's tags."""
    return set(cell["metadata"].get("tags", []))
