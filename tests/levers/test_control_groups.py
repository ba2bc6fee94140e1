"""Caps by control group: seen in what processes get, on whatever version this host has; version 2 also in a made-up tree."""

import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from clusters import eventually

from benchlib.errors import ServerError, SettingError
from benchlib.host import facts
from benchlib.host.journal import Chapter
from benchlib.host.shell import Shell
from benchlib.levers import control_groups
from benchlib.levers.control_groups import Caps, Group, check, make, remarks
from benchlib.levers.lever import refusal

pytestmark = pytest.mark.root

MIB = 1 << 20
NAME = f"test-{os.getpid()}"

# reads or writes a device past the page cache for a while, and prints how often per second
DIRECT = """
import mmap, os, sys, time
device, way, size, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
file, buffer, count = os.open(device, os.O_RDWR | os.O_DIRECT), mmap.mmap(-1, size), 0
start = time.monotonic()
while (took := time.monotonic() - start) < seconds:
    (os.preadv if way == "read" else os.pwritev)(file, [buffer], count % 100 * size)
    count += 1
print(count / took)
"""


def needs(caps: Caps, *devices: str) -> Caps:
    if reason := refusal(check, caps, devices):
        pytest.skip(reason)
    return caps


@pytest.fixture
def memory_group(chapter: Chapter) -> Group:
    """A group that may have 32 MiB."""
    return make(needs(Caps(memory=32 * MIB + 5)), (), NAME, chapter)


def inside(group: Group, *argv: object) -> list[str]:
    """A command line that runs in a group."""
    enter = "".join(f"echo $$ > {folder}/cgroup.procs && " for folder in group.folders)
    return ["sh", "-c", f'{enter}exec "$@"', "sh", *map(str, argv)]


# --- seen from outside ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("cap", "way", "size", "expected"),
    [({"read_iops": 200}, "read", 4096, 200), ({"write_bytes": 4 * MIB}, "write", 64 << 10, 64)],
)
def test_what_a_process_reads_and_writes_is_capped(
    loop: str, chapter: Chapter, cap: dict[str, Any], way: str, size: int, expected: float
) -> None:
    group = make(needs(Caps(**cap), loop), [loop], NAME, chapter)

    def per_second(way: str, seconds: float) -> float:
        argv = inside(group, sys.executable, "-S", "-c", DIRECT, f"/dev/{loop}", way, size, seconds)
        return float(Shell().do(*argv))

    assert 0 < per_second(way, 0.8) < 1.2 * expected
    assert per_second("write" if way == "read" else "read", 0.2) > 0, "the other way goes on"
    with group.lifted(), pytest.raises(SettingError, match="a cap did not take"):
        group.check()
    group.check()
    assert per_second(way, 0.8) < 1.2 * expected, "a cap that was lifted is back"


def test_reading_a_large_file_fills_no_more_page_cache_than_the_cap(
    memory_group: Group, scratch: Path
) -> None:
    large = scratch / "large"
    with large.open("wb") as file:
        file.write(os.urandom(MIB) * 96)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    Shell().do(*inside(memory_group, "sh", "-c", f"cat {large} >/dev/null"))
    files = (memory_group.folders[0] / name for name in ("memory.current", "memory.usage_in_bytes"))
    (used,) = (int(file.read_text()) for file in files if file.exists())
    assert 0 < used <= 32 * MIB
    memory_group.check()


def test_who_takes_more_memory_than_the_cap_is_killed_and_counted(memory_group: Group) -> None:
    # it looks for the last line, of which there is no end
    done = Shell().run(inside(memory_group, "tail", "/dev/zero"), timeout_s=30)
    assert done.returncode == -signal.SIGKILL
    with pytest.raises(ServerError, match=r"killed 1 process"):
        memory_group.check()


def test_both_kinds_of_cap_leave_nothing_even_while_processes_live_inside(
    loop: str, tmp_path: Path, chapter: Chapter
) -> None:
    caps = Caps(read_iops=2, write_iops=2, read_bytes=4096, write_bytes=4096, memory="64MB")
    group = make(needs(caps, loop), [loop], NAME, chapter)
    script = ["sh", "-c", f"cat /dev/{loop} & wait"]  # it waits for its cap and cannot be interrupted
    process = Shell().start(script, log=tmp_path / "log", groups=group.folders)

    def all_are_there() -> bool:
        each = [set((folder / "cgroup.procs").read_text().split()) for folder in group.folders]
        waits = any(psutil.Process(int(pid)).status() == psutil.STATUS_DISK_SLEEP for pid in each[0])
        return waits and all(len(pids) == 2 and pids == each[0] for pids in each)

    assert eventually(all_are_there)
    chapter.undo()
    assert process.wait(30) == -signal.SIGKILL
    assert not any(folder.exists() for folder in group.folders)


