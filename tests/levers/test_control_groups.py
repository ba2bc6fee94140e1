"""Caps by control group: seen in what processes get, on whatever version this host has; version 2 also in a made-up tree."""

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import needs
import psutil
import pytest

from benchlib.errors import ServerError, SettingError
from benchlib.host import facts
from benchlib.host.journal import Scope
from benchlib.host.shell import Shell
from benchlib.levers import control_groups
from benchlib.levers.control_groups import Caps, check, make, remarks
from benchlib.levers.lever import refusal

pytestmark = pytest.mark.root

MIB = 1 << 20
NAME = f"test-{os.getpid()}"


def possible(*devices, **caps):
    needs.possible(check, Caps(**caps), devices)
    return Caps(**caps)


def inside(group, command):
    """A command of a shell that is in a group."""
    return "".join(f"echo $$ > {folder}/cgroup.procs; " for folder in group.folders) + command


# --- seen from outside ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("cap", "command"),
    [
        ({"read_iops": 200, "memory": "64MB"}, "dd if={} of=/dev/null iflag=direct bs=4096 count=160"),
        ({"write_bytes": 4 * MIB}, "dd if=/dev/zero of={} oflag=direct bs=65536 count=48"),
    ],
)
def test_what_a_process_reads_and_writes_is_capped(cap, command, loop, scope):
    group = make(possible(loop, **cap), [loop], NAME, scope)
    with group.lifted(), pytest.raises(SettingError, match="a cap did not take effect"):
        group.check()
    group.check()
    started = time.monotonic()
    Shell().do("sh", "-ec", inside(group, command.format(f"/dev/{loop}")))
    assert time.monotonic() - started > 0.6, "without its cap it takes a fraction of that"
    scope.undo()
    assert not any(folder.exists() for folder in group.folders)


def test_who_takes_more_memory_than_the_cap_is_killed_and_counted(scope):
    group = make(possible(memory=32 * MIB + 5), (), NAME, scope)
    group.check()
    # it looks for the last line, of which there is no end
    done = Shell().run(["sh", "-c", inside(group, "exec tail /dev/zero")], timeout_s=30)
    assert done.returncode == -signal.SIGKILL
    with pytest.raises(ServerError, match=r"killed 1 process"):
        group.check()


def test_a_device_of_ours_is_slow_for_the_kernels_own_threads_too(loop, scope, tmp_path):
    caps, shell = possible(loop, write_bytes=4 * MIB), Shell()
    shell.do("mkfs.ext4", "-q", f"/dev/{loop}")
    shell.do("mount", f"/dev/{loop}", tmp_path)
    try:
        shell.do("sync", "-f", tmp_path)
        group = make(caps, [loop], NAME, scope, ours=True)
        if group.folders[0].name.endswith(NAME):
            pytest.skip("no control groups of version 1 here, or a container's")
        assert remarks(caps, ours=True) == []
        started = time.monotonic()
        (tmp_path / "file").write_bytes(bytes(8 * MIB))
        shell.do("sync", "-f", tmp_path)
        assert time.monotonic() - started > 1.5
        scope.undo()
        with pytest.raises(SettingError, match="a cap did not take effect"):
            group.check()
    finally:
        shell.do("umount", tmp_path)


# --- a made-up tree ------------------------------------------------------------------------


class Kernel(Scope):
    """A tree of version 2 that behaves like the kernel's, as far as these tests look; others may be mounted beside it.

    It is a scope, too, that records its notes.
    """

    def __init__(self, folder, monkeypatch):
        self.folder, self.patch = folder / "sys/fs/cgroup", monkeypatch.setattr
        self.mounts, self.noted, make = [], [], Path.mkdir

        def mkdir(path, *mode, **how):
            make(path, *mode, **how)
            (path / "memory.swap.max").touch()

        self.patch(Path, "mkdir", mkdir)
        self.patch(os, "geteuid", lambda: 0)
        self.patch(facts, "ROOT", folder)
        self.patch(psutil, "disk_partitions", lambda all: self.mounts)
        self.patch(control_groups, "write_kernel_file", self.write)
        self.patch(control_groups, "number", {"vda": "254:0", "sdb": "8:16"}.__getitem__)
        self.patch(control_groups, "queue_of", lambda name: {"vda1": "vda"}.get(name, name))
        self.root = self.mount("unified", "cgroup2")
        for name, text in {"controllers": "io memory pids", "subtree_control": "", "procs": ""}.items():
            (self.root / f"cgroup.{name}").write_text(text)

    def mount(self, name, kind):
        root = self.folder / name
        root.mkdir(parents=True)
        self.mounts.append(SimpleNamespace(fstype=kind, mountpoint=str(root), opts=f"rw,{name}"))
        return root

    def write(self, path, value):
        keyed = path.name in ("io.max", "cgroup.subtree_control")
        lines = [*(path.read_text().splitlines() if path.exists() else ()), value.removeprefix("+")]
        path.write_text("\n".join({line.split()[0] if keyed else "": line for line in lines}.values()))

    def note(self, change):
        self.noted.append(str(change).replace(str(self.root), ""))


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    return Kernel(tmp_path, monkeypatch)


