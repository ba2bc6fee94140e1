"""What this machine is: facts for provenance, for sizing levels, and for ``benchlib doctor``; and the block devices that
a folder is on, by the kernel's names for them (``vda``, ``nvme0n1p2``, ``loop0``).
"""

import contextlib
import hashlib
import os
import platform
import re
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from benchlib.errors import PreflightError, os_errors_as

ROOT = Path("/")
"""Where the kernel's ``proc`` and ``sys`` are found."""

MEBIBYTE = 1 << 20
_CGROUPS = Path("/sys/fs/cgroup")


def _limits() -> Iterator[Path]:
    """The files with the limits on memory of this process's control group and of those above it, of both versions."""
    for line in (read("/proc/self/cgroup") or "").splitlines():
        _, kinds, path = line.split(":", 2)
        if not kinds or "memory" in kinds.split(","):
            file = Path("memory/memory.limit_in_bytes" if kinds else "memory.max")
            own = Path(path.lstrip("/"))
            yield from (_CGROUPS / file.parent / group / file.name for group in (own, *own.parents))


def memory_bytes() -> int:
    """The memory that this process may use: the machine's, or its control group's limit if that is lower."""
    total = psutil.virtual_memory().total
    for path in _limits():
        text = read(path)
        if text and text.isdigit():
            total = min(total, int(text))
    return total


def processors() -> int:
    """How many processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def read(path: str | Path) -> str | None:
    """A small text file of the kernel's, stripped; None if it is not there or not ours to read."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return Path(path).read_text().strip()
    return None


def processor_name() -> str:
    """The processor's model as the kernel tells it."""
    model = re.search(r"^model name\s*: (.*)", read("/proc/cpuinfo") or "", re.MULTILINE)
    return model[1] if model else platform.processor() or platform.machine()


def operating_system() -> str:
    """The distribution or system with its version, as people call it."""
    with contextlib.suppress(OSError):
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    return f"{platform.system()} {platform.mac_ver()[0] or platform.release()}"


def virtual() -> bool | None:
    """Whether this is a virtual machine; None where the kernel does not say."""
    flags = read("/proc/cpuinfo")
    return "hypervisor" in flags if flags and "flags" in flags else None


_OPTIONS = {
    *("rw", "ro", "sync", "async", "dirsync", "relatime", "noatime", "strictatime", "nodiratime", "lazytime"),
    *(
        "discard",
        "nodiscard",
        "barrier",
        "nobarrier",
        "data",
        "commit",
        "stripe",
        "delalloc",
        "nodelalloc",
        "errors",
    ),
    *(
        "journal_checksum",
        "inode64",
        "inode32",
        "attr2",
        "logbufs",
        "logbsize",
        "noquota",
        "largeio",
        "allocsize",
    ),
    *(
        "compress",
        "compress-force",
        "ssd",
        "ssd_spread",
        "nossd",
        "space_cache",
        "autodefrag",
        "datacow",
        "nodatacow",
    ),
    *("size", "mode", "huge", "vers", "proto", "hard", "soft", "rsize", "wsize", "timeo", "retrans", "dax"),
}
"""Mount options that a page may show: they change how a file system performs, and name nobody and no place."""


def file_system(path: Path) -> dict[str, str]:
    """Type and mount options of the file system that a path is on."""
    mount = mount_of(path)
    if not mount:
        return {}
    known = [option for option in mount.opts.split(",") if option.partition("=")[0] in _OPTIONS]
    return {"type": mount.fstype, "options": ",".join(known)}


def identity() -> str:
    """A short name that tells this machine from another without saying which it is."""
    seed = read("/etc/machine-id") or platform.node()
    return hashlib.sha256(f"benchlib {seed} {processor_name()}".encode()).hexdigest()[:12]


def facts(scratch: Path) -> dict[str, Any]:
    """The machine as a study records it. Sizes in MiB."""
    return {
        "identity": identity(),
        "processor": processor_name(),
        "processors": processors(),
        "memory_mib": memory_bytes() // MEBIBYTE,
        "operating_system": operating_system(),
        "kernel": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "virtual": virtual(),
        "governor": read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "clock_source": read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "transparent_huge_pages": read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "file_system": file_system(scratch),
    }


