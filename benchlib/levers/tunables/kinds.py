"""The kinds of kernel tunables: where each is, how it is read and set, and what brings back its former state.

Sources: Linux documentation, admin-guide/sysctl, block/queue-sysfs, admin-guide/mm/transhuge.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

import psutil

from benchlib.errors import SettingError, TrialError
from benchlib.host.changes import DEBUGFS, Mounted, Written, write_kernel_file
from benchlib.host.journal import Chapter
from benchlib.host.shell import Shell

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
_LACKS = "this kernel lacks it"
_ROOT_ONLY = "only root may set it"
_LIMIT_S = 30.0


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
            self.read()
        except (FileNotFoundError, NotADirectoryError):
            return _LACKS
        except OSError as reason:
            return _ROOT_ONLY if os.geteuid() != 0 else f"closed by the kernel: {reason.strerror}"
        return None

    def read(self) -> str:
        """The value in force.

        Raises:
            OSError: the kernel does not tell.

        """
        return self.path.read_text().strip()

    def apply(self, value: str, chapter: Chapter) -> None:
        """Set it, having noted in the chapter what brings back the state that it finds.

        Raises:
            SettingError: the kernel refuses the value; its own words are in the message.
            StudyError: the note cannot be kept.

        """
        try:
            if self.read().split() != value.split():
                for change in self._ways_back(value):
                    chapter.note(change)
                write_kernel_file(self.path, value)
        except OSError as reason:
            raise SettingError(f"the kernel refuses {self} {value}: {reason.strerror}") from reason

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


class SchedulerKnob(Tunable):
    """A knob of the processor scheduler in debugfs, which is mounted for the purpose if it is not.

    ``root`` is where ``sys`` is found.
    """

    def __init__(self, name: str, root: Path) -> None:
        points = [m.mountpoint for m in psutil.disk_partitions(all=True) if m.fstype == "debugfs"]
        self._mounted = f"/{DEBUGFS}" in points
        self._debugfs = root / DEBUGFS
        super().__init__(name, self._file(name))

    def _file(self, name: str) -> Path:
        """By the first of its names that this kernel knows."""
        paths = [self._debugfs / "sched" / file for file in KNOBS[name]]
        return next((path for path in paths if path.exists()), paths[0])

    def unavailable(self, value: str | None = None) -> str | None:
        """As :meth:`Tunable.unavailable`; debugfs is looked at in a mount namespace that ends with the look."""
        if self._mounted:
            return super().unavailable(value)
        if os.geteuid() != 0:
            return _ROOT_ONLY
        try:
            done = Shell().run(
                ["unshare", "--mount", "sh", "-c", _LOOK, self._debugfs, *KNOBS[self.name]],
                timeout_s=_LIMIT_S,
            )
        except TrialError as reason:
            return str(reason)
        words = done.stderr.strip().rpartition(": ")[2]
        return f"its file in debugfs is closed: {words}" if words else _LACKS if done.returncode else None

    def apply(self, value: str, chapter: Chapter) -> None:
        """As :meth:`Tunable.apply`, with debugfs mounted before if it is not."""
        if not self._mounted and not os.path.ismount(self._debugfs):
            chapter.note(Mounted(target=self._debugfs))
            done = Shell().run(["mount", "-t", "debugfs", "debugfs", self._debugfs], timeout_s=_LIMIT_S)
            if done.returncode != 0:
                raise SettingError(f"cannot mount debugfs for {self}: {' '.join(done.stderr.split())}")
        self.path = self._file(self.name)
        super().apply(value, chapter)


_LOOK = """
mount -t debugfs debugfs "$0" && cd "$0/sched" && for knob; do
    test -e "$knob" && exec cat "$knob"
done"""


class Choice(Tunable):
    """A file that lists what can be chosen and marks what is: ``always [madvise] never``."""

    def read(self) -> str:
        """The word in brackets."""
        text = super().read()
        chosen = re.search(r"\[(.+?)\]", text)
        return chosen[1] if chosen else text

    def unavailable(self, value: str | None = None) -> str | None:
        """As :meth:`Tunable.unavailable`; and what it offers, if the value is none of it."""
        if why := super().unavailable(value):
            return why
        offered = self.path.read_text().replace("[", "").replace("]", "").split()
        if value is None or value in offered or self._loadable(value):
            return None
        return f"it offers {', '.join(offered)}, not {value}"

    def _loadable(self, value: str) -> bool:
        """Whether the kernel would load a module for the value when it is written."""
        return False


class Queue(Tunable):
    """A setting of a block device's queue: a file in the queue's folder."""

    def __init__(self, name: str, queue: Path) -> None:
        super().__init__(name, queue / name)
        self.queue = queue

    def __str__(self) -> str:
        return f"{self.name} of {self.queue.parent.name}"

    def _ways_back(self, value: str) -> list[Written]:
        if self.name not in ("scheduler", "nr_requests"):
            return super()._ways_back(value)
        # a scheduler begins with its own settings and number of requests, and that number decides on
        # asynchronous ones: they are restored after it, the coarse (slice_idle) before the fine (slice_idle_us)
        reset = [*sorted((self.queue / "iosched").glob("*"), reverse=True), self.queue / "nr_requests"]
        files = [path for path in reset if path != self.path and path.stat().st_mode & 0o200]
        formers = [(path, path.read_text().strip()) for path in files]
        return [*(_written(path, former, former) for path, former in formers), *super()._ways_back(value)]


class QueueScheduler(Choice, Queue):
    """The I/O scheduler of a block device; the kernel loads its module when it is chosen."""

    def _loadable(self, value: str) -> bool:
        root = self.queue.parents[4]  # of sys/class/block/DEVICE/queue
        aliases = root / "lib/modules" / platform.release() / "modules.alias"
        return aliases.exists() and f"alias {value}-iosched " in aliases.read_text()
