"""The common form of commands."""

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import click

from benchlib.errors import InputError
from benchlib.plan.words import printable

ONE_TEXT = 2 << 20
"""The largest file, in bytes, that is read as one text."""
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
GROUPS = {
    "What to run": "given files confirm",
    "How long": "profile",
    "Where": "fleet out pages",
    "What to read": "kind sampling_rate level block folder schema service log top writes data tables own",
    "What to compare": "baseline controls against answers metric higher_is_better lower_is_better",
    "How to judge": "margin tolerance alpha looks fixed_hosts",
    "What to change": "name question title notes",
}
"""The headings of options in a help text, by the parameters' names; all others are below "Output"."""
flag = partial(click.option, is_flag=True)
json_option = flag("--json", "as_json", help="Print JSON.")


class Command(click.Command):
    """A command whose help groups options by :data:`GROUPS`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options below their headings."""
        heading_of = {name: heading for heading, names in GROUPS.items() for name in names.split()}
        groups = dict[str, list[tuple[str, str]]]()
        for option in self.get_params(ctx):
            if record := option.get_help_record(ctx):
                groups.setdefault(heading_of.get(str(option.name), "Output"), []).append(record)
        for heading in filter(groups.get, (*GROUPS, "Output")):
            with formatter.section(heading):
                formatter.write_dl(groups[heading])


class Group(click.Group):
    """A group of such commands."""

    command_class = Command
    group_class = type


def echo(text: str, **options: Any) -> None:
    """Print a text without control characters."""
    click.echo(printable(text), **options)


def echo_lines(lines: Iterable[str]) -> None:
    """Print texts, a line each."""
    for text in lines:
        echo(" ".join(text.splitlines()))


def tell(line: str) -> None:
    """Print a line on stderr."""
    echo(line, err=True)


def echo_json(value: Any) -> None:
    """Print a value as JSON."""
    echo(json.dumps(value, indent=2, allow_nan=False))


def raise_last(errors: list[str]) -> None:
    """Print all errors, and raise the last."""
    for line in errors[:-1]:
        tell(f"benchlib: {' '.join(line.split())}")
    if errors:
        raise InputError(errors[-1])
