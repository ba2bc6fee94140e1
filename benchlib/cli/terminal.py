"""Printing on the command line: texts from elsewhere must not control the reader's terminal."""

import json
from pathlib import Path
from typing import Any

import click

from benchlib.errors import InputError
from benchlib.plan.words import printable

ONE_TEXT = 2 << 20
"""The largest file, in bytes, that is read as one text."""
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def echo(text: str, **options: Any) -> None:
    """Print a text as :func:`click.echo` does, without the control characters in it."""
    click.echo(printable(text), **options)


def tell(line: str) -> None:
    """Print a line of progress, or a remark, on stderr."""
    echo(line, err=True)


def echo_json(value: Any) -> None:
    """Print a value as JSON."""
    echo(json.dumps(value, indent=2, allow_nan=False))


def raise_last(errors: list[str]) -> None:
    """Print each error on a line, and end with the exit status of the last."""
    for line in errors[:-1]:
        tell(f"benchlib: {' '.join(line.split())}")
    if errors:
        raise InputError(errors[-1])
