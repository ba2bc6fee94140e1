"""Control groups: caps on the block I/O and the memory of one cluster's servers.

Both versions of the kernel's interface, also side by side on one host. A group is a folder
in a mounted hierarchy. Root makes it at the top, where no limit of the session that we run
in reaches the servers; an ordinary user (version 2 only) beside the groups that are
delegated to that user.

What the caps hold for:

- Reads, the WAL, checkpoints and all else that a server flushes itself are charged to its
  group. What the kernel's own threads write back is not, on version 1. Measured there on a
  loop device (Linux 6.18, ext4, PostgreSQL 18, TPC-B-like): all that was read, 99 % of the bytes
  of a checkpoint, 72 % of those written between checkpoints. Those threads are in the hierarchy's
  topmost group, whose caps hold for it alone: so where all of a server lies on loop devices of ours, these are
  capped there, and the server runs there too. A disk that others use is not: it would be slow for all.
  Version 2 charges writeback to who dirtied the page, where a group has both controllers, so both are enabled for a
  cap on I/O (measured on Linux 6.1, ext4: what one process wrote and another had synced was capped whole).
- The memory cap counts the page cache that the servers fill, their shared memory and their
  own; no swap is given instead. Pages that others have read before count for nobody in the group
  and are served for free, so a data set must be evicted from the page cache before a server starts.

Sources: the kernel's documentation, admin-guide/cgroup-v1/blkio-controller and memory, and
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
from benchlib.host.journal import Chapter
from benchlib.levers.lever import Size, refusal
from benchlib.plan.level import Model

Kind = Literal["io", "memory"]

_V1_NAMES: dict[Kind, str] = {"io": "blkio", "memory": "memory"}
# of each version: what caps memory and, where a kernel accounts for it, swap (of 1 both together)
_MEMORY_FILES = {
    1: {"memory.limit_in_bytes": "{size}", "memory.memsw.limit_in_bytes": "{size}"},
    2: {"memory.max": "{size}", "memory.swap.max": "0"},
}
# in the order in which the kernel shows them on version 2, so that the line can be read back
_IO = {"rbps": "read_bytes", "wbps": "write_bytes", "riops": "read_iops", "wiops": "write_iops"}
_OWN_GROUPS = Path("/proc/self/cgroup")


class Caps(Model):
    """What a server's control group caps, in bytes, and in bytes or operations a second on each device.

    ``memory`` caps the server with the page cache that it fills.
    """

    read_iops: Annotated[int, Field(gt=0)] | None = None
    write_iops: Annotated[int, Field(gt=0)] | None = None
    read_bytes: Size | None = None
    write_bytes: Size | None = None
    memory: Size | None = None

    @property
    def caps_io(self) -> bool:
        """Whether block I/O is capped."""
        return any(getattr(self, field) for field in _IO.values())


@dataclass(frozen=True)
class Group:
    """The control group of one cluster's servers: its folder in each hierarchy that caps them.

    It is the topmost one where devices are capped for all. ``limits`` are the files that hold the caps, each with a line
    that must be in it.
    """

    folders: tuple[Path, ...]
    limits: tuple[tuple[Path, str], ...]

    def check(self) -> None:
        """Read the caps back, and see whether the memory cap left the server alive.

        Raises:
            ServerError: the kernel has killed a process of the group.
            SettingError: the kernel has another value than the one that was asked for.

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
        """Without the caps on block I/O until it is left: on a disk of 600 reads a second ANALYZE alone takes a minute."""
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
    """Where groups of one kind are made; ``missing`` controllers must be enabled there first (version 2)."""

    version: int
    parent: Path
    missing: tuple[str, ...] = ()

    @property
    def caps_for_all(self) -> bool:
        """Whether what caps a device here holds for the kernel's own threads: not so below a container's group."""
        return self.version == 1 and (self.parent / "release_agent").exists()


def check(caps: Caps, devices: Sequence[str]) -> None:
    """Find out whether the caps can be had on these devices, before anything is made.

    Raises:
        PreflightError: they cannot; the message says why.

    """
    for kind in _kinds(caps):
        _hierarchy(kind)
    if caps.caps_io:
        _numbers(devices)


def remarks(caps: Caps, *, ours: bool) -> list[str]:
    """What the caps do not hold for on this host, for those who read the study; ``ours`` as for :func:`make`."""
    if not (caps.write_iops or caps.write_bytes) or (ours and _hierarchy("io").caps_for_all):
        return []
    if any(refusal(_hierarchy, kind) or _hierarchy(kind).version == 1 for kind in ("io", "memory")):
        return [
            "the caps on writing hold for what the servers flush themselves (WAL, checkpoints), not for "
            "what the kernel writes back in between: control groups v1 cannot tell whose pages those are"
        ]
    return []


