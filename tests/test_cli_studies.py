"""What is done with kept studies on the command line: words, exit statuses, and the site that follows."""

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import nbformat.v4 as v4
import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from fakes import FakeBench, Outcome, speeds

from benchlib.cli import _yaml_parameters, cli
from benchlib.levers import BY_KEY
from benchlib.load.workloads import load_workload
from benchlib.plan.parameters import checked, from_yaml
from benchlib.plan.planning import make_study
from benchlib.report import runs
from benchlib.report.execute import notebook_parameters
from benchlib.study.loop import run_study
from benchlib.study.store import DATA_VARIABLE, StudyFolder, study_names

ROOT = Path(__file__).parent.parent
TEMPLATE = """
factor: str = "template"
question: str = "Is it faster?"
study: str = ""
profile: str = "quick"
profiles: dict = {"quick": {"blocks": 3}}
workload: str = "tpcb-like"
levels: dict = {"defaults": {}, "tuned": {}}
clients: int = 4
run: bool = True
"""


@pytest.fixture
def project(data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a notebook of its own, data and pages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "card", lambda entry: b"a picture")  # has tests of its own
    (tmp_path / "notebooks").mkdir()
    cells = [
        v4.new_markdown_cell("# Template\n\n**Question.** Is it faster?", id="title"),
        v4.new_code_cell(TEMPLATE, metadata={"tags": ["parameters"]}, id="parameters"),
        v4.new_markdown_cell("What the notebook says of its own question.", id="prose"),
        v4.new_code_cell(
            "from benchlib.notebook import open_experiment\nopen_experiment().headline()",
            metadata={"tags": ["shared"]},
            id="shared",
        ),
    ]
    notebook = v4.new_notebook(cells=cells, metadata={"language_info": {"name": "python"}})
    nbformat.write(notebook, tmp_path / "notebooks" / "template.ipynb")
    return tmp_path


@pytest.fixture
def run(project: Path, command_line: Callable[..., Outcome]) -> Callable[..., Outcome]:
    return command_line


@pytest.fixture
def keep(folder_of: Callable[..., StudyFolder], project: Path) -> Callable[..., StudyFolder]:
    """Keeps a study of quiet blocks whose level `tuned` has an effect in percent."""

    def make(name: str, percent: float = 0.0, *, blocks: int = 9, **about: Any) -> StudyFolder:
        folder = folder_of(blocks, name=name)
        parameters = {"factor": "template", "question": "Is it faster?", "study": name, "clients": 4}
        folder.write(
            folder.read().model_copy(update={"notebook": "template", "parameters": parameters, **about})
        )
        run_study(folder, FakeBench(folder.read().plan, project, speeds(1, tuned=percent)).open)
        return folder

    return make


def page(project: Path, name: str) -> str:
    return (project / "reports" / f"{name}.html").read_text()


# --- studies and the site -----------------------------------------------------------


def test_index_and_pages_follow_what_becomes_of_studies(run, keep, project: Path) -> None:
    for name in ("one", "two"):
        keep(name, blocks=3)
    assert run("report").status == 0
    outcome = run("studies", "rename", "one", "first")
    assert outcome.status == 0
    assert [Path(line).name for line in outcome.out.splitlines()] == ["first.html", "index.html"]
    names = {path.name.partition(".")[0] for path in (project / "reports").iterdir()}
    assert names == {"first", "two", "index", "methodology"}
    assert "first.html" in page(project, "index")
    assert run("studies", "edit", "first", "--question", "Is <more> faster?", "--title", "More", "--notes", "Old disk.").status == 0  # fmt: skip
    assert "Is &lt;more&gt; faster?" in page(project, "first")
    assert "Old disk." in page(project, "first")
    assert "What the notebook says of its own question." in page(project, "two")
    assert "What the notebook says of its own question." not in page(project, "first"), "of another question"
    assert run("studies", "export", "two", "two.zip").status == 0
    assert run("import", "two.zip", "--name", "three").status == 0
    assert "three.html" in page(project, "index")
    assert run("studies", "delete", "two", "--yes").status == 0
    assert not (project / "reports" / "two.html").exists()
    assert "two.html" not in page(project, "index") + page(project, "first") + page(project, "three")
    assert [row["study"] for row in json.loads(run("studies", "--json").out)] == ["first", "three"]


