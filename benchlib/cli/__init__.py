"""The command line. Exit status: 0 done, 1 run failed, 2 bad input; gates: 3, 4."""

import io
import locale
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from benchlib import __version__
from benchlib.cli import ready, studies, texts, workload
from benchlib.cli.terminal import FILE, Group, echo, echo_json, echo_lines, flag, json_option, tell
from benchlib.errors import BenchlibError, InputError, PreflightError, StudyError, os_errors_as
from benchlib.load.workloads import LIBRARY

# heavy imports (IPython, scipy, matplotlib) are inside the commands, so that --help is fast


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="benchlib")
@flag("--debug", help="On an error, show the traceback too.")
def cli(debug: bool) -> None:
    """Does this change make my PostgreSQL faster, by how much, and am I sure?

    \b
    Examples:
      benchlib doctor
      benchlib run configuration --profile quick
      benchlib analyze trials.csv --baseline defaults --control control
    """


_PLACES = ("BENCHLIB_DATA", "BENCHLIB_REPORTS", "BENCHLIB_SCRATCH", "BENCHLIB_CACHE", "BENCHLIB_LOCK")
_COMMANDS = [
    ready.fleet, ready.init, ready.postgres, workload.workload, texts.analyze, texts.collect, texts.parse, studies.check,
    studies.compare, studies.history, studies.import_command, studies.studies,
]  # fmt: skip
for command in _COMMANDS:
    cli.add_command(command)


@cli.command()
@json_option
def doctor(as_json: bool) -> None:
    """Show what this machine can run: servers, rights, levers, clock, disk, memory.

    \b
    Examples:
      benchlib doctor
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
@click.option("-p", "--parameter", "given", nargs=2, multiple=True, metavar="NAME VALUE",
              help="Set a parameter; it overrides a file.")  # fmt: skip
@click.option("-f", "--file", "files", multiple=True, type=click.Path(dir_okay=False, path_type=Path),
              help="A YAML file of parameters, or of levels and their question; or NAME.study.json of a saved study.")  # fmt: skip
@click.option("--confirm", is_flag=True,
              help="Run what a saved screening or survey has found in fresh blocks, as the study NAME-confirmed.")  # fmt: skip
@click.option("--profile", help="The sizes: quick, standard or full (the notebook's own).")
@click.option("--fleet", type=FILE, help="A YAML file of hosts that run the study instead of this one.")
@flag("--help-notebook", help="List the notebook's parameters and stop.")
def run(
    notebook: str, given: Any, files: Any, confirm: bool, help_notebook: bool, **named: Path | str | None
) -> None:
    """Run the missing trials of the study of a NOTEBOOK, and render its page; or the studies of a CAMPAIGN.yaml.

    \b
    Examples:
      benchlib run configuration --profile standard -p clients 16
      benchlib run campaign.yaml
      benchlib run configuration --help-notebook
    """
    from benchlib.plan.parameters import from_yaml
    from benchlib.report.execute import find_notebook, notebook_parameters
    from benchlib.report.runs import confirmed, run_notebook

    if notebook.endswith((".yaml", ".yml")):
        if given or files or confirm or help_notebook or any(named.values()):
            raise InputError(f"{notebook}: a campaign takes no options: write them in its entries")
        from benchlib.report.campaign import run_campaign

        _echo_with_progress(partial(run_campaign, Path(notebook), _yaml_parameters))
        return
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
    _echo_with_progress(partial(run_notebook, path, values))


def _yaml_parameters(file: Path) -> dict[str, Any]:
    from benchlib.host import files
    from benchlib.plan.parameters import from_yaml
    from benchlib.study.store import StudyFolder

    # the name on the page of a saved study
    if file.name.endswith(".study.json") and not file.exists():
        file = StudyFolder(file.name.removesuffix(".study.json")).path / "study.json"
    with os_errors_as(InputError, f"{file.name}: cannot be read"):
        values = from_yaml(files.read_plain(file), file.name)
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise InputError(f"{file.name}: expected parameters and their values, such as 'blocks: 7'")
    # a page's study.json has the parameters of the study
    if not {"plan", "trials"} <= values.keys():
        return values
    if not isinstance(own := values.get("parameters"), dict) or not own:
        raise InputError(f"{file.name}: it measures a capacity: give the study.json of its study")
    # the user's workloads may have changed since: the study has them as they were
    library = {None, *(path.stem for path in LIBRARY.glob("*.toml"))}
    named = values["plan"].get("workloads", ()) if isinstance(values["plan"], dict) else ()
    saved = {name: f"{file.absolute()}#{name}" for name in {*named} - library}

    def as_saved(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: as_saved(inner, name) for name, inner in value.items()}
        if key == "workloads":
            return [saved.get(name, name) for name in value]
        return saved.get(value, value) if key == "workload" else value

    whole = {} if own.get("workload") in library else {"workload": str(file.absolute())}
    return {**as_saved(own), **whole}


def _echo_with_progress(run: Callable[..., Iterable[str]]) -> None:
    """Print the lines of a run, each below the line of its progress."""
    show = _progress_printer()
    try:
        for line in run(listen=show):
            show("")
            echo_lines([line])
    finally:
        show("")


def _progress_printer() -> Any:
    """Return a printer: one changing line on terminals, which an empty text ends."""
    last, is_open = "", False

    def show(line: str) -> None:
        nonlocal last, is_open
        if line and sys.stderr.isatty():
            width = os.get_terminal_size(sys.stderr.fileno()).columns
            click.echo("\r\x1b[2K", err=True, nl=False)
            verdicts = line.startswith("provisional")  # they stay above the line that changes
            is_open = not (verdicts or " · done" in line)
            echo(line if verdicts else line[: width - 1], err=True, nl=not is_open)
        elif line not in ("", last):
            tell(line)
        elif is_open and not line:
            click.echo("", err=True)
            is_open = False
        last = line

    return show


@cli.command()
@click.argument("studies", nargs=-1)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path),
              help="A folder for a site of these studies only; else reports/ (or BENCHLIB_REPORTS).")  # fmt: skip
def report(studies: tuple[str, ...], out: Path | None) -> None:
    """Render the pages of STUDIES and the index; without STUDIES all pages that have changed, and the summary.

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
    echo_lines(report_studies(studies, alone=out is not None))


