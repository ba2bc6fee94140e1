"""The command line as its callers meet it: what it prints, where, and with which exit status."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import click
import pytest
from fakes import Outcome, pgbench_output

from benchlib.cli import cli
from benchlib.errors import StudyError
from benchlib.host.guardian import SCRATCH_VARIABLE
from benchlib.levers import doctor as doctor_module
from benchlib.plan.model import Measurement
from benchlib.server.installations import Installation
from benchlib.study.store import DATA_VARIABLE, StudyFolder

SUMMARY, _ = pgbench_output(tps=1000.0, duration_s=1)


Run = Callable[..., Outcome]
Keep = Callable[..., StudyFolder]


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="bl", dir="/var/tmp") as scratch:
        monkeypatch.setenv(SCRATCH_VARIABLE, scratch)
        (tmp_path / "data").mkdir(exist_ok=True)
        monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "data"))
        monkeypatch.chdir(tmp_path)
        (tmp_path / "notebooks").mkdir()
        for path in (Path(__file__).parent.parent / "notebooks").glob("*.ipynb"):
            (tmp_path / "notebooks" / path.name).write_bytes(path.read_bytes())
        yield


@pytest.fixture
def run(command_line: Run) -> Run:
    return command_line


def commands(
    command: click.Command = cli, path: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], click.Command]]:
    found = [(path, command)]
    for name, child in getattr(command, "commands", {}).items():
        found += commands(child, (*path, name))
    return found


# --- every command ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "command"), commands(), ids=lambda x: "-".join(x) if isinstance(x, tuple) else ""
)
def test_every_command_says_what_it_does_and_shows_an_example(
    path: tuple[str, ...], command: click.Command, run: Run
) -> None:  # fmt: skip
    outcome = run(*path, "--help")
    assert outcome.status == 0
    assert command.help, "a command lacks documentation"
    assert command.help.strip().splitlines()[0].rstrip().endswith((".", "?"))
    assert "Example" in outcome.out
    assert "\n  " + " ".join(("  benchlib", *path)) in outcome.out, "the example shows another command"
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{parameter.name} lacks help"
        else:
            assert parameter.make_metavar(click.Context(command)).strip("[].") in outcome.out


@pytest.mark.parametrize(
    "words", [["repot"], ["analyze"], ["analyze", "x.csv"], ["run", "--nope"], ["postgres", "nope"]]
)
def test_bad_usage_is_one_line_with_status_2(words: list[str], run: Run) -> None:
    assert run(*words).line
    assert run(*words).status == 2


@pytest.mark.parametrize(
    "words", [["--debug", "report", "nope"], ["report", "--debug", "nope"], ["report", "nope", "--debug"]]
)
def test_debug_shows_the_traceback_wherever_it_stands(words: list[str], run: Run) -> None:
    outcome = run(*words)
    assert outcome.status == 2
    assert "Traceback (most recent call last)" in outcome.err
    assert outcome.err.rstrip().splitlines()[-1].startswith("benchlib: no study 'nope'")


def test_a_failed_run_is_status_1_and_an_unforeseen_error_one_line(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(reason: BaseException) -> Callable[..., None]:
        def raising(*_: object) -> None:
            raise reason

        return raising

    monkeypatch.setattr(doctor_module, "examine", fail(StudyError("the disk is full")))
    assert run("doctor") == Outcome(1, "", "benchlib: the disk is full\n")
    monkeypatch.setattr(doctor_module, "examine", fail(ZeroDivisionError("two\nlines")))
    outcome = run("doctor")
    assert outcome.status == 1
    assert "ZeroDivisionError: two lines" in outcome.line
    assert "--debug" in outcome.line
    assert "Traceback" in run("doctor", "--debug").err
    monkeypatch.setattr(doctor_module, "examine", fail(KeyboardInterrupt()))
    assert run("doctor") == Outcome(1, "", "\nbenchlib: stopped\n"), "below the ^C of the terminal"
    monkeypatch.setattr(doctor_module, "examine", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    assert run("doctor") == Outcome(1, "", "\nbenchlib: stopped\n"), (
        "what ends a service or a job is heard alike"
    )


def test_a_reader_who_leaves_early_gets_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "big").write_text(SUMMARY)
    words = [sys.executable, "-m", "benchlib", "parse", *["big"] * 300, "--json"]
    program = "import sys; from benchlib.cli import main; main(sys.argv[1:])"
    words[1:3] = ["-c", program]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path)
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(30) in (0, 1)


# --- run ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nope"], "no notebook 'nope' (there is: combined, "),
        (["configuration", "-p", "cleints", "3"], "unknown parameter cleints: did you mean clients?"),
        (["configuration", "-p", "clients", "[1"], "-p clients: not YAML"),
        (["configuration", "-p", "clients"], "requires 2 arguments"),
        (["configuration", "-p", "study", "../x"], "study name '../x'"),
        (["configuration", "-f", "list.yaml"], "list.yaml: want parameters and their values"),
        (["configuration", "-f", "broken.yaml"], "broken.yaml: not YAML"),
        (["configuration", "-p", "levels", "{a: {}, b: {setings: {}}}", "-p", "question", "b?"], "level “b”: setings"),
        (["configuration", "-p", "levels", "{a: {}, b: {postgres: '9'}}", "-p", "question", "b?"], "PostgreSQL 9 is not installed here"),
        (["configuration", "-p", "run", "false"], "no study 'configuration-quick'"),
        (["broken.ipynb"], "broken.ipynb is not a notebook"),
        (["empty.ipynb"], "empty.ipynb has no cell tagged 'parameters'"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused_in_one_line_before_anything_is_made(
    words: list[str], message: str, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "list.yaml").write_text("- 1\n- 2\n")
    (tmp_path / "broken.yaml").write_text("a: [1\n")
    (tmp_path / "broken.ipynb").write_text("not json")
    (tmp_path / "empty.ipynb").write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    outcome = run("run", *words)
    assert message in outcome.line
    assert outcome.status == 2
    assert not any((tmp_path / "data").iterdir())
    assert not (tmp_path / "reports").exists()


def test_the_parameters_of_a_notebook_are_listed_with_types_defaults_and_help(run: Run) -> None:
    outcome = run("run", "configuration", "--help-notebook")
    assert outcome.status == 0
    assert "clients: int = 0\n    sessions of the load" in outcome.out
    assert "profile: str = 'quick'" in outcome.out


# --- report and studies -------------------------------------------------------------


@pytest.fixture
def keep(folder_of: Keep, tmp_path: Path) -> Keep:
    """Keeps so many trials of a study, of which the first ones failed."""

    def make(name: str, kept: int = 3, failed: int = 1) -> StudyFolder:
        folder = folder_of(blocks=2, name=name)
        (tmp_path / "nothing").mkdir(exist_ok=True)
        for number, trial in enumerate(folder.read().trials[:kept]):
            error = "it broke" if number < failed else None
            folder.keep(
                Measurement(trial=trial, started_s=1, finished_s=2, load_returncode=0, error=error),
                tmp_path / "nothing",
            )
        return folder

    return make


def test_studies_are_listed_with_how_complete_they_are(run: Run, keep: Keep) -> None:
    assert run("studies") == Outcome(0, "no studies yet: 'benchlib run configuration' makes one\n", "")
    assert json.loads(run("studies", "--json").out) == []
    keep("one")
    keep("two", kept=4, failed=0)
    assert json.loads(run("studies", "--json").out) == [
        {"study": "one", "trials": 6, "kept": 3, "failed": 1, "title": "Small"},
        {"study": "two", "trials": 6, "kept": 4, "failed": 0, "title": "Small"},
    ]
    listed = run("studies").out
    assert "3/6 trials, 1 failed" in listed
    assert "4/6 trials  Small" in listed


def test_a_damaged_study_is_named_in_one_line(run: Run, keep: Keep) -> None:
    folder = keep("hurt")
    (folder.path / "study.json").write_text("{")
    keep("fine")
    (keep("newer").path / "study.json").write_text('{"format": 9}')
    outcome = run("studies")
    assert outcome.status == 2
    assert "fine" in outcome.out
    first, second = outcome.err.splitlines()
    assert "hurt/study.json is damaged" in first
    assert "newer/study.json was made by a newer benchlib" in second
    listed = run("studies", "--json")
    assert (listed.status, [row["study"] for row in json.loads(listed.out)]) == (2, ["fine"])


def test_a_damaged_study_does_not_keep_the_others_from_being_rendered(
    run: Run, keep: Keep, tmp_path: Path
) -> None:
    keep("fine", kept=0)
    (keep("hurt").path / "study.json").write_text("{")
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "hurt.html").write_text("a page of better days")
    outcome = run("report")
    assert outcome.status == 0
    assert "left out: hurt/study.json is damaged" in outcome.out
    assert "index: " in outcome.out


def test_a_report_on_what_cannot_be_shown_says_why(run: Run, keep: Keep) -> None:
    assert "no study 'nope' in data/ (there is: none yet)" in run("report", "nope").line
    keep("bare", kept=0)
    outcome = run("report", "bare")
    assert outcome.status in (1, 2)
    assert "bare" in outcome.line
    outcome = run("report")
    assert outcome.status == 0
    assert "left out: study 'bare'" in outcome.out


# --- parse --------------------------------------------------------------------------


def test_one_file_is_one_object_and_several_are_a_list(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(SUMMARY)
    one = json.loads(run("parse", "a.txt", "--json").out)
    assert (one["kind"], one["complete"], one["tps"]) == ("pgbench_summary", True, 1000.0)
    assert one["late_transactions"] is None
    assert json.loads(run("parse", "a.txt", "a.txt", "--json").out) == [one, one]
    assert "tps                          1000.0" in run("parse", "a.txt").out


def test_a_dash_reads_the_standard_input_whatever_bytes_it_holds(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    bytes_in = TextIOWrapper(BytesIO(b"\xff\xfe garbage\n" + SUMMARY.encode()), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", bytes_in)
    outcome = run("parse", "-", "--json")
    assert outcome.status == 0
    assert json.loads(outcome.out)["transactions"] == 1000


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("garbage.txt", "garbage.txt: "),
        ("missing.txt", "cannot read missing.txt: No such file"),
        ("notebooks", "notebooks"),
    ],
)
def test_what_cannot_be_parsed_is_named_with_the_file(
    name: str, message: str, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "garbage.txt").write_bytes(bytes(range(256)))
    outcome = run("parse", name, "--json")
    assert message in outcome.line
    assert outcome.status == 2


def test_one_bad_file_does_not_hide_the_others(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(SUMMARY.encode("utf-16"))
    (tmp_path / "empty.txt").write_text(" \n")
    outcome = run("parse", "a.txt", "missing.txt", "empty.txt", "--json")
    assert outcome.status == 2
    assert [one["tps"] for one in json.loads(outcome.out)] == [1000.0]
    assert outcome.err.splitlines() == [
        "benchlib: cannot read missing.txt: No such file or directory",
        "benchlib: empty.txt: there is nothing in it: it is empty",
    ]


# --- analyze ------------------------------------------------------------------------

TRIALS = "block,level,tps\n" + "".join(
    f"{block},{level},{1000 + 10 * block + more + noise}\n"
    for block, noises in enumerate(((3, 0, 5), (0, 4, 1), (2, 1, 6), (1, 3, 0), (4, 2, 2), (0, 1, 3)), 1)
    for (level, more), noise in zip((("defaults", 0), ("control", 0), ("tuned", 200)), noises, strict=True)
)


def test_verdicts_on_anybodys_trials(run: Run, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TRIALS)
    outcome = run("analyze", "t.csv", "--baseline", "defaults", "--control", "control", "--json")
    assert outcome.status == 0
    message: dict[str, Any] = json.loads(outcome.out)
    assert (message["baseline"], message["metric"], message["blocks"]) == ("defaults", "tps", 6)
    verdicts = {row["level"]: row["verdict"] for row in message["levels"]}
    assert verdicts["tuned"] == "faster"
    text = run("analyze", "t.csv", "--baseline", "defaults").out
    assert "tuned" in text
    assert "faster" in text


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("block,tps\n1,5\n", [], "level"),
        ("", [], "t.csv is empty"),
        (TRIALS, ["--lower-is-better"], "more tps is better"),
        (TRIALS, ["--baseline", "nope"], "nope"),
        (TRIALS, ["--metric", "nope"], "nope"),
        (TRIALS, ["--margin", "7"], "margin"),
        ("block,level,tps\n1,defaults,5\n1,tuned,-6\n2,defaults,5\n2,tuned,0\n", [], "tps"),
    ],
)
def test_a_hostile_file_is_refused_in_one_line(
    content: str, options: list[str], message: str, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(content)
    baseline = [] if "--baseline" in options else ["--baseline", "defaults"]
    outcome = run("analyze", "t.csv", *baseline, *options)
    assert message in outcome.line
    assert outcome.status == 2


def test_the_direction_of_a_metric_and_how_a_file_was_read_are_said(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TRIALS.replace(",", ";").replace("tps", "lat (ms)")
    words = ["analyze", "-", "--baseline", "defaults", "--metric", "lat (ms)"]

    def said(*more: str) -> tuple[dict[str, str], list[str]]:
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(text.encode("utf-16")), encoding="utf-8"))
        message = json.loads(run(*words, *more, "--json").out)
        verdicts = {row["level"]: row["verdict"] for row in message["levels"]}
        return verdicts, [
            warning["message"] for warning in message["warnings"] if warning["code"] == "reading"
        ]

    verdicts, remarks = said()
    assert verdicts["tuned"] == "slower"
    assert remarks[0] == "columns are between semicolons"
    assert remarks[1] == "the file is in UTF-16"
    assert remarks[2] == "less lat (ms) is better (by its name)"
    text = text.replace("lat (ms)", "score")
    words[-1] = "score"
    assert run(*words).status == 2, "nothing tells"
    assert said("--higher-is-better")[0]["tuned"] == "faster"
    verdicts, remarks = said("--lower-is-better")
    assert verdicts["tuned"] == "slower"
    assert remarks[2] == "less score is better (as you say)"


# --- doctor, postgres ------------------------------------------------------


@pytest.mark.pg
def test_the_doctor_reports_in_json_and_in_words(run: Run) -> None:
    outcome = run("doctor", "--json")
    assert outcome.status == 0
    assert {"installations", "levers", "free", "clock"} <= json.loads(outcome.out).keys()
    words = run("doctor")
    assert words.status == 0
    assert re.search(r"^  replication +works\b", words.out, re.MULTILINE)


@pytest.mark.pg
def test_the_installations_are_listed(run: Run) -> None:
    rows = json.loads(run("postgres", "list", "--json").out)
    assert {"16", "18"} <= {row["version"].split(".")[0] for row in rows}
    keys = {"version", "builder", "pgbench", "folder", "compiler", "configure"}
    assert all(row.keys() == keys for row in rows)
    assert "embedded wheel" in run("postgres", "list").out


def test_no_installation_at_all_is_an_error_that_says_what_to_do(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchlib.server.installations.installations", lambda: ())
    outcome = run("postgres", "list")
    assert outcome.status == 2
    assert "pip install" in outcome.line
    assert json.loads(run("postgres", "list", "--json").out) == []


def test_fetching_an_installation_tells_its_steps_and_how_a_level_names_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def install(version: str, tell: Callable[[str], None]) -> Installation:
        tell(f"fetching {version}")
        return Installation("13.23", Path("/cache/bin"), "embedded-postgres", compiler="gcc 7.5.0 -Os")

    monkeypatch.setattr("benchlib.server.fetch.install", install)
    assert run("postgres", "install", "13") == Outcome(
        0,
        "PostgreSQL 13.23 (embedded-postgres), built with gcc 7.5.0 -Os\n"
        "a level names it '13.23' or '13.23 embedded-postgres'\n",
        "fetching 13\n",
    )


def test_fetching_without_npm_says_what_to_install(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    outcome = run("postgres", "install", "13")
    assert outcome.status == 2
    assert outcome.err.splitlines()[-1].startswith(
        "benchlib: fetching a PostgreSQL needs npm: install Node.js"
    )
