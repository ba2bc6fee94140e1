"""Whole runs on real servers, as a user starts and interrupts them."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import psutil
import pytest
from clusters import eventually

pytestmark = [pytest.mark.pg, pytest.mark.long]

LEVELS = "{question: 'Does it help?', levels: {defaults: {}, tuned: {settings: {work_mem: 8MB}}}}\n"
TINY = ["-f", "levels.yaml", "-p", "duration_s", 1, "-p", "clients", 2, "-p", "study", "t", "-p", "blocks"]
RUN = ["benchlib", "run", "configuration", *TINY]


@pytest.fixture
def project(project: Any) -> Any:
    (project.folder / "levels.yaml").write_text(LEVELS)
    return project


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.example
def test_a_study_from_its_notebook_to_its_page(project: Any) -> None:
    out, err = project.call(*RUN, 3)
    sentence, page, index = out.splitlines()
    assert "Tuned against defaults" in sentence or "Tuned was" in sentence or "Tuned and" in sentence
    assert page == f"page: {project.reports / 't.html'}"
    assert index == f"index: {project.reports / 'index.html'}"
    assert sentence.partition(":")[0] in (project.reports / "t.html").read_text()
    assert 'href="t.html"' in (project.reports / "index.html").read_text()
    assert "trial 9 of 9" in err, "its progress is shown"
    assert len(project.kept()) == 9
    assert project.has_nothing_left()
    made = {path.name for path in project.folder.iterdir()}
    assert made <= {"notebooks", "data", "reports", "levels.yaml", "s", "home"}


def results(folder: Path) -> dict[str, bytes]:
    """Return what a study's pages are made of; the pages themselves also have what this run's notebook showed."""
    return {name: content for name, content in files(folder).items() if name.endswith((".json", ".csv"))}


def test_a_repeated_command_runs_nothing_and_more_blocks_extend_the_study(project: Any) -> None:
    out, _ = project.call(*RUN, 3)
    kept, pages = project.kept(), results(project.reports)

    # the same again needs no server: its place is taken away
    shutil.rmtree(project.scratch)
    project.scratch.write_text("no folder")
    assert project.call(*RUN, 3)[0] == out
    assert project.kept() == kept
    assert results(project.reports) == pages

    shutil.rmtree(project.reports)
    project.call("benchlib", "report")
    assert results(project.reports) == pages, "they can be made from data/ alone"
    project.scratch.unlink()

    project.call(*RUN, 4)
    assert len(project.kept()) == 12
    assert kept.items() <= project.kept().items()
    assert project.has_nothing_left()


def is_importing(project: Any, process: "subprocess.Popen[str]") -> bool:
    """Whether the command is among its imports, which come after the command line has been read."""
    return any("numpy" in mapped.path for mapped in psutil.Process(process.pid).memory_maps())


def is_building(project: Any, process: "subprocess.Popen[str]") -> bool:
    """Whether there is something in the run's folder, which the guardian guards by then."""
    return bool(list(project.scratch.glob("run-*/*")))


def has_two_more(project: Any, process: "subprocess.Popen[str]") -> bool:
    return len(project.kept()) >= 2 + process.had


@pytest.fixture
def started(project: Any) -> Iterator[Callable[..., Any]]:
    """Starts the tiny study, and waits for a moment of it."""

    def start(moment: Callable[..., bool]) -> Any:
        process = project.start(*RUN, 3)
        process.had = len(project.kept())
        assert eventually(lambda: moment(project, process), 600)
        assert process.poll() is None
        return process

    return start


@pytest.mark.parametrize("moment", [is_importing, is_building, has_two_more])
def test_an_interruption_at_any_moment_keeps_saved_trials(
    moment: Callable[..., bool], project: Any, started: Callable[..., Any]
) -> None:
    process = started(moment)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 1, err
    assert "Traceback" not in err
    last, kept = err.strip().splitlines()[-1], len(project.kept())
    assert last.startswith("benchlib: stopped")
    assert kept == 0 or f"{kept} of 9 trials are saved in data/t; repeat the command to continue" in last
    assert kept >= (2 if moment is has_two_more else 0)
    assert project.has_nothing_left()


