"""From a saved study to its page: a real run of its notebook, the files beside it, only what has changed; and no stranger's notebook runs."""

import json
from pathlib import Path
from unittest.mock import Mock

import nbformat
import pandas as pd
import pytest
from pages import SHOWN

from benchlib.errors import InputError, StudyError
from benchlib.load.workloads import load_workload
from benchlib.plan.workload import HIDDEN, Script, Workload
from benchlib.report import runs
from benchlib.report.model import PageData
from benchlib.report.runs import make_page, report_studies, run_notebook

MINE = "print('added by', 'somebody')"
OVERVIEW = (
    'factor: str = "overview"  # its name\nstudies: str = ""  # which\nrun: bool = True  # nothing runs\n'
)
LISTS = "from benchlib.notebook import open_summary\nprint('of', [page.name for page in open_summary()])"
PATHS = {
    "workload": "/home/me/mine.toml",
    "levels": {"tuned": {"storage": {"data": "/home/me/fast"}}, "left": {"workload": "/home/me/left.toml"}},
    "profiles": {"unused": {"settings": "/home/me/own.conf"}},
}


def told(lines):
    """What lines say, with the names of files alone."""
    return [f"{kind}: {Path(rest).name}" for kind, _, rest in (line.partition(": ") for line in lines)]


@pytest.fixture
def reports(tmp_path):
    return tmp_path / "reports"


def test_a_page_is_its_notebook_executed_and_all_of_it_can_be_taken_along(notebook_of, kept, reports):
    own = notebook_of(SHOWN, MINE, "print('a frame with /home/me/fast')")
    default, private = '"defaults": {}', '"defaults": {"postgres": "/home/me/pg"}'
    own.write_text(own.read_text().replace(json.dumps(default)[1:-1], json.dumps(private)[1:-1]))
    parameters = {"clients": 4, "question": "Is it faster?", **PATHS}
    left_out = {"built": "/home/me/pg/bin holds no PostgreSQL"}
    kept("mine", 20, about={"parameters": parameters, "left_out": left_out})
    page = make_page("mine")
    assert [answer.verdict for answer in page.answers] == ["faster"]
    assert PageData.model_validate_json((reports / "mine.json").read_text()) == page
    html = (reports / "mine.html").read_text()
    assert "added by somebody" in html
    assert "benchlib analyze mine.trials.csv" in html
    assert {path.name for path in reports.iterdir()} == {f"mine.{end}" for end in ("html", "json", "ipynb", "study.json", "trials.csv")}  # fmt: skip
    executed = nbformat.read(reports / "mine.ipynb", as_version=4)
    assert "added by somebody" in str(executed.cells[-2].outputs)
    trials = pd.read_csv(reports / "mine.trials.csv")
    assert {*trials["level"]} == {"defaults", "control", "tuned"}
    assert json.loads((reports / "mine.study.json").read_text())["parameters"]["clients"] == 4
    assert not [path.name for path in reports.iterdir() if "/home/me" in path.read_text()]
    assert runs.has_page(page)
    notebook_of(SHOWN)
    assert not runs.has_page(page), "its notebook has changed"


def test_what_is_published_of_a_private_workload_are_titles(notebook_of, kept, reports, tmp_path):
    scripts = [Script(sql="SELECT 'secret-4711';", title="SELECT ?"), Script(sql="SELECT 'secret-4712';")]
    data = {"file": f"{tmp_path}/shop.dump"}
    work = Workload(name="shop", title="Of a log", private=True, data=data, scripts=scripts)
    notebook_of(SHOWN)
    kept("mine", 20, workload=work)
    make_page("mine")
    published = json.loads((reports / "mine.study.json").read_text())["plan"]["workload"]
    assert [script["sql"] for script in published["scripts"]] == ["SELECT ?", HIDDEN]
    assert published["data"]["file"] == "shop.dump"
    assert not [path.name for path in reports.iterdir() if "secret-47" in path.read_text()]
    with pytest.raises(InputError, match=r"its workload is private, without SQL: take study\.json from data"):
        load_workload(str(reports / "mine.study.json"))


def test_a_study_with_nothing_to_compare_is_refused_before_its_notebook_runs(notebook_of, folder_of):
    notebook_of("open('ran', 'w')")
    folder_of(name="bare")
    with pytest.raises(StudyError, match="study 'bare' has no block with two successful trials"):
        make_page("bare")
    assert not Path("ran").exists()


@pytest.mark.long
def test_only_what_has_changed_is_made_again_and_what_cannot_be_is_left_out(
    notebook_of, kept, folder_of, reports, monkeypatch
):
    notebook_of(SHOWN)
    notebook_of(LISTS, name="overview", parameters=OVERVIEW)
    kept("one")
    kept("alone", levels={})
    (folder_of(name="hurt").path / "study.json").write_text("{")
    lines = told(report_studies(()))
    assert [line for line in lines if "page" in line] == ["page: one.html", "page: overview.html"]
    assert len([line for line in lines if line.startswith("left out")]) == 2
    assert lines[-1] == "index: index.html"
    assert "of [&#39;one&#39;]" in (reports / "overview.html").read_text()
    first = {path.name: path.read_bytes() for path in reports.iterdir()}
    monkeypatch.setattr(runs, "execute", lambda *_: pytest.fail("it runs again"))
    assert told(report_studies(()))[0] == "page: one.html (unchanged)"
    assert {path.name: path.read_bytes() for path in reports.iterdir()} == first