def make(caps: Caps, devices: Sequence[str], name: str, chapter: Chapter, *, ours: bool = False) -> Group:
    """Make the control group of one cluster's servers, with the caps of ``caps``.

    ``devices`` are those that the data and the WAL lie on; each has the caps on block I/O in
    full. ``ours`` says that they are loop devices of ours, which may be capped for all. All that is made is noted
    in the chapter before.

    Raises:
        PreflightError: as :func:`check`.
        SettingError: the kernel refuses a cap, or keeps another value.

    """
    numbers = _numbers(devices) if caps.caps_io else []
    for hierarchy in map(_hierarchy, _kinds(caps)):
        control = hierarchy.parent / "cgroup.subtree_control"
        for controller in hierarchy.missing:
            chapter.note(Written(path=control, former=f"-{controller}", value=f"+{controller}"))
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
                chapter.note(Grouped(folder=folder))
                with os_errors_as(SettingError, f"no control group {folder}"):
                    folder.mkdir()
        for file, line in _limits(kind, hierarchy.version, caps, numbers):
            path = folder / file
            if path.exists() or not re.search("memsw|swap", file):
                if for_all:
                    chapter.note(Written(path=path, former=_in_force(path, line), value=line))
                _write(path, line)
                limits.append((path, line))
    group = Group(tuple(folders), tuple(limits))
    group.check()
    return group


def _kinds(caps: Caps) -> list[Kind]:
    """What is capped. Block I/O comes last, so that it is undone first: who waits for it cannot die."""
    wanted: dict[Kind, Any] = {"memory": caps.memory, "io": caps.caps_io}
    return [kind for kind, capped in wanted.items() if capped]


def _numbers(devices: Sequence[str]) -> list[str]:
    """The numbers of the whole disks: a cap holds for a queue, and a partition has none of its own."""
    if not devices:
        raise PreflightError(
            "nothing to cap: the data lies on no block device; cap block I/O on a disk or a file system on one"
        )
    return list(dict.fromkeys(number(queue_of(name)) for name in devices))


def _limits(kind: Kind, version: int, caps: Caps, numbers: Sequence[str]) -> list[tuple[str, str]]:
    """The files that hold the limits, each with its line."""
    if kind == "memory":
        page = resource.getpagesize()  # the kernel keeps whole ones
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
    """The line of the same device in a file of caps; one of 0 where it has none."""
    lines = {each.split()[0]: each for each in path.read_text().splitlines()}
    return lines.get(line.split()[0], uncapped(line))


def _write(path: Path, value: str) -> None:
    with os_errors_as(SettingError, f"the kernel refuses '{value}' for {path}"):
        write_kernel_file(path, value)


def _hierarchy(kind: Kind) -> _Hierarchy:
    """Where groups with this controller can be made.

    Raises:
        PreflightError: nowhere; the message says why.

    """
    # elsewhere what we made would not be undone
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
        "this needs Linux with /sys/fs/cgroup, not hidden by a container"
    )


def _v2_hierarchy(kind: Kind, root: Path) -> _Hierarchy:
    """Where in the one hierarchy of version 2.

    A process may be moved only by who may write to the group above both of its places, so for an
    ordinary user that is a group above our own. A group with processes cannot hand controllers
    on to groups below, the topmost one of the host excepted.
    """
    above = [root] if os.geteuid() == 0 else [root / path for path in _own_v2_group().parents]
    ours = [folder for folder in above if all(os.access(folder / f, os.W_OK) for f in (".", "cgroup.procs"))]
    if not ours:
        raise PreflightError(
            f"making control groups in {root} needs root and a writable mount, "
            "or a delegated group, such as 'systemd-run --user --scope' gives"
        )
    for parent in ours:
        offered = _names_in(parent / "cgroup.controllers")
        wanted = [c for c in dict.fromkeys((kind, "memory")) if c in offered]
        missing = tuple(c for c in wanted if c not in _names_in(parent / "cgroup.subtree_control"))
        topmost = not (parent / "cgroup.type").exists()
        if kind in wanted and (not missing or topmost or not _names_in(parent / "cgroup.procs")):
            return _Hierarchy(2, parent, missing)
    raise PreflightError(
        f"the {kind} controller cannot be enabled below {ours[0]}: it is not delegated, or processes "
        "live in that very group (as in a container); move them to a group below it"
    )


def _own_v2_group() -> Path:
    """The group that this process is in, relative to the hierarchy's root."""
    lines = _OWN_GROUPS.read_text().splitlines()
    return Path(next(line.removeprefix("0::/") for line in lines if line.startswith("0::/")))


def _names_in(path: Path) -> list[str]:
    return path.read_text().split()
