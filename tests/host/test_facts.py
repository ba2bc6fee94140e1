"""Facts about this machine: plausible, unknown where the kernel is silent, and never telling which machine it is.

Which block devices a folder is on is seen on real file systems over loop devices, and in a made-up sysfs.
"""

import os
import platform
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from benchlib.errors import PreflightError
from benchlib.host import facts
from benchlib.host.facts import block_devices, counted_once, disks_below, number, queue_of


@pytest.mark.parametrize(("text", "most"), [("max", None), (str(64 << 20), 64), (str(1 << 62), None)])
def test_memory_is_the_least_allowed(text, most, tmp_path, monkeypatch):
    # of the group itself no limit is told, but of the one above it
    (tmp_path / "slice").mkdir()
    (tmp_path / "slice" / "memory.max").write_text(f"{text}\n")
    own, read = "12:cpu:/other\n0::/slice/job\n", facts.read
    monkeypatch.setattr(facts, "read", lambda path: own if path == "/proc/self/cgroup" else read(path))
    monkeypatch.setattr(facts, "_CGROUPS", tmp_path)
    assert facts.memory_bytes() == (most << 20 if most else psutil.virtual_memory().total)
    assert 0 < facts.available_memory_mib() <= facts.memory_bytes() >> 20
    assert 1 <= facts.processors() <= (psutil.cpu_count() or 1)


def test_a_silent_kernel_leaves_facts_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(facts, "read", lambda path: None)
    machine = facts.facts(tmp_path)
    unknown = {name for name, value in machine.items() if value is None}
    assert unknown == {"virtual", "governor", "clock_source", "transparent_huge_pages"}
    assert machine["processor"]


@pytest.mark.parametrize(
    ("text", "virtual"),
    [("flags : fpu hypervisor sse", True), ("flags : fpu", False), ("Features : fp", None)],
)
def test_a_virtual_machine_is_told_by_flags(text, virtual, monkeypatch):
    monkeypatch.setattr(facts, "read", lambda path: text)
    assert facts.virtual() is virtual


def test_the_file_system_is_that_of_the_nearest_mount(monkeypatch):
    types = {"/": "ext4", "/sr": "vfat", "/srv": "xfs", "/srv/pg": "btrfs"}
    mounts = [SimpleNamespace(mountpoint=path, fstype=kind, opts="rw") for path, kind in types.items()]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    expected = {"/srv/pg/data": "btrfs", "/srv/pgx": "xfs", "/home": "ext4", "/": "ext4"}
    assert {path: facts.file_system(Path(path))["type"] for path in expected} == expected
    mounts.append(SimpleNamespace(mountpoint="/", fstype="overlay", opts="rw"))
    assert facts.file_system(Path("/home"))["type"] == "overlay", "the later mount hides the earlier"


def test_facts_never_name_the_machine_or_a_path(tmp_path):
    machine = facts.facts(tmp_path)
    assert str(tmp_path) not in repr(machine)
    assert repr(platform.node()) not in repr(machine)
    assert len(machine["identity"]) == 12
    assert facts.identity() == machine["identity"], "the same machine is recognised"


# --- block devices ------------------------------------------------------------------


def test_a_file_system_is_on_the_device_that_it_was_made_on(run, mount, tmp_path):
    (tmp_path / "disk").touch()
    os.truncate(tmp_path / "disk", 8 << 20)
    loop = Path(run("losetup", "--find", "--show", tmp_path / "disk"))
    try:
        run("mkfs.ext4", "-q", loop)
        folder, name = mount(tmp_path / "mounted", str(loop)), loop.name
        (folder / "below").mkdir()
        assert block_devices(folder / "below") == [name]
        device = loop.stat().st_rdev
        assert number(name) == f"{os.major(device)}:{os.minor(device)}"
        assert queue_of(name) == name
        below = tuple(block_devices(tmp_path))
        assert disks_below(name) == sorted({queue_of(device) for device in below})
        assert counted_once([name, *below]) == (below or (name,))
    finally:
        run("losetup", "--detach", loop)  # goes with the mount


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(PreflightError, match=r"absent \(No such file"):
        block_devices(tmp_path / "absent")
    for ask in (queue_of, number):
        with pytest.raises(PreflightError, match="there is no block device 'sdzz' here"):
            ask("sdzz")


def test_a_partition_is_named_itself_and_its_queue_is_its_disks(kernel, kernel_root, monkeypatch):
    disk, here = kernel_root / "real/sda", kernel_root.stat().st_dev
    kernel("real/sda/sda1/dev", "8:1\n")
    kernel("real/sda/sda1/partition", "1\n")
    links = {"class/block/sda": disk, "class/block/sda1": disk / "sda1"}
    links[f"dev/block/{os.major(here)}:{os.minor(here)}"] = disk / "sda1"
    for name, place in links.items():
        (kernel_root / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
        (kernel_root / "sys" / name).symlink_to(place)
    assert block_devices(kernel_root) == ["sda1"]
    assert queue_of("sda1") == queue_of("sda") == "sda"
    assert number("sda1") == "8:1"
    assert disks_below("sda1") == []
    members = kernel_root / "sys/fs/btrfs/x/devices"
    for name in ("sdb", "sda1"):
        (members / name).mkdir(parents=True)
    assert block_devices(kernel_root) == ["sda1", "sdb"], "a btrfs over two"
    (kernel_root / f"sys/dev/block/{os.major(here)}:{os.minor(here)}").unlink()
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: [SimpleNamespace(mountpoint="/", device="/")])
    assert block_devices(kernel_root) == [], "a mount of no device"
