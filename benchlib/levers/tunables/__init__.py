"""Kernel tunables by the names that the studies use: set for a trial, read back, restored by the journal.

``vm.swappiness``, ``fs.file-max`` and so on
    any sysctl, with its dots
``kernel.sched_migration_cost_ns``, ``kernel.sched_min_granularity_ns``
    the sysctl of older kernels, or the file in debugfs that took its place (Linux 5.13)
``scheduler``, ``read_ahead_kb``, ``nr_requests`` and so on
    any file of the queue of the block devices under the servers' folders. A partition's queue
    is its disk's; of a loop, RAID or mapped device it is its own, not that of what is below it, which is told
    beside it
``transparent_hugepage``, ``transparent_hugepage.defrag``
    when memory comes in huge pages, and how hard the kernel tries to have some

A name with a ``?`` at its end is optional: where it cannot be set it is left out, with a word.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence

from benchlib.errors import PreflightError, SettingError
from benchlib.host.devices import ROOT, disks_below, queue_of
from benchlib.host.journal import Chapter
from benchlib.levers.tunables.kinds import (
    HUGE_PAGES,
    KNOBS,
    RATIOS,
    Choice,
    Queue,
    QueueScheduler,
    SchedulerKnob,
    Tunable,
    View,
)

STUDIED = (
    *("vm.swappiness", "vm.dirty_ratio", "vm.dirty_background_ratio", "vm.dirty_bytes"),
    *("vm.dirty_background_bytes", "vm.zone_reclaim_mode", "vm.vfs_cache_pressure"),
    *("fs.file-max", "fs.suid_dumpable", "kernel.randomize_va_space"),
    *KNOBS,
    *("scheduler", "read_ahead_kb", "nr_requests"),
    *HUGE_PAGES,
)
"""What the published studies set, and what is set beside it."""


def check(host: Mapping[str, int | str], devices: Sequence[str]) -> list[str]:
    """Whether a level's tunables can be set here: a word on each optional one that cannot.

    ``devices`` are the kernel's names of the block devices under the servers' folders.
    Nothing is changed.

    Raises:
        PreflightError: one that is not optional is unknown, lacking or not ours to set, or is not
            offered the value; or both views of one knob are to be in force.

    """
    return _split(host, devices)[1]


def apply(host: Mapping[str, int | str], devices: Sequence[str], chapter: Chapter) -> dict[str, str]:
    """Set a level's tunables, each noted in the chapter before; what is in force then, by name.

    Of a queue also what is in force at the disks below its device, which is left as it is.

    ``Chapter.undo()`` restores them, after an error too.

    Raises:
        SettingError: the kernel refuses a value or makes another of it, or one has gone since the check.
        StudyError: a note cannot be kept.

    """
    try:
        wanted, _ = _split(host, devices)
    except PreflightError as reason:
        raise SettingError(str(reason)) from reason
    # a view of 0 follows from the other view; the number of requests is the scheduler's to reset
    for tunable, value in sorted(wanted, key=lambda pair: pair[1] == "0" or pair[0].name == "nr_requests"):
        tunable.apply(value, chapter)
    try:
        in_force = [(tunable, value, tunable.read()) for tunable, value in wanted]
    except OSError as reason:
        raise SettingError(f"a kernel tunable cannot be read back: {reason}") from reason
    if wrong := [f"{t} is {now}, not {value}" for t, value, now in in_force if now.split() != value.split()]:
        raise SettingError(f"a kernel tunable did not take: {'; '.join(wrong)}")
    queues = [tunable for tunable, _ in wanted if isinstance(tunable, Queue)]
    return {tunable.name: now for tunable, _, now in in_force} | _below(queues)


def _below(queues: Iterable[Queue]) -> dict[str, str]:
    """What is in force of these settings at the disks below their devices."""
    values = {}
    for queue in queues:
        for tunable in _tunables(queue.name, disks_below(queue.queue.parent.name, root=ROOT)):
            with contextlib.suppress(OSError):  # not every kind of device has all
                values[f"{tunable}, the disk below"] = tunable.read()
    return values


def survey(devices: Sequence[str]) -> list[tuple[str, str | None]]:
    """The studies' tunables by name, each with None if it can be set here, or why not."""
    return [(name, _obstacle(name, None, devices)) for name in STUDIED]


def _split(
    host: Mapping[str, int | str], devices: Sequence[str]
) -> tuple[list[tuple[Tunable, str]], list[str]]:
    """What is to be set, and a word on each optional one that is left out."""
    wanted: list[tuple[Tunable, str]] = []
    left_out = []
    obstacles: dict[str, list[str]] = {}
    for key, given in host.items():
        name, value = key.removesuffix("?"), str(given)
        why = _obstacle(name, value, devices)
        if why is None:
            wanted += [(tunable, value) for tunable in _tunables(name, devices)]
        elif key.endswith("?"):
            left_out.append(f"{name} is left out: {why}")
        else:
            obstacles.setdefault(why, []).append(name)
    if obstacles:
        listed = "; ".join(f"{', '.join(names)} ({why})" for why, names in obstacles.items())
        raise PreflightError(
            f"kernel tunables that cannot be set here: {listed}; a '?' after a name leaves it out where that is so"
        )
    in_force = {tunable.name for tunable, value in wanted if value != "0"}
    if clash := [f"{ratio} and {amount}" for ratio, amount in RATIOS.items() if {ratio, amount} <= in_force]:
        raise PreflightError(f"{clash[0]} are two views of one knob: set one of them to 0 or leave it out")
    return wanted, left_out


def _obstacle(name: str, value: str | None, devices: Sequence[str]) -> str | None:
    """Why a tunable cannot be set here; None if it can."""
    tunables = _tunables(name, devices)
    if not tunables:
        return "the servers' folders are on no block device"
    return next((why for tunable in tunables if (why := tunable.unavailable(value))), None)


def _tunables(name: str, devices: Sequence[str]) -> list[Tunable]:
    """What a name stands for: one tunable, or one for each device."""
    if name in HUGE_PAGES:
        return [Choice(name, ROOT / "sys/kernel/mm/transparent_hugepage" / HUGE_PAGES[name])]
    if "." in name:
        path = ROOT / "proc/sys" / name.replace(".", "/")
        if name in KNOBS and not path.exists():
            return [SchedulerKnob(name, ROOT)]
        return [(View if name in (*RATIOS, *RATIOS.values()) else Tunable)(name, path)]
    kind = QueueScheduler if name == "scheduler" else Queue
    disks = dict.fromkeys(queue_of(device, root=ROOT) for device in devices)
    return [kind(name, ROOT / "sys/class/block" / disk / "queue") for disk in disks]
