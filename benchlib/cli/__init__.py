"""The command line: ``benchlib COMMAND``. Exit status 0 done, 1 the run failed, 2 bad usage or bad input; of a gate 3 and 4."""

import io
import locale
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from benchlib import __version__
from benchlib.cli import ready, studies, workload
from benchlib.cli.terminal import FILE, ONE_TEXT, echo, echo_json, json_option, raise_last, tell
from benchlib.errors import BenchlibError, InputError, ParseError, PreflightError, StudyError
from benchlib.load.workloads import LIBRARY

# Heavy imports (IPython, scipy, matplotlib) wait inside the commands: --help answers at once.


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="benchlib")
@click.option("--debug", is_flag=True, help="On an error, show the traceback too.")
def cli(debug: bool) -> None:
    """Does this change make my PostgreSQL faster, by how much, and am I sure?

    \b
    Examples:
      benchlib doctor
      benchlib run configuration --profile quick
      benchlib analyze trials.csv --baseline defaults --control control
    """


_PLACES = ("BENCHLIB_DATA", "BENCHLIB_REPORTS", "BENCHLIB_SCRATCH", "BENCHLIB_CACHE", "BENCHLIB_LOCK")
_LOOKING_BACK = [
    studies.check,
    studies.import_command,
    studies.studies,
    studies.collect,
    studies.compare,
    studies.history,
]
for command in (ready.fleet, ready.init, ready.postgres, workload.workload, *_LOOKING_BACK):
    cli.add_command(command)


@cli.command()
@json_option
def doctor(as_json: bool) -> None:
    """Show what this machine can run: servers, rights, levers, clock, disk, memory.

    \b
    Example:
      benchlib doctor --json
    """
    from benchlib.levers.doctor import examine
    from benchlib.study.store import data_root

    findings = examine(data_root())
    if as_json:
        echo_json(findings)
        return
    for section, rows in findings.items():
        click.secho(section.replace("_", " "), bold=True)
        if isinstance(rows, Mapping):
            rows = [{"name": key.replace("_", " "), "value": _plain(value)} for key, value in rows.items()]
        for row in rows:
            name, *values = (str(value) for value in row.values() if value not in (None, ""))
            echo(f"  {name:<28} {'  '.join(values)}".rstrip())


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return ", ".join(map(str, value.values()))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not known" if value is None else value


@cli.command()
@click.argument("notebook")
@click.option(
    "-p", "--parameter", "given", nargs=2, multiple=True, metavar="NAME VALUE", help="Set a parameter."
)
@click.option("-f", "--file", "files", multiple=True, type=click.Path(dir_okay=False, path_type=Path),
              help="A YAML file of parameters, or levels and their question; or NAME.study.json of a kept study.")  # fmt: skip
@click.option("--profile", help="The sizes: quick, standard or full (the notebook's own).")
@click.option("--fleet", type=FILE, help="A YAML file of hosts to run on instead of this one.")
@click.option("--confirm", is_flag=True, help="Of a kept screening: run all combinations of what stands out.")
@click.option("--help-notebook", is_flag=True, help="List the notebook's parameters and stop.")
def run(
    notebook: str, given: Any, files: Any, confirm: bool, help_notebook: bool, **named: Path | str | None
) -> None:
    """Run the missing trials of a NOTEBOOK and render its page.

    A value given with -p wins over a value in a file. A run that was interrupted goes on
    where it stopped. With --confirm, the named study is a screening (screen: true). The grid of its largest changes
    runs as STUDY-confirmed.

    \b
    Examples:
      benchlib run configuration
      benchlib run configuration --profile standard -p clients 16
      benchlib run configuration -p shares_of tuned
      benchlib run configuration -f levels.yaml -p study my-levels
      benchlib run configuration --fleet fleet.yaml
      benchlib run template -p study many --confirm
    """
    from benchlib.plan.parameters import from_yaml
    from benchlib.report.execute import find_notebook, notebook_parameters
    from benchlib.report.runs import confirmed, run_notebook

    path = find_notebook(notebook)
    parameters = notebook_parameters(path)
    if help_notebook:
        for parameter in parameters.values():
            default = repr(parameter.default) if len(repr(parameter.default)) < 60 else "…"
            echo(f"{parameter.name}: {parameter.type} = {default}\n    {parameter.help}")
        return
    values: dict[str, Any] = {}
    for file in files:
        values |= _yaml_parameters(file)
    for name, text in given:
        literal = name in parameters and parameters[name].type == "str"
        values[name] = text if literal else from_yaml(text, f"-p {name}")
    values |= {name: str(value) for name, value in named.items() if value}
    if confirm:
        values = confirmed(parameters, values)
    for line in run_notebook(path, values, listen=_progress_printer()):
        echo(line)