def test_kills_leave_nothing_and_the_rerun_finishes(project: Any, started: Callable[..., Any]) -> None:
    for moment, whole_tree in product((is_building, has_two_more), (True, False)):
        process = started(moment)
        tree = psutil.Process(process.pid).children(recursive=True) if whole_tree else []
        for one in (*tree, process):
            with suppress(psutil.NoSuchProcess):  # one of the tree may end meanwhile
                one.kill()
        process.communicate(timeout=600)
        assert project.has_nothing_left(), moment
    before = project.kept()
    project.call(*RUN, 3)
    assert len(project.kept()) == 9
    assert before.items() <= project.kept().items()
    assert list(project.data.glob("t/trials/.pending*")) == []


def test_plain_papermill_does_the_same(project: Any) -> None:
    words = ["notebooks/configuration.ipynb", "out.ipynb", "--no-progress-bar", "-k", "python3"]
    papermill = ["papermill", *words]
    _, err = project.call(*papermill, *TINY, 3, "-p", "bloks", 3, fails=True)
    assert "unknown parameter bloks: did you mean blocks?" in err
    assert not (project.data / "t").exists()
    project.call(*papermill, *TINY, 3)
    kept = project.kept()
    assert len(kept) == 9
    assert project.has_nothing_left()
    assert "tuned" in str(project.shown("out.ipynb"))
    project.call(*RUN, 3)
    assert project.kept() == kept, "the command line finds the same study complete"


def test_a_refused_setting_leaves_no_study(project: Any) -> None:
    (project.folder / "levels.yaml").write_text(LEVELS.replace("work_mem", "work_memory"))
    _, err = project.call(*RUN, 3, fails=True)
    assert "“tuned”: the server refuses its settings" in err.splitlines()[-1]
    assert "work_memory" in err.splitlines()[-1]
    assert project.has_nothing_left()
    assert list(project.data.iterdir()) == []


def test_an_ordinary_user_can_run_a_study(project: Any) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    made = subprocess.run(["useradd", "--system", "--no-create-home", "benchlib-test"], capture_output=True)
    if made.returncode not in (0, 9):  # 9: it is there
        pytest.skip(f"cannot make a user: {made.stderr!r}")
    for path in (project.folder, *project.folder.rglob("*")):
        shutil.chown(path, "benchlib-test")
    try:
        project.call("python", "-c", "import benchlib, papermill", user="benchlib-test")
    except (OSError, AssertionError) as reason:
        pytest.skip(f"this Python is closed to other users: {reason}")
    project.call(*RUN, 3, user="benchlib-test")
    assert len(project.kept()) == 9
    assert (project.reports / "t.html").owner() == "benchlib-test"
    assert project.has_nothing_left()


def test_a_campaign_runs_its_studies_leaves_out_one_that_fails_and_goes_on(project: Any) -> None:
    sizes = "duration_s: 1, clients: 2, scale: 1, blocks: 3"
    own = f"question: 'Does it help?', levels: {{defaults: {{}}, tuned: {{settings: {{work_mem: 8MB}}}}}}, {sizes}"
    entries = [f"{{notebook: configuration, name: {name}, parameters: {{{own}, samples: {{x: SELECT {value} AS v}}}}}}" for name, value in (("bad", "'text'"), ("t", "1"))]  # fmt: skip
    (project.folder / "campaign.yaml").write_text("".join(f"- {entry}\n" for entry in entries))
    for _ in range(2):
        out, err = project.call("benchlib", "run", "campaign.yaml", fails=True)
        assert "failed: bad: sample 'x': column v is 'text', want a number" in out
        assert err.splitlines()[-1].startswith("benchlib: 1 of 2 studies failed: bad: see ")
    assert len(project.kept()) == 9
    assert "1 of 2 studies done" in (project.reports / "campaign.html").read_text()
    assert (project.reports / "t.html").is_file()
    assert project.has_nothing_left()
