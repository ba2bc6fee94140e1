"""Changes to the host that a run makes outside its own folder, and how each is undone.

Each is noted in the run's :mod:`benchlib.host.journal` before it is made; a crash may come between
the note and the change. No note, however it came about, can have us touch anything else: what is written is one of
the kernel's files that we set, a device that is capped for all is a loop device, what is removed, unmounted or detached
has or lies below a name of ours (:data:`OURS`, or a run's), and belongs to us.
"""

import contextlib
import errno
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Self

import psutil
from pydantic import AfterValidator, model_validator

from benchlib.errors import StudyError, os_errors_as
from benchlib.host import facts, files
from benchlib.host.files import check_folder
from benchlib.host.journal import Change
from benchlib.host.shell import Shell, admit_servers, ticks

OURS = "benchlib-"
"""How the name of every folder and control group begins that we make outside our own folders."""

_PATIENCE_S = 2.0

GROUPS = "sys/fs/cgroup"
_CAPS_OF_A_LOOP_DEVICE = re.compile(r"(7:\d+ )\d+\n\1\d+")


def _among(pattern: str, rule: str) -> Callable[[Path], Path]:
    """A check that a path, without :data:`benchlib.host.facts.ROOT`, is one of a pattern; its ``rule`` in words."""

    def check(path: Path) -> Path:
        below = str(path.relative_to(facts.ROOT)) if path.is_relative_to(facts.ROOT) else ""
        if ".." in path.parts or not re.fullmatch(pattern, below, re.DOTALL):
            raise ValueError(rule)
        return path

    return check


_kernel_file = _among(
    r"proc/sys/.+|sys/kernel/mm/transparent_hugepage/\w+|sys/(devices/.+|block/[^/]+|class/block/[^/]+)/queue/.+"
    rf"|sys/kernel/debug/sched/\w+|{GROUPS}/(.+/)?cgroup\.subtree_control|{GROUPS}/[^/]+/blkio\.throttle\.\w+_device",
    "not one of the kernel's files that we set",
)
_our_folder = _among(rf"(.+/)?{OURS}[^/]*", f"a folder of ours is absolute and its name begins with '{OURS}'")
_our_group = _among(
    rf"{GROUPS}/(.+/)?{OURS}[^/]*",
    f"a control group of ours is below /{GROUPS} and its name begins with '{OURS}'",
)
_below_ours = _among(
    rf"(.+/)?({OURS}|run-)[^/]*/.+",
    f"what we undo lies in a folder whose name begins with '{OURS}' or 'run-'",
)