@cli.command()
def recover() -> None:
    """Undo the leftovers of a crashed run: processes, changes to the host, scratch files.

    \b
    Examples:
      benchlib recover
      benchlib --debug recover
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
        # read and write UTF-8, whatever the terminal is
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    given = sys.argv[1:] if argv is None else argv
    debug = "--debug" in given
    arguments = [word for word in given if word != "--debug"]  # it may stand anywhere
    for name in filter(os.environ.get, _PLACES):  # notebooks run in another folder
        os.environ[name] = str(Path(os.environ[name]).absolute())
    for stream in (sys.stdout, sys.stderr):  # for terminals with another encoding
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, _stop_once)  # sent to services and jobs of CI; the same as Ctrl-C
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
        declined = isinstance(reason, click.Abort) and not isinstance(reason.__context__, KeyboardInterrupt)
        _fail("not confirmed, so nothing was done: --yes does not ask" if declined else "stopped", 1, debug)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except Exception as reason:  # a fault of the library
        _fail(f"unexpected {type(reason).__name__}: {reason} (--debug shows where)", 1, debug)


def _stop_once(number: int, frame: Any) -> None:
    signal.signal(number, signal.SIG_IGN)
    signal.default_int_handler(number, frame)


def _fail(message: str, status: int, debug: bool) -> None:
    if debug:
        tell(traceback.format_exc())
    tell(f"benchlib: {' '.join(message.split())}")
    sys.exit(status)
