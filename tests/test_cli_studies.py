"""What is done with kept studies on the command line: words, exit statuses, and the site that follows."""

import io
import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from fakes import Outcome
from pages import SHOWN

from benchlib.load.workloads import load_workload
from benchlib.report import runs
from benchlib.study.store import DATA_VARIABLE, study_names


@pytest.fixture(autouse=True)
def project(run, notebook_of, tmp_path) -> Path:
    """The folder, in which the notebook `template` is a short one."""
    notebook_of(SHOWN)
    return tmp_path


def page(project: Path, name: str) -> str:
    return (project / "reports" / f"{name}.html").read_text()


# --- studies and the site -----------------------------------------------------------


@pytest.mark.long
def test_index_and_pages_follow_what_becomes_of_studies(run, kept, project) -> None:
    def done(words: str) -> list[str]:
        outcome = run(*shlex.split(words))
        assert outcome.status == 0, outcome.err
        return [Path(line).name for line in outcome.out.splitlines()]

    (project / "notebooks" / "summary.ipynb").unlink()
    for name in ("one", "two"):
        kept(name, blocks=3)
    done("report")
    assert done("studies rename one first") == ["first.html", "index.html"]
    names = {path.name.partition(".")[0] for path in (project / "reports").iterdir()}
    assert names == {"first", "two", "index", "comparisons", "methodology"}
    assert "first.html" in page(project, "comparisons")
    done("studies edit first --question 'Is <more> faster?' --title More")
    assert all(words in page(project, "first") for words in ("Is &lt;more&gt; faster?", "More"))
    assert "Its prose." in page(project, "two")
    done("studies export two two.zip")
    done("import two.zip --name three")
    assert "three.html" in page(project, "comparisons")
    done("studies delete two --yes")
    assert not (project / "reports" / "two.html").exists()
    assert not any("two.html" in page(project, name) for name in ("index", "comparisons", "first", "three"))
    assert study_names() == ["first", "three"]


@pytest.mark.parametrize(("answer", "status"), [("n\n", 1), ("", 1), ("y\n", 0)])
def test_a_study_goes_when_that_is_confirmed_and_no_site_is_made(
    answer, status, run, folder_of, monkeypatch, project
) -> None:
    folder_of(name="one")
    assert run("studies", "rename", "one", "first") == Outcome(0, "", "")
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    outcome = run("studies", "delete", "first")
    assert (outcome.status, study_names()) == (status, ["first"] if status else [])
    assert ("not confirmed, so nothing was done: --yes does not ask" in outcome.err) == bool(status)
    assert not (project / "reports").exists()


def test_studies_are_listed_with_how_complete_they_are(run, kept, folder_of) -> None:
    assert run("studies") == Outcome(0, "no studies yet: 'benchlib run configuration' makes one\n", "")
    assert json.loads(run("studies", "--json").out) == []
    kept("one", blocks=2, failing={2: "it broke"})
    folder_of(name="two")
    assert json.loads(run("studies", "--json").out) == [
        {"study": "one", "trials": 6, "kept": 6, "failed": 1, "title": "Small"},
        {"study": "two", "trials": 6, "kept": 0, "failed": 0, "title": "Small"},
    ]
    listed = run("studies").out
    assert "6/6 trials, 1 failed" in listed
    assert "0/6 trials  Small" in listed


def test_a_study_that_cannot_be_shown_is_named_and_keeps_no_other_from_it(run, folder_of, project) -> None:
    for name, content in (("bare", None), ("hurt", "{"), ("newer", '{"format": 9}')):
        folder = folder_of(name=name)
        (folder.path / "study.json").write_text(content or (folder.path / "study.json").read_text())
    outcome = run("studies")
    assert (outcome.status, outcome.out[:4]) == (2, "bare")
    first, second = outcome.err.splitlines()
    assert "hurt/study.json is damaged" in first
    assert "newer/study.json was made by a newer benchlib" in second
    listed = run("studies", "--json")
    assert (listed.status, [row["study"] for row in json.loads(listed.out)]) == (2, ["bare"])
    assert "bare" in run("report", "bare").line
    (project / "reports").mkdir(exist_ok=True)
    for name in ("hurt", "summary"):
        (project / "reports" / f"{name}.html").write_text("a page of better days")
    outcome = run("report")
    assert outcome.status == 0
    for words in ("left out: study 'bare'", "left out: hurt/study.json is damaged", "index: "):
        assert words in outcome.out
    assert not (project / "reports" / "summary.html").exists(), "of nothing"


