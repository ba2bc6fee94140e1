"""The main job from end to end, on real servers, as a user starts it and as a user breaks it."""

import os
import pwd
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest

from benchlib.host.lock import LOCK_VARIABLE

pytestmark = [pytest.mark.pg, pytest.mark.long]

ROOT = Path(__file__).parent.parent.parent
LEVELS = """\
question: Does a larger work_mem help?
levels:
  defaults: {}
  tuned: {settings: {work_mem: 8MB, synchronous_commit: 'off'}}
"""
PATIENCE_S = 600
"""How long a test waits for what must come: a loaded machine takes its time, a broken run never gets there."""
TINY = ["-f", "levels.yaml", "-p", "duration_s", "1", "-p", "clients", "2", "-p", "study", "t"]


class Project:
    """A folder with notebooks, in which the command line is run."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)
        self.folder, self.scratch = folder, folder / "s"
        shutil.copytree(ROOT / "notebooks", folder / "notebooks", ignore=shutil.ignore_patterns(".*"))
        (folder / "levels.yaml").write_text(LEVELS)
        (folder / "data").mkdir()
        self.environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith(("PYTEST", "COV_"))},
            "BENCHLIB_SCRATCH": str(self.scratch),
            "BENCHLIB_DATA": str(folder / "data"),
            "IPYTHONDIR": str(folder / "ipython"),
        }

    def start(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        """Start a program of the environment that the tests run in, in a session of its own."""
        program = Path(sys.executable).parent / words[0]
        return subprocess.Popen(
            [str(program), *words[1:]], cwd=self.folder, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, **more,
        )  # fmt: skip

    def call(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        process = self.start(*words, **more)
        try:
            out, err = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def run(self, *words: str, blocks: int = 3, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run the tiny study."""
        return self.call(
            "benchlib", "run", "configuration", *TINY, "-p", "blocks", str(blocks), *words, **more
        )

    def kept(self, study: str = "t") -> dict[str, float]:
        """The trials that are kept, with the time at which each was written."""
        paths = (self.folder / "data" / study / "trials").glob("[!.]*/measurement.json")
        return {path.parent.name: path.stat().st_mtime for path in paths}

    def processes(self) -> list[psutil.Process]:
        """Every process that has to do with this project."""
        mark, ours = str(self.folder), []
        for process in psutil.process_iter():
            try:
                if process.pid != os.getpid() and mark in " ".join([*process.cmdline(), process.cwd()]):
                    ours.append(process)
            except (psutil.Error, OSError):
                continue
        return ours

    def left(self) -> list[str]:
        """What a run that is over has left, but should not have."""
        return [str(p) for p in self.processes()] + [str(path) for path in self.scratch.glob("run-*")]


def eventually(condition: Callable[[], bool]) -> bool:
    """Wait for a condition; False if it does not come."""
    end = time.monotonic() + PATIENCE_S
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(0.1)
    return holds


def ended(process: "subprocess.Popen[str]") -> str:
    """Wait for a program's end; what it wrote to stderr."""
    return process.communicate(timeout=PATIENCE_S)[1]


@pytest.fixture
def project() -> Iterator[Project]:
    folder = Path(tempfile.mkdtemp(prefix="bl", dir="/var/tmp"))
    made = Project(folder)
    yield made
    for process in made.processes():
        process.kill()
    shutil.rmtree(folder, ignore_errors=True)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def differing(some: dict[str, bytes], others: dict[str, bytes]) -> list[str]:
    return sorted(name for name in some.keys() | others.keys() if some.get(name) != others.get(name))


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


def imports_numpy(process: "subprocess.Popen[str]") -> bool:
    """Whether the command is among its imports, which come after the command line has been read."""
    return any("numpy" in mapped.path for mapped in psutil.Process(process.pid).memory_maps())


