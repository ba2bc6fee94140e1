"""A scratch directory and clusters for tests, separate from the user's runs and data."""

import multiprocessing
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import count
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest

from benchlib.host import facts, guardian
from benchlib.host.changes import mounts_below
from benchlib.host.guardian import SCRATCH_VARIABLE
from benchlib.host.shell import Shell, server_user, ticks
from benchlib.load.workloads import load_workload
from benchlib.plan.design import Trial
from benchlib.plan.level import Level
from benchlib.plan.model import Factor, Load, Measurement, Plan, Study
from benchlib.plan.workload import Workload
from benchlib.server import installations
from benchlib.server.cluster import Cluster
from benchlib.server.installations import Installation, find_installation, runnable_by
from benchlib.server.templates import Templates
from benchlib.study.bench import Bench, open_bench
from benchlib.study.store import DATA_VARIABLE

Runnable = Callable[[Installation], Installation]
Make = Callable[..., Cluster]
_LOADED: dict[tuple[object, ...], Cluster] = {}
_COSTS: dict[Path, Any] = {}


def eventually(condition: Callable[[], bool], within_s: float = 60.0) -> bool:
    """Return whether the condition becomes true in time."""
    return any(condition() for _ in ticks(within_s)) or condition()


def begun(work: Callable[..., object], *args: Any, has_helpers: bool = False) -> ForkProcess:
    """Start a forked process, which need not import the library again."""
    process = multiprocessing.get_context("fork").Process(target=work, args=args, daemon=not has_helpers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the other thread of the tests holds no lock
        process.start()
    return process


@contextmanager
def short_folder() -> Iterator[Path]:
    """Yield a directory with a short path for sockets, accessible to the servers' user."""
    folder = Path(tempfile.mkdtemp(prefix="bl", dir="/var/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def kernel_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory that replaces the root of the kernel's files."""
    monkeypatch.setattr(facts, "ROOT", tmp_path)
    return tmp_path


@pytest.fixture
def kernel(kernel_root: Path) -> Callable[..., Path]:
    """Makes a file that stands for a kernel's, by default a tunable of 60."""

    def make(name: str, text: str = "60") -> Path:
        path = kernel_root / ("proc/sys" if "/" not in name else "") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return make


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "data").mkdir(exist_ok=True)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "data"))
    with short_folder() as folder:
        monkeypatch.setenv(SCRATCH_VARIABLE, str(folder))
        yield folder


@pytest.fixture(scope="session")
def shelter() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def runnable(shelter: Path) -> Runnable:
    """Return an installation that the servers' user can run; cached."""
    return cache(lambda one: runnable_by(Shell(server_user()), one, shelter))


@pytest.fixture(scope="session")
def installed(runnable: Runnable) -> Callable[[str | None], Installation]:
    """Return an installation by version, by default the newest, that the servers' user can run."""
    return lambda version: runnable(find_installation(version))


@pytest.fixture(scope="session")
def created(shelter: Path, runnable: Runnable) -> Make:
    """Return an empty cluster of a version, created once and never started; tests copy it."""
    numbers = count()

    @cache
    def made(installation: Installation) -> Cluster:
        cluster = Cluster(Shell(server_user()), installation, shelter / f"v{next(numbers)}")
        # small segments are faster to copy
        cluster.create(["--wal-segsize=2"] if installation.major > 10 else [])
        return cluster

    return lambda version: made(runnable(find_installation(version)))


def hurried(cluster: Cluster) -> Cluster:
    """Switch fsync off, unless the cluster's own settings switch it on."""
    file = cluster.data / "postgresql.conf"
    file.write_text(f"fsync = off\n{file.read_text()}")
    return cluster


def hurried_basebackup(basebackup: Path, folder: Path) -> Path:
    """Return a pg_basebackup without fsync."""
    program = folder / "-".join(basebackup.parts[1:])
    if not program.exists():
        program.write_text(f'#!/bin/sh\nexec "{basebackup}" --no-sync "$@"\n')
        program.chmod(0o755)
    return program