def test_without_a_site_none_is_made(run, keep, project: Path) -> None:
    keep("one")
    assert run("studies", "rename", "one", "first") == Outcome(0, "", "")
    assert not (project / "reports").exists()


def test_who_does_not_confirm_keeps_the_study(keep) -> None:
    keep("one")
    assert CliRunner().invoke(cli, ["studies", "delete", "one"], input="n\n").exit_code == 1
    assert study_names() == ["one"]
    assert CliRunner().invoke(cli, ["studies", "delete", "one"], input="y\n").exit_code == 0
    assert study_names() == []


def test_without_a_terminal_to_ask_at_it_is_said_how(run, keep, monkeypatch: pytest.MonkeyPatch) -> None:
    keep("one")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    outcome = run("studies", "delete", "one")
    assert (outcome.status, study_names()) == (1, ["one"])
    assert outcome.err.endswith("benchlib: not confirmed, so nothing was done: --yes does not ask\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["studies", "--json", "rename", "one", "two"], "--json is for the list"),
        (["studies", "rename", "one", "summary"], "study name 'summary'"),
        (["studies", "rename", "one", "../x"], "study name '../x'"),
        (["studies", "rename", "nope", "x"], "no study 'nope'"),
        (["studies", "edit", "one"], "give its question, title or notes some words"),
        (["studies", "edit", "one", "--title", " "], "give its question, title or notes some words"),
        (["studies", "delete", "nope", "--yes"], "no study 'nope'"),
        (["studies", "export", "one", "there.zip"], "there.zip is there already"),
        (["import", "there.zip"], "there.zip is no file of 'benchlib studies export'"),
        (["import", "nope.zip"], "does not exist"),
        (["check", "nope"], "no study 'nope'"),
        (["check", "one", "--tolerance", "much"], "want percent, such as 3"),
        (["check", "one", "--tolerance", "inf"], "want percent, such as 3"),
        (["compare", "one"], "'one' is compared with other studies: name one of them too"),
        (["history", "nope"], "no study of a notebook 'nope' is kept"),
        (["run", "template", "-p", "run", "false", "-p", "study", "one", "-p", "clients", "8"], "parameter clients: run=false"),
        (["run", "template", "-p", "levels", "{a: {}, b: {}}"], "parameter question: levels of your own want one"),
        (["run", "template", "-f", "levels.yaml"], "parameter question: levels of your own want one"),
        (["run", "template", "-f", "nope.study.json"], "study.json: cannot be read"),
        (["run", "template", "-f", "pilot.study.json"], "pilot.study.json: it holds no parameters"),
        (["run", "template", "-f", "trials.yaml"], "unknown parameter trials"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_in_one_line(
    words: list[str], message: str, run, keep, project: Path
) -> None:
    keep("one", blocks=2)
    (project / "there.zip").write_text("no archive")
    (project / "levels.yaml").write_text("question: ' '\nlevels: {a: {}, b: {}}")
    (project / "pilot.study.json").write_text('{"plan": {}, "trials": [], "parameters": {}}')
    (project / "trials.yaml").write_text("trials: 30")
    outcome = run(*words)
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1
    assert message in outcome.err
    assert study_names() == ["one"]


def test_a_folder_of_data_that_is_not_there_is_an_error(
    run, monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(project / "typo"))
    for words in (["studies"], ["report"], ["studies", "export", "one"], ["check", "one"]):
        outcome = run(*words)
        assert outcome.status == 2
        assert (
            outcome.err
            == f"benchlib: BENCHLIB_DATA names {project}/typo, which is not there: make it, or name another\n"
        )
    assert not (project / "reports").exists()


# --- the gate -----------------------------------------------------------------------


def test_a_gate_answers_with_its_exit_status(run, keep) -> None:
    keep("same")
    keep("slower", -8)
    assert run("check", "same").status == 0
    outcome = run("check", "same", "slower")
    assert outcome.status == 3
    line = "slower: slower: tuned against defaults: −8.1 % (−8.2 to −7.9): slower by more than 3 %"
    assert outcome.out.splitlines()[2] == line
    assert run("check", "slower", "--tolerance", "20 %").status == 0
    assert run("check", "same", "--tolerance", "0").status == 4
    assert run("check", "slower", "--format", "junit").out.startswith("<testsuites>")
    markdown = run("check", "slower", "--format", "markdown", "--pages", "https://example.org/")
    assert markdown.status == 3
    assert "[slower](https://example.org/slower.html)" in markdown.out


def test_the_same_for_anybody_s_trials(run, project: Path) -> None:
    noise = np.random.default_rng(1).normal(0, 0.003, (6, 3))
    for name, change in (("same", 0.0), ("slower", -0.1)):
        rows = [
            f"{block},{level},{1000 * (1 + change * (level == 'tuned')) * np.exp(noise[block, place])}"
            for block in range(6)
            for place, level in enumerate(("defaults", "control", "tuned"))
        ]
        (project / f"{name}.csv").write_text("\n".join(["block,level,tps", *rows]))
    options = ["--baseline", "defaults", "--control", "control"]
    assert run("analyze", "slower.csv", *options).status == 0
    assert run("analyze", "same.csv", *options, "--check").status == 0
    outcome = run("analyze", "slower.csv", *options, "--check")
    assert outcome.status == 3
    assert "slower: slower.csv: tuned against defaults" in outcome.out
    outcome = run("analyze", "slower.csv", *options, "--check", "--json")
    assert outcome.status == 3
    assert json.loads(outcome.out)["baseline"] == "defaults"
    (project / "few.csv").write_text("block,level,tps\n1,defaults,5\n1,tuned,5\n2,defaults,6\n2,tuned,6\n")
    assert run("analyze", "few.csv", "--baseline", "defaults", "--check").status == 4


def test_the_example_of_a_gate_is_a_study_of_two_builds_in_the_same_blocks() -> None:
    given = yaml.safe_load((ROOT / "examples" / "gate" / "builds.yaml").read_text())
    values = checked(notebook_parameters(ROOT / "notebooks" / "template.ipynb"), {**given, "blocks": "12"})
    study = make_study(values, 16 << 30, load_workload, BY_KEY)
    builds = {str(study.plan.level(name).postgres) for name in study.plan.factor.levels}
    assert builds == {"/tmp/pg-with", "/tmp/pg-without"}
    workflow = yaml.safe_load((ROOT / "examples" / "gate" / "workflow.yml").read_text())
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    for step in steps:
        assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step.get("uses", f"actions/x@{'0' * 40}"))
    lines = [line for step in steps for line in step.get("run", "").splitlines() if "bin/benchlib " in line]
    commands = [line.split("benchlib ", 1)[1].split()[0] for line in lines]
    assert commands == ["run", "check", "check", "check"]
    assert commands[-1] == "check", "its status is the job's"
    assert set(commands) <= set(cli.commands)


# --- two studies, a trend -----------------------------------------------------------


def test_studies_are_compared_and_followed_over_time(run, keep, project: Path) -> None:
    keep("one", 10, provenance={"created": "2026-01-01"})
    keep("two", 30, provenance={"created": "2026-01-02"})
    outcome = run("compare", "one", "two")
    assert outcome.status == 0
    assert "differs" in outcome.out
    assert outcome.out.splitlines()[-1] == f"page: {project}/reports/compare~one~two.html"
    outcome = run("history", "template")
    assert outcome.status == 0
    assert "2026-01-02 two" in outcome.out
    assert (project / "reports" / "history~template.csv").is_file()
    for name in ("compare~one~two", "history~template"):
        assert not re.search(r'(src|href)="https?:', page(project, name))


# --- what repeats a study -----------------------------------------------------------


def test_the_command_of_a_page_names_a_file_that_is_found_where_the_study_is_kept(
    run, keep, project: Path
) -> None:
    keep("one")
    run("report", "one")
    (command,) = re.findall(r"benchlib run (template -f one\.study\.json) -p study one-again", _repeats())
    outcome = run("run", *command.split(), "-p", "run", "false")
    assert outcome.status == 0, outcome.err
    assert "page: " in outcome.out
    (project / "one.study.json").write_text("clients: 8")
    assert (
        "parameter clients: run=false"
        in run("run", *command.split(), "-p", "run", "false", "-p", "study", "one").err
    )


def test_of_a_kept_study_one_s_own_workload_is_run_as_it_was(project: Path) -> None:
    file = project / "mine.study.json"
    for workload, wanted in (
        ("/gone/mine.toml", str(file)),
        ("mine", str(file)),
        ("/else/data/mine/study.json", str(file)),
        ("tpcb-like", "tpcb-like"),
    ):
        kept = {"plan": {}, "trials": [], "parameters": {"workload": workload, "clients": 8}}
        file.write_text(json.dumps(kept))
        assert _yaml_parameters(file) == {"workload": wanted, "clients": 8}


def test_of_a_kept_study_the_workloads_of_levels_are_run_as_they_were(project: Path, study_of) -> None:
    works = {
        name: load_workload(name).changed(name=title)
        for name, title in (("insert", "theirs"), ("mixed", "mixed"))
    }
    plan = study_of().plan.changed(workloads={"theirs": works["insert"], "mixed": works["mixed"]})
    levels = {
        "a": {"workload": "theirs"},
        "b": {"over": "a", "workload": "mixed"},
        "never run": {"workload": "x"},
    }
    kept = {
        "plan": plan.model_dump(mode="json"),
        "trials": [],
        "parameters": {"workload": "insert", "levels": levels},
    }
    file = project / "mine.study.json"
    file.write_text(json.dumps(kept))
    given = _yaml_parameters(file)
    assert given["workload"] == "insert"
    assert given["levels"] == {**levels, "a": {"workload": f"{file}#theirs"}}
    assert load_workload(given["levels"]["a"]["workload"]) == works["insert"]


def _repeats() -> str:
    from benchlib.report.view import View
    from benchlib.study.experiment import shown

    return str(View(shown(StudyFolder("one"))).rerun())


def test_the_example_of_a_pooler_compares_with_and_without_in_the_same_load() -> None:
    given = yaml.safe_load((ROOT / "examples" / "pooler" / "pooler.yaml").read_text())
    values = checked(notebook_parameters(ROOT / "notebooks" / "template.ipynb"), {**given, "blocks": "5"})
    plan = make_study(values, 16 << 30, load_workload, BY_KEY).plan
    pairs = plan.factor.pairs()
    assert set(values["answers"]) <= set(pairs)
    for level in values["answers"]:
        assert plan.level_load(level) == plan.level_load(pairs[level])
        assert bool(plan.level(level).pooler) > bool(plan.level(pairs[level]).pooler)


def test_the_example_of_a_fleet_has_replicas_elsewhere_at_three_distances() -> None:
    file = ROOT / "examples" / "fleet" / "followers.yaml"
    given = from_yaml(file.read_text(), file.name)  # to which "on" is a word
    parameters = notebook_parameters(ROOT / "notebooks" / "replication.ipynb")
    values = checked(parameters, {**given, "profile": "recorded"})
    plan = make_study(values, 16 << 30, load_workload, BY_KEY).plan
    parts = [plan.level(name).part("replication") for name in plan.factor.pairs() if name != "control"]
    assert [(part["on"], part.get("delay_ms")) for part in parts] == [(["db2"], of) for of in (None, 1, 5)]
    assert plan.level("standalone").storage, "of the profile"
