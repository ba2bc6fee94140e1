"""What tests of the spine share: a small plan, a small study, a place for data that is not the user's."""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fakes import Outcome
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from benchlib.cli import main
from benchlib.host.lock import LOCK_VARIABLE
from benchlib.levers import worded
from benchlib.plan.level import Level
from benchlib.plan.model import Factor, Load, Plan, Study
from benchlib.plan.workload import Script, Workload
from benchlib.study.experiment import Experiment, shown
from benchlib.study.store import DATA_VARIABLE, StudyFolder

# a loaded machine is no reason to fail; other examples are drawn each time
settings.register_profile("benchlib", deadline=None, max_examples=50)
settings.load_profile("benchlib")

# tests of file systems call losetup and mkfs, which an account's bare PATH may lack
os.environ["PATH"] += os.pathsep + os.pathsep.join(["/usr/sbin", "/sbin"])
# a shell has what it runs in the background ignore both, and so would notebooks and servers that tests stop with them
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

HERE = Path(__file__).parent
pytest_plugins = ["clusters", "foreign"]

APART = (
    *(
        "plan/",
        "benchmarks/",
        "stats/",
        "report/",
        "load/parse/",
        "load/test_latency",
        "load/test_shared",
        "load/test_workloads.py",
        "load/test_drawn",
        "load/test_sql",
        "test_cli",
        "test_notebooks",
    ),
    *(
        "test_project",
        "test_recorded_verdicts",
        "test_readme_results",
        "study/test_curate",
        "study/test_driver",
        "study/test_fleet",
        "study/test_generators",
        "study/test_instruments",
        "study/test_loop",
    ),
    *(
        "study/test_published",
        "study/test_records",
        "study/test_results",
        "study/test_store",
        "study/test_trim",
    ),
    *("study/test_bottlenecks", "study/test_conditions", "study/test_fuzz", "study/test_lying_files"),
    *("host/test_telemetry", "levers/test_keys", "levers/test_words"),
    *("server/test_checkpoints", "server/test_counters", "server/test_fetch"),
)
"""Tests that leave the host alone: no server, no mount, no control group."""

TOGETHER = {
    "recorded": ("test_readme_results", "test_recorded_verdicts"),
    "statsmodels": ("stats/test_block_model", "stats/test_crossed", "stats/test_hosts"),
    "looks": ("stats/test_sequential", "stats/test_simulation"),
}
"""Tests that share what takes long: what they have read and judged (:func:`recorded`), an import, planned looks."""

LONG = (
    *("report/test_hostile_study", "report/test_view", "report/test_runs", "test_cli_studies"),
    *("report/figures/test_every", "report/sections/test_screened", "report/test_trends", "study/test_fleet"),
    *("test_readme_results", "test_recorded_verdicts", "stats/test_simulation", "load/parse/test_parse_time"),
)
"""Files of few tests that take long: none is begun when the other processes are done."""

WORKLOAD = Workload(name="tpcb-like", title="TPC-B-like transactions", scripts=(Script(builtin="tpcb-like"),))


class OneHost(LoadScopeScheduling):  # type: ignore[misc]
    """Of several processes (``-n 2``) one has all tests that change the host: there is one host; another those of servers alone."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0].removeprefix("tests/")
        for name, files in TOGETHER.items():
            if file.startswith(files):
                return name
        return file if _apart(file) else "servers" if file.startswith("server/") else "host"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneHost:
    """Hand out tests by what they use, in the order in which they were collected."""
    config.option.loadscopereorder = False
    return OneHost(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the host's tests, which one process runs, then with what takes long; else the order stays."""

    def turn(item: pytest.Item) -> tuple[bool, bool]:
        file = _file(item)
        return _apart(file), not file.startswith(LONG)

    items.sort(key=turn)


def pytest_collection_finish() -> None:
    """What is there by now stays, and is not searched for garbage."""
    gc.freeze()


def _file(item: pytest.Item) -> str:
    return item.path.relative_to(HERE).as_posix()


def _apart(file: str) -> bool:
    return file.startswith(APART)


@pytest.fixture(autouse=True)
def own_scratch(request: pytest.FixtureRequest) -> None:
    """A scratch folder of its own for each test that uses the host."""
    file = request.path.relative_to(HERE)
    if len(file.parts) > 1 and file.parts[0] != "real" and not _apart(file.as_posix()):
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
    if _apart(request.path.relative_to(HERE).as_posix()):
        monkeypatch.setattr(os, "fsync", lambda _: None)


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
