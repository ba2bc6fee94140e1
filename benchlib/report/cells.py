"""A notebook as its file has it: plain JSON. To import nbformat takes as long as half a page."""

import json
from pathlib import Path
from typing import Any

from benchlib.errors import InputError
from benchlib.host import files

Node = dict[str, Any]
"""A notebook, or a part of one."""


def read_notebook(path: Path) -> Node:
    """The notebook in a file, with each cell's source as one text, as format 4.5 has it.

    Raises:
        InputError: it is none.

    """
    try:
        notebook = json.loads(path.read_bytes())
        if not isinstance(notebook, dict) or notebook.get("nbformat") != 4 or "cells" not in notebook:
            raise ValueError("it is not of format 4")
    except (OSError, ValueError) as reason:
        raise InputError(f"{path.name} is not a notebook: {str(reason).splitlines()[0]}") from None
    notebook["nbformat_minor"] = 5
    for number, cell in enumerate(notebook["cells"]):
        cell["source"] = "".join(cell["source"])
        cell.setdefault("id", f"cell-{number}")
    return notebook


def write_notebook(notebook: Any, path: Path) -> None:
    """Write a notebook: the same input gives the same file."""
    files.write(path, json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True) + "\n")


def tags(cell: Node) -> set[str]:
    """The tags of a cell."""
    return set(cell["metadata"].get("tags", []))
