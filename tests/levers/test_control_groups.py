"""Caps by control group: seen in what processes get, on whatever version this host has; formats of version 2 in a made-up tree."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from benchlib.errors import PreflightError, ServerError, SettingError
from benchlib.host import facts
from benchlib.host.journal import Chapter, Journal
from benchlib.host.shell import Shell, ticks
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


def why_not(kind: control_groups.Kind) -> str | None:
    return refusal(control_groups._hierarchy, kind)


@pytest.fixture
def chapter(tmp_path: Path) -> Iterator[Chapter]:
    with Journal(tmp_path / "journal").chapter() as chapter:
        yield chapter


@pytest.fixture
def loop() -> Iterator[str]:
    """A loop device of 64 MiB, in memory, so that no disk's own speed is measured."""
    if reason := why_not("io"):
        pytest.skip(reason)
    if os.geteuid() != 0:
        pytest.skip("only root can attach loop devices")
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.truncate(64 * MIB)
        try:
            device = output_of("losetup", "--find", "--show", file.name)
        except (OSError, subprocess.CalledProcessError) as reason:
            pytest.skip(f"no loop devices here: {reason}")
        yield Path(device).name
        output_of("losetup", "--detach", device)


def output_of(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def memory_group(chapter: Chapter) -> Group:
    """A group that may have 32 MiB."""
    if reason := why_not("memory"):
        pytest.skip(reason)
    storage = Caps(memory=32 * MIB + 5)
    check(storage, ())
    return make(storage, (), NAME, chapter)


def inside(groups: tuple[Path, ...], *argv: str) -> list[str]:
    """A command line that runs in these groups."""
    enter = "".join(f"echo $$ > {folder}/cgroup.procs && " for folder in groups)
    return ["sh", "-c", f'{enter}exec "$@"', "sh", *argv]


def direct(loop: str, way: str, size: int, groups: tuple[Path, ...], seconds: float = 0.8) -> float:
    """Reads or writes per second."""
    argv = [sys.executable, "-S", "-c", DIRECT, f"/dev/{loop}", way, str(size), str(seconds)]
    done = Shell().run(inside(groups, *argv), timeout_s=30)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


# --- seen from outside ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("cap", "way", "size", "expected"),
    [
        ({"read_iops": 200}, "read", 4096, 200),
        ({"write_bytes": 4 * MIB}, "write", 64 << 10, 64),
    ],
)
def test_what_a_process_reads_and_writes_is_capped(
    loop: str, chapter: Chapter, cap: dict[str, int], way: str, size: int, expected: float
) -> None:
    other = "write" if way == "read" else "read"
    storage = Caps(**cap)
    check(storage, [loop])
    group = make(storage, [loop], NAME, chapter)
    capped = direct(loop, way, size, group.folders)
    assert 0 < capped < 1.2 * expected
    assert direct(loop, other, size, group.folders, 0.2) > 0, "the other way goes on"
    assert direct(loop, way, size, (), 0.2) > 0, "and so does who is not in the group"


def test_reading_a_large_file_fills_no_more_page_cache_than_the_cap(
    memory_group: Group, scratch: Path
) -> None:
    large = scratch / "large"
    with large.open("wb") as file:
        for _ in range(96):
            file.write(os.urandom(1024) * 1024)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    argv = inside(memory_group.folders, "sh", "-c", 'cat "$0" >/dev/null', str(large))
    assert Shell().run(argv).returncode == 0
    (folder,) = memory_group.folders
    used = next(
        int((folder / name).read_text())
        for name in ("memory.current", "memory.usage_in_bytes")
        if (folder / name).exists()
    )
    assert 0 < used <= 32 * MIB
    memory_group.check()


def test_who_takes_more_memory_than_the_cap_is_killed_and_counted(memory_group: Group) -> None:
    # it looks for the last line, of which there is no end
    done = Shell().run(inside(memory_group.folders, "tail", "/dev/zero"), timeout_s=30)
    assert done.returncode == -signal.SIGKILL
    with pytest.raises(ServerError, match=r"killed 1 process"):
        memory_group.check()


def test_both_kinds_of_cap_leave_nothing_even_while_processes_live_inside(
    loop: str, tmp_path: Path, chapter: Chapter
) -> None:
    if reason := why_not("memory"):
        pytest.skip(reason)
    storage = Caps(read_iops=2, write_iops=2, read_bytes=4096, write_bytes=4096, memory="64MB")
    group = make(storage, [loop], NAME, chapter)
    group.check()
    script = f"cat /dev/{loop} & sleep 60 & wait"  # one waits for its cap and cannot be interrupted
    process = Shell().start(["/bin/sh", "-c", script], log=tmp_path / "log", groups=group.folders)
    for _ in ticks(30):
        inside = [set((folder / "cgroup.procs").read_text().split()) for folder in group.folders]
        states = [Path(f"/proc/{pid}/stat").read_text().split()[2] for pid in inside[0]]
        if len(states) == 3 and "D" in states and all(pids == inside[0] for pids in inside):
            break
    else:
        process.send_signal(signal.SIGKILL)
        pytest.fail(f"the processes are not in their groups: {inside}, {states}")
    chapter.undo()
    assert process.wait(30) == -signal.SIGKILL
    assert not any(folder.exists() for folder in group.folders)


