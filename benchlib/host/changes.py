"""Changes to the host that a run makes outside its own folder, and how each is undone.

Each is noted in the run's :mod:`benchlib.host.journal` before it is made; a crash may come between
the note and the change. What is removed whole bears a name of ours (:data:`OURS`), so that no note, however
it came about, can make us remove anything else.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator

from benchlib.errors import StudyError
from benchlib.host.journal import Change
from benchlib.host.shell import Shell, ticks

OURS = "benchlib-"
"""How the name of every folder and control group begins that we make outside our own folders."""

MARKER = ".made-by-benchlib"
"""An empty file that says that a folder is ours, with all in it."""

_PATIENCE_S = 2.0
_COMMAND_LIMIT_S = 300.0
"""Generous: before a file system is unmounted, what is not yet on its disk is written."""


def _ours(folder: Path) -> Path:
    if not (folder.is_absolute() and folder.name.startswith(OURS)):
        raise ValueError(f"a folder that we are to remove is absolute and its name begins with '{OURS}'")
    return folder


OurFolder = Annotated[Path, AfterValidator(_ours)]
"""An absolute path whose last name begins with :data:`OURS`."""


def write_kernel_file(path: Path, value: str) -> None:
    """Write a file of ``/proc`` or ``/sys``: whole, in one call, and never making a new one.

    Raises:
        OSError: the kernel refuses; ``FileNotFoundError`` if it has no such file.

    """
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


class Written(Change):
    """A file of the kernel with another value. ``former`` is what to write to have it as it was.

    For a selector such as ``none [mq-deadline]`` that is the chosen one alone.
    """

    kind: Literal["written"] = "written"
    path: Path
    former: str
    value: str

    def __str__(self) -> str:
        return f"{self.path} set to {self.value}, before {self.former}"

    def undo(self) -> None:
        """Write the former value. A file that has gone, with its device or module, needs none.

        Raises:
            StudyError: the kernel refuses.

        """
        try:
            write_kernel_file(self.path, self.former)
        except FileNotFoundError:
            return
        except OSError as reason:
            if reason.errno not in (errno.ENODEV, errno.ENXIO):
                raise StudyError(
                    f"the kernel refuses '{self.former}' for {self.path} ({reason.strerror})"
                ) from reason


class Mounted(Change):
    """A file system mounted on a folder."""

    kind: Literal["mounted"] = "mounted"
    target: Path

    def __str__(self) -> str:
        return f"file system mounted on {self.target}"

    def undo(self) -> None:
        """Unmount it; if somebody still uses it after a while, lazily, so that it goes with its last user.

        Raises:
            StudyError: it cannot be unmounted; the message says why.

        """
        for _ in ticks(_PATIENCE_S, 0.2):
            if not is_mounted(self.target):
                return
            _command("umount", self.target)
        complaint = _command("umount", "--lazy", self.target)
        if is_mounted(self.target):
            raise StudyError(f"{self.target} cannot be unmounted: {complaint}")


class Attached(Change):
    """A loop device over a file."""

    kind: Literal["attached"] = "attached"
    file: Path

    def __str__(self) -> str:
        return f"loop device over {self.file}"

    def undo(self) -> None:
        """Detach every loop device over the file.

        Raises:
            StudyError: one is still in use, or may not be detached by us.

        """
        complaint = ""
        for _ in ticks(_PATIENCE_S, 0.1):
            devices = loop_devices(self.file)
            if not devices:
                return
            for device in devices:
                complaint = _command("losetup", "--detach", device) or "it is in use"
        raise StudyError(f"{', '.join(map(str, devices))} over {self.file} cannot be detached: {complaint}")


class Grouped(Change):
    """A control group, version 1 or 2, with the groups below it."""

    kind: Literal["grouped"] = "grouped"
    folder: OurFolder

    def __str__(self) -> str:
        return f"control group {self.folder}"

    def undo(self) -> None:
        """Kill what runs inside, and remove the groups, the innermost first.

        Raises:
            StudyError: a process in it does not die, or we may not remove it.

        """
        self.lift()
        complaint = ""
        for _ in ticks(_PATIENCE_S, 0.05):
            if not self.folder.is_dir():
                return
            for group in self._groups():
                _kill_members(group)
                try:
                    group.rmdir()
                except FileNotFoundError:
                    continue
                except OSError as reason:
                    complaint = str(reason.strerror)
        raise StudyError(f"the control group {self.folder} cannot be removed: {complaint}")

    def lift(self) -> None:
        """Take the block-I/O caps off, so that what waits for them can die at once."""
        for group in self._groups():
            for path in (*group.glob("blkio.throttle.*_device"), *group.glob("io.max")):
                with contextlib.suppress(OSError):  # what cannot be lifted only takes longer
                    for device, *limits in map(str.split, path.read_text().splitlines()):
                        free = [limit.partition("=")[0] + "=max" for limit in limits]
                        write_kernel_file(path, " ".join([device, *(free if path.name == "io.max" else "0")]))

    def _groups(self) -> list[Path]:
        return [Path(folder) for folder, _, _ in os.walk(self.folder, topdown=False)]


class Made(Change):
    """A folder of ours outside our own folders, made with :meth:`make`."""

    kind: Literal["made"] = "made"
    folder: OurFolder

    def __str__(self) -> str:
        return f"folder {self.folder}"

    def make(self) -> None:
        """Make the folder, open to those who know what is inside (0711), and mark it as ours.

        Raises:
            StudyError: it cannot be made; one that is there already is never taken over.

        """
        try:
            self.folder.mkdir(mode=0o700)
            (self.folder / MARKER).touch()
            self.folder.chmod(0o711)
        except OSError as reason:
            raise StudyError(f"cannot make the folder {self.folder} ({reason.strerror})") from reason

    def undo(self) -> None:
        """Remove the folder with all in it if it bears our mark, which goes last; or if it is empty.

        Raises:
            StudyError: it has content and no mark, a file system is mounted in it, or it cannot be removed.

        """
        if self.folder.is_symlink() or not self.folder.is_dir():
            return
        if mounts := mounts_below(self.folder):
            raise StudyError(f"{self.folder} is not removed: a file system is mounted on {mounts[0]}")
        marker = self.folder / MARKER
        try:
            if marker.is_file():
                for entry in self.folder.iterdir():
                    if entry.is_dir() and not entry.is_symlink():
                        shutil.rmtree(entry)
                    elif entry != marker:
                        entry.unlink()
                marker.unlink()
            self.folder.rmdir()
        except OSError as reason:
            raise StudyError(f"the folder {self.folder} cannot be removed ({reason.strerror})") from reason


def mount_points() -> Iterator[Path]:
    """Where file systems are mounted; nothing where there is no ``/proc`` (macOS), for there we mount none."""
    with contextlib.suppress(FileNotFoundError):
        for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
            # a space, tab, newline or backslash in the path is written in octal: proc_pid_mountinfo(5)
            yield Path(re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), line.split()[4]))


def is_mounted(folder: Path) -> bool:
    """Whether a file system is mounted on the folder."""
    return folder.resolve() in mount_points()


def mounts_below(folder: Path) -> list[Path]:
    """The mount points at or below a folder."""
    real = folder.resolve()
    return [point for point in mount_points() if point.is_relative_to(real)]


def loop_devices(file: Path) -> list[Path]:
    """The loop devices over a file, also if it has been deleted."""
    names = {str(file), str(file.resolve())}
    devices = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # detached between the two looks
            if backing.read_text().removesuffix("\n").removesuffix(" (deleted)") in names:
                devices.append(Path("/dev") / backing.parts[-3])
    return devices


def _kill_members(group: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        for pid in map(int, (group / "cgroup.procs").read_text().split()):
            # 0 stands for a process outside our PID namespace, and to kill(2) for our own process group
            if pid not in (0, os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _command(*argv: str | Path) -> str:
    """Run a command of the system; its complaint, empty if it has none."""
    return " ".join(Shell().run(argv, timeout_s=_COMMAND_LIMIT_S).stderr.split())
