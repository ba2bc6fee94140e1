"""A study whose every string is an attack: on its page, the index, the summary, in downloads and at the terminal nothing of it lives."""

import csv
import io
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import hostile
import nbformat.v4 as v4
import pytest
from benchlib.report.entries import entries, entry_of
from benchlib.report.view import View

import benchlib.notebook
from benchlib.cli import main
from benchlib.errors import BenchlibError
from benchlib.plan.level import Level
from benchlib.report import page
from benchlib.report.page import render_page
from benchlib.report.runs import page_about, write_downloads
from benchlib.report.site import Summary, write_site
from benchlib.study.crashed import Crash, keep_crash
from benchlib.study.experiment import shown
from benchlib.study.store import StudyFolder

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture
def study(view_of) -> StudyFolder:
    """A study of a factorial, with every kind of raw file that studies keep, and a crash."""
    records = hostile.recorded(DATA / "planner-recorded", "plans.json", "server_settings.json")
    records |= hostile.recorded(DATA / "durability-recorded", "fsync.json")
    records |= hostile.recorded(DATA / "replication-recorded", "replication.json")
    records["server_settings.json"] = dict(list(records["server_settings.json"].items())[:9])
    ends = {
        "defaults": ("16", "plain"),
        "newer": ("18", "plain"),
        "tuned": ("16", "set"),
        "both": ("18", "set"),
    }
    levels = {name: Level(settings={"work_mem": f"{n}MB"}) for n, name in enumerate(ends, 1) if n > 1}
    about = {
        "notebook": "configuration",
        "title": "Configuration",
        "parameters": {"workload": "/home/me/mine.toml", "levels": {"tuned": {"storage": {"data": "/mnt/fast"}}}},
        "provenance": {
            "created": "2026-11-02T10:00",
            "host": {"processors": 2, "processor": "Fast 9000", "identity": "a1", "memory_mib": 8000, "system": "Linux"},
            "servers": [{"label": "PostgreSQL 18.4", "compiler": "gcc", "configure": "--x"}],
            "builds_differ": "of different builders",
        },
        "left_out": {"huge": "no room"},
        "crash_costs": {"tuned": ("the last commits",), "both": ("all",)},
    }  # fmt: skip
    view = view_of(
        {"defaults": 1000.0, "control": 1001.0, "newer": 1200.0, "tuned": 2000.0, "both": 2300.0},
        name="planted", blocks=2, levels=levels, about=about, leaving=lambda trial: records, instruments=True,
    )  # fmt: skip
    folder = view.experiment.folder
    kept = folder.read()
    cells = {name: dict(zip(("version", "set"), values, strict=True)) for name, values in ends.items()}
    factor = kept.plan.factor.model_copy(update={"cells": cells})
    folder.write(kept.model_copy(update={"plan": kept.plan.model_copy(update={"factor": factor})}))
    crash = {"level": "tuned", "kind": "killed server", "number": 1, "after_s": 1.0, "server_version": "18.4", "acknowledged": 9,
             "lost": 1, "oldest_lost_ms": 2.0, "unacknowledged": 0, "recovery_s": 1.0, "damage": ("invalid page",)}  # fmt: skip
    keep_crash(folder, Crash.model_validate(crash))
    return folder


def everything(view: View):
    """What a notebook can show of a study: each method of the view and each section."""
    methods = [getattr(view, name) for name in dir(View) if not name.startswith("_") and name != "preflight"]
    calls = [(method, ()) for method in methods if callable(method)]
    levels = list(view.experiment.plan.factor.levels)
    arguments = {
        "waterfall": [levels],
        "cost_per_million": [dict.fromkeys(levels, 1.0), hostile.LONG],
        "curve": ["work_mem"],
    }
    named = vars(benchlib.notebook).values()
    sections = [each for each in named if "report.sections" in getattr(each, "__module__", "")]
    calls += [(section, (view, *arguments.get(section.__name__, []))) for section in sections]
    for call, given in calls:
        try:
            thing = call(*given)
        except BenchlibError as reason:
            thing = reason
        yield call.__name__, thing


