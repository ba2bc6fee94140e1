"""What a server that was killed with -9 leaves in shared memory is removed; what others use is not."""

import contextlib
import re
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchlib.host.sweep import remove_shared_memory
from benchlib.server.cluster import Cluster

pytestmark = [
    pytest.mark.pg,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="such segments are looked for on Linux"),
]


def processes_of(cluster: Cluster) -> list[psutil.Process]:
    server = psutil.Process(cluster.pid)
    return [server, *server.children(recursive=True)]


def segments_of(cluster: Cluster) -> set[str]:
    """The System V segment of a server, and the POSIX segments that its processes have in their memory now."""
    maps = ""
    for process in processes_of(cluster):
        with contextlib.suppress(OSError):  # a worker that has ended meanwhile
            maps += Path(f"/proc/{process.pid}/maps").read_text()
    named = (cluster.data / "postmaster.pid").read_text().splitlines()[6].split()[1]
    return {named, *re.findall(r"/dev/shm/(PostgreSQL\.\d+)", maps)}


def segments() -> set[str]:
    """Those of the whole machine."""
    rows = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return {*(row.split()[1] for row in rows), *(path.name for path in Path("/dev/shm").iterdir())}


@pytest.mark.parametrize("version", [pytest.param("16", marks=pytest.mark.long), "18"])
def test_all_of_a_killed_server_is_removed_and_nothing_of_a_living_one(
    version: str, new_cluster: Callable[[str], Cluster]
) -> None:
    doomed, living = new_cluster(version), new_cluster(version)
    for cluster in (doomed, living):
        cluster.configure({"autovacuum": False})
        cluster.start()
    left, used = segments_of(doomed), segments_of(living)
    assert len(left) > 1
    processes = processes_of(doomed)
    for order in (
        psutil.Process.suspend,
        psutil.Process.kill,
    ):  # so that none tidies up after another's death
        for process in processes:
            order(process)
    assert all(process.wait(60) in (-9, None) for process in processes)
    assert left <= segments(), "nobody else removes them"
    for cluster in (doomed, living):
        remove_shared_memory(cluster.folder)
    assert not left & segments()
    assert used <= segments()
    assert living.query("SELECT 1 AS one", dbname="postgres") == [{"one": 1}]


def test_a_data_directory_that_is_not_whole_is_passed_over(tmp_path: Path) -> None:
    for data, files in {
        "empty": {},
        "gone": {"postmaster.opts": '/nowhere/postgres "-D"', "PG_VERSION": "18"},
    }.items():
        (tmp_path / data).mkdir()
        for name, content in {"postmaster.pid": "1\n", **files}.items():
            (tmp_path / data / name).write_text(content)
    remove_shared_memory(tmp_path)
    remove_shared_memory(tmp_path / "never")