def test_a_device_of_ours_is_slow_for_the_kernels_own_threads_too(
    loop: str, chapter: Chapter, tmp_path: Path
) -> None:
    caps, shell = needs(Caps(write_bytes=4 * MIB), loop), Shell()
    shell.do("mkfs.ext4", "-q", f"/dev/{loop}")
    shell.do("mount", f"/dev/{loop}", tmp_path)
    try:
        shell.do("sync", "-f", tmp_path)
        group = make(caps, [loop], NAME, chapter, ours=True)
        if group.folders[0].name.endswith(NAME):
            pytest.skip("no control groups of version 1 here, or a container's")
        assert remarks(caps, ours=True) == []
        started = time.monotonic()
        (tmp_path / "file").write_bytes(bytes(8 * MIB))
        shell.do("sync", "-f", tmp_path)
        assert time.monotonic() - started > 1.5
        chapter.undo()
        with pytest.raises(SettingError, match="a cap did not take"):
            group.check()
    finally:
        shell.do("umount", tmp_path)


def test_a_value_that_the_kernel_does_not_keep_is_told(loop: str, chapter: Chapter) -> None:
    with pytest.raises(SettingError, match=r"^(a cap did not take|the kernel refuses)"):
        make(needs(Caps(read_iops=2**32 + 5), loop), [loop], NAME, chapter)


# --- a made-up tree ------------------------------------------------------------------------


