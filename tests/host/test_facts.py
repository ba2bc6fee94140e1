"""Facts about this machine: plausible, unknown where the kernel is silent, and never telling which machine it is."""

import platform
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from benchlib.host import facts


@pytest.mark.parametrize(("text", "most"), [("max", None), (str(64 << 20), 64), (str(1 << 62), None)])
def test_memory_is_the_machines_or_its_control_groups(
    text: str, most: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # of the group itself no limit is told, but of the one above it
    limit = tmp_path / "slice" / "memory.max"
    limit.parent.mkdir()
    limit.write_text(f"{text}\n")
    own, read = "12:cpu:/other\n0::/slice/job\n", facts.read
    monkeypatch.setattr(facts, "read", lambda path: own if path == "/proc/self/cgroup" else read(path))
    monkeypatch.setattr(facts, "_CGROUPS", tmp_path)
    total = psutil.virtual_memory().total
    assert facts.memory_bytes() == (most << 20 if most else total)
    assert 0 < facts.available_memory_mib() <= facts.memory_bytes() >> 20
    assert 1 <= facts.processors() <= (psutil.cpu_count() or 1)


def test_a_silent_kernel_leaves_facts_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "read", lambda path: None)
    machine = facts.facts(tmp_path)
    for name in ("virtual", "governor", "clock_source", "transparent_huge_pages"):
        assert machine[name] is None
    assert machine["processor"]


@pytest.mark.parametrize(
    ("text", "virtual"),
    [("flags : fpu hypervisor sse", True), ("flags : fpu", False), ("Features : fp", None)],
)
def test_a_virtual_machine_is_told_from_its_processors_flags(
    text: str, virtual: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "read", lambda path: text)
    assert facts.virtual() is virtual


def test_the_file_system_is_that_of_the_nearest_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    types = {"/": "ext4", "/sr": "vfat", "/srv": "xfs", "/srv/pg": "btrfs"}
    mounts = [SimpleNamespace(mountpoint=path, fstype=kind, opts="rw") for path, kind in types.items()]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    expected = {"/srv/pg/data": "btrfs", "/srv/pgx": "xfs", "/home": "ext4", "/": "ext4"}
    assert {path: facts.file_system(Path(path))["type"] for path in expected} == expected
    mounts.append(SimpleNamespace(mountpoint="/", fstype="overlay", opts="rw"))
    assert facts.file_system(Path("/home"))["type"] == "overlay", "the later mount hides the earlier"


def test_facts_never_name_the_machine_or_a_path(tmp_path: Path) -> None:
    machine = facts.facts(tmp_path)
    assert str(tmp_path) not in repr(machine)
    assert repr(platform.node()) not in repr(machine)
    assert len(machine["identity"]) == 12
    assert facts.identity() == machine["identity"], "the same machine is recognised"
