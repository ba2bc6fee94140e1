"""Kernel tunables where this machine cannot show them: kernels made up of plain files below a folder."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from benchlib.errors import PreflightError
from benchlib.host import facts
from benchlib.host.journal import Chapter, Journal
from benchlib.levers.tunables import apply, check


@pytest.fixture
def chapter(tmp_path: Path) -> Chapter:
    return Journal(tmp_path / "journal").chapter()


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes a tree of ``proc`` and ``sys`` from paths and texts."""

    def make(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / "root" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        monkeypatch.setattr(facts, "ROOT", tmp_path / "root")
        return tmp_path / "root"

    return make


KNOBS = {"kernel.sched_migration_cost_ns": 50000000, "kernel.sched_min_granularity_ns": 10000000}


@pytest.mark.parametrize(
    "files",
    [
        ("proc/sys/kernel/sched_migration_cost_ns", "proc/sys/kernel/sched_min_granularity_ns"),
        ("sys/kernel/debug/sched/migration_cost_ns", "sys/kernel/debug/sched/min_granularity_ns"),
        ("sys/kernel/debug/sched/migration_cost_ns", "sys/kernel/debug/sched/base_slice_ns"),
    ],
    ids=["sysctl", "debugfs", "debugfs since Linux 6.6"],
)
def test_scheduler_knobs_are_found_where_this_kernel_has_them(
    files: tuple[str, str], kernel: Callable[..., Path], chapter: Chapter
) -> None:
    root = kernel(dict.fromkeys(files, "500000\n"))
    assert check(KNOBS, []) == []
    assert apply(KNOBS, [], chapter) == {k: str(v) for k, v in KNOBS.items()}
    assert [int((root / f).read_text()[:8]) for f in files] == list(KNOBS.values())
    chapter.undo()
    assert [(root / f).read_text()[:6] for f in files] == ["500000"] * 2


def test_what_a_kernel_lacks_is_left_out_only_if_it_is_optional(
    kernel: Callable[..., Path], chapter: Chapter
) -> None:
    kernel({"proc/sys/vm/swappiness": "60\n"})
    level = {"vm.swappiness": 10, "kernel.sched_migration_cost_ns?": 5, "transparent_hugepage?": "never"}
    assert check(level, []) == [
        "kernel.sched_migration_cost_ns is left out: this kernel lacks it, or has it in debugfs: mount that and run as root",
        "transparent_hugepage is left out: this kernel lacks it",
    ]
    assert apply(level, [], chapter) == {"vm.swappiness": "10"}
    with pytest.raises(
        PreflightError,
        match=r"cannot be set here: transparent_hugepage \(this .*\), vm.zone_reclaim_mode \(this",
    ):
        check({"transparent_hugepage": "never", "vm.zone_reclaim_mode": 0}, [])


@pytest.fixture
def disks(kernel: Callable[..., Path]) -> Path:
    """``sda`` with a partition, and ``sdb``, both with the scheduler none."""
    files = {"sys/devices/sda/sda1/partition": "1\n"}
    for disk in ("sda", "sdb"):
        queue = f"sys/devices/{disk}/queue"
        files |= {f"{queue}/scheduler": "[none] mq-deadline \n", f"{queue}/nr_requests": "128\n"}
        files |= {f"{queue}/read_ahead_kb": "128\n", f"{queue}/max_hw_sectors_kb": "128\n"}
    root = kernel(files)
    (root / "sys/class/block").mkdir(parents=True)
    for name in ("sda", "sda/sda1", "sdb"):
        (root / "sys/class/block" / Path(name).name).symlink_to(root / "sys/devices" / name)
    return root


def test_each_disk_gets_the_value_and_a_partitions_is_its_disks(disks: Path, chapter: Chapter) -> None:
    assert apply({"read_ahead_kb": 256}, ["sda1", "sda", "sdb"], chapter) == {"read_ahead_kb": "256"}
    files = [disks / f"sys/devices/{disk}/queue/read_ahead_kb" for disk in ("sda", "sdb")]
    assert [file.read_text()[:3] for file in files] == ["256", "256"]
    chapter.undo()
    assert [file.read_text()[:3] for file in files] == ["128", "128"]


def test_a_mapped_device_has_a_queue_of_its_own_and_the_disk_below_is_told_beside_it(
    disks: Path, chapter: Chapter
) -> None:
    for mapped, below in (("dm-0", "md0"), ("md0", "sda1"), ("md0", "sdb")):
        (disks / "sys/class/block" / mapped / "slaves" / below).mkdir(parents=True)
    queue = disks / "sys/class/block/dm-0/queue"
    queue.mkdir()
    (queue / "read_ahead_kb").write_text("4096\n")
    (disks / "sys/devices/sdb/queue/read_ahead_kb").write_text("512\n")
    assert apply({"read_ahead_kb": 256}, ["dm-0"], chapter) == {
        "read_ahead_kb": "256",
        "read_ahead_kb of sda, the disk below": "128",
        "read_ahead_kb of sdb, the disk below": "512",
    }
    assert (queue / "read_ahead_kb").read_text()[:3] == "256"
    chapter.undo()
    assert (queue / "read_ahead_kb").read_text()[:4] == "4096"


def test_what_a_kernel_does_not_offer_is_told_with_what_it_does(disks: Path) -> None:
    with pytest.raises(
        PreflightError, match="it offers none, mq-deadline, not bfq: if that is a module, load"
    ):
        check({"scheduler": "bfq"}, ["sda"])
