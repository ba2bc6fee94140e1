"""What tests of the spine share: a small plan, a small study, a place for data that is not the user's."""

import gc
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fakes import Outcome
from hypothesis import HealthCheck, settings
from needs import missing

from benchlib.cli import main
from benchlib.host.lock import LOCK_VARIABLE
from benchlib.levers import worded
from benchlib.plan.level import Level
from benchlib.plan.model import Factor, Load, Plan, Study
from benchlib.plan.workload import Script, Workload
from benchlib.study.experiment import Experiment, shown
from benchlib.study.store import DATA_VARIABLE, StudyFolder

# a loaded machine is no reason to fail; other examples are drawn each time
settings.register_profile(
    "benchlib", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("benchlib")

# tests of file systems call losetup and mkfs, which an account's bare PATH may lack
os.environ["PATH"] += os.pathsep + os.pathsep.join(["/usr/sbin", "/sbin"])
# a shell has what it runs in the background ignore both, and so would notebooks and servers that tests stop with them
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

HERE = Path(__file__).parent
pytest_plugins = ["clusters", "foreign", "pages"]

PIECES = ("pg", "root", "browser", "fleet", "statistics", "long")
"""Parts of ``make test-all`` that run alone (``-m pg``); ``make test`` runs the rest, and one example of each."""

OF_ROOT = {"strangers", "mount", "mounted", "loop", "as_user"}
"""Fixtures that change the host, or make users: what uses them belongs to the piece ``root``."""

OF_SERVERS = {"created", "new_cluster", "ready_clusters", "foreign"}
"""Fixtures that start a real server: what uses them belongs to the piece ``pg``."""

WORKLOAD = Workload(name="tpcb-like", title="TPC-B-like transactions", scripts=(Script(builtin="tpcb-like"),))


def pytest_xdist_auto_num_workers() -> int:
    """Run a process for each processor that this one may use (``-n auto``), as ``taskset`` and containers limit them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark what starts servers, skip what this machine lacks the means for, and begin with what takes longest."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if OF_SERVERS & fixtures:
            item.add_marker("pg")
        if OF_ROOT & fixtures:
            item.add_marker("root")
        for piece in PIECES:
            if item.get_closest_marker(piece) and (reason := missing(piece)):
                item.add_marker(pytest.mark.skip(reason=reason))
    yield
    # in a random order by now; the longest at the end would leave the other processes idle
    items.sort(key=lambda item: item.get_closest_marker("example") is None)


def pytest_collection_finish() -> None:
    """Exempt what is there by now from the search for garbage."""
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many tests were skipped for what."""
    reasons = Counter(
        str(report.longrepr[2]).removeprefix("Skipped: ") for report in terminalreporter.getreports("skipped")
    )
    for reason, times in reasons.most_common():
        terminalreporter.write_line(f"skipped {times}: {reason}")


def uses_the_host(request: pytest.FixtureRequest) -> bool:
    """Whether the test starts servers or changes the host."""
    return any(request.node.get_closest_marker(name) for name in ("pg", "root", "fleet"))


@pytest.fixture(autouse=True)
def own_scratch(request: pytest.FixtureRequest) -> None:
    """A scratch folder of its own for each test that uses the host."""
    if uses_the_host(request):
        request.getfixturevalue("scratch")


@pytest.fixture(scope="session")
def locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Paths for locks, of which nothing is there yet."""
    folder = tmp_path_factory.mktemp("locks")
    return (folder / f"{number}.lock" for number in count())


@pytest.fixture(autouse=True)
def lock(locks: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host lock of the test's own: no test waits for a user's run, none keeps one from running."""
    path = next(locks)
    monkeypatch.setenv(LOCK_VARIABLE, str(path))
    return path


@pytest.fixture(autouse=True)
def unsynced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test that leaves the host alone waits for its disk: none of them cuts the power."""
    if not uses_the_host(request):
        monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    """No test finds the figures of another."""
    yield
    if plots := sys.modules.get("matplotlib.pyplot"):
        plots.close("all")


@pytest.fixture
def data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty ``data/`` of the test's own; pages go beside it."""
    root = tmp_path / "data"
    root.mkdir(exist_ok=True)
    monkeypatch.setenv(DATA_VARIABLE, str(root))
    monkeypatch.setenv("BENCHLIB_REPORTS", str(tmp_path / "reports"))
    return root


@pytest.fixture(scope="session")
def plan_of() -> Callable[..., Plan]:
    """Makes a plan: defaults, its control and tuned, three seconds each; any part can be replaced."""

    def make(**changes: Any) -> Plan:
        levels = changes.pop("levels", {"tuned": Level(settings={"work_mem": "8MB"})})
        factor = Factor(
            question="Does it help?",
            baseline="defaults",
            controls=("control",),
            levels={"defaults": Level(), "control": Level(), **levels},
        )
        parts = {"factor": factor, "workload": WORKLOAD, "load": Load(duration_s=3), "scale": 1, "seed": 7}
        return Plan(**{**parts, **changes})

    return make


@pytest.fixture(scope="session")
def study_of(plan_of: Callable[..., Plan]) -> Callable[..., Study]:
    """Makes a study of that plan: two blocks of three trials; a name and a plan may be given."""

    def make(blocks: int = 2, *, name: str = "small", plan: Plan | None = None, **changes: Any) -> Study:
        plan = plan or plan_of(**changes)
        return worded(Study(name=name, title="Small", plan=plan, trials=plan.design(blocks)))

    return make


@pytest.fixture
def folder_of(data_root: Path, study_of: Callable[..., Study]) -> Callable[..., StudyFolder]:
    """Writes a study and gives its folder."""

    def make(*args: Any, **changes: Any) -> StudyFolder:
        study = study_of(*args, **changes)
        folder = StudyFolder(study.name)
        folder.write(study)
        return folder

    return make


@pytest.fixture(scope="session")
def recorded() -> Callable[[str], Experiment]:
    """Gives a study that is kept with the project; what was read and judged of it serves all tests."""
    return cache(lambda name: shown(StudyFolder(name, HERE.parent / "data")))


@pytest.fixture
def command_line(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Runs ``benchlib`` with some words, in this process."""

    def call(*words: object) -> Outcome:
        status = 0
        try:
            main([str(word) for word in words])
        except SystemExit as reason:
            status = reason.code if isinstance(reason.code, int) else 99
        return Outcome(status, *capsys.readouterr())

    return call


@pytest.fixture
def run(
    command_line: Callable[..., Outcome], data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    """Runs ``benchlib`` in an empty project: its folder has the notebooks alone."""
    shutil.copytree(HERE.parent / "notebooks", tmp_path / "notebooks")
    monkeypatch.chdir(tmp_path)
    return command_line