def test_a_device_of_ours_is_slow_for_the_kernels_own_threads_too(
    loop: str, chapter: Chapter, tmp_path: Path
) -> None:
    hierarchy = control_groups._hierarchy("io")
    if not hierarchy.caps_for_all:
        pytest.skip("no control groups of version 1 here, or a container's")
    storage = Caps(write_bytes=4 * MIB)
    assert remarks(storage, ours=True) == []
    output_of("mkfs.ext4", "-q", f"/dev/{loop}")
    output_of("mount", f"/dev/{loop}", str(tmp_path))
    try:
        output_of("sync", "-f", str(tmp_path))
        group = make(storage, [loop], NAME, chapter, ours=True)
        assert group.folders == (hierarchy.parent,)
        started = time.monotonic()
        (tmp_path / "file").write_bytes(bytes(8 * MIB))
        output_of("sync", "-f", str(tmp_path))
        assert time.monotonic() - started > 1.5
        chapter.undo()
        with pytest.raises(SettingError, match="a cap did not take"):
            group.check()
    finally:
        output_of("umount", str(tmp_path))


def test_a_lifted_cap_is_back_afterwards(loop: str, chapter: Chapter) -> None:
    group = make(Caps(read_iops=50), [loop], NAME, chapter)
    with group.lifted():
        assert direct(loop, "read", 4096, group.folders, 0.2) > 200
        with pytest.raises(SettingError, match="a cap did not take"):
            group.check()
    group.check()
    assert direct(loop, "read", 4096, group.folders) < 60


def test_a_value_that_the_kernel_does_not_keep_is_told(loop: str, chapter: Chapter) -> None:
    with pytest.raises(SettingError, match=r"^(a cap did not take|the kernel refuses)"):
        make(Caps(read_iops=2**32 + 5), [loop], NAME, chapter)


# --- refusals ---------------------------------------------------------------------------