def _yaml_parameters(file: Path) -> dict[str, Any]:
    from benchlib.host import files
    from benchlib.plan.parameters import from_yaml
    from benchlib.study.store import StudyFolder

    # as the page of a study that is kept here names it
    if file.name.endswith(".study.json") and not file.exists():
        file = StudyFolder(file.name.removesuffix(".study.json")).path / "study.json"
    try:
        values = from_yaml(files.read_plain(file), file.name)
    except OSError as reason:
        raise InputError(f"{file.name}: cannot be read: {reason.strerror}") from None
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise InputError(f"{file.name}: want parameters and their values, such as 'blocks: 7'")
    # the study.json that a page offers holds the parameters that the study was run with
    if not {"plan", "trials"} <= values.keys():
        return values
    if not isinstance(own := values.get("parameters"), dict) or not own:
        raise InputError(f"{file.name}: it holds no parameters, as of a capacity: give those of its study")
    # one's own workloads have been changed since, maybe: the study holds them as they were
    library = {None, *(path.stem for path in LIBRARY.glob("*.toml"))}
    named = values["plan"].get("workloads", ()) if isinstance(values["plan"], dict) else ()
    kept = {name: f"{file.absolute()}#{name}" for name in {*named} - library}

    def as_kept(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: as_kept(inner, name) for name, inner in value.items()}
        return kept.get(value, value) if key == "workload" else value

    whole = {} if own.get("workload") in library else {"workload": str(file.absolute())}
    return {**as_kept(own), **whole}


def _progress_printer() -> Any:
    """Return a printer of progress: one line on a terminal, elsewhere a line for each change."""
    last = ""

    def show(line: str) -> None:
        nonlocal last
        if line and sys.stderr.isatty():
            width = os.get_terminal_size(sys.stderr.fileno()).columns
            click.echo("\r\x1b[2K", err=True, nl=False)
            echo(line[: width - 1], err=True, nl=" · done" in line)
        elif line not in ("", last):
            tell(line)
        last = line

    return show


@cli.command()
@click.argument("studies", nargs=-1)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Make a site of just these in this folder, instead of reports/ (or BENCHLIB_REPORTS).",
)
def report(studies: tuple[str, ...], out: Path | None) -> None:
    """Render the pages of STUDIES and the index from data/; without STUDIES all pages that have changed.

    \b
    Examples:
      benchlib report
      benchlib report configuration-quick
      benchlib report --out site configuration-quick storage-quick
    """
    from benchlib.report.runs import report_studies
    from benchlib.report.site import REPORTS_VARIABLE

    if out:
        os.environ[REPORTS_VARIABLE] = str(out.absolute())
    for line in report_studies(studies, alone=out is not None):
        echo(" ".join(line.splitlines()))


