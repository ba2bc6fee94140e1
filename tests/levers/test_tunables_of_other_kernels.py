"""Kernel tunables where this machine cannot show them: kernels made up of plain files below a folder."""

from pathlib import Path

import pytest

from benchlib.errors import PreflightError
from benchlib.host.journal import Scope
from benchlib.levers.host import apply, check

KNOBS = {"kernel.sched_migration_cost_ns": 50000000, "kernel.sched_min_granularity_ns": 10000000}


def lay(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")


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
    files: tuple[str, str], kernel_root: Path, scope: Scope
) -> None:
    lay(kernel_root, dict.fromkeys(files, "500000"))
    assert check(KNOBS, []) == []
    assert apply(KNOBS, [], scope) == {k: str(v) for k, v in KNOBS.items()}
    assert [int((kernel_root / f).read_text()[:8]) for f in files] == list(KNOBS.values())
    scope.undo()
    assert [(kernel_root / f).read_text()[:6] for f in files] == ["500000"] * 2


def test_what_a_kernel_lacks_is_left_out_only_if_it_is_optional(kernel_root: Path, scope: Scope) -> None:
    lay(kernel_root, {"proc/sys/vm/swappiness": "60"})
    level = {"vm.swappiness": 10, "kernel.sched_migration_cost_ns?": 5, "transparent_hugepage?": "never"}
    knob, pages = check(level, [])
    assert knob.startswith(
        "kernel.sched_migration_cost_ns is left out: this kernel lacks it, or has it in debugfs"
    )
    assert pages == "transparent_hugepage is left out: this kernel lacks it"
    assert apply(level, [], scope) == {"vm.swappiness": "10"}
    with pytest.raises(
        PreflightError, match=r"transparent_hugepage \(this .*\), vm.zone_reclaim_mode \(this"
    ):
        check({"transparent_hugepage": "never", "vm.zone_reclaim_mode": 0}, [])
    with pytest.raises(PreflightError, match="on no block device"):
        check({"read_ahead_kb": 256}, [])
    lay(kernel_root, {"proc/sys/vm/dirty_ratio": "20", "proc/sys/vm/dirty_bytes": "0"})
    with pytest.raises(PreflightError, match="two files for one value"):
        check({"vm.dirty_ratio": 5, "vm.dirty_bytes": 1 << 20}, [])


@pytest.fixture
def disks(kernel_root: Path) -> Path:
    """``sda`` with a partition, and ``sdb``, both with the scheduler none."""
    files = {"sys/devices/sda/sda1/partition": "1"}
    for disk, ahead in (("sda", "128"), ("sdb", "512")):
        files[f"sys/devices/{disk}/queue/scheduler"] = "[none] mq-deadline "
        files[f"sys/devices/{disk}/queue/read_ahead_kb"] = ahead
    lay(kernel_root, files)
    (kernel_root / "sys/class/block").mkdir(parents=True)
    for name in ("sda", "sda/sda1", "sdb"):
        (kernel_root / "sys/class/block" / Path(name).name).symlink_to(kernel_root / "sys/devices" / name)
    return kernel_root


def test_each_disk_gets_the_value_once_and_a_partition_has_its_disk_s_queue(
    disks: Path, scope: Scope
) -> None:
    def values() -> list[int]:
        queues = (disks / f"sys/class/block/{name}/queue/read_ahead_kb" for name in ("sda", "sdb"))
        return [int(file.read_text().split("\n")[0]) for file in queues]

    assert apply({"read_ahead_kb": 256}, ["sda1", "sda", "sdb"], scope) == {"read_ahead_kb": "256"}
    assert values() == [256, 256]
    scope.undo()
    assert values() == [128, 512]


def test_what_a_kernel_does_not_offer_is_told_with_what_it_does(disks: Path) -> None:
    with pytest.raises(
        PreflightError, match="it offers none, mq-deadline, not bfq: if that is a module, load"
    ):
        check({"scheduler": "bfq"}, ["sda"])