def rendered(folder: StudyFolder, root: Path) -> dict[str, str]:
    """The pages with this study on them, as the notebooks of a study and of the summary make them."""
    root.mkdir(exist_ok=True)
    os.environ["BENCHLIB_REPORTS"] = str(root)  # which every test has set for itself
    experiment, outputs = shown(folder), []
    for name, thing in everything(View(experiment)):
        if isinstance(thing, BenchlibError):
            outputs.append(v4.new_output("stream", name="stdout", text=f"{name}: {thing}"))
        elif thing is not None:
            outputs.append(
                v4.new_output("display_data", {"text/html": thing._repr_html_(), "text/plain": str(thing)})
            )
    outputs.append(v4.new_output("stream", name="stdout", text=hostile.LONG))
    notebook = v4.new_notebook(cells=[v4.new_code_cell(outputs=outputs)])
    links = write_downloads(root, experiment, notebook)
    about = page_about(entry_of(experiment, ""), links, own=False)
    (root / f"{folder.name}.html").write_text(render_page(notebook, about))
    studies, left_out = entries()
    summary = Summary(studies)
    shows = [summary.studies(), summary.panels(), summary.answers()]
    outputs = [v4.new_output("display_data", {"text/html": s._repr_html_()}) for s in shows if s]
    cells = [v4.new_code_cell(outputs=outputs)]
    (root / "summary.html").write_text(render_page(v4.new_notebook(cells=cells), page.Page("Summary")))
    write_site(root, studies, left_out)
    return {path.stem: path.read_text() for path in root.glob("*.html")}


class Elements(HTMLParser):
    """The elements of a page, each with its attributes, and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.shape: set[tuple[str, str]] = set()
        self.links: set[str | None] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.shape |= {(tag, name) for name in ("", *dict(attrs))}
        if tag != "use":
            self.links |= {value for name, value in attrs if name in ("href", "src")}


@pytest.mark.parametrize(
    "keys", [False, pytest.param(True, marks=pytest.mark.long)], ids=["values", "keys too"]
)
def test_nothing_that_a_study_says_lives(study, tmp_path, capsys, keys):
    benign = rendered(study, tmp_path / "benign")
    planted, stayed = hostile.plant(study, keys=keys)
    assert planted > 100, stayed
    pages = rendered(study, tmp_path / "reports")
    assert pages.keys() == benign.keys()
    for name, text in pages.items():
        assert name == "methodology" or hostile.WORD in text, name
        several_lines = {("text", "transform")}  # which a long name in a chart takes
        attacked, sound = Elements(text), Elements(benign[name])
        assert attacked.shape <= sound.shape | several_lines, name
        assert attacked.links <= sound.links, name
        assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]", text), name
        assert "60481729" not in text, "no template in a text is filled"
    numbers = csv.DictReader(
        io.StringIO((tmp_path / "reports" / "planted.trials.csv").read_text(), newline="")
    )
    assert {float(row["tps"]) for row in numbers} == set(shown(study).trials["tps"])
    rows = csv.reader(io.StringIO((tmp_path / "reports" / "planted.trials.csv").read_text(), newline=""))
    for cell in (cell for row in rows for cell in row):
        assert not re.match(r"[=+@\t\r\n]|-(?!\d)", cell), cell
    main(["studies"])
    for refused in (["report", "no-such"], ["run", "no-such"]):
        with pytest.raises(SystemExit, match="2"):
            main(refused)
    for words in capsys.readouterr():
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", words)


@pytest.mark.browser
@pytest.mark.filterwarnings("ignore:constrained_layout")
def test_in_a_browser_nothing_that_a_study_says_lives(study, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: make setup")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not chromium:
        pytest.skip("no Chromium here: apt-get install chromium")
    hostile.plant(study)
    shutil.copytree(DATA.parent / "notebooks", tmp_path / "notebooks")
    command = [sys.executable, "-c", "from benchlib.cli import main; main(['report'])"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "left out" not in done.stdout
    events = []
    with playwright.sync_playwright() as driver:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=chromium, args=options)
        tab = browser.new_page()
        tab.on("request", lambda request: events.append(request.url))
        tab.on("console", lambda message: events.append(message.text))
        tab.on("pageerror", lambda error: events.append(str(error)))
        tab.on("dialog", lambda dialog: events.append(dialog.message))
        for path in sorted((tmp_path / "reports").glob("*.html")):
            tab.goto(path.as_uri())
            tab.evaluate("""() => {
                for (const e of document.querySelectorAll("details")) e.open = true;
                for (const e of document.querySelectorAll("*")) {
                    for (const kind of ["mouseover", "focus", "load", "error"]) e.dispatchEvent(new Event(kind));
                    if (!e.closest("a")) e.dispatchEvent(new MouseEvent("click", {bubbles: true}));
                }
            }""")
            assert tab.evaluate("document.querySelectorAll('script').length") == 1
        browser.close()
    assert [
        event for event in events if not event.startswith(tmp_path.as_uri()) and not event.startswith("data:")
    ] == []
