"""Commands for data from elsewhere."""

import contextlib
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from benchlib.cli.terminal import ONE_TEXT, Command, echo, echo_json, flag, json_option, raise_last
from benchlib.errors import InputError, ParseError

_INPUT = click.Path(dir_okay=False, allow_dash=True, path_type=Path)


@click.command(cls=Command)
@click.argument("trials", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--baseline", required=True, help="The level that the others are compared with.")
@click.option("--control", "controls", multiple=True, help="An A/A control of the baseline; repeatable.")
@click.option("--metric", default="tps", show_default=True, help="The column to compare.")
@flag("--higher-is-better", help="Higher values of the metric are better.")
@flag("--lower-is-better", help="Lower values of the metric are better.")
@click.option("--against", multiple=True, metavar="LEVEL=OTHER", help="Compare LEVEL with OTHER; repeatable.")
@click.option(
    "--answer", "--answers", "answers", multiple=True, metavar="LEVEL,…", help="Judged apart, shown alone."
)
@flag("--hosts-fixed", "fixed_hosts", help="The verdicts hold for these hosts only.")
@click.option("--looks", default="", metavar="N,N,…", help="The blocks at which the study could stop.")
@click.option("--margin", default=0.03, show_default=True, help="The smallest change that matters.")
@click.option("--alpha", default=0.05, show_default=True, help="The error rate of each family.")
@flag("--check", help="Exit status 3: slower by more than the margin; 4: open.")
@json_option
def analyze(
    trials: Path, metric: str, check: bool, as_json: bool, higher_is_better: bool, lower_is_better: bool,
    against: tuple[str, ...], answers: tuple[str, ...], looks: str, **options: Any,
) -> None:  # fmt: skip
    """Compare the levels in a CSV file of TRIALS (or -) with the columns block, level and the metric.

    \b
    Examples:
      benchlib analyze trials.csv --baseline defaults --control control
      benchlib analyze trials.csv --baseline A --metric "p99 (ms)" --lower-is-better
      benchlib analyze trials.csv --baseline defaults --check --json
    """
    from benchlib.plan.metrics import METRICS, foreign_metric, number_words
    from benchlib.stats.effects import SHOWN, effects_of, judge, readable
    from benchlib.stats.limits import Concern
    from benchlib.stats.trials_file import read_trials_file

    direction = {"higher_is_better": higher_is_better, "lower_is_better": lower_is_better}
    known = foreign_metric(metric, **direction)
    frame, remarks = read_trials_file(_content(trials), trials.name, metric)
    if metric not in METRICS:
        why = "as you say" if any(direction.values()) else "by its name"
        remarks.append(f"{'more' if known.higher_is_better else 'less'} {metric} is better ({why})")
    levels = set(frame["level"].astype(str)) if "level" in frame else set[str]()
    pairs = dict(_pair(text, levels) for text in against)
    wanted = [level for text in answers for level in ([text] if text in levels else text.split(","))]
    if unknown := [level for level in wanted if level not in levels]:
        raise InputError(f"--answer {unknown[0]}: no level has that name")
    options |= {"metric": metric, **direction, "looks": _numbers(looks), "against": pairs, "answers": wanted}
    analysis = judge(frame, **options, concerns=[Concern("reading", remark) for remark in remarks])
    effects = effects_of(analysis, {level: level for level in wanted})
    answering = effects["answer"].ne("") if wanted else effects["level"].notna()
    if as_json:
        echo_json(analysis.to_dict())
    else:
        shown = readable(effects.loc[answering, SHOWN])
        echo(shown.to_string(index=False, na_rep="-", float_format=partial(number_words, digits=4)))
        for warning in analysis.warnings:
            echo(f"{'grave' if warning.grave else 'note'}: {warning.text}")
    if check:
        from benchlib.report.gate import gated, status, without_reference, written

        rows: list[dict[Any, Any]] = effects[answering | effects["level"].isin(analysis.controls)].to_dict(
            "records"
        )
        for row in rows:
            row["limit"] = " ".join(doubt.text for doubt in analysis.doubts(row["level"]))
        attrs = {str(name): value for name, value in effects.attrs.items()}
        gated_rows = gated(trials.name, rows, attrs, analysis.margin)
        lost = [str(each.level) for each in analysis.warnings if each.code == "no_reference"]
        gated_rows += without_reference(trials.name, [level for level in lost if level in (wanted or lost)])
        echo(written(gated_rows), err=as_json)
        sys.exit(status(gated_rows))


def _has_runs(path: Path) -> bool:
    """Return whether a large file has the output of runs."""
    from benchlib.load.parse import kind_of_file

    with contextlib.suppress(ParseError):
        return kind_of_file(path) in ("pgbench_summary", "sysbench")
    return False


def _content(file: Path) -> bytes:
    """Return the content of a file, or the standard input."""
    return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()


def _pair(text: str, levels: set[str]) -> tuple[str, str]:
    """Return both levels of LEVEL=OTHER; names may contain ``=``."""
    words = text.split("=")
    splits = [("=".join(words[:at]), "=".join(words[at:])) for at in range(1, len(words))]
    known = [split for split in splits if {*split} <= levels]
    level, other = (known or splits or [("", "")])[0]
    if not (level and other) or len(known) > 1:
        raise click.UsageError(f"--against {text}: expected LEVEL=OTHER")
    return level, other


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        raise click.UsageError(f"--looks {text}: expected numbers of blocks, such as 5,8,12") from None


@click.command(cls=Command)
@click.argument("files", nargs=-1, required=True, type=_INPUT)
@click.option("--kind", help="The kind of the text, if it is not recognised.")
@click.option(
    "--sampling-rate",
    type=click.FloatRange(0, 1, min_open=True),
    help="The fraction of transactions in a sampled log.",
)
@json_option
def parse(files: tuple[Path, ...], kind: str | None, sampling_rate: float | None, as_json: bool) -> None:
    """Show the output of a tool as data: pgbench, its logs, pg_test_fsync, sysbench.

    \b
    Examples:
      benchlib parse run.txt
      benchlib parse run.txt --json
      pgbench -T 60 bench 2>&1 | benchlib parse -
    """
    from benchlib.load.parse import parse_file, parse_runs
    from benchlib.plan.words import decoded

    argv = ["pgbench", f"--sampling-rate={sampling_rate:.12f}"] if sampling_rate else None
    results, errors = [], list[str]()
    for file in files:
        try:
            if argv or str(file) == "-" or (file.is_file() and file.stat().st_size < ONE_TEXT):
                results += parse_runs(decoded(_content(file)), kind=kind, argv=argv)
            else:
                results += parse_file(file, kind=kind)
        except OSError as reason:
            errors.append(f"cannot read {file}: {reason.strerror}")
        except ParseError as reason:
            errors.append(f"{file}: {reason}")
    if as_json and results:
        echo_json(results[0] if len(files) == len(results) == 1 else results)
    for result in [] if as_json else results:
        for name, value in result.items():
            if value is not None:
                rows = isinstance(value, list) and len(value) > 3
                echo(f"{name:<28} {f'{len(value)} rows (--json shows them)' if rows else value}")
    raise_last(errors)


@click.command(cls=Command)
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@click.option("--level", help="A regular expression that finds the level in a file's path; its group counts.")
@click.option("--block", help="A regular expression that finds the block in a file's path.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=Path("trials.csv"), show_default=True,
              help="The file that is written.")  # fmt: skip
def collect(folder: Path, level: str | None, block: str | None, out: Path) -> None:
    """Collect the outputs in FOLDER (or one file with many runs) as trials for 'benchlib analyze', and show what was understood.

    \b
    Examples:
      benchlib collect results/
      benchlib collect results/ --level 'pg(\\d+)' --block 'run(\\d+)'
    """
    import pandas as pd

    from benchlib.host import files
    from benchlib.load.collected import COLUMNS, Source
    from benchlib.load.collected import collect as collected_from
    from benchlib.plan.words import decoded

    paths = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.is_file())
    try:
        large = [path for path in paths if path.stat().st_size >= ONE_TEXT and not _has_runs(path)]
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
    command = shlex.join(["benchlib", "analyze", str(out), "--baseline", collected.rows[0]["level"]])
    echo(f"{out}: {len(frame)} trials; try: {command}", err=True)
