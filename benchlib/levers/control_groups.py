"""Control groups: limits for one cluster (cgroup versions 1 and 2).

- Version 1 does not charge writeback by kernel threads to the server's group. Measured (Linux 6.18,
  ext4, TPC-B-like): 99 % of checkpoint bytes were charged, and 72 % of other writes. The root
  group's limits apply to kernel threads, so loop devices are limited there.
- Version 2 charges the process that dirtied the page, with both controllers.

Sources: kernel documentation, admin-guide/cgroup-v1/blkio-controller and memory; admin-guide/cgroup-v2.
"""

import contextlib
import os
import re
import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import psutil
from pydantic import Field

from benchlib.errors import PreflightError, ServerError, SettingError, os_errors_as
from benchlib.host import facts
from benchlib.host.changes import GROUPS, OURS, Grouped, Written, uncapped, write_kernel_file
from benchlib.host.facts import number, queue_of, read
from benchlib.host.journal import Scope
from benchlib.levers.lever import Size, refusal
from benchlib.plan.level import Model

Kind = Literal["io", "memory"]

_V1_NAMES: dict[Kind, str] = {"io": "blkio", "memory": "memory"}
# memory and, if the kernel accounts for it, swap (version 1: both together)
_MEMORY_FILES = {
    1: {"memory.limit_in_bytes": "{size}", "memory.memsw.limit_in_bytes": "{size}"},
    2: {"memory.max": "{size}", "memory.swap.max": "0"},
}
# in the kernel's order on version 2, so that the line can be read back
_IO = {"read_bytes": "rbps", "write_bytes": "wbps", "read_iops": "riops", "write_iops": "wiops"}


class Caps(Model):
    """Limits: bytes of memory, or bytes and operations per second and device."""

    read_iops: Annotated[int, Field(gt=0)] | None = None
    write_iops: Annotated[int, Field(gt=0)] | None = None
    read_bytes: Size | None = None
    write_bytes: Size | None = None
    memory: Size | None = None

    @property
    def caps_io(self) -> bool:
        """Whether block I/O is limited."""
        return any(getattr(self, field) for field in _IO)


@dataclass(frozen=True)
class Group:
    """A cluster's directories, one per hierarchy, and its limits."""

    folders: tuple[Path, ...]
    limits: tuple[tuple[Path, str], ...]

    def check(self) -> None:
        """Read the limits back.

        Raises:
            ServerError: the kernel killed a process.
            SettingError: a limit has another value.
        """
        files = [folder / name for folder in self.folders for name in ("memory.events", "memory.oom_control")]
        counts = "\n".join(read(file) or "" for file in files)
        if killed := sum(map(int, re.findall(r"^oom_kill (\d+)$", counts, re.MULTILINE))):
            raise ServerError(f"the kernel killed {killed} process(es) of the server: memory cap too low")
        for path, line in self.limits:
            lines = (read(path) or "").splitlines()
            if line not in lines:
                raise SettingError(
                    f"a cap did not take effect: {path} holds '{', '.join(lines)}', not '{line}'"
                )

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """Suspend the I/O limits; ANALYZE would take minutes."""
        capped = [(path, line) for path, line in self.limits if not path.name.startswith("memory.")]
        try:
            for path, line in capped:
                _write(path, uncapped(line))
            yield
        finally:
            for path, line in capped:
                _write(path, line)


class _Hierarchy(NamedTuple):
    """The parent of new groups.

    - ``missing``: controllers to enable
    - ``for_all``: its limits apply to kernel threads
    """

    version: int
    parent: Path
    missing: tuple[str, ...] = ()
    for_all: bool = False


def check(caps: Caps, devices: Sequence[str]) -> None:
    """Check that these devices can be limited.

    Raises:
        PreflightError: with the reason.
    """
    for kind in _kinds(caps):
        _hierarchy(kind)
    if caps.caps_io:
        _numbers(devices)


def remarks(caps: Caps, *, ours: bool) -> list[str]:
    """Return which writes the limits do not cover."""
    if not (caps.write_iops or caps.write_bytes) or (ours and _hierarchy("io").for_all):
        return []
    if any(refusal(_hierarchy, kind) or _hierarchy(kind).version == 1 for kind in ("io", "memory")):
        return [
            "the caps on writing apply to WAL and checkpoints, but not to writeback by the kernel: "
            "control groups v1 do not record who dirtied a page"
        ]
    return []


