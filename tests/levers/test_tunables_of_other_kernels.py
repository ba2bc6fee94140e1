"""Kernel tunables and frequencies where this machine cannot show them: kernels made up of plain files below a folder."""

import pytest

from benchlib.errors import PreflightError
from benchlib.levers.cpu import CpuParts
from benchlib.levers.host import apply, check

KNOBS = {"kernel.sched_migration_cost_ns": 50000000, "kernel.sched_min_granularity_ns": 10000000}
SYSCTLS, DEBUG = "proc/sys/kernel/sched_", "sys/kernel/debug/sched/"
CPU = "sys/devices/system/cpu"


def texts(files):
    return [file.read_text().strip() for file in files]


@pytest.mark.parametrize(
    "names",
    [
        (f"{SYSCTLS}migration_cost_ns", f"{SYSCTLS}min_granularity_ns"),
        (f"{DEBUG}migration_cost_ns", f"{DEBUG}min_granularity_ns"),
        (f"{DEBUG}migration_cost_ns", f"{DEBUG}base_slice_ns"),
    ],
    ids=["sysctl", "debugfs", "debugfs since Linux 6.6"],
)
def test_scheduler_knobs_are_found_where_this_kernel_has_them(names, kernel, scope):
    files, wanted = [kernel(name, "500000\n") for name in names], [*map(str, KNOBS.values())]
    assert check(KNOBS, []) == []
    assert list(apply(KNOBS, [], scope).values()) == texts(files) == wanted
    scope.undo()
    assert texts(files) == ["500000", "500000"]


def test_what_a_kernel_lacks_is_left_out_only_if_it_is_optional(kernel, scope):
    kernel("proc/sys/vm/swappiness")
    level = {"vm.swappiness": 10, "kernel.sched_migration_cost_ns?": 5, "transparent_hugepage?": "never"}
    knob, pages = check(level, [])
    assert knob.startswith(
        "kernel.sched_migration_cost_ns is left out: this kernel lacks it, or has it in debugfs"
    )
    assert pages == "transparent_hugepage is left out: this kernel lacks it"
    assert apply(level, [], scope) == {"vm.swappiness": "10"}


@pytest.mark.parametrize(
    ("level", "devices", "why"),
    [
        (
            {"transparent_hugepage": "never", "vm.swap": 0},
            [],
            r"transparent_hugepage \(this .*\), vm.swap \(this",
        ),
        ({"read_ahead_kb": 256}, [], "on no block device"),
        ({"vm.dirty_ratio": 5, "vm.dirty_bytes": 1 << 20}, [], "two files for one value"),
        ({"scheduler": "bfq"}, ["sda"], "it offers none, mq-deadline, not bfq: if that is a module, load"),
    ],
)
def test_what_cannot_be_set_is_refused_with_the_reason(level, devices, why, kernel, disks):
    for name in ("ratio", "bytes"):
        kernel(f"proc/sys/vm/dirty_{name}")
    with pytest.raises(PreflightError, match=why):
        check(level, devices)


@pytest.fixture
def disks(kernel, kernel_root):
    """``sda`` with a partition, and ``sdb``, both with the scheduler none; gives what they read ahead."""
    kernel("sys/devices/sda/sda1/partition", "1")
    for disk in ("sda", "sdb"):
        kernel(f"sys/devices/{disk}/queue/scheduler", "[none] mq-deadline ")
    (kernel_root / "sys/class/block").mkdir(parents=True)
    for name in ("sda", "sda/sda1", "sdb"):
        link = kernel_root / "sys/class/block" / name.rpartition("/")[2]
        link.symlink_to(kernel_root / "sys/devices" / name)
    return [
        kernel(f"sys/devices/{disk}/queue/read_ahead_kb", kb) for disk, kb in (("sda", "128"), ("sdb", "512"))
    ]


def test_each_disk_gets_the_value_once_and_a_partition_has_its_disk_s_queue(disks, scope):
    assert apply({"read_ahead_kb": 256}, ["sda1", "sda", "sdb"], scope) == {"read_ahead_kb": "256"}
    assert texts(disks) == ["256", "256"]
    scope.undo()
    assert texts(disks) == ["128", "512"]


# --- the key cpu; cores are tried in trials on real servers ------------------------------


@pytest.mark.parametrize(
    ("turbo", "on", "off"), [("intel_pstate/no_turbo", "0", "1"), ("cpufreq/boost", "1", "0")]
)
def test_governor_and_turbo_are_set_and_restored(turbo, on, off, kernel, scope):
    policies = [f"{CPU}/cpufreq/policy{number}/scaling" for number in (0, 1)]
    files = [
        kernel(f"{CPU}/{turbo}", on),
        *(kernel(f"{policy}_governor", "powersave") for policy in policies),
    ]
    for policy in policies:
        kernel(f"{policy}_available_governors", "performance powersave")
    cpu = CpuParts(governor="performance", turbo=False)
    cpu.check()
    for tunable, value in cpu.tunables():
        tunable.apply(value, scope)
    assert texts(files) == [off, "performance", "performance"]
    scope.undo()
    assert texts(files) == [on, "powersave", "powersave"]
    with pytest.raises(
        PreflightError, match=r"'governor of policy0' .* it offers performance, powersave, not fast"
    ):
        CpuParts(governor="fast").check()


@pytest.mark.parametrize(
    ("cpu", "why"),
    [
        ({"governor": "performance"}, "no frequency control here, .*: leave 'governor' out"),
        ({"turbo": False}, "no frequency control here, .*: leave 'turbo' out"),
        ({"load": "0,4095"}, "'load' names core 4095, this machine has 0"),
    ],
)
def test_a_machine_without_it_refuses(cpu, why, kernel_root):
    with pytest.raises(PreflightError, match=why):
        CpuParts(**cpu).check()
