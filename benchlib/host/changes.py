"""Changes to the host outside a run's folder.

A forged note in the journal gives no access to anything else:

- Only kernel files that levers set are written. A cap for all processes must be one of a loop device.
- Only paths of a run, or with the prefix :data:`OURS`, in trusted folders, are removed, unmounted or detached.
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
"""The prefix of the name of every folder and control group that is made outside a run's folder."""

_PATIENCE_S = 2.0

GROUPS = "sys/fs/cgroup"
_CAPS_OF_A_LOOP_DEVICE = re.compile(r"(7:\d+ )\d+\n\1\d+")


def _matching(pattern: str, rule: str) -> Callable[[Path], Path]:
    def check(path: Path) -> Path:
        below = str(path.relative_to(facts.ROOT)) if path.is_relative_to(facts.ROOT) else ""
        if ".." in path.parts or not re.fullmatch(pattern, below, re.DOTALL):
            raise ValueError(rule)
        return path

    return check


_kernel_file = _matching(
    r"proc/sys/.+|sys/kernel/mm/transparent_hugepage/\w+|sys/(devices/.+|block/[^/]+|class/block/[^/]+)/queue/.+"
    r"|sys/devices/system/cpu/(cpufreq/policy\d+/scaling_governor|cpufreq/boost|intel_pstate/no_turbo)"
    rf"|sys/kernel/debug/sched/\w+|{GROUPS}/(.+/)?cgroup\.subtree_control|{GROUPS}/[^/]+/blkio\.throttle\.\w+_device",
    "not one of the kernel's files that levers set",
)
_our_folder = _matching(rf"(.+/)?{OURS}[^/]*", f"want an absolute path whose name begins with '{OURS}'")
_our_group = _matching(
    rf"{GROUPS}/(.+/)?{OURS}[^/]*", f"want a group below /{GROUPS} whose name begins with '{OURS}'"
)
_below_ours = _matching(
    rf"(.+/)?({OURS}|run-)[^/]*/.+", f"want a path below a folder whose name begins with '{OURS}' or 'run-'"
)


