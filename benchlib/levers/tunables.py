"""Kernel tunables by the names that the studies use: set for a trial, read back, restored by the journal.

``vm.swappiness``, ``fs.file-max`` and so on
    any sysctl, with its dots
``kernel.sched_migration_cost_ns``, ``kernel.sched_min_granularity_ns``
    the sysctl of older kernels, or the file in debugfs that took its place (Linux 5.13), where that is mounted
``scheduler``, ``read_ahead_kb``, ``nr_requests`` and so on
    any file of the queue of the block devices under the servers' folders. A partition's queue
    is its disk's; of a loop, RAID or mapped device it is its own, not that of what is below it, which is told
    beside it
``transparent_hugepage``, ``transparent_hugepage.defrag``
    when memory comes in huge pages, and how hard the kernel tries to have some

A name with a ``?`` at its end is optional: where it cannot be set it is left out, with a word.

Sources: Linux documentation, admin-guide/sysctl, block/queue-sysfs, admin-guide/mm/transhuge.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchlib.errors import PreflightError, SettingError, os_errors_as
from benchlib.host import facts
from benchlib.host.changes import Written, write_kernel_file
from benchlib.host.facts import disks_below, queue_of
from benchlib.host.journal import Chapter

HUGE_PAGES = {"transparent_hugepage": "enabled", "transparent_hugepage.defrag": "defrag"}
KNOBS = {
    "kernel.sched_migration_cost_ns": ("migration_cost_ns",),
    "kernel.sched_min_granularity_ns": ("base_slice_ns", "min_granularity_ns"),
}
RATIOS = {
    "vm.dirty_ratio": "vm.dirty_bytes",
    "vm.dirty_background_ratio": "vm.dirty_background_bytes",
    "vm.overcommit_ratio": "vm.overcommit_kbytes",
}
STUDIED = (
    "vm.swappiness vm.dirty_ratio vm.dirty_background_ratio vm.dirty_bytes vm.dirty_background_bytes "
    "vm.zone_reclaim_mode vm.vfs_cache_pressure fs.file-max fs.suid_dumpable kernel.randomize_va_space "
    "kernel.sched_migration_cost_ns kernel.sched_min_granularity_ns scheduler read_ahead_kb nr_requests "
    "transparent_hugepage transparent_hugepage.defrag"
)
"""What the published studies set, and what is set beside it."""

_LACKS = "this kernel lacks it"
_MOVED = "this kernel lacks it, or has it in debugfs: mount that and run as root"
_ROOT_ONLY = "only root may set it"
_CHOSEN = re.compile(r"\[(.+?)\]")


class Tunable:
    """One file of the kernel that holds one value."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path

    def __str__(self) -> str:
        return self.name

    def unavailable(self, value: str | None = None) -> str | None:
        """Why it cannot be set here, or not to this value; None if it can, as far as can be told untried."""
        try:
            # opened for writing, which changes nothing, the file tells more than its permissions do
            os.close(os.open(self.path, os.O_RDWR))
            text = self.path.read_text()
        except (FileNotFoundError, NotADirectoryError):
            return _MOVED if self.name in KNOBS else _LACKS
        except OSError as reason:
            return _ROOT_ONLY if os.geteuid() != 0 else f"closed by the kernel: {reason.strerror}"
        offered = _CHOSEN.sub(r"\1", text).split()
        if value is None or value in offered or not _CHOSEN.search(text):
            return None
        return f"it offers {', '.join(offered)}, not {value}: if that is a module, load it"

    def read(self) -> str:
        """The value in force: of a file that lists what can be chosen (``always [madvise] never``) the one in brackets.

        Raises:
            OSError: the kernel does not tell.

        """
        text = self.path.read_text().strip()
        chosen = _CHOSEN.search(text)
        return chosen[1] if chosen else text

    def apply(self, value: str, chapter: Chapter) -> str:
        """Set it, having noted in the chapter what brings back the state that it finds; what is in force then.

        Raises:
            SettingError: the kernel refuses the value, in its own words, or makes another of it.
            StudyError: the note cannot be kept.

        """
        with os_errors_as(SettingError, f"the kernel refuses {self} {value}"):
            if self.read().split() != value.split():
                for change in self._ways_back(value):
                    chapter.note(change)
                write_kernel_file(self.path, value)
            in_force = self.read()
        if in_force.split() != value.split():
            raise SettingError(f"a kernel tunable did not take: {self} is {in_force}, not {value}")
        return in_force

    def _ways_back(self, value: str) -> list[Written]:
        """The changes to note before the value is written, in that order: the last is undone first."""
        return [_written(self.path, self.read(), value)]


