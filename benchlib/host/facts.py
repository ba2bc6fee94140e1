"""Facts about this machine, and a folder's block devices, by the kernel's names (``vda``, ``loop0``).

Functions that take such a name raise a PreflightError if there is no such device.
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
"""The root of the kernel's ``proc`` and ``sys``."""

MEBIBYTE = 1 << 20
_CGROUPS = Path("/sys/fs/cgroup")

_OPTIONS = """
    rw ro sync async dirsync relatime noatime strictatime nodiratime lazytime discard nodiscard barrier nobarrier data
    commit stripe delalloc nodelalloc errors journal_checksum inode64 inode32 attr2 logbufs logbsize noquota largeio
    allocsize compress compress-force ssd ssd_spread nossd space_cache autodefrag datacow nodatacow size mode huge vers
    proto hard soft rsize wsize timeo retrans dax
"""
"""Mount options that a page may show: they change performance, and contain no name, address or path."""


def _memory_limits() -> Iterator[Path]:
    for line in (read("/proc/self/cgroup") or "").splitlines():
        _, kinds, path = line.split(":", 2)
        if not kinds or "memory" in kinds.split(","):
            file = Path("memory/memory.limit_in_bytes" if kinds else "memory.max")
            own = Path(path.lstrip("/"))
            yield from (_CGROUPS / file.parent / group / file.name for group in (own, *own.parents))


def memory_bytes() -> int:
    """Return the memory that this process may use."""
    limits = [int(text) for text in map(read, _memory_limits()) if text and text.isdigit()]
    return min([psutil.virtual_memory().total, *limits])


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def read(path: str | Path) -> str | None:
    """Return a small file's text, stripped; None if it cannot be read."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return Path(path).read_text().strip()
    return None


def _processor_name() -> str:
    model = re.search(r"^model name\s*: (.*)", read("/proc/cpuinfo") or "", re.MULTILINE)
    return model[1] if model else platform.processor() or platform.machine()


def _operating_system() -> str:
    with contextlib.suppress(OSError):
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    return f"{platform.system()} {platform.mac_ver()[0] or platform.release()}"


def virtual() -> bool | None:
    """Whether this is a virtual machine; None if unknown."""
    flags = read("/proc/cpuinfo")
    return "hypervisor" in flags if flags and "flags" in flags else None


def file_system(path: Path) -> dict[str, str]:
    """Return type and mount options; empty if unknown."""
    mount = mount_of(path)
    if not mount:
        return {}
    known = [option for option in mount.opts.split(",") if option.partition("=")[0] in _OPTIONS.split()]
    return {"type": mount.fstype, "options": ",".join(known)}


def identity() -> str:
    """Return a short hash that identifies this machine."""
    seed = read("/etc/machine-id") or platform.node()
    return hashlib.sha256(f"benchlib {seed} {_processor_name()}".encode()).hexdigest()[:12]


def facts(scratch: Path) -> dict[str, Any]:
    """Return the facts that a study records."""
    return {
        "identity": identity(),
        "processor": _processor_name(),
        "processors": processors(),
        "memory_mib": memory_bytes() // MEBIBYTE,
        "operating_system": _operating_system(),
        "kernel": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "virtual": virtual(),
        "governor": read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "clock_source": read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "transparent_huge_pages": read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "file_system": file_system(scratch),
    }


def free_mib(path: Path) -> int:
    """Return the free space at the nearest :func:`existing` folder."""
    return shutil.disk_usage(existing(path)).free // MEBIBYTE


def existing(path: Path) -> Path:
    """Return the path, or the nearest accessible folder above it."""
    while not os.access(path, os.F_OK):
        path = path.parent
    return path


def available_memory_mib() -> int:
    """Return the memory that needs no swapping."""
    return min(psutil.virtual_memory().available, memory_bytes()) // MEBIBYTE


def load_average() -> float:
    """Return the mean number of runnable processes over one minute."""
    return psutil.getloadavg()[0]


def timer_resolution_ns() -> int | None:
    """Return the clock's smallest observed step."""
    times = [time.perf_counter_ns() for _ in range(400)]
    return min((later - earlier for earlier, later in pairwise(times) if later > earlier), default=None)


def block_devices(path: Path) -> list[str]:
    """Return a folder's devices or partitions: none for memory, network or overlay, several for btrfs.

    Raises:
        PreflightError: the folder is missing or not accessible.

    """
    with os_errors_as(PreflightError, f"cannot look into {path}"):
        link = _device_link(path.stat().st_dev)
    if not link.exists() and (mount := mount_of(path)):
        # btrfs and others have device numbers without hardware: the mount names the source
        with contextlib.suppress(OSError):
            source = Path(mount.device).stat()
            if stat.S_ISBLK(source.st_mode):
                link = _device_link(source.st_rdev)
    if not link.exists():
        return []
    name = link.resolve().name
    for member in (ROOT / "sys/fs/btrfs").glob(f"*/devices/{name}"):
        return sorted(path.name for path in member.parent.iterdir())
    return [name]


def queue_of(name: str) -> str:
    """Return the device with the request queue: a partition's disk."""
    folder = _device_folder(name)
    return folder.parent.name if (folder / "partition").exists() else name


def disks_below(name: str) -> list[str]:
    """Return the disks below a mapped, RAID or loop device."""
    folder = _device_folder(queue_of(name))
    lower = [link.name for link in (folder / "slaves").glob("*")]
    with contextlib.suppress(OSError, PreflightError):  # not a loop device, or its file is gone
        lower += block_devices(Path((folder / "loop/backing_file").read_text().removesuffix("\n")))
    return sorted({disk for one in lower for disk in disks_below(one) or [queue_of(one)]})


def counted_once(names: Sequence[str]) -> tuple[str, ...]:
    """Return the devices without those above others, which would count twice."""
    queues = {queue_of(name) for name in names}
    return tuple(name for name in names if not queues.intersection(disks_below(name)))


def number(name: str) -> str:
    """Return the device's ``MAJOR:MINOR``."""
    return (_device_folder(name) / "dev").read_text().strip()


def _device_link(device: int) -> Path:
    return ROOT / "sys/dev/block" / f"{os.major(device)}:{os.minor(device)}"


def _device_folder(name: str) -> Path:
    folder = ROOT / "sys/class/block" / name
    if not folder.exists():
        raise PreflightError(f"there is no block device '{name}' here")
    return folder.resolve()


def mount_of(path: Path) -> Any:
    """Return psutil's mount of a path."""
    real = path.resolve()
    above = [mount for mount in psutil.disk_partitions(all=True) if real.is_relative_to(mount.mountpoint)]
    # of two mounts on one folder, the later hides the earlier
    return max(reversed(above), key=lambda mount: len(mount.mountpoint), default=None)
