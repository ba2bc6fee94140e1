"""Facts about this machine: plausible, unknown where the kernel is silent, and never telling which machine it is."""

import platform
from pathlib import Path

import psutil
import pytest

from benchlib.host import facts as host


def test_memory_is_the_machines_or_its_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = psutil.virtual_memory().total
    assert 0 < host.memory_bytes() <= total
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(host, "_CGROUP_LIMITS", (str(tmp_path / "absent"), str(limit)))
    for text, wanted in (("max", total), (str(64 << 20), 64 << 20), (str(1 << 62), total)):
        limit.write_text(f"{text}\n")
        assert host.memory_bytes() == wanted
    assert host.available_memory_mib() <= total >> 20


def test_available_memory_stays_under_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "limit").write_text(str(64 << 20))
    monkeypatch.setattr(host, "_CGROUP_LIMITS", (str(tmp_path / "limit"),))
    assert host.available_memory_mib() == 64


def test_processors_are_those_this_process_may_use() -> None:
    assert 1 <= host.processors() <= (psutil.cpu_count() or 1)


def test_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    assert host.read(tmp_path / "absent") is None
    assert host.read(tmp_path) is None
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert host.read(tmp_path / "binary") is None
    (tmp_path / "text").write_text(" tsc\n")
    assert host.read(tmp_path / "text") == "tsc"


def test_a_silent_kernel_leaves_facts_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "read", lambda path: None)
    facts = host.facts(tmp_path)
    for name in ("virtual", "governor", "clock_source", "transparent_huge_pages"):
        assert facts[name] is None
    assert facts["processor"]


def test_a_virtual_machine_is_told_from_its_processors_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, wanted in (
        ("flags : fpu hypervisor sse", True),
        ("flags : fpu sse", False),
        ("Features : fp", None),
    ):
        monkeypatch.setattr(host, "read", lambda path, text=text: text)
        assert host.virtual() is wanted


def test_the_file_system_is_that_of_the_nearest_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mount:
        def __init__(self, mountpoint: str, fstype: str) -> None:
            self.mountpoint, self.fstype, self.opts = mountpoint, fstype, "rw"

    mounts = [Mount("/", "ext4"), Mount("/sr", "vfat"), Mount("/srv", "xfs"), Mount("/srv/pg", "btrfs")]
    monkeypatch.setattr(host.psutil, "disk_partitions", lambda all: mounts)
    found = {
        path: host.file_system(Path(path))["type"] for path in ("/srv/pg/data", "/srv/pgx", "/home", "/")
    }
    assert found == {"/srv/pg/data": "btrfs", "/srv/pgx": "xfs", "/home": "ext4", "/": "ext4"}


def test_facts_never_name_the_machine_or_a_path(tmp_path: Path) -> None:
    facts = host.facts(tmp_path)
    text = repr(facts)
    assert str(tmp_path) not in text
    assert repr(platform.node()) not in text
    assert len(facts["identity"]) == 12
    assert host.identity() == facts["identity"], "the same machine is recognised"


def test_free_space_is_told_for_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert abs(host.free_mib(tmp_path / "a" / "b") - host.free_mib(tmp_path)) < 100


def test_free_space_behind_a_closed_door_is_that_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exists = Path.exists

    def closed(path: Path) -> bool:
        if "secret" in path.parts[:-1]:
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path)

    (tmp_path / "secret").mkdir()
    monkeypatch.setattr(Path, "exists", closed)
    assert host.free_mib(tmp_path / "secret" / "inside") > 0


def test_the_clocks_step_is_found() -> None:
    resolution = host.timer_resolution_ns()
    assert resolution is not None
    assert 0 < resolution < 1_000_000


def test_a_clock_that_never_moves_has_no_resolution_rather_than_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.time, "perf_counter_ns", lambda: 7)
    assert host.timer_resolution_ns() is None