@cli.command()
@click.argument("trials", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--baseline", required=True, help="The level that the others are compared with.")
@click.option("--control", "controls", multiple=True, help="A further arm of the baseline (A/A); repeatable.")
@click.option("--metric", default="tps", show_default=True, help="The column to compare.")
@click.option("--higher-is-better", is_flag=True, help="Of a metric of your own: more of it is better.")
@click.option("--lower-is-better", is_flag=True, help="Of a metric of your own: less of it is better.")
@click.option(
    "--hosts-fixed",
    "fixed_hosts",
    is_flag=True,
    help="Of several hosts: judge these alone, not hosts such as these.",
)
@click.option(
    "--against",
    multiple=True,
    metavar="LEVEL=OTHER",
    help="Compare LEVEL with OTHER instead of the baseline; repeatable.",
)
@click.option(
    "--answer",
    "--answers",
    "answers",
    multiple=True,
    metavar="LEVEL,…",
    help="Show and gate these comparisons only; repeatable.",
)
@click.option(
    "--looks",
    default="",
    metavar="N,N,…",
    help="The numbers of blocks after which the study might have stopped.",
)
@click.option("--margin", default=0.03, show_default=True, help="The smallest change that matters, a share.")
@click.option("--alpha", default=0.05, show_default=True, help="The error rate of all comparisons together.")
@click.option("--check", is_flag=True, help="Exit 3: slower by more than the margin; 4: the result is open.")
@json_option
def analyze(
    trials: Path,
    metric: str,
    check: bool,
    as_json: bool,
    higher_is_better: bool,
    lower_is_better: bool,
    against: tuple[str, ...],
    answers: tuple[str, ...],
    looks: str,
    **options: Any,
) -> None:
    """Compare the levels in a CSV file of TRIALS with the columns block, level and the metric.

    Where they exist, period (blocks that share clusters) and host (which ran the block) count too.
    Files with semicolons, tabs, decimal commas or in UTF-16 are read too, and '-' is the standard input.

    \b
    Examples:
      benchlib analyze trials.csv --baseline defaults --control control --metric tps --json
      benchlib analyze trials.csv --baseline A --metric "p99 (ms)" --lower-is-better

    A metric whose direction its name does not tell is refused without one of the two flags.
    """
    from benchlib.plan.metrics import METRICS, foreign_metric
    from benchlib.stats import Concern
    from benchlib.stats.effects import SHOWN, effects_of, judge
    from benchlib.stats.trials_file import read_trials_file

    said = {"higher_is_better": higher_is_better, "lower_is_better": lower_is_better}
    of = foreign_metric(metric, **said)
    data = sys.stdin.buffer.read() if str(trials) == "-" else trials.read_bytes()
    frame, remarks = read_trials_file(data, trials.name, metric)
    if metric not in METRICS:
        why = "as you say" if any(said.values()) else "by its name"
        remarks.append(f"{'more' if of.higher_is_better else 'less'} {metric} is better ({why})")
    levels = set(frame["level"].astype(str)) if "level" in frame else set[str]()
    pairs = dict(_pair(text, levels) for text in against)
    wanted = [level for text in answers for level in ([text] if text in levels else text.split(","))]
    if unknown := [level for level in wanted if level not in levels]:
        raise InputError(f"--answer {unknown[0]}: no level has that name")
    options |= {"metric": metric, **said, "looks": _numbers(looks), "against": pairs}
    analysis = judge(frame, **options, concerns=[Concern("reading", remark) for remark in remarks])
    effects = effects_of(analysis, {level: level for level in wanted})
    if as_json:
        echo_json(analysis.to_dict())
    else:
        shown = effects[effects["answer"].ne("")] if wanted else effects
        echo(shown[SHOWN].to_string(index=False, na_rep="-", float_format=lambda number: f"{number:.4g}"))
        for warning in analysis.warnings:
            echo(f"{'grave' if warning.grave else 'note'}: {warning.text}")
    if check:
        from benchlib.report.gate import gated, status, written

        asked = (
            effects[effects["answer"].ne("") | effects["level"].isin(analysis.controls)]
            if wanted
            else effects
        )
        grave = {level: " ".join(doubt.text for doubt in analysis.doubts(level)) for level in asked["level"]}
        rows: list[dict[str, Any]] = [
            {**{str(name): value for name, value in row.items()}, "limit": grave[row["level"]]}
            for row in asked.to_dict("records")
        ]
        gated_rows = gated(trials.name, rows, {str(k): v for k, v in effects.attrs.items()}, analysis.margin)
        echo(written(gated_rows), err=as_json)
        sys.exit(status(gated_rows))


def _pair(text: str, levels: set[str]) -> tuple[str, str]:
    """Return the two levels of LEVEL=OTHER; their names may contain the sign too."""
    words = text.split("=")
    splits = [("=".join(words[:at]), "=".join(words[at:])) for at in range(1, len(words))]
    known = [split for split in splits if {*split} <= levels]
    level, other = (known or splits or [("", "")])[0]
    if not (level and other) or len(known) > 1:
        raise click.UsageError(f"--against {text}: want LEVEL=OTHER")
    return level, other


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        raise click.UsageError(f"--looks {text}: want numbers of blocks, such as 5,8,12") from None


@cli.command()
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(dir_okay=False, allow_dash=True, path_type=Path)
)
@click.option("--kind", help="What the text is, where it is not recognised.")
@click.option("--sampling-rate", type=float, help="The share of transactions that a sampled log holds.")
@json_option
def parse(files: tuple[Path, ...], kind: str | None, sampling_rate: float | None, as_json: bool) -> None:
    """Show the output of a tool as data: pgbench, its logs, pg_test_fsync, sysbench.

    As JSON it is one object for one run, and a list for several files, or several runs in one file.
    Logs of two runs in one file are refused; in a log of more than 8 MiB this is checked only in samples.

    \b
    Examples:
      benchlib parse run.txt --json
      pgbench -T 60 bench 2>&1 | benchlib parse -
    """
    from benchlib.load.parse import parse_file, parse_runs
    from benchlib.plan.words import decoded

    argv = ["pgbench", f"--sampling-rate={sampling_rate}"] if sampling_rate else None

    results, errors = [], list[str]()
    for file in files:
        try:
            if str(file) == "-":
                results += parse_runs(decoded(sys.stdin.buffer.read()), kind=kind, argv=argv)
            elif argv or (file.is_file() and file.stat().st_size < ONE_TEXT):
                results += parse_runs(decoded(file.read_bytes()), kind=kind, argv=argv)
            else:
                results.append(parse_file(file, kind=kind))
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