class Kernel:
    """A made-up tree of version 2 that behaves like the kernel's, as far as these tests look.

    ``mount_v1`` mounts others beside it.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.mounts = [SimpleNamespace(fstype="cgroup2", mountpoint=str(root), opts="rw")]
        self._make, self._monkeypatch = os.mkdir, monkeypatch
        monkeypatch.setattr(psutil, "disk_partitions", lambda all: self.mounts)
        monkeypatch.setattr(facts, "ROOT", root.parents[3])
        root.parent.mkdir(parents=True)
        monkeypatch.setattr(control_groups, "write_kernel_file", self.write)
        monkeypatch.setattr(os, "mkdir", self.mkdir)
        self._mkdir(root, ["io", "memory", "pids"])

    def mount_v1(self, folder: Path, controller: str, *files: str) -> None:
        folder.mkdir()
        for name in files:
            (folder / name).touch()
        self.mounts.append(
            SimpleNamespace(fstype="cgroup", mountpoint=str(folder), opts=f"rw,relatime,{controller}")
        )

    def mkdir(self, path: Path, *mode: int) -> None:
        if not Path(path).is_relative_to(self.root):
            self._make(path, *mode)
            return
        self._mkdir(path, (path.parent / "cgroup.subtree_control").read_text().split())
        (path / "cgroup.type").touch()

    def _mkdir(self, path: Path, controllers: list[str]) -> None:
        self._make(path)
        files = ["cgroup.procs", "cgroup.subtree_control"]
        if "io" in controllers:
            files += ["io.max"]
        if "memory" in controllers:
            files += ["memory.max", "memory.swap.max", "memory.events"]
        for name in files:
            (path / name).touch()
        (path / "cgroup.controllers").write_text(" ".join(controllers))

    def write(self, path: Path, value: str) -> None:
        if not path.exists():
            raise FileNotFoundError(2, "No such file or directory")
        if path.name == "cgroup.subtree_control":
            path.write_text(f"{path.read_text()} {value.removeprefix('+')}")
        else:
            device = value.split()[0] if path.name == "io.max" else ""
            others = [x for x in path.read_text().splitlines() if device and x.split()[0] != device]
            path.write_text("\n".join([*others, value]) + "\n")

    def as_user(self, own: str, *writable: Path) -> None:
        """We are an ordinary user in the group ``own`` who may write to some groups."""
        groups = self.root.parent / "own"
        groups.write_text(f"7:blkio:/\n0::/{own}\n")
        self._monkeypatch.setattr(control_groups, "_OWN_GROUPS", groups)
        self._monkeypatch.setattr(os, "geteuid", lambda: 1000)
        self._monkeypatch.setattr(
            os, "access", lambda path, mode: path in writable or path.parent in writable
        )


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(control_groups, "number", {"vda": "254:0", "sdb": "8:16"}.__getitem__)
    monkeypatch.setattr(control_groups, "queue_of", lambda name: {"vda1": "vda"}.get(name, name))
    return Kernel(tmp_path / "sys/fs/cgroup/unified", monkeypatch)


class Notes(Chapter):
    """A chapter that keeps its notes in mind."""

    def __init__(self) -> None:
        self.noted: list[str] = []

    def note(self, change: object) -> None:
        self.noted.append(str(change))


def test_version_2_has_all_caps_of_a_device_in_one_line(kernel: Kernel) -> None:
    storage = Caps(read_iops=500, write_bytes="20MB", memory="1GB")
    check(storage, ["vda1", "sdb"])
    notes = Notes()
    group = make(storage, ["vda1", "sdb"], "run-x-c000", notes)
    folder = kernel.root / "benchlib-run-x-c000"
    assert group.folders == (folder,)
    kept = {name: (folder / name).read_text() for name in ("io.max", "memory.max", "memory.swap.max")}
    assert kept == {
        "io.max": "254:0 rbps=max wbps=20971520 riops=500 wiops=max\n"
        "8:16 rbps=max wbps=20971520 riops=500 wiops=max\n",
        "memory.max": "1073741824\n",
        "memory.swap.max": "0\n",
    }
    assert (kernel.root / "cgroup.subtree_control").read_text().split() == ["memory", "io"]
    assert [note.replace(str(kernel.root), "") for note in notes.noted] == [
        "/cgroup.subtree_control set to +memory, before -memory",
        "/cgroup.subtree_control set to +io, before -io",
        "control group /benchlib-run-x-c000",
    ]
    limits = (folder / "io.max").read_text()
    with group.lifted():
        assert set((folder / "io.max").read_text().split()[1:]) - {"8:16"} == {
            "rbps=max",
            "wbps=max",
            "riops=max",
            "wiops=max",
        }
    assert (folder / "io.max").read_text() == limits
    (folder / "memory.events").write_text("low 0\noom 4\noom_kill 3\noom_group_kill 0\n")
    with pytest.raises(ServerError, match=r"killed 3 process"):
        group.check()
    assert remarks(storage, ours=False) == []


def test_both_versions_side_by_side(kernel: Kernel, tmp_path: Path) -> None:
    kernel.mount_v1(kernel.root.parent / "memory", "memory")
    (kernel.root / "cgroup.controllers").write_text("io")
    storage = Caps(write_iops=100, memory="1GB")
    assert [control_groups._hierarchy(kind).version for kind in ("io", "memory")] == [2, 1]
    (remark,) = remarks(storage, ours=False)
    assert "not for what the kernel writes back" in remark
    assert remarks(Caps(read_iops=100, memory="1GB"), ours=False) == []
    with pytest.raises(
        SettingError, match=r"refuses '1073741824' for .*/memory/benchlib-x/memory.limit_in_bytes"
    ):
        make(storage, ["vda"], "x", Notes())  # a plain folder has no such file


def test_an_ordinary_user_needs_a_delegated_group(kernel: Kernel) -> None:
    user = kernel.root / "user"
    for folder in (user, user / "app", user / "app" / "ours"):
        kernel.write(folder.parent / "cgroup.subtree_control", "+memory")
        folder.mkdir()
    kernel.as_user("user/app/ours")
    assert "needs root and a writable mount, or a delegated group" in str(why_not("memory"))
    kernel.as_user("user/app/ours", user / "app", user / "app" / "ours")
    assert why_not("memory") is None
    assert make(Caps(memory="1GB"), (), "x", Notes()).folders == (user / "app" / "benchlib-x",)
    assert "the io controller cannot be enabled below" in str(why_not("io"))
    kernel.as_user("")
    assert "needs root" in str(why_not("io"))


def test_a_group_with_processes_hands_no_controller_on(kernel: Kernel) -> None:
    (kernel.root / "cgroup.type").touch()  # as at the top of what a container sees
    assert why_not("io") is None
    (kernel.root / "cgroup.procs").write_text("1\n")
    assert "processes live in that very group" in str(why_not("io"))
    kernel.write(kernel.root / "cgroup.subtree_control", "+io")
    kernel.write(kernel.root / "cgroup.subtree_control", "+memory")
    assert why_not("io") is None


def test_what_cannot_be_capped_is_refused_in_words(kernel: Kernel, tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="nothing to cap: the data lies on no block device"):
        check(Caps(read_iops=5), ())
    check(Caps(memory="1GB"), ())
    check(Caps(), ())
    blkio = kernel.root.parent / "blkio"
    kernel.mount_v1(blkio, "blkio")
    with pytest.raises(PreflightError, match="built without throttling"):
        check(Caps(read_iops=5), ["vda"])
    (blkio / "blkio.throttle.read_iops_device").touch()
    assert remarks(Caps(write_iops=5), ours=True), "a container's group has no threads of the kernel in it"
    kernel.mounts.clear()
    with pytest.raises(PreflightError, match="no mounted control group hierarchy has the memory controller"):
        check(Caps(memory="1GB"), ())
