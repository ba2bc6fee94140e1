"""``benchlib check``: a gate for a CI job."""

import sys

import click

from benchlib.cli.terminal import echo


def _percent(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    try:
        return None if text is None else float(text.rstrip(" %")) / 100
    except ValueError:
        raise click.BadParameter(f"want percent, such as 3 or '3 %', not {text!r}") from None


@click.command()
@click.argument("studies", nargs=-1, required=True)
@click.option("--tolerance", callback=_percent, help="How many percent slower is tolerated; else the margin.")
@click.option("--format", type=click.Choice(["text", "markdown", "junit"]), default="text", help="The form.")
@click.option("--pages", default="", help="The address where pages are published, for the links in markdown.")
def check(studies: tuple[str, ...], tolerance: float | None, format: str, pages: str) -> None:
    """Gate a change by what STUDIES found.

    Exit status 0: every answer is shown to be no slower than tolerated. 3: something is slower by more. 4: it cannot
    be said (inconclusive, invalid, conditions not met, not measured); more blocks may tell.

    Compare two builds as levels of one study, in the same blocks. Two runs differ by the host's mood, often by more
    than the change does, and no statistics can tell the two apart afterwards.

    \b
    Examples:
      benchlib check gate --tolerance 3
      benchlib check gate --format junit > gate.xml
    """
    from benchlib.report.gate import gate_study, status, written

    rows = [row for name in dict.fromkeys(studies) for row in gate_study(name, tolerance)]
    echo(written(rows, format, pages))
    sys.exit(status(rows))