@cli.command()
def recover() -> None:
    """Undo the leftovers of a crashed run: processes, changes to the host, scratch files.

    \b
    Example:
      benchlib recover
    """
    from benchlib.host import guardian

    left = guardian.recover(guardian.scratch_root(), tell=tell)
    for swept in left:
        if not swept.stranger:
            echo(str(swept))
        for reason in swept.resisting:
            tell(f"{swept.folder.name}: resists: {reason}")
    if stubborn := ", ".join(str(swept.folder) for swept in left if swept.resisting):
        raise StudyError(f"something resists: undo it by hand and remove {stubborn}, or try again later")
    if strangers := [str(swept) for swept in left if swept.stranger]:
        raise PreflightError("; ".join(strangers))
    if not left:
        echo("nothing was left behind")


def main(argv: list[str] | None = None) -> None:
    """Run the command line; errors are one line on stderr."""
    if argv is None and locale.getencoding().lower() not in ("utf-8", "utf8") and not sys.flags.utf8_mode:
        # what is read and written is UTF-8, whatever the terminal is
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    given = sys.argv[1:] if argv is None else argv
    debug = "--debug" in given
    arguments = [word for word in given if word != "--debug"]  # it may stand anywhere
    for name in filter(os.environ.get, _PLACES):  # as seen from here: notebooks run in another folder
        os.environ[name] = str(Path(os.environ[name]).absolute())
    for stream in (sys.stdout, sys.stderr):  # what a terminal of another encoding lacks is spelled out
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, _stop_once)  # which ends services and jobs of CI: as Ctrl-C
    try:
        cli.main(args=arguments, prog_name="benchlib", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as reason:
        tell(reason.format_message())
        sys.exit(2)
    except click.ClickException as reason:
        context = getattr(reason, "ctx", None)
        hint = f" ({context.command_path} --help shows how)" if context else ""
        _fail(" ".join(reason.format_message().split()) + hint, 2, debug)
    except BenchlibError as reason:
        _fail(str(reason), reason.exit_code, debug)
    except (KeyboardInterrupt, click.Abort) as reason:
        asked = isinstance(reason, click.Abort) and not isinstance(reason.__context__, KeyboardInterrupt)
        _fail("not confirmed, so nothing was done: --yes does not ask" if asked else "stopped", 1, debug)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except Exception as reason:  # a fault of ours: still one line, and where to look
        _fail(f"unexpected {type(reason).__name__}: {reason} (--debug shows where)", 1, debug)


def _stop_once(number: int, frame: Any) -> None:
    """Stop as Ctrl-C does; what else comes meanwhile is not heard."""
    signal.signal(number, signal.SIG_IGN)
    signal.default_int_handler(number, frame)


def _fail(message: str, status: int, debug: bool) -> None:
    if debug:
        tell(traceback.format_exc())
    tell(f"benchlib: {' '.join(message.split())}")
    sys.exit(status)
