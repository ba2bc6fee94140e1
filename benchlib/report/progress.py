"""How far something is, in one line of a notebook that is updated."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

from IPython.display import display

PROGRESS = {"benchlib": "progress"}
"""Metadata of a progress display, by which the command line tells it from other output."""


def progress_line(text: str = "starting") -> Callable[[object], None]:
    """A display of its own, updated with each report as text."""
    handle = display(_bundle(text), raw=True, display_id=True, metadata=PROGRESS)  # type: ignore[no-untyped-call]

    def tell(report: object) -> None:
        if handle is None:
            print(report)
        else:
            handle.update(_bundle(str(report)), raw=True, metadata=PROGRESS)

    return tell


def _bundle(text: str) -> dict[str, Any]:
    return {"text/plain": text, "text/html": f"<p>{html.escape(text)}</p>"}
