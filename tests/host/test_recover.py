"""What is left of a run is stopped, undone and removed in an order that harms nobody."""

import contextlib
import re
import sys
from pathlib import Path

import psutil
import pytest
from needs import root

from benchlib.host.changes import Made, Mounted, Written
from benchlib.host.journal import Journal
from benchlib.host.sweep import processes_of, remove_shared_memory


@pytest.fixture
def crashed(scratch):
    """The journal of a run that ended without a word."""
    (scratch / "run-gone" / "c000" / "data").mkdir(parents=True)
    (scratch / "run-gone").chmod(0o700)
    (scratch / "run-gone" / "c000" / "data" / "file").write_text("ours")
    return Journal(scratch / "run-gone" / "journal")


def test_each_run_has_a_line_that_says_what_was_undone(recover, crashed, tmp_path, kernel, start):
    file, made = kernel("swappiness"), Made(folder=tmp_path / "benchlib-x")
    file.write_text("7")
    for change in (Written(path=file, former="60", value="7"), made):
        crashed.scope().note(change)
    made.make()
    (made.folder / "data").mkdir()
    here, neighbour, viewer = (
        start("sleep", "99", cwd=folder, start_new_session=new)
        for folder, new in ((made.folder / "data", True), (tmp_path, True), (made.folder / "data", False))
    )
    run = crashed.path.parent
    run.with_name("run-older").mkdir(mode=0o711)  # as they were made formerly
    assert [process.pid for process in processes_of(run, made.folder)] == [here.pid]
    done = f"stopped 1 process(es); undid the {file} set to 7, before 60; undid the folder {made.folder}"
    lines = f"run-gone: {done}; removed its folder\nrun-older: removed its folder\n"
    assert recover() == (0, lines, "")
    assert file.read_text() == "60"
    assert (here.wait(1), neighbour.poll(), viewer.poll()) == (-9, None, None)
    assert [*run.parent.iterdir(), *tmp_path.glob("benchlib-*")] == []


def test_what_resists_is_named_and_tried_again(recover, crashed, kernel):
    file, run = kernel("swappiness"), crashed.path.parent
    crashed.scope().note(Written(path=file, former="60", value="7"))
    with crashed.path.open("a") as text:
        text.write("garbage\n")
    file.unlink()
    file.mkdir()  # no file, so it cannot be written
    status, out, err = recover()
    assert (status, out) == (1, "run-gone: nothing could be undone\n")
    first, second, last = err.splitlines()
    assert first.startswith(f"run-gone: resists: {file} set to 7, before 60: ")
    assert second.endswith("cannot be read, undo it by hand: garbage")
    assert last.startswith(f"benchlib: something resists: undo it by hand and remove {run}")
    file.rmdir()
    assert recover().status == 1
    assert crashed.path.exists(), "it stays for a person"
    crashed.path.unlink()
    assert recover() == (0, "run-gone: removed its folder\n", "")


@root
def test_nothing_is_removed_through_a_mount(recover, crashed, mount):
    mounted = mount(crashed.path.parent / "c000" / "m")
    (mounted / "precious").touch()
    status, _, err = recover()
    assert (status, f"a file system is mounted on {mounted}" in err) == (1, True)
    assert (mounted / "precious").exists()
    crashed.scope().note(Mounted(target=mounted))
    assert recover().status == 0, "what is noted is undone first"
    assert not crashed.path.parent.exists()


# --- what a server that was killed with -9 leaves in shared memory ------------------


def of_cluster(cluster):
    """A server's processes, its System V segment, and the POSIX segments that they have in their memory now."""
    server, maps = psutil.Process(cluster.pid), ""
    processes = [server, *server.children(recursive=True)]
    for process in processes:
        with contextlib.suppress(OSError):  # a worker that has ended meanwhile
            maps += Path(f"/proc/{process.pid}/maps").read_text()
    named = (cluster.data / "postmaster.pid").read_text().splitlines()[6].split()[1]
    return processes, {named, *re.findall(r"/dev/shm/(PostgreSQL\.\d+)", maps)}


def segments():
    """Those of the whole machine."""
    rows = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return {*(row.split()[1] for row in rows), *(path.name for path in Path("/dev/shm").iterdir())}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="such segments are looked for on Linux")
@pytest.mark.parametrize("version", [pytest.param("16", marks=pytest.mark.long), "18"])
def test_the_memory_of_killed_servers_alone_goes(version, new_cluster):
    doomed, living = new_cluster(version), new_cluster(version)
    for cluster in (doomed, living):
        cluster.configure({"autovacuum": False})
        cluster.start()
    (processes, left), (_, used) = of_cluster(doomed), of_cluster(living)
    assert len(left) > 1
    # one after the other, so that none tidies up after another's death
    for order in (psutil.Process.suspend, psutil.Process.kill):
        for process in processes:
            order(process)
    assert all(process.wait(60) in (-9, None) for process in processes)
    assert left <= segments(), "nobody else removes them"
    for cluster in (doomed, living):
        remove_shared_memory(cluster.folder)
    assert not left & segments()
    assert used <= segments()
    assert living.query("SELECT 1 AS one", dbname="postgres") == [{"one": 1}]


@pytest.mark.parametrize("files", [{}, {"postmaster.opts": '/nowhere/postgres "-D"', "PG_VERSION": "18"}])
def test_a_data_directory_that_is_not_whole_is_passed_over(files, tmp_path):
    for name, content in {"postmaster.pid": "1\n", **files}.items():
        (tmp_path / name).write_text(content)
    remove_shared_memory(tmp_path)
    remove_shared_memory(tmp_path / "never")