@pytest.mark.long
def test_the_page_of_one_study_leaves_the_summary_and_the_index_says_so(notebook_of, kept, reports):
    notebook_of(SHOWN)
    notebook_of(LISTS, name="summary", parameters=OVERVIEW)
    kept("one")
    [*report_studies(())]
    before, older = (reports / "summary.html").read_text(), "before the latest changes"
    assert older not in (reports / "index.html").read_text()
    kept("two", day=2)
    assert told(report_studies(["two"])) == ["page: two.html", "index: index.html"]
    assert (reports / "summary.html").read_text() == before
    assert older in (reports / "index.html").read_text()


@pytest.mark.long
def test_the_page_of_a_run_has_the_limits_and_answers_of_the_page_of_a_report(
    notebook_of, kept, reports, monkeypatch
):
    path = notebook_of(SHOWN)
    kept("mine", 20)
    executed = runs.execute(path, {"study": "mine", "run": False}, reports / "failed.ipynb")
    monkeypatch.setattr(runs, "_refuse_early", lambda *_: None)
    with monkeypatch.context() as patch:
        patch.setattr(runs, "execute", lambda *_: executed)
        lines = run_notebook(path, {"study": "mine"}, print)
    assert [line.partition(":")[0] for line in lines[1:]] == ["page", "index"]
    of_run = PageData.model_validate_json((reports / "mine.json").read_text())
    assert of_run.limits
    assert of_run == make_page("mine")


def test_no_notebook_but_one_of_this_installation_is_ever_run(notebook_of, kept, tmp_path, monkeypatch):
    own = notebook_of(SHOWN)
    elsewhere = notebook_of("", name="evil").rename(tmp_path / "evil.ipynb")
    (tmp_path / "notebooks" / "link.ipynb").symlink_to(elsewhere)
    folder, ran = kept("mine"), []
    monkeypatch.setattr(runs, "execute", lambda path, *_, **__: ran.append(path) or pytest.raises(StudyError))
    for name in ("../evil", "../evil.ipynb", str(elsewhere), "link", "x" * 5000, None, "a\0b", "./template"):
        folder.write(folder.read().model_copy(update={"notebook": name}))
        with pytest.raises(Exception):  # noqa: B017, PT011 - what runs is no notebook
            make_page("mine")
    assert {*ran} == {own.resolve()}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cleints": 3}, "unknown parameter cleints: did you mean clients"),
        ({"run": False, "study": "mine", "clients": 8}, "parameter clients: run=false"),
        ({"run": False, "study": "nope"}, "no study 'nope'"),
        ({"levels": {"a": {"setings": {}}, "b": {}}, "question": "b?"}, "setings"),
        ({"workload": "nope"}, "nope"),
    ],
)
def test_what_makes_no_study_is_refused_before_anything_runs(given, message, notebook_of, kept, monkeypatch):
    path = notebook_of(SHOWN)
    kept("mine")
    monkeypatch.setattr(runs, "execute", lambda *_: pytest.fail("it runs"))
    with pytest.raises(InputError, match=message):
        run_notebook(path, given, print)


def test_what_stands_out_of_a_screening_is_confirmed_by_a_grid_and_nothing_else_is(notebook_of, kept):
    path = notebook_of(SHOWN)
    kept("mine")
    parameters = runs.notebook_parameters(path)
    with pytest.raises(InputError, match="'mine' is no screening"):
        runs.confirmed(parameters, {"study": "mine"})
    with pytest.raises(InputError, match="parameter levels"):
        runs.confirmed(parameters, {"study": "mine", "levels": {}})


def test_a_notebook_without_parameters_is_no_overview(notebook_of, reports):
    notebook_of(LISTS, name="summary", parameters=OVERVIEW)
    notebook_of("1 + 1", name="Untitled", parameters="mine = 1")
    assert [*runs._overviews((), ())] == []


def test_a_site_that_cannot_be_updated_is_told_before_a_study_is_changed(
    command_line, kept, reports, monkeypatch
):
    folder = kept("mine")
    reports.mkdir(exist_ok=True)
    (reports / "index.html").write_text("")
    monkeypatch.setattr(runs.site, "writable_root", Mock(side_effect=InputError("cannot write pages")))
    for words in ("rename mine theirs", "delete mine --yes", "edit mine --title New"):
        outcome = command_line("studies", *words.split())
        assert (outcome.status, "cannot write pages" in outcome.err) == (2, True)
    assert folder.read().title != "New"