def why_not(**caps):
    return str(refusal(check, Caps(**caps), ["vda"]))


def test_version_2_has_all_caps_of_a_device_in_one_line(kernel):
    caps = Caps(read_iops=500, write_bytes="20MB", memory="1GB")
    check(caps, ["vda1", "sdb"])
    group = make(caps, ["vda1", "sdb"], "run-x-c000", kernel)
    (folder,) = group.folders
    assert folder == kernel.root / "benchlib-run-x-c000"
    line, lifted = "rbps=max wbps=20971520 riops=500 wiops=max", "rbps=max wbps=max riops=max wiops=max"
    kept = [(folder / name).read_text() for name in ("io.max", "memory.max", "memory.swap.max")]
    assert kept == [f"254:0 {line}\n8:16 {line}", "1073741824", "0"]
    assert kernel.noted == [
        "/cgroup.subtree_control set to +memory, before -memory",
        "control group /benchlib-run-x-c000",
        "/cgroup.subtree_control set to +io, before -io",
    ]
    with group.lifted():
        assert (folder / "io.max").read_text() == f"254:0 {lifted}\n8:16 {lifted}"
    assert (folder / "io.max").read_text() == kept[0]
    (folder / "memory.events").write_text("low 0\noom 4\noom_kill 3\noom_group_kill 0\n")
    with pytest.raises(ServerError, match=r"killed 3 process"):
        group.check()
    assert remarks(caps, ours=False) == []


def test_both_versions_side_by_side(kernel):
    memory = kernel.mount("memory", "cgroup")
    (kernel.root / "cgroup.controllers").write_text("io")
    caps = Caps(write_iops=100, memory="1GB")
    group = make(caps, ["vda"], "x", kernel)
    assert group.folders == (memory / "benchlib-x", kernel.root / "benchlib-x")
    assert (memory / "benchlib-x/memory.limit_in_bytes").read_text() == "1073741824"
    (remark,) = remarks(caps, ours=False)
    assert "not to writeback by the kernel" in remark
    assert remarks(Caps(read_iops=100, memory="1GB"), ours=False) == []


def test_a_group_with_processes_hands_no_controller_on(kernel):
    (kernel.root / "cgroup.type").touch()  # as at the top of what a container sees
    assert why_not(read_iops=1) == "None"
    (kernel.root / "cgroup.procs").write_text("1\n")
    assert "has processes (a container)" in why_not(read_iops=1)
    (kernel.root / "cgroup.subtree_control").write_text("io memory")
    assert why_not(read_iops=1) == "None"


def test_what_cannot_be_capped_is_refused_in_words(kernel):
    assert "the data are on no block device" in str(refusal(check, Caps(read_iops=5), ()))
    for caps in (Caps(memory="1GB"), Caps()):
        check(caps, ())
    blkio = kernel.mount("blkio", "cgroup")
    assert "built without throttling" in why_not(read_iops=5)
    (blkio / "blkio.throttle.read_iops_device").touch()
    assert remarks(Caps(write_iops=5), ours=True), "a container's group has no threads of the kernel in it"
    kernel.patch(os, "geteuid", lambda: 1000)
    assert "needs root and a writable mount" in why_not(memory="1GB")
    kernel.mounts.clear()
    assert "has the memory controller" in why_not(memory="1GB")