@pytest.fixture
def new_cluster(created: Make, scratch: Path) -> Iterator[Make]:
    """Create clusters, and stop them after the test."""
    made: list[Cluster] = []

    def make(version: str = "18") -> Cluster:
        made.append(hurried(created(version).clone(scratch / f"c{len(made)}")))
        return made[-1]

    yield make
    for cluster in made:
        cluster.stop(immediately=True)


def remains(scratch: Path) -> list[str]:
    """Return mounts, loop devices and benchlib directories below a directory."""
    attached = (file.read_text().strip() for file in Path("/sys/block").glob("loop*/loop/backing_file"))
    loops = [file for file in attached if str(scratch) in file]
    # a folder may go while it is looked into
    found = (f"{folder}/{name}" for folder, folders, files in os.walk(scratch) for name in (*folders, *files))
    ours = [path for path in found if Path(path).name.startswith("benchlib-")]
    return [*map(str, mounts_below(scratch)), *loops, *ours]


@pytest.fixture
def ready_clusters(shelter: Path, runnable: Runnable, created: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Share installations, empty clusters and loaded clusters between benches, without fsync."""
    load, make, program = Templates.loaded, Templates.empty, Templates.program

    def empty(templates: Templates, level: Level) -> Cluster:
        return make(templates, level) if level.initdb else created(level.postgres)

    def loaded(templates: Templates, level: Level, workload: Workload) -> Cluster:
        key = (level.postgres, level.initdb, workload.contents, level.sql, templates.scale)
        if key not in _LOADED:
            origin = load(templates, level, workload)
            _LOADED[key] = hurried(origin.clone(shelter / f"loaded{len(_LOADED)}"))
            _COSTS[_LOADED[key].folder] = templates.costs.get(origin.folder)
        templates.costs[_LOADED[key].folder] = _COSTS[_LOADED[key].folder]
        return _LOADED[key]

    def hurried_program(templates: Templates, name: str, level: Level) -> Path:
        path = program(templates, name, level)
        return hurried_basebackup(path, shelter) if name == "pg_basebackup" else path

    monkeypatch.setattr(Templates, "empty", empty)
    monkeypatch.setattr(Templates, "loaded", loaded)
    monkeypatch.setattr(Templates, "program", hurried_program)
    monkeypatch.setattr(installations, "runnable_by", lambda shell, one, _: runnable(one))
    monkeypatch.setattr(os, "sync", lambda: None)  # no test depends on it


@pytest.fixture
def unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run without a guardian process, for tests that do not change the host."""

    monkeypatch.setattr(guardian, "_start_guardian", lambda *_: os.open(os.devnull, os.O_WRONLY))


def bench_plan(
    levels: Mapping[str, Any], workload: str = "insert", load: Mapping[str, Any] | None = None, **more: Any
) -> Plan:
    """Return a plan of one-second trials without rebuilds; the first level is the baseline."""
    return Plan(
        factor=Factor(
            question="?", baseline=next(iter(levels)), levels={k: Level.model_validate(v) for k, v in levels.items()}
        ),
        workload=load_workload(workload),
        load=Load.model_validate({"clients": 2, "threads": 1, "duration_s": 1, "warmup_s": 0, **(load or {})}),
        **{"scale": 1, "seed": 7, "rebuild_every": 9, **more},
    )  # fmt: skip


class Trials:
    """Single trials on benches that are closed after the test."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack, self._folder, self._numbers = stack, folder, count(1)

    def bench(self, plan: Plan) -> Bench:
        study = Study(name="test", title="Test", plan=plan, trials=())
        return self._stack.enter_context(open_bench(study, str))

    def close(self) -> None:
        """Close the benches."""
        self._stack.close()

    def run(self, bench: Bench, level: str) -> tuple[Measurement, Path]:
        """Run a trial; return its measurement and its directory of raw files."""
        number = next(self._numbers)
        folder = self._folder / f"raw-{number}"
        folder.mkdir()
        return bench.measure(Trial(1, number, level, number), folder), folder


@pytest.fixture
def trials(ready_clusters: None, scratch: Path, tmp_path: Path) -> Iterator[Trials]:
    with ExitStack() as stack:
        yield Trials(stack, tmp_path)
