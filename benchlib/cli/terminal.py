"""What the command line prints: much of it is somebody else's text, which must not steer the reader's terminal."""

from __future__ import annotations

from typing import Any

import click

from benchlib.plan.words import printable


def echo(text: str, **options: Any) -> None:
    """Print a text as :func:`click.echo` does, without the control characters in it."""
    click.echo(printable(text), **options)