@pytest.mark.example
def test_a_study_from_its_notebook_to_its_page(project: Project) -> None:
    first = project.run()
    assert first.returncode == 0, first.stderr
    reports = project.folder / "reports"
    sentence, page, index = first.stdout.splitlines()
    assert "tuned" in sentence
    assert page == f"page: {reports / 't.html'}"
    assert index == f"index: {reports / 'index.html'}"
    html = (reports / "t.html").read_text()
    assert sentence.split("”")[0] in html
    assert 'href="t.html"' in (reports / "index.html").read_text()
    assert "trial 9/9" in first.stderr, "its progress is shown"
    assert len(project.kept()) == 9
    assert eventually(lambda: project.left() == [])
    assert {p.name for p in project.folder.iterdir()} <= {"notebooks", "data", "reports", "levels.yaml", "s"}


def test_the_same_again_runs_nothing_and_more_blocks_extend_the_study(project: Project) -> None:
    first, reports = project.run(), project.folder / "reports"
    assert first.returncode == 0, first.stderr

    # the same again needs no server: its place is taken away
    before = project.kept()
    pages = files(reports)
    shutil.rmtree(project.scratch)
    project.scratch.write_text("no folder")
    again = project.run()
    assert again.returncode == 0, again.stderr
    assert again.stdout == first.stdout
    assert project.kept() == before
    assert differing(files(reports), pages) == []

    # the pages can be made from data/ alone, always the same
    for _ in range(2):
        shutil.rmtree(reports)
        made = project.call("benchlib", "report")
        assert made.returncode == 0, made.stderr
        assert differing(files(reports), pages) == []
    project.scratch.unlink()

    # more blocks extend the study
    more = project.run(blocks=4)
    assert more.returncode == 0, more.stderr
    after = project.kept()
    assert len(after) == 12
    assert {trial: when for trial, when in after.items() if trial in before} == before
    assert eventually(lambda: project.left() == [])

    # another plan under the same name is refused in one line, and nothing is lost
    other = project.run("-p", "clients", "3", blocks=4)
    assert other.returncode == 2
    assert "study 't' exists with another plan (load.clients)" in last_line(other.stderr)
    assert project.kept() == after


