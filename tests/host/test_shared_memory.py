"""What a server that was killed with -9 leaves in shared memory is removed; what others use is not."""

import contextlib
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchlib.errors import ServerError
from benchlib.host.shared_memory import remove_left_below
from benchlib.host.shell import ticks
from benchlib.server.cluster import Cluster

pytestmark = [
    pytest.mark.pg,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="such segments are looked for on Linux"),
]
PARALLEL = {
    "max_parallel_workers_per_gather": 2,
    "min_parallel_table_scan_size": 0,
    "parallel_setup_cost": 0,
    "parallel_tuple_cost": 0,
}


@pytest.fixture
def started(new_cluster: Callable[[str], Cluster]) -> Callable[[str], Cluster]:
    """Starts a server of a version, whose queries use many processes."""

    def start(version: str) -> Cluster:
        cluster = new_cluster(version)
        cluster.configure(PARALLEL)
        cluster.start()
        return cluster

    return start


def posix_segments() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("PostgreSQL.*")}


def used_by(cluster: Cluster) -> set[str]:
    """The POSIX segments that a server's processes have in their memory now."""
    used = set()
    for process in processes_of(cluster):
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            used |= set(re.findall(r"/dev/shm/(PostgreSQL\.\d+)", maps))
    return used


def processes_of(cluster: Cluster) -> list[psutil.Process]:
    assert cluster._process is not None
    server = psutil.Process(cluster._process.pid)
    return [server, *server.children(recursive=True)]


def system_v_segments() -> set[str]:
    return {row.split()[1] for row in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


def segment_of(cluster: Cluster) -> str:
    return (cluster.data / "postmaster.pid").read_text().splitlines()[6].split()[1]


def busy(cluster: Cluster) -> threading.Thread:
    """Have the server run a long query in several processes, which share a segment."""

    def query() -> None:
        with contextlib.suppress(ServerError):  # the server will be killed
            cluster.query("SELECT count(*) FROM t WHERE pg_sleep(0.01) IS NULL", dbname="postgres")

    cluster.query("CREATE TABLE t AS SELECT generate_series(1, 300000) i", dbname="postgres")
    cluster.query("ALTER FUNCTION pg_sleep(float8) PARALLEL SAFE", dbname="postgres")
    thread = threading.Thread(target=query)
    thread.start()
    assert any(len(used_by(cluster)) > 1 for _ in ticks(60))
    return thread


def kill_whole(cluster: Cluster) -> None:
    """Kill a server with all of its processes, none of which may tidy up after another's death."""
    processes = processes_of(cluster)
    for order in (psutil.Process.suspend, psutil.Process.kill):
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                order(process)
    assert cluster._process is not None
    cluster._process.wait(60)


@pytest.mark.parametrize("version", [pytest.param("16", marks=pytest.mark.slow), "18"])
def test_all_of_a_killed_server_is_removed_and_nothing_of_a_living_one(
    version: str, started: Callable[[str], Cluster]
) -> None:
    doomed = started(version)
    thread = busy(doomed)
    living = started(version)
    used = used_by(living)
    segment, left = segment_of(doomed), used_by(doomed)
    assert len(left) > 1
    kill_whole(doomed)
    thread.join()
    assert left <= posix_segments(), "nobody else removes them"
    for cluster in (doomed, living):
        remove_left_below(cluster.folder)
    assert not left & posix_segments()
    assert segment not in system_v_segments()
    assert used <= posix_segments()
    assert segment_of(living) in system_v_segments()
    assert living.query("SELECT 1 AS one", dbname="postgres") == [{"one": 1}]


def test_a_data_directory_that_is_not_whole_is_passed_over(tmp_path: Path) -> None:
    for data, files in {
        "empty": {},
        "gone": {"postmaster.opts": '/nowhere/postgres "-D"', "PG_VERSION": "18"},
    }.items():
        (tmp_path / data).mkdir()
        for name, content in {"postmaster.pid": "1\n", **files}.items():
            (tmp_path / data / name).write_text(content)
    remove_left_below(tmp_path)
    remove_left_below(tmp_path / "never")
