"""Commands for saved studies."""

import contextlib
import math
import sys
from pathlib import Path
from typing import Any

import click

from benchlib.cli.terminal import FILE, Command, Group, echo, echo_json, echo_lines, json_option, raise_last
from benchlib.study import curate


@click.group(cls=Group, invoke_without_command=True)
@json_option
@click.pass_context
def studies(context: click.Context, as_json: bool) -> None:
    """List the saved studies in data/ and how complete they are; rename, delete, edit or export one.

    \b
    Examples:
      benchlib studies
      benchlib studies --json
      benchlib studies rename configuration-quick before-the-upgrade
    """
    if context.invoked_subcommand is None:
        _list(as_json)
    elif as_json:
        raise click.UsageError("--json is for the list, without a command after it")


def _list(as_json: bool) -> None:
    from benchlib.study.listing import listing

    rows, damaged = listing()
    if as_json:
        echo_json(rows)
    elif not rows and not damaged:
        echo("no studies yet: 'benchlib run configuration' makes one")
    for row in () if as_json else rows:
        remark = f", {row['failed']} failed" if row["failed"] else ""
        title = " ".join(str(row["title"]).split())
        echo(f"{row['study']:<32} {row['kept']}/{row['trials']} trials{remark}  {title}")
    raise_last(damaged)


@studies.command()
@click.argument("study")
@click.argument("name")
def rename(study: str, name: str) -> None:
    """Rename STUDY to NAME; its page, the index and the summary follow.

    \b
    Examples:
      benchlib studies rename configuration-quick before-the-upgrade
      benchlib studies rename mine theirs
    """
    _check_site()
    curate.rename(study, name)
    _follow(study)


@studies.command()
@click.argument("study")
@click.confirmation_option(prompt="Remove it with all its trials, for good?", help="Do not ask.")
def delete(study: str) -> None:
    """Delete STUDY with all its trials and its page.

    \b
    Examples:
      benchlib studies delete first-try
      benchlib studies delete first-try --yes
    """
    _check_site()
    curate.delete(study)
    _follow(study)


@studies.command()
@click.argument("study")
@click.option("--question", help="The question at the head of its page; the original one stays below it.")
@click.option("--title", help="Its title.")
@click.option("--notes", help="A note for its page; '' removes it.")
def edit(study: str, **words: str | None) -> None:
    """Change question, title or notes of STUDY, never its plan or data.

    \b
    Examples:
      benchlib studies edit mine --question "Does a larger random_page_cost help?"
      benchlib studies edit mine --title "Page costs" --notes "On the old disk."
    """
    _check_site()
    curate.edit(study, {name: text for name, text in words.items() if text is not None})
    _follow(study)


@studies.command()
@click.argument("study")
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
def export(study: str, file: Path | None) -> None:
    """Write STUDY into one FILE (STUDY.study.zip) for 'benchlib import' on another machine.

    \b
    Examples:
      benchlib studies export mine
      benchlib studies export mine /mnt/usb/mine.study.zip
    """
    file = file or Path(f"{study}.study.zip")
    curate.export(study, file)
    echo(f"{file}: {file.stat().st_size / 1000:,.0f} kB")


@click.command("import", cls=Command)
@click.argument("file", type=FILE)
@click.option("--name", help="Save it under this name instead of its own.")
def import_command(file: Path, name: str | None) -> None:
    """Import the study in FILE, an archive of 'benchlib studies export'.

    \b
    Examples:
      benchlib import mine.study.zip
      benchlib import mine.study.zip --name theirs
    """
    _check_site()
    folder = curate.import_study(file, name)
    echo(f"kept as {folder.path}")
    _follow(folder.name)


def _check_site() -> None:
    from benchlib.report.runs import check_site

    check_site()


def _follow(study: str) -> None:
    from benchlib.report.runs import follow

    echo_lines(follow(study))


def _trends() -> Any:
    """Import from its folder: matplotlib reads settings from the working folder."""
    with contextlib.chdir(Path(__file__).parent):
        from benchlib.report import trends
    return trends


# --- effects --------------------------------------------------------------------------


def _percent(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        if 0 <= (share := float(text.rstrip(" %")) / 100) < math.inf:
            return share
    raise click.BadParameter(f"expected percent, such as 3 or '3 %', not {text!r}")


@click.command(cls=Command)
@click.argument("studies", nargs=-1, required=True)
@click.option("--tolerance", callback=_percent, help="The tolerated slowdown in percent; else the margin.")
@click.option("--format", type=click.Choice(["text", "markdown", "junit"]), default="text", help="The form.")
@click.option("--by", type=click.Choice(["query"]), help="Check also each query of the workload.")
@click.option("--pages", default="", help="The address of the published pages, for links in markdown.")
def check(studies: tuple[str, ...], tolerance: float | None, format: str, by: str | None, pages: str) -> None:
    """Check that the answers of STUDIES show no slowdown: exit status 0 none, 3 slower, 4 open.

    \b
    Examples:
      benchlib check gate
      benchlib check gate --tolerance 3 --by query
      benchlib check gate --format junit > gate.xml
    """
    from benchlib.report.gate import gate_study, status, written
    from benchlib.report.site import address_of

    rows = [
        row for name in dict.fromkeys(studies) for row in gate_study(name, tolerance, by_query=by == "query")
    ]
    echo(written(rows, format, f"{pages.rstrip('/')}/" if pages else address_of("")))
    sys.exit(status(rows))


@click.command(cls=Command)
@click.argument("studies", nargs=-1, required=True)
def compare(studies: tuple[str, ...]) -> None:
    """Compare the effects of STUDIES with the effects of the first.

    \b
    Examples:
      benchlib compare before after
      benchlib compare configuration-recorded configuration-quick
    """
    words, page = _trends().compare(studies)
    echo(words.to_string(index=False))
    echo(f"page: {page}")


@click.command(cls=Command)
@click.argument("notebook")
@click.option("--metric", default="", help="The metric; else the latest study's own.")
def history(notebook: str, metric: str) -> None:
    """Show the effects of the saved studies of NOTEBOOK over time, with change points.

    \b
    Examples:
      benchlib history configuration
      benchlib history configuration --metric latency_p99_ms
    """
    words, remarks, page = _trends().history(notebook, metric)
    echo("\n".join([words.to_string(index=False), *remarks, f"page: {page}"]))
