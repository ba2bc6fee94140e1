"""``benchlib compare`` and ``benchlib history``: studies beside each other, and over time."""

import click

from benchlib.cli.terminal import echo


@click.command()
@click.argument("studies", nargs=-1, required=True)
def compare(studies: tuple[str, ...]) -> None:
    """Hold the effects that STUDIES found against those of the first: do they differ, are they the same, or can nobody tell?

    Prints and publishes the changes, their differences with intervals, and what the studies were run with. Rates of
    different days are not compared: they are facts of the host.

    \b
    Example:
      benchlib compare configuration-recorded configuration-quick
    """
    from benchlib.report.trends import compare

    words, page = compare(studies)
    echo(words.to_string(index=False))
    echo(f"page: {page}")


@click.command()
@click.argument("notebook")
@click.option("--metric", default="", help="The figure to compare by; else the latest study's own.")
def history(notebook: str, metric: str) -> None:
    """Show what the kept studies of NOTEBOOK found over time: effects, what was new each time, change points.

    \b
    Example:
      benchlib history configuration --metric latency_p99_ms
    """
    from benchlib.report.trends import history

    words, remarks, page = history(notebook, metric)
    echo("\n".join([words.to_string(index=False), *remarks, f"page: {page}"]))