def write_kernel_file(path: Path, value: str) -> None:
    """Write a file of ``/proc`` or ``/sys``: whole, in one call, and never making a new one.

    Raises:
        OSError: the kernel refuses; ``FileNotFoundError`` if it has no such file.

    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_TRUNC), "wb", buffering=0) as file:
        file.write(value.encode())


def uncapped(line: str) -> str:
    """What takes the caps away that a line sets: of version 2 (``7:0 riops=max wiops=50``), or of 1 (``7:0 50``)."""
    return re.sub(r"=\w+", "=max", re.sub(r" \d+$", " 0", line))


class Written(Change):
    """A file of the kernel with another value. ``former`` is what to write to have it as it was.

    For a selector such as ``none [mq-deadline]`` that is the chosen one alone, for a device's cap its line; without a
    cap, one of 0.
    """

    path: Annotated[Path, AfterValidator(_kernel_file)]
    former: str
    value: str

    @model_validator(mode="after")
    def _caps_no_disk(self) -> Self:
        if self._is_cap and not _CAPS_OF_A_LOOP_DEVICE.fullmatch(f"{self.former}\n{self.value}"):
            raise ValueError("what we cap for all is a loop device")
        return self

    @property
    def _is_cap(self) -> bool:
        return self.path.name.startswith("blkio.throttle.")

    def __str__(self) -> str:
        return f"{self.path} set to {self.value}, before {self.former}"

    def lift(self) -> None:
        """Undo a cap, so that what waits for it can die at once."""
        if self._is_cap:
            with contextlib.suppress(StudyError):  # what cannot be lifted only takes longer
                self.undo()

    def undo(self) -> None:
        """Write the former value. A file that has gone, with its device or module, needs none; nor does another's cap.

        Raises:
            StudyError: the kernel refuses.

        """
        try:
            if self._is_cap and self.value not in self.path.read_text().splitlines():
                return
            # sysfs is full of links, all of them into itself
            write_kernel_file(_kernel_file(self.path.resolve()), self.former)
        except ValueError as reason:
            raise StudyError(f"{self.path} leads elsewhere: {reason}") from None
        except OSError as reason:
            if reason.errno not in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
                raise StudyError(
                    f"the kernel refuses '{self.former}' for {self.path} ({reason.strerror})"
                ) from reason


class Mounted(Change):
    """A file system mounted on a folder."""

    target: Annotated[Path, AfterValidator(_below_ours)]

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
            check_folder(self.target.parent)
            _command("umount", self.target)
        complaint = _command("umount", "--lazy", self.target)
        if is_mounted(self.target):
            raise StudyError(f"{self.target} cannot be unmounted: {complaint}")


class Attached(Change):
    """A loop device over a file."""

    file: Annotated[Path, AfterValidator(_below_ours)]

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
            if self.file.parent.exists():
                check_folder(self.file.parent)
            for device in devices:
                complaint = _command("losetup", "--detach", device) or "it is in use"
        raise StudyError(f"{', '.join(map(str, devices))} over {self.file} cannot be detached: {complaint}")


class Grouped(Change):
    """A control group, version 1 or 2, with the groups below it."""

    folder: Annotated[Path, AfterValidator(_our_group)]

    def __str__(self) -> str:
        return f"control group {self.folder}"

    def undo(self) -> None:
        """Kill what runs inside, and remove the groups, the innermost first.

        Raises:
            StudyError: a process in it does not die, or we may not remove it.

        """
        complaint = ""
        for _ in ticks(_PATIENCE_S, 0.05):
            if not self.folder.is_dir():
                return
            check_folder(self.folder)
            self.lift()
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
                    for line in path.read_text().splitlines():
                        write_kernel_file(path, uncapped(line))

    def _groups(self) -> list[Path]:
        return [Path(folder) for folder, _, _ in os.walk(self.folder, topdown=False)]


class Made(Change):
    """A folder of ours outside our own folders, made with :meth:`make`."""

    folder: Annotated[Path, AfterValidator(_our_folder)]

    def __str__(self) -> str:
        return f"folder {self.folder}"

    def make(self) -> None:
        """Make the folder, which the servers' user can pass through.

        Raises:
            StudyError: it cannot be made; one that is there already is never taken over.

        """
        with os_errors_as(StudyError, f"cannot make the folder {self.folder}"):
            files.make(self.folder, mode=0o700, new=True)
            admit_servers(self.folder)

    def undo(self) -> None:
        """Remove the folder with all in it.

        Raises:
            PreflightError: it is somebody else's.
            StudyError: a file system is mounted in it, or it cannot be removed.

        """
        if self.folder.is_symlink() or not self.folder.is_dir():
            return
        if mounts := mounts_below(self.folder):
            raise StudyError(f"{self.folder} is not removed: a file system is mounted on {mounts[0]}")
        check_folder(self.folder)  # so nobody else can put another in its place meanwhile
        with os_errors_as(StudyError, f"the folder {self.folder} cannot be removed"):
            files.remove(self.folder)


def is_mounted(folder: Path) -> bool:
    """Whether a file system is mounted on the folder."""
    return folder.resolve() in mounts_below(folder)


def mounts_below(folder: Path) -> list[Path]:
    """The mount points at or below a folder."""
    real = folder.resolve()
    points = [Path(mount.mountpoint) for mount in psutil.disk_partitions(all=True)]
    return [point for point in points if point.is_relative_to(real)]


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
    # before a file system is unmounted, what is not yet on its disk is written
    return " ".join(Shell().run(argv, timeout_s=300).stderr.split())