class Kernel:
    """A tree of version 2 that behaves like the kernel's, as far as these tests look; others may be mounted beside it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.mounts, self.patch = (
            folder / "sys/fs/cgroup",
            list[SimpleNamespace](),
            monkeypatch.setattr,
        )
        self.folder.mkdir(parents=True)
        self._make = os.mkdir
        self.patch(os, "mkdir", self.mkdir)
        self.patch(os, "geteuid", lambda: 0)
        self.patch(facts, "ROOT", folder)
        self.patch(psutil, "disk_partitions", lambda all: self.mounts)
        self.patch(control_groups, "write_kernel_file", self.write)
        self.patch(control_groups, "number", {"vda": "254:0", "sdb": "8:16"}.__getitem__)
        self.patch(control_groups, "queue_of", lambda name: {"vda1": "vda"}.get(name, name))
        self.root = self.mount("unified", "cgroup2")
        (self.root / "cgroup.controllers").write_text("io memory pids")
        (self.root / "cgroup.type").unlink()

    def mount(self, name: str, kind: str) -> Path:
        (self.folder / name).mkdir()
        self.mounts.append(
            SimpleNamespace(fstype=kind, mountpoint=str(self.folder / name), opts=f"rw,{name}")
        )
        return self.folder / name

    def mkdir(self, path: Path, *mode: int) -> None:
        self._make(path, *mode)
        if self.folder in Path(path).parents:
            for name in ("type", "procs", "subtree_control"):
                (path / f"cgroup.{name}").touch()
            (path / "memory.swap.max").touch()
            offered = path.parent / "cgroup.subtree_control"
            (path / "cgroup.controllers").write_text(offered.read_text() if offered.exists() else "")

    def write(self, path: Path, value: str) -> None:
        keyed = path.name in ("io.max", "cgroup.subtree_control")
        lines = [*(path.read_text().splitlines() if path.exists() else ()), value.removeprefix("+")]
        path.write_text("\n".join({line.split()[0] if keyed else "": line for line in lines}.values()))

    def as_user(self, own: str, *writable: Path) -> None:
        """We are an ordinary user in the group ``own`` who may write to some groups."""
        groups = self.folder / "own"
        groups.write_text(f"7:blkio:/\n0::/{own}\n")
        self.patch(control_groups, "_OWN_GROUPS", groups)
        self.patch(os, "geteuid", lambda: 1000)
        self.patch(os, "access", lambda path, mode: path in writable or path.parent in writable)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(tmp_path, monkeypatch)


def why_not(**caps: Any) -> str:
    return str(refusal(check, Caps(**caps), ["vda"]))


def test_version_2_has_all_caps_of_a_device_in_one_line(
    kernel: Kernel, chapter: Chapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[str] = []
    monkeypatch.setattr(
        chapter, "note", lambda change: noted.append(str(change).replace(str(kernel.root), ""))
    )
    caps = Caps(read_iops=500, write_bytes="20MB", memory="1GB")
    check(caps, ["vda1", "sdb"])
    group = make(caps, ["vda1", "sdb"], "run-x-c000", chapter)
    (folder,) = group.folders
    assert folder == kernel.root / "benchlib-run-x-c000"
    limits = (
        "254:0 rbps=max wbps=20971520 riops=500 wiops=max\n8:16 rbps=max wbps=20971520 riops=500 wiops=max"
    )
    kept = [(folder / name).read_text() for name in ("io.max", "memory.max", "memory.swap.max")]
    assert kept == [limits, "1073741824", "0"]
    assert noted == [
        "/cgroup.subtree_control set to +memory, before -memory",
        "/cgroup.subtree_control set to +io, before -io",
        "control group /benchlib-run-x-c000",
    ]
    with group.lifted():
        lifted = "rbps=max wbps=max riops=max wiops=max"
        assert (folder / "io.max").read_text() == f"254:0 {lifted}\n8:16 {lifted}"
    assert (folder / "io.max").read_text() == limits
    (folder / "memory.events").write_text("low 0\noom 4\noom_kill 3\noom_group_kill 0\n")
    with pytest.raises(ServerError, match=r"killed 3 process"):
        group.check()
    assert remarks(caps, ours=False) == []


def test_both_versions_side_by_side(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, chapter: Chapter
) -> None:
    monkeypatch.setattr(chapter, "note", lambda change: None)
    memory = kernel.mount("memory", "cgroup")
    (kernel.root / "cgroup.controllers").write_text("io")
    caps = Caps(write_iops=100, memory="1GB")
    group = make(caps, ["vda"], "x", chapter)
    assert group.folders == (memory / "benchlib-x", kernel.root / "benchlib-x")
    assert (memory / "benchlib-x/memory.limit_in_bytes").read_text() == "1073741824"
    (remark,) = remarks(caps, ours=False)
    assert "not for what the kernel writes back" in remark
    assert remarks(Caps(read_iops=100, memory="1GB"), ours=False) == []


def test_an_ordinary_user_needs_a_delegated_group(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, chapter: Chapter
) -> None:
    monkeypatch.setattr(chapter, "note", lambda change: None)
    app = kernel.root / "user" / "app"
    for folder in (app.parent, app, app / "ours"):
        kernel.write(folder.parent / "cgroup.subtree_control", "+memory")
        folder.mkdir()
    kernel.as_user("user/app/ours")
    assert "needs root and a writable mount, or a delegated group" in why_not(memory=MIB)
    kernel.as_user("user/app/ours", app, app / "ours")
    assert make(Caps(memory=MIB), (), "x", chapter).folders == (app / "benchlib-x",)
    assert "the io controller cannot be enabled below" in why_not(read_iops=1)


def test_a_group_with_processes_hands_no_controller_on(kernel: Kernel) -> None:
    (kernel.root / "cgroup.type").touch()  # as at the top of what a container sees
    assert why_not(read_iops=1) == "None"
    (kernel.root / "cgroup.procs").write_text("1\n")
    assert "processes live in that very group" in why_not(read_iops=1)
    for controller in ("io", "memory"):
        kernel.write(kernel.root / "cgroup.subtree_control", f"+{controller}")
    assert why_not(read_iops=1) == "None"


def test_what_cannot_be_capped_is_refused_in_words(kernel: Kernel) -> None:
    assert "the data lies on no block device" in str(refusal(check, Caps(read_iops=5), ()))
    for caps in (Caps(memory="1GB"), Caps()):
        check(caps, ())
    blkio = kernel.mount("blkio", "cgroup")
    assert "built without throttling" in why_not(read_iops=5)
    (blkio / "blkio.throttle.read_iops_device").touch()
    assert remarks(Caps(write_iops=5), ours=True), "a container's group has no threads of the kernel in it"
    kernel.mounts.clear()
    assert "no mounted control group hierarchy has the memory controller" in why_not(memory="1GB")
