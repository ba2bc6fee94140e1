"""Control groups: limits on block I/O and memory for one cluster (cgroup versions 1 and 2).

Root creates groups at the top of the hierarchy, outside the session's limits; other users
(version 2 only) inside a delegated group.

- Version 1 does not charge writeback by kernel threads to the server's group. Measured (Linux
  6.18, ext4, PostgreSQL 18, TPC-B-like): it was charged all reads, 99 % of checkpoint bytes, and
  72 % of the writes between checkpoints. The root group's limits apply to kernel threads, so loop
  devices of the study are limited there. Shared disks are not: all users would be slow.
- Version 2 charges the process that dirtied the page, if the group has both controllers. So both
  are enabled (measured: Linux 6.1, ext4, all writes).
- The memory limit counts page cache, shared and private memory, without swap. Pages already in
  memory are not charged: evict the data first.

Sources: kernel documentation, admin-guide/cgroup-v1/blkio-controller and memory;
admin-guide/cgroup-v2: "IO Interface Files", "Writeback", "No Internal Process Constraint", "Delegation".
"""

import contextlib
import os
import re
import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

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
_IO = {"rbps": "read_bytes", "wbps": "write_bytes", "riops": "read_iops", "wiops": "write_iops"}
_OWN_GROUPS = Path("/proc/self/cgroup")


class Caps(Model):
    """Limits of a control group: bytes, or bytes and operations per second and device.

    ``memory`` includes page cache.
    """

    read_iops: Annotated[int, Field(gt=0)] | None = None
    write_iops: Annotated[int, Field(gt=0)] | None = None
    read_bytes: Size | None = None
    write_bytes: Size | None = None
    memory: Size | None = None

    @property
    def caps_io(self) -> bool:
        """Whether block I/O is limited."""
        return any(getattr(self, field) for field in _IO.values())


@dataclass(frozen=True)
class Group:
    """A cluster's control group: one directory per hierarchy.

    ``limits`` are files, each with its required line.
    """

    folders: tuple[Path, ...]
    limits: tuple[tuple[Path, str], ...]

    def check(self) -> None:
        """Read the limits back.

        Raises:
            ServerError: the kernel killed a process of the group.
            SettingError: a limit has another value.

        """
        files = [folder / name for folder in self.folders for name in ("memory.events", "memory.oom_control")]
        counts = "\n".join(read(file) or "" for file in files)
        if killed := sum(map(int, re.findall(r"^oom_kill (\d+)$", counts, re.MULTILINE))):
            raise ServerError(
                f"the kernel killed {killed} process(es) of the server: its memory cap is too low for its settings"
            )
        for path, line in self.limits:
            lines = (read(path) or "").splitlines()
            if line not in lines:
                raise SettingError(f"a cap did not take: {path} holds '{', '.join(lines)}', not '{line}'")

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


@dataclass(frozen=True)
class _Hierarchy:
    """The parent of new groups; ``missing`` controllers must be enabled first."""

    version: int
    parent: Path
    missing: tuple[str, ...] = ()

    @property
    def caps_for_all(self) -> bool:
        """Whether limits here apply to kernel threads (not in a container)."""
        return self.version == 1 and (self.parent / "release_agent").exists()


def check(caps: Caps, devices: Sequence[str]) -> None:
    """Check that these devices can be limited.

    Raises:
        PreflightError: they cannot; with the reason.

    """
    for kind in _kinds(caps):
        _hierarchy(kind)
    if caps.caps_io:
        _numbers(devices)


def remarks(caps: Caps, *, ours: bool) -> list[str]:
    """Return which writes the limits do not cover here."""
    if not (caps.write_iops or caps.write_bytes) or (ours and _hierarchy("io").caps_for_all):
        return []
    if any(refusal(_hierarchy, kind) or _hierarchy(kind).version == 1 for kind in ("io", "memory")):
        return [
            "the caps on writing apply to WAL and checkpoints, but not to writeback by the kernel: "
            "control groups v1 do not record who dirtied a page"
        ]
    return []


def make(caps: Caps, devices: Sequence[str], name: str, scope: Scope, *, ours: bool = False) -> Group:
    """Create the control group of a cluster, recorded in the journal.

    Each of the ``devices`` gets the full I/O limits. ``ours``: they are loop devices of the study and
    may be limited for all processes.

    Raises:
        PreflightError: as :func:`check`.
        SettingError: the kernel refuses or changes a limit.

    """
    numbers = _numbers(devices) if caps.caps_io else []
    for hierarchy in map(_hierarchy, _kinds(caps)):
        control = hierarchy.parent / "cgroup.subtree_control"
        for controller in hierarchy.missing:
            scope.note(Written(path=control, former=f"-{controller}", value=f"+{controller}"))
            _write(control, f"+{controller}")
    folders: list[Path] = []
    limits: list[tuple[Path, str]] = []
    for kind in _kinds(caps):
        hierarchy = _hierarchy(kind)
        for_all = kind == "io" and ours and hierarchy.caps_for_all
        folder = hierarchy.parent if for_all else hierarchy.parent / f"{OURS}{name}"
        if folder not in folders:
            folders.append(folder)
            if not for_all:
                scope.note(Grouped(folder=folder))
                with os_errors_as(SettingError, f"no control group {folder}"):
                    folder.mkdir()
        for file, line in _limits(kind, hierarchy.version, caps, numbers):
            path = folder / file
            if path.exists() or not re.search("memsw|swap", file):
                if for_all:
                    scope.note(Written(path=path, former=_in_force(path, line), value=line))
                _write(path, line)
                limits.append((path, line))
    group = Group(tuple(folders), tuple(limits))
    group.check()
    return group