def write_kernel_file(path: Path, value: str) -> None:
    """Write an existing file of ``/proc`` or ``/sys`` in one call."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_TRUNC), "wb", buffering=0) as file:
        file.write(value.encode())


def uncapped(line: str) -> str:
    """Return the line without caps for ``7:0 riops=max wiops=50`` (version 2) or ``7:0 50`` (1)."""
    return re.sub(r"=\w+", "=max", re.sub(r" \d+$", " 0", line))


class Written(Change):
    """A kernel file with another value.

    ``former`` is the chosen word of a selector such as ``none [mq-deadline]``, or a line with 0 where no cap was.
    """

    path: Annotated[Path, AfterValidator(_kernel_file)]
    former: str
    value: str

    @model_validator(mode="after")
    def _caps_no_disk(self) -> Self:
        if self._is_cap and not _CAPS_OF_A_LOOP_DEVICE.fullmatch(f"{self.former}\n{self.value}"):
            raise ValueError("a cap for all processes is allowed for a loop device only")
        return self

    @property
    def _is_cap(self) -> bool:
        return self.path.name.startswith("blkio.throttle.")

    def __str__(self) -> str:
        return f"{self.path} set to {self.value}, before {self.former}"

    def lift(self) -> None:
        """Undo a cap."""
        if self._is_cap:
            with contextlib.suppress(StudyError):  # it only takes longer
                self.undo()

    def undo(self) -> None:
        """Write the former value, unless the file is gone or the cap has changed."""
        with os_errors_as(StudyError, f"the kernel refuses '{self.former}' for {self.path}"):
            try:
                if self._is_cap and self.value not in self.path.read_text().splitlines():
                    return
                # sysfs is full of links, all of them within it
                write_kernel_file(_kernel_file(self.path.resolve()), self.former)
            except ValueError as reason:
                raise StudyError(f"{self.path} leads elsewhere: {reason}") from None
            except OSError as reason:
                # a controller is busy if other groups use it by now
                used = reason.errno == errno.EBUSY and self.path.name == "cgroup.subtree_control"
                if not used and reason.errno not in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
                    raise


class Mounted(Change):
    """A file system mounted on a folder."""

    target: Annotated[Path, AfterValidator(_below_ours)]

    def __str__(self) -> str:
        return f"file system mounted on {self.target}"

    def undo(self) -> None:
        """Unmount it; lazily if it is still in use after a while."""
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
        """Detach every loop device over the file."""
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
    """A control group, with the groups below it."""

    folder: Annotated[Path, AfterValidator(_our_group)]

    def __str__(self) -> str:
        return f"control group {self.folder}"

    def undo(self) -> None:
        """Kill its processes, and remove the groups."""
        complaint = ""
        for _ in ticks(_PATIENCE_S, 0.05):
            if not self.folder.is_dir():
                return
            check_folder(self.folder)
            self.lift()
            for group in self._groups():
                with contextlib.suppress(FileNotFoundError):
                    for pid in map(int, (group / "cgroup.procs").read_text().split()):
                        # 0 is a process outside this PID namespace; kill(2) would take it for its own group
                        if pid not in (0, os.getpid()):
                            with contextlib.suppress(ProcessLookupError):
                                os.kill(pid, signal.SIGKILL)
                try:
                    group.rmdir()
                except FileNotFoundError:
                    continue
                except OSError as reason:
                    complaint = str(reason.strerror)
        raise StudyError(f"the control group {self.folder} cannot be removed: {complaint}")

    def lift(self) -> None:
        """Remove the block-I/O caps."""
        for group in self._groups():
            for path in (*group.glob("blkio.throttle.*_device"), *group.glob("io.max")):
                with contextlib.suppress(OSError):  # it only takes longer
                    for line in path.read_text().splitlines():
                        write_kernel_file(path, uncapped(line))

    def _groups(self) -> list[Path]:
        return [Path(folder) for folder, _, _ in os.walk(self.folder, topdown=False)]


class Made(Change):
    """A folder outside a run's folder."""

    folder: Annotated[Path, AfterValidator(_our_folder)]

    def __str__(self) -> str:
        return f"folder {self.folder}"

    def make(self) -> None:
        """Make the folder, which the servers' user can pass through.

        Raises:
            StudyError: it cannot be made, or exists already.

        """
        with os_errors_as(StudyError, f"cannot make the folder {self.folder}"):
            files.make(self.folder, mode=0o700, new=True)
            admit_servers(self.folder)

    def undo(self) -> None:
        """Remove the folder, unless a file system is mounted in it."""
        if self.folder.is_symlink() or not self.folder.is_dir():
            return
        if mounts := mounts_below(self.folder):
            raise StudyError(f"{self.folder} is not removed: a file system is mounted on {mounts[0]}")
        check_folder(self.folder)  # so nobody else can replace it meanwhile
        with os_errors_as(StudyError, f"the folder {self.folder} cannot be removed"):
            files.remove(self.folder)


def is_mounted(folder: Path) -> bool:
    """Return whether a file system is mounted there."""
    return folder.resolve() in mounts_below(folder)


def mounts_below(folder: Path) -> list[Path]:
    """Return the mount points at or below a folder."""
    real = folder.resolve()
    points = [Path(mount.mountpoint) for mount in psutil.disk_partitions(all=True)]
    return [point for point in points if point.is_relative_to(real)]


def loop_devices(file: Path) -> list[Path]:
    """Return the loop devices over a file, even a deleted one."""
    names = {str(file), str(file.resolve())}
    devices = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # detached meanwhile
            if backing.read_text().removesuffix("\n").removesuffix(" (deleted)") in names:
                devices.append(Path("/dev") / backing.parts[-3])
    return devices


def _command(*argv: str | Path) -> str:
    return " ".join(Shell().run(argv, timeout_s=300).stderr.split())
