"""Commands for saved studies: ``benchlib studies``, ``import``, ``check``, ``compare`` and ``history``."""

import contextlib
import math
import sys
from pathlib import Path
from typing import Any

import click

from benchlib.cli.terminal import FILE, ONE_TEXT, echo, echo_json, json_option, raise_last
from benchlib.errors import InputError


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def studies(context: click.Context, as_json: bool) -> None:
    """List the saved studies in data/ and how complete they are; rename, delete, edit or export one.

    \b
    Examples:
      benchlib studies
      benchlib studies rename configuration-quick before-the-upgrade
      benchlib studies edit mine --question "Does a larger random_page_cost help?"
      benchlib studies export mine
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
    Example:
      benchlib studies rename configuration-quick before-the-upgrade
    """
    from benchlib.study import curate

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
    from benchlib.study import curate

    curate.delete(study)
    _follow(study)


@studies.command()
@click.argument("study")
@click.option("--question", help="The question that heads its page.")
@click.option("--title", help="What it is called.")
@click.option("--notes", help="A note for its page; '' takes it away.")
def edit(study: str, **words: str | None) -> None:
    """Change question, title or notes of STUDY, never its plan or data. Its page also shows the original question.

    \b
    Example:
      benchlib studies edit mine --question "Does a larger random_page_cost help?" --notes "On the old disk."
    """
    from benchlib.study import curate

    curate.edit(study, {name: text for name, text in words.items() if text is not None})
    _follow(study)


@studies.command()
@click.argument("study")
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
def export(study: str, file: Path | None) -> None:
    """Write STUDY into one FILE (STUDY.study.zip) for 'benchlib import' on another machine.

    \b
    Example:
      benchlib studies export mine /mnt/usb/mine.study.zip
    """
    from benchlib.study import curate

    file = file or Path(f"{study}.study.zip")
    curate.export(study, file)
    echo(f"{file}: {file.stat().st_size / 1000:,.0f} kB")


@click.command("import")
@click.argument("file", type=FILE)
@click.option("--name", help="Keep it under this name instead of its own.")
def import_command(file: Path, name: str | None) -> None:
    """Import the study in FILE, which 'benchlib studies export' has written.

    \b
    Example:
      benchlib import mine.study.zip --name theirs
    """
    from benchlib.study import curate

    folder = curate.import_study(file, name)
    echo(f"kept as {folder.path}")
    _follow(folder.name)


def _follow(study: str) -> None:
    from benchlib.report.runs import follow

    for line in follow(study):
        echo(" ".join(line.splitlines()))


def _trends() -> Any:
    """Import what draws from another folder: matplotlib reads settings from the working one, which may be anybody's."""
    with contextlib.chdir(Path(__file__).parent):
        from benchlib.report import trends
    return trends


# --- what they say --------------------------------------------------------------------


def _percent(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        if math.isfinite(share := float(text.rstrip(" %")) / 100):
            return share
    raise click.BadParameter(f"want percent, such as 3 or '3 %', not {text!r}")


@click.command()
@click.argument("studies", nargs=-1, required=True)
@click.option("--tolerance", callback=_percent, help="How many percent slower is tolerated; else the margin.")
@click.option("--format", type=click.Choice(["text", "markdown", "junit"]), default="text", help="The form.")
@click.option("--pages", default="", help="The address where pages are published, for markdown's links.")
def check(studies: tuple[str, ...], tolerance: float | None, format: str, pages: str) -> None:
    """Check that the answers of STUDIES show no slowdown: a gate for CI.

    Exit status 0: every answer is no slower than tolerated. 3: one is slower by more. 4: one is open
    (inconclusive, invalid, condition not met, not measured); more blocks may decide it.

    Compare two builds as levels of one study, in the same blocks. Two separate runs differ by the drift of the host,
    often by more than the change does, and no statistics can separate the two afterwards.

    \b
    Examples:
      benchlib check gate --tolerance 3
      benchlib check gate --format junit > gate.xml
    """
    from benchlib.report.gate import gate_study, status, written
    from benchlib.report.site import address_of

    rows = [row for name in dict.fromkeys(studies) for row in gate_study(name, tolerance)]
    echo(written(rows, format, f"{pages.rstrip('/')}/" if pages else address_of("")))
    sys.exit(status(rows))


@click.command()
@click.argument("studies", nargs=-1, required=True)
def compare(studies: tuple[str, ...]) -> None:
    """Compare the effects of STUDIES with the effects of the first: different, the same, or open?

    Prints and publishes the changes, their differences with intervals, and the setup of each study. Throughput of
    different days is not compared: it is a property of the host.

    \b
    Example:
      benchlib compare configuration-recorded configuration-quick
    """
    words, page = _trends().compare(studies)
    echo(words.to_string(index=False))
    echo(f"page: {page}")


@click.command()
@click.argument("notebook")
@click.option("--metric", default="", help="The figure to compare by; else the latest study's own.")
def history(notebook: str, metric: str) -> None:
    """Show the effects of the saved studies of NOTEBOOK over time, with change points.

    \b
    Example:
      benchlib history configuration --metric latency_p99_ms
    """
    history = _trends().history
    words, remarks, page = history(notebook, metric)
    echo("\n".join([words.to_string(index=False), *remarks, f"page: {page}"]))


@click.command()
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@click.option("--level", help="A regular expression that finds the level in a file's path; its group counts.")
@click.option("--block", help="A regular expression that finds the block in a file's path.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("trials.csv"),
    show_default=True,
    help="The file that is written.",
)
def collect(folder: Path, level: str | None, block: str | None, out: Path) -> None:
    """Collect the outputs in FOLDER (or one file with many runs) as trials for 'benchlib analyze'.

    Prints what was understood, a row a run, and what such data cannot tell: above all what drift of the host
    nobody could exclude. Nothing that cannot be read is left out silently.

    \b
    Examples:
      benchlib collect results/
      benchlib collect pgbench-tools/results
      benchlib collect results/ --level 'pg(\\d+)' --block 'run(\\d+)'
      benchlib analyze trials.csv --baseline pg16
    """
    import pandas as pd

    from benchlib.host import files
    from benchlib.load.collected import COLUMNS, Source
    from benchlib.load.collected import collect as collected_from
    from benchlib.plan.words import decoded

    paths = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.is_file())
    try:
        large = [path for path in paths if path.stat().st_size >= ONE_TEXT]
        found = [
            Source(
                path.name if path == folder else path.relative_to(folder).as_posix(),
                decoded(files.read_plain(path)), path.stat().st_mtime,
            )
            for path in paths
            if path.absolute() != out.absolute() and path not in large
        ]  # fmt: skip
        collected = collected_from(found, level, block)
        frame = pd.DataFrame(collected.rows, columns=[*COLUMNS])
        files.write(out, frame.to_csv(index=False))
    except OSError as reason:
        raise InputError(f"{reason.filename or out}: {reason.strerror}") from None
    echo(frame.drop(columns="error").to_string(index=False, na_rep="-"))
    if passed := [*collected.passed_over, *map(str, large)]:
        more = f" and {len(passed) - 10} more" if len(passed) > 10 else ""
        echo(f"passed over, no output of a run: {', '.join(passed[:10])}{more}", err=True)
    for note in collected.notes:
        echo(f"note: {note}", err=True)
    baseline = collected.rows[0]["level"]
    echo(f"{out}: {len(frame)} trials; try: benchlib analyze {out} --baseline '{baseline}'", err=True)