def _kinds(caps: Caps) -> list[Kind]:
    """Return the limited resources; I/O is last, to be undone first: throttled processes cannot die."""
    wanted: dict[Kind, Any] = {"memory": caps.memory, "io": caps.caps_io}
    return [kind for kind, capped in wanted.items() if capped]


def _numbers(devices: Sequence[str]) -> list[str]:
    """Return the device numbers of whole disks, since partitions have no queue."""
    if not devices:
        raise PreflightError("the data lies on no block device: put it on a disk to cap block I/O")
    return list(dict.fromkeys(number(queue_of(name)) for name in devices))


def _limits(kind: Kind, version: int, caps: Caps, numbers: Sequence[str]) -> list[tuple[str, str]]:
    if kind == "memory":
        page = resource.getpagesize()  # the kernel rounds down
        size = (caps.memory or 0) // page * page
        return [(file, line.format(size=size)) for file, line in _MEMORY_FILES[version].items()]
    wanted = {what: getattr(caps, field) for what, field in _IO.items()}
    if version == 2:
        parts = " ".join(f"{what}={cap or 'max'}" for what, cap in wanted.items())
        return [("io.max", f"{device} {parts}") for device in numbers]
    ways = {"r": "read", "w": "write"}
    return [
        (f"blkio.throttle.{ways[what[0]]}_{what[1:]}_device", f"{device} {cap}")
        for device in numbers
        for what, cap in wanted.items()
        if cap
    ]


def _in_force(path: Path, line: str) -> str:
    """Return the current line of the same device, or one without limits."""
    by_device = {held.split()[0]: held for held in path.read_text().splitlines()}
    return by_device.get(line.split()[0], uncapped(line))


def _write(path: Path, value: str) -> None:
    with os_errors_as(SettingError, f"the kernel refuses '{value}' for {path}"):
        write_kernel_file(path, value)


def _hierarchy(kind: Kind) -> _Hierarchy:
    """Return the hierarchy for groups with this controller.

    Raises:
        PreflightError: there is none; with the reason.

    """
    # the journal undoes groups in these directories only
    known = facts.ROOT / GROUPS
    mounts = [m for m in psutil.disk_partitions(all=True) if Path(m.mountpoint).is_relative_to(known)]
    for mount in sorted(mounts, key=lambda mount: mount.fstype):  # version 1 first
        root = Path(mount.mountpoint)
        if mount.fstype == "cgroup" and _V1_NAMES[kind] in mount.opts.split(","):
            if not os.access(root, os.W_OK):
                raise PreflightError(f"making control groups in {root} needs root, and a writable mount")
            if kind == "io" and not (root / "blkio.throttle.read_iops_device").exists():
                raise PreflightError("this kernel was built without throttling of block I/O")
            return _Hierarchy(1, root)
        if mount.fstype == "cgroup2" and kind in _names_in(root / "cgroup.controllers"):
            return _v2_hierarchy(kind, root)
    raise PreflightError(
        f"no mounted control group hierarchy has the {kind} controller: "
        "this needs Linux and a visible /sys/fs/cgroup"
    )


def _v2_hierarchy(kind: Kind, root: Path) -> _Hierarchy:
    """Return the parent group on version 2.

    Moving a process needs write access to a common parent. Except for the root group, a group with
    processes cannot enable controllers for its children.
    """
    above = [root] if os.geteuid() == 0 else [root / path for path in _own_v2_group().parents]
    writable = [
        folder for folder in above if all(os.access(folder / f, os.W_OK) for f in (".", "cgroup.procs"))
    ]
    if not writable:
        raise PreflightError(
            f"making control groups in {root} needs root and a writable mount, "
            "or a delegated group, such as 'systemd-run --user --scope' gives"
        )
    for parent in writable:
        offered = _names_in(parent / "cgroup.controllers")
        wanted = [c for c in dict.fromkeys((kind, "memory")) if c in offered]
        missing = tuple(c for c in wanted if c not in _names_in(parent / "cgroup.subtree_control"))
        topmost = not (parent / "cgroup.type").exists()
        if kind in wanted and (not missing or topmost or not _names_in(parent / "cgroup.procs")):
            return _Hierarchy(2, parent, missing)
    raise PreflightError(
        f"the {kind} controller cannot be enabled below {writable[0]}: it is not delegated, or the group "
        "has processes (as in a container). Move them to a group below it."
    )


def _own_v2_group() -> Path:
    lines = _OWN_GROUPS.read_text().splitlines()
    return Path(next(line.removeprefix("0::/") for line in lines if line.startswith("0::/")))


def _names_in(path: Path) -> list[str]:
    return path.read_text().split()