def test_an_interruption_keeps_the_rest_and_says_how_to_go_on(project: Project) -> None:
    process = project.start("benchlib", "run", "configuration", *TINY, "-p", "blocks", "3")
    assert eventually(lambda: len(project.kept()) >= 2 or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    errors = ended(process)
    kept = project.kept()
    assert process.returncode == 1, errors
    assert 2 <= len(kept) < 9
    assert last_line(errors) == (
        f"benchlib: stopped: {len(kept)} of 9 trials are kept in data/t; run the same again to go on from there"
    )
    assert "Traceback" not in errors
    assert eventually(lambda: project.left() == [])
    again = project.run()
    assert again.returncode == 0, again.stderr
    assert len(project.kept()) == 9
    assert {trial: when for trial, when in project.kept().items() if trial in kept} == kept


@pytest.mark.parametrize("after_s", [0.0, 1.0, 2.0, 4.0])
def test_an_interruption_is_heard_at_any_moment(after_s: float, project: Project) -> None:
    process = project.start("benchlib", "run", "configuration", *TINY, "-p", "blocks", "3")
    assert eventually(lambda: imports_numpy(process))
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    errors = ended(process)
    assert process.returncode == 1, errors
    assert "Traceback" not in errors
    assert last_line(errors).startswith("benchlib: stopped")
    assert eventually(lambda: project.left() == [])


def kill_the_whole_tree(process: "subprocess.Popen[str]") -> None:
    for one in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
        one.kill()


def wait_for_a_trial(project: Project, process: "subprocess.Popen[str]") -> None:
    kept = len(project.kept())
    assert eventually(lambda: len(project.kept()) > kept or process.poll() is not None)


@pytest.mark.parametrize("kill", [subprocess.Popen.kill, kill_the_whole_tree], ids=lambda f: f.__name__)
def test_kills_at_any_moment_leave_nothing_and_the_rerun_finishes(
    kill: Callable[["subprocess.Popen[str]"], None], project: Project
) -> None:
    # the second kill falls into the trials, the first anywhere
    for delay_s in (random.uniform(0.5, 12), None):
        process = project.start("benchlib", "run", "configuration", *TINY, "-p", "blocks", "3")
        if delay_s is None:
            wait_for_a_trial(project, process)
        else:
            time.sleep(delay_s)
        if process.poll() is None:
            kill(process)
        ended(process)
        assert eventually(lambda: project.left() == []), f"after {delay_s}: {project.left()}"
    before = project.kept()
    again = project.run()
    assert again.returncode == 0, again.stderr
    assert len(project.kept()) == 9
    assert {trial: when for trial, when in project.kept().items() if trial in before} == before
    assert list((project.folder / "data" / "t" / "trials").glob(".pending*")) == []


def test_plain_papermill_does_the_same(project: Project) -> None:
    papermill = [
        "papermill",
        "notebooks/configuration.ipynb",
        "out.ipynb",
        "--no-progress-bar",
        "-k",
        "python3",
    ]
    wrong = project.call(*papermill, *TINY, "-p", "bloks", "3")
    assert wrong.returncode != 0
    assert "unknown parameter bloks: did you mean blocks?" in wrong.stderr
    assert not (project.folder / "data" / "t").exists()
    done = project.call(*papermill, *TINY, "-p", "blocks", "3")
    assert done.returncode == 0, done.stderr
    assert len(project.kept()) == 9
    assert eventually(lambda: project.left() == [])
    executed = nbformat.read(project.folder / "out.ipynb", as_version=4)
    assert "tuned" in str(executed.cells)
    before = project.kept()
    assert project.run().returncode == 0
    assert project.kept() == before, "the command line finds the same study complete"


def test_a_server_that_will_not_take_a_setting_leaves_no_study_behind(project: Project) -> None:
    (project.folder / "levels.yaml").write_text(
        '{question: "Does it help?", levels: {defaults: {}, tuned: {settings: {work_memory: 1}}}}\n'
    )
    refused = project.run()
    assert refused.returncode == 2
    assert last_line(refused.stderr) == (
        "benchlib: level “tuned”: the server refuses its settings: unrecognized configuration parameter "
        '"work_memory"'
    )
    assert eventually(lambda: project.left() == [])
    (project.folder / "levels.yaml").write_text(
        '{question: "Does it help?", levels: {defaults: {}, tuned: {settings: {work_mem: 9MB}}}}\n'
    )
    again = project.run()
    assert again.returncode == 0, again.stderr


ORDINARY = "benchlib-test"


@pytest.fixture
def ordinary_user() -> str:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    try:
        pwd.getpwnam(ORDINARY)
    except KeyError:
        made = subprocess.run(
            ["useradd", "--system", "--no-create-home", ORDINARY], capture_output=True, check=False
        )
        if made.returncode != 0:
            pytest.skip(f"cannot make a user: {made.stderr.decode().strip()}")
    try:
        probe = subprocess.run(
            [sys.executable, "-c", "import benchlib, papermill"],
            user=ORDINARY,
            cwd="/",
            capture_output=True,
            check=False,
        )
    except OSError as reason:
        pytest.skip(f"this Python is closed to other users: {reason}")
    if probe.returncode != 0:
        pytest.skip(f"this environment is closed to other users: {probe.stderr.decode().strip()[-200:]}")
    return ORDINARY


def test_an_ordinary_user_runs_it_as_well(project: Project, ordinary_user: str) -> None:
    for folder, _, names in os.walk(project.folder):
        for path in (Path(folder), *(Path(folder) / name for name in names)):
            shutil.chown(path, ordinary_user)
    project.environment["HOME"] = str(project.folder)
    project.environment["MPLCONFIGDIR"] = str(project.folder / "mpl")
    project.environment[LOCK_VARIABLE] = str(project.folder / "lock")  # that of the tests is root's
    done = project.run(user=ordinary_user)
    assert done.returncode == 0, done.stderr
    assert len(project.kept()) == 9
    page = project.folder / "reports" / "t.html"
    assert page.stat().st_uid == pwd.getpwnam(ordinary_user).pw_uid
    assert eventually(lambda: project.left() == [])