def make(caps: Caps, devices: Sequence[str], name: str, scope: Scope, *, ours: bool = False) -> Group:
    """Create a cluster's control group, recorded in the journal.

    ``ours``: limit the devices for all processes.

    Raises:
        PreflightError: as :func:`check`.
        SettingError: the kernel refuses or changes a limit.
    """
    numbers = _numbers(devices) if caps.caps_io else []
    folders: list[Path] = []
    limits: list[tuple[Path, str]] = []
    for kind in _kinds(caps):
        version, parent, missing, for_all = _hierarchy(kind)
        control = parent / "cgroup.subtree_control"
        for controller in missing:
            scope.note(Written(path=control, former=f"-{controller}", value=f"+{controller}"))
            _write(control, f"+{controller}")
        folder = parent if for_all and ours else parent / f"{OURS}{name}"
        if folder not in (parent, *folders):
            scope.note(Grouped(folder=folder))
            with os_errors_as(SettingError, f"no control group {folder}"):
                folder.mkdir()
        folders.append(folder)
        for file, line in _limits(kind, version, caps, numbers):
            path = folder / file
            if path.exists() or not re.search("memsw|swap", file):
                if folder == parent:
                    scope.note(Written(path=path, former=_in_force(path, line), value=line))
                _write(path, line)
                limits.append((path, line))
    group = Group(tuple(dict.fromkeys(folders)), tuple(limits))
    group.check()
    return group


def _kinds(caps: Caps) -> list[Kind]:
    """Return the limited resources, I/O last: throttled processes cannot die."""
    memory: list[Kind] = ["memory"] if caps.memory else []
    return [*memory, "io"] if caps.caps_io else memory


def _numbers(devices: Sequence[str]) -> list[str]:
    """Return device numbers of whole disks; partitions have no queue."""
    if not devices:
        raise PreflightError("the data are on no block device: put them on a disk to cap block I/O")
    return list(dict.fromkeys(number(queue_of(name)) for name in devices))


def _limits(kind: Kind, version: int, caps: Caps, numbers: Sequence[str]) -> list[tuple[str, str]]:
    if kind == "memory":
        page = resource.getpagesize()  # the kernel rounds down
        size = (caps.memory or 0) // page * page
        return [(file, line.format(size=size)) for file, line in _MEMORY_FILES[version].items()]
    if version == 2:
        parts = " ".join(f"{what}={getattr(caps, field) or 'max'}" for field, what in _IO.items())
        return [("io.max", f"{device} {parts}") for device in numbers]
    wanted = {field.replace("bytes", "bps"): getattr(caps, field) for field in _IO}
    files = {f"blkio.throttle.{what}_device": cap for what, cap in wanted.items() if cap}
    return [(file, f"{device} {cap}") for device in numbers for file, cap in files.items()]


def _in_force(path: Path, line: str) -> str:
    """Return the device's current line."""
    by_device = {held.split()[0]: held for held in path.read_text().splitlines()}
    return by_device.get(line.split()[0], uncapped(line))


def _write(path: Path, value: str) -> None:
    with os_errors_as(SettingError, f"the kernel refuses '{value}' for {path}"):
        write_kernel_file(path, value)


def _hierarchy(kind: Kind) -> _Hierarchy:
    """Return the hierarchy with this controller.

    Raises:
        PreflightError: there is none.
    """
    # the journal undoes groups in these directories only
    known = facts.ROOT / GROUPS
    mounts = [m for m in psutil.disk_partitions(all=True) if Path(m.mountpoint).is_relative_to(known)]
    for mount in sorted(mounts, key=lambda mount: mount.fstype):  # version 1 first
        root = Path(mount.mountpoint)
        if mount.fstype == "cgroup" and _V1_NAMES[kind] in mount.opts.split(","):
            if kind == "io" and not (root / "blkio.throttle.read_iops_device").exists():
                raise PreflightError("this kernel was built without throttling of block I/O")
            # in a container there is no release_agent, and the limits apply to its own processes only
            found = _Hierarchy(1, root, for_all=kind == "io" and (root / "release_agent").exists())
        elif mount.fstype == "cgroup2" and kind in _names_in(root / "cgroup.controllers"):
            found = _Hierarchy(2, root, _missing(kind, root))
        else:
            continue
        if os.geteuid() != 0 or not os.access(root, os.W_OK):
            raise PreflightError(f"making control groups in {root} needs root and a writable mount")
        return found
    raise PreflightError(f"no control group hierarchy below {known} has the {kind} controller")


def _missing(kind: Kind, root: Path) -> tuple[str, ...]:
    """Return the controllers to enable."""
    wanted = {kind, "memory"}.intersection(_names_in(root / "cgroup.controllers"))
    missing = wanted.difference(_names_in(root / "cgroup.subtree_control"))
    if missing and (root / "cgroup.type").exists() and _names_in(root / "cgroup.procs"):
        raise PreflightError(f"cannot enable the {kind} controller: {root} has processes (a container)")
    return tuple(sorted(missing))


def _names_in(path: Path) -> list[str]:
    return path.read_text().split()