def free_mib(path: Path) -> int:
    """Free space in MiB where a path is, or where it would be; of a closed folder, where that is."""
    return shutil.disk_usage(existing(path)).free // MEBIBYTE


def existing(path: Path) -> Path:
    """A path, or the nearest folder above it that is there and not closed to us."""
    while not os.access(path, os.F_OK):
        path = path.parent
    return path


def available_memory_mib() -> int:
    """Memory in MiB that new processes can have without swapping."""
    return min(psutil.virtual_memory().available, memory_bytes()) // MEBIBYTE


def load_average() -> float:
    """Processes that want a processor, averaged over the last minute."""
    return psutil.getloadavg()[0]


def timer_resolution_ns() -> int | None:
    """The smallest step of the clock as seen from here, in nanoseconds; None where it never moved."""
    times = [time.perf_counter_ns() for _ in range(400)]
    return min((later - earlier for earlier, later in pairwise(times) if later > earlier), default=None)


def block_devices(path: Path) -> list[str]:
    """The devices that hold a folder: none for memory, a network or an overlay, several for btrfs.

    A partition is named itself; :func:`queue_of` gives its disk.

    Raises:
        PreflightError: the folder is not there, or not ours to look into.

    """
    with os_errors_as(PreflightError, f"cannot look into {path}"):
        link = _link(path.stat().st_dev)
    if not link.exists() and (mount := mount_of(path)):
        # btrfs and others number their files by a device of no hardware: the mount tells the source
        with contextlib.suppress(OSError):
            source = Path(mount.device).stat()
            if stat.S_ISBLK(source.st_mode):
                link = _link(source.st_rdev)
    return _companions(link.resolve().name) if link.exists() else []


def queue_of(name: str) -> str:
    """The device whose queue serves this one: a partition's disk, anything else itself.

    Raises:
        PreflightError: there is no such device.

    """
    folder = _folder(name)
    return folder.parent.name if (folder / "partition").exists() else name


def disks_below(name: str) -> list[str]:
    """The disks that a mapped, RAID or loop device lies on, whose queues are not its own; none of a disk.

    Raises:
        PreflightError: there is no such device.

    """
    folder = _folder(queue_of(name))
    lower = [link.name for link in (folder / "slaves").glob("*")]
    with contextlib.suppress(OSError, PreflightError):  # no loop device, or its file is gone
        lower += block_devices(Path((folder / "loop/backing_file").read_text().removesuffix("\n")))
    below = [disk for one in lower for disk in disks_below(one) or [queue_of(one)]]
    return sorted(set(below))


def counted_once(names: Sequence[str]) -> tuple[str, ...]:
    """The devices without those that lie on others of them, which count what these move.

    Raises:
        PreflightError: there is no such device.

    """
    queues = {queue_of(name) for name in names}
    return tuple(name for name in names if not queues.intersection(disks_below(name)))


def number(name: str) -> str:
    """The device's number as control groups want it: ``MAJOR:MINOR``.

    Raises:
        PreflightError: there is no such device.

    """
    return (_folder(name) / "dev").read_text().strip()


def _link(device: int) -> Path:
    return ROOT / "sys/dev/block" / f"{os.major(device)}:{os.minor(device)}"


def _folder(name: str) -> Path:
    folder = ROOT / "sys/class/block" / name
    if not folder.exists():
        raise PreflightError(f"there is no block device '{name}' here")
    return folder.resolve()


def mount_of(path: Path) -> Any:
    """The mounted file system that a path is on, as psutil tells it (``mountpoint, device, fstype, opts``); None if unknown."""
    real = path.resolve()
    above = [mount for mount in psutil.disk_partitions(all=True) if real.is_relative_to(mount.mountpoint)]
    # of two mounts on one folder, the later hides the earlier
    return max(reversed(above), key=lambda mount: len(mount.mountpoint), default=None)


def _companions(name: str) -> list[str]:
    """All devices of the btrfs file system that a device belongs to; otherwise the device alone."""
    for mine in (ROOT / "sys/fs/btrfs").glob(f"*/devices/{name}"):
        return sorted(path.name for path in mine.parent.iterdir())
    return [name]