def _written(path: Path, former: str, value: str) -> Written:
    # to write nothing at all changes nothing: an empty value is an empty line
    return Written(path=path, former=former or "\n", value=value)


class View(Tunable):
    """One of two views of the same knob, a share of memory or bytes: to set one makes the other read 0.

    Source: Linux, mm/page-writeback.c. ``dirty_bytes`` refuses 0, and to write a ratio that
    holds already leaves the bytes in force; so what is noted is the view that was in force.
    """

    def _ways_back(self, value: str) -> list[Written]:
        names = next(pair for pair in RATIOS.items() if self.name in pair)
        ratio, amount = (self.path.with_name(name.removeprefix("vm.")) for name in names)
        for path in (ratio, amount):
            if (former := path.read_text().strip()) != "0":
                return [_written(path, former, value if path == self.path else "0")]
        # neither is in force: that state is reached over another ratio only
        return [_written(ratio, "0", "1"), _written(ratio, "1", value if ratio == self.path else "0")]


class Queue(Tunable):
    """A setting of a block device's queue: a file in the queue's folder."""

    def __str__(self) -> str:
        return f"{self.name} of {self.path.parents[1].name}"

    def _ways_back(self, value: str) -> list[Written]:
        if self.name not in ("scheduler", "nr_requests"):
            return super()._ways_back(value)
        # a scheduler begins with its own settings and number of requests, and that number decides on
        # asynchronous ones: they are restored after it, the coarse (slice_idle) before the fine (slice_idle_us)
        queue = self.path.parent
        reset = [*sorted((queue / "iosched").glob("*"), reverse=True), queue / "nr_requests"]
        files = [path for path in reset if path != self.path and path.stat().st_mode & 0o200]
        formers = [(path, path.read_text().strip()) for path in files]
        return [*(_written(path, former, former) for path, former in formers), *super()._ways_back(value)]


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
        PreflightError: one has gone since the check.
        SettingError: the kernel refuses a value or makes another of it.
        StudyError: a note cannot be kept.

    """
    wanted, in_force = _split(host, devices)[0], dict[str, str]()
    # a view of 0 follows from the other view; the number of requests is the scheduler's to reset
    for tunable, value in sorted(wanted, key=lambda pair: pair[1] == "0" or pair[0].name == "nr_requests"):
        in_force[tunable.name] = tunable.apply(value, chapter)
    queues = [tunable for tunable, _ in wanted if isinstance(tunable, Queue)]
    return in_force | _below(queues)


def _below(queues: Iterable[Queue]) -> dict[str, str]:
    """What is in force of these settings at the disks below their devices."""
    values = {}
    for queue in queues:
        for tunable in _tunables(queue.name, disks_below(queue.path.parents[1].name)):
            with contextlib.suppress(OSError):  # not every kind of device has all
                values[f"{tunable}, the disk below"] = tunable.read()
    return values


def survey(devices: Sequence[str]) -> list[tuple[str, str | None]]:
    """The studies' tunables by name, each with None if it can be set here, or why not."""
    return [(name, _obstacle(name, None, devices)) for name in STUDIED.split()]


def _split(
    host: Mapping[str, int | str], devices: Sequence[str]
) -> tuple[list[tuple[Tunable, str]], list[str]]:
    """What is to be set, and a word on each optional one that is left out."""
    wanted: list[tuple[Tunable, str]] = []
    left_out, refused = list[str](), list[str]()
    for key, given in host.items():
        name, value = key.removesuffix("?"), str(given)
        why = _obstacle(name, value, devices)
        if why is None:
            wanted += [(tunable, value) for tunable in _tunables(name, devices)]
        elif key.endswith("?"):
            left_out.append(f"{name} is left out: {why}")
        else:
            refused.append(f"{name} ({why})")
    if refused:
        raise PreflightError(
            f"kernel tunables that cannot be set here: {', '.join(refused)}; a '?' after a name leaves it out where that is so"
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
        return [Tunable(name, facts.ROOT / "sys/kernel/mm/transparent_hugepage" / HUGE_PAGES[name])]
    if "." in name:
        path = facts.ROOT / "proc/sys" / name.replace(".", "/")
        moved = (facts.ROOT / "sys/kernel/debug/sched" / file for file in KNOBS.get(name, ()))
        path = next(filter(os.path.exists, (path, *moved)), path)  # root alone may look into debugfs
        return [(View if name in (*RATIOS, *RATIOS.values()) else Tunable)(name, path)]
    disks = dict.fromkeys(queue_of(device) for device in devices)
    return [Queue(name, facts.ROOT / "sys/class/block" / disk / "queue" / name) for disk in disks]
