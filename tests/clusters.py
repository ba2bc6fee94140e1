"""A scratch folder and clusters of a test's own. No test meets a user's run or data."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchlib.host.changes import mount_points
from benchlib.host.guardian import SCRATCH_VARIABLE
from benchlib.host.shell import Shell, server_user
from benchlib.server.cluster import Cluster
from benchlib.server.installations import Installation, find_installation, runnable_by
from benchlib.study.store import DATA_VARIABLE

VERSIONS = ("16", "18")


def short_folder() -> Path:
    """A folder with a path short enough for sockets, which the servers' user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="bl", dir="/var/tmp"))
    folder.chmod(0o755)
    return folder


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    folder = short_folder()
    monkeypatch.setenv(SCRATCH_VARIABLE, str(folder))
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "data"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def shelter() -> Iterator[Path]:
    folder = short_folder()
    if user := server_user():
        shutil.chown(folder, user)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def installed(shelter: Path) -> Callable[[str], Installation]:
    """An installation by its version, where the servers' user can reach it."""
    return lambda version: runnable_by(Shell(server_user()), find_installation(version), shelter)


@pytest.fixture(scope="session")
def created(shelter: Path, installed: Callable[[str], Installation]) -> Callable[[str], Cluster]:
    """An empty cluster of a version, made once and never started: tests take copies of it."""
    made: dict[str, Cluster] = {}

    def of(version: str) -> Cluster:
        if version not in made:
            cluster = Cluster(Shell(server_user()), installed(version), shelter / f"v{version}")
            cluster.create()
            made[version] = cluster
        return made[version]

    return of


@pytest.fixture
def new_cluster(created: Callable[[str], Cluster], scratch: Path) -> Iterator[Callable[[str], Cluster]]:
    """Makes clusters, and stops them after the test."""
    if user := server_user():
        shutil.chown(scratch, user)
    made: list[Cluster] = []

    def make(version: str = "18") -> Cluster:
        made.append(created(version).clone(scratch / f"c{len(made)}"))
        return made[-1]

    yield make
    for cluster in made:
        cluster.stop(immediately=True)


@pytest.fixture(params=VERSIONS)
def cluster(request: pytest.FixtureRequest, new_cluster: Callable[[str], Cluster]) -> Cluster:
    """A cluster of each version, not yet configured."""
    return new_cluster(request.param)


def remains(scratch: Path) -> list[str]:
    """What is still mounted or attached below a folder, and the folders of ours."""
    mounts = [str(m) for m in mount_points() if m.is_relative_to(scratch)]
    loops = [
        file.read_text().strip()
        for file in Path("/sys/block").glob("loop*/loop/backing_file")
        if str(scratch) in file.read_text()
    ]
    return [*mounts, *loops, *(str(f) for f in scratch.rglob("benchlib-*"))]