FILES = {
    "there.zip": "no archive",
    "levels.yaml": "question: ' '\nlevels: {a: {}, b: {}}",
    "pilot.study.json": '{"plan": {}, "trials": [], "parameters": {}}',
    "trials.yaml": "trials: 30",
}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("studies --json rename one two", "--json is for the list"),
        ("studies rename one summary", "study name 'summary'"),
        ("studies rename one ../x", "study name '../x'"),
        ("studies rename nope x", "no study 'nope'"),
        ("studies edit one", "give its question, title or notes some words"),
        ("studies edit one --title ' '", "give its question, title or notes some words"),
        ("studies delete nope --yes", "no study 'nope'"),
        ("studies export one there.zip", "there.zip is there already"),
        ("import there.zip", "there.zip is no file of 'benchlib studies export'"),
        ("import nope.zip", "does not exist"),
        ("check nope", "no study 'nope'"),
        ("check one --tolerance much", "expected percent, such as 3"),
        ("check one --tolerance=-5", "expected percent, such as 3"),
        ("check one --tolerance inf", "expected percent, such as 3"),
        ("compare one", "'one' is compared with other studies: name one of them too"),
        ("history nope", "no study of a notebook 'nope' is saved"),
        ("run template -p run false -p study one -p clients 8", "parameter clients: run=false"),
        ("run template -p levels '{a: {}, b: {}}'", "parameter question: your own levels need their own"),
        ("run template -f levels.yaml", "parameter question: your own levels need their own"),
        ("run template -f nope.study.json", "study.json: cannot be read"),
        ("run template -f pilot.study.json", "pilot.study.json: it measures a capacity"),
        ("run template -f trials.yaml", "unknown parameter trials"),
    ],
)
def test_what_cannot_be_done_with_a_study_is_refused_in_one_line(words, message, run, kept, project) -> None:
    kept("one", blocks=2)
    for name, content in FILES.items():
        (project / name).write_text(content)
    outcome = run(*shlex.split(words))
    assert message in outcome.line
    assert (outcome.status, study_names()) == (2, ["one"])


@pytest.mark.parametrize("words", ["studies", "report", "studies export one", "check one"])
def test_a_folder_of_data_that_is_not_there_is_an_error(words, run, monkeypatch, project) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(project / "typo"))
    outcome = run(*words.split())
    assert (outcome.status, f"names {project}/typo, which is not there" in outcome.line) == (2, True)
    assert not (project / "reports").exists()


# --- what studies say ---------------------------------------------------------------


def test_a_gate_answers_with_its_exit_status(run, kept) -> None:
    kept("same", blocks=9)
    kept("slower", -8, blocks=9)
    cases = {"same": 0, "same slower": 3, "slower --tolerance '20 %'": 0, "same --tolerance 0": 4}
    for words, status in cases.items():
        assert run("check", *shlex.split(words)).status == status, words
    line = "slower: slower: tuned against defaults: −8.1 % (−8.2 to −7.9): slower by more than 3 %"
    assert run("check", "same", "slower").out.splitlines()[2] == line
    assert run("check", "slower", "--format", "junit").out.startswith("<testsuites>")
    markdown = run("check", "slower", "--format", "markdown", "--pages", "https://example.org/")
    assert markdown.status == 3
    assert "[slower](https://example.org/slower.html)" in markdown.out


def test_studies_are_compared_and_followed_over_time(run, kept, project) -> None:
    kept("one", 10, day=1)
    kept("two", 30, day=2)
    pages = ("compare one two", "compare~one~two", "differs"), ("history template", "history~template", "two")
    for words, name, told in pages:
        outcome = run(*words.split())
        assert outcome.status == 0
        assert told in outcome.out
        assert outcome.out.splitlines()[-1] == f"page: {project}/reports/{name}.html"
        assert not re.search(r'(src|href)="https?:', page(project, name))
    assert (project / "reports" / "history~template.csv").is_file()


# --- what repeats a study -----------------------------------------------------------


def test_the_plan_beside_a_page_is_found_where_the_study_is_kept(run, kept, project) -> None:
    kept("one")
    words = ["run", "template", "-f", "one.study.json", "-p", "study", "one", "-p", "run", "false"]
    outcome = run(*words)
    assert outcome.status == 0, outcome.err
    assert "page: " in outcome.out
    (project / "one.study.json").write_text("clients: 8")
    assert "parameter clients: run=false" in run(*words).err, "a file here comes first"


@pytest.fixture
def given(run, project, monkeypatch):
    """The parameters that a notebook is run with for a file `mine.study.json` of these."""

    def of(parameters, plan=None):
        kept = {"plan": plan or {}, "trials": [], "parameters": parameters}
        (project / "mine.study.json").write_text(json.dumps(kept))
        monkeypatch.setattr(runs, "run_notebook", lambda path, values, listen: [json.dumps(values)])
        return json.loads(run("run", "template", "-f", "mine.study.json").out)

    return of


@pytest.mark.parametrize(
    ("workload", "as_it_was"),
    [("/gone/mine.toml", True), ("mine", True), ("/else/data/mine/study.json", True), ("tpcb-like", False)],
)
def test_of_a_kept_study_one_s_own_workload_is_run_as_it_was(workload, as_it_was, given, project) -> None:
    wanted = f"{project}/mine.study.json" if as_it_was else workload
    assert given({"workload": workload, "clients": 8}) == {"workload": wanted, "clients": 8}


def test_of_a_kept_study_the_workloads_of_levels_are_run_as_they_were(given, project, study_of) -> None:
    theirs, mixed = load_workload("insert").changed(name="theirs"), load_workload("mixed")
    plan = study_of().plan.changed(workloads={"theirs": theirs, "mixed": mixed}).model_dump(mode="json")
    own = {"workload": "theirs"}
    levels = {"b": {"over": "a", "workload": "mixed"}, "never run": {"workload": "x"}}
    found = given({"workload": "insert", "levels": {"a": own, **levels}}, plan)
    kept = f"{project}/mine.study.json#theirs"
    assert found == {"workload": "insert", "levels": {"a": {"workload": kept}, **levels}}
    assert load_workload(kept) == theirs
