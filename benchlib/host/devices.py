"""The block devices that a folder is on, by the kernel's names for them (``vda``, ``nvme0n1p2``, ``loop0``)."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Any

import psutil

from benchlib.errors import PreflightError

ROOT = Path("/")


def block_devices(path: Path, *, root: Path = ROOT) -> list[str]:
    """The devices that hold a folder: none for memory, a network or an overlay, several for btrfs.

    A partition is named itself; :func:`queue_of` gives its disk. ``root`` is where the
    kernel's ``sys`` is found.

    Raises:
        PreflightError: the folder is not there, or not ours to look into.

    """
    try:
        device = path.stat().st_dev
    except OSError as reason:
        raise PreflightError(f"{path}: {reason.strerror}") from reason
    link = _link(device, root)
    if not link.exists() and (mount := mount_of(path)):
        # btrfs and others number their files by a device of no hardware: the mount tells the source
        with contextlib.suppress(OSError):
            source = Path(mount.device).stat()
            if stat.S_ISBLK(source.st_mode):
                link = _link(source.st_rdev, root)
    return _companions(link.resolve().name, root) if link.exists() else []


def queue_of(name: str, *, root: Path = ROOT) -> str:
    """The device whose queue serves this one: a partition's disk, anything else itself.

    Raises:
        PreflightError: there is no such device.

    """
    folder = _folder(name, root)
    return folder.parent.name if (folder / "partition").exists() else name


def disks_below(name: str, *, root: Path = ROOT) -> list[str]:
    """The disks that a mapped, RAID or loop device lies on, whose queues are not its own; none of a disk.

    Raises:
        PreflightError: there is no such device.

    """
    folder = _folder(queue_of(name, root=root), root)
    lower = [link.name for link in (folder / "slaves").glob("*")]
    with contextlib.suppress(OSError, PreflightError):  # no loop device, or its file is gone
        lower += block_devices(Path((folder / "loop/backing_file").read_text().removesuffix("\n")), root=root)
    below = [disk for one in lower for disk in disks_below(one, root=root) or [queue_of(one, root=root)]]
    return sorted(set(below))


def number(name: str, *, root: Path = ROOT) -> str:
    """The device's number as control groups want it: ``MAJOR:MINOR``.

    Raises:
        PreflightError: there is no such device.

    """
    return (_folder(name, root) / "dev").read_text().strip()


def _link(device: int, root: Path) -> Path:
    return root / "sys/dev/block" / f"{os.major(device)}:{os.minor(device)}"


def _folder(name: str, root: Path) -> Path:
    folder = root / "sys/class/block" / name
    if not folder.exists():
        raise PreflightError(f"there is no block device '{name}' here")
    return folder.resolve()


def mount_of(path: Path) -> Any:
    """The mounted file system that a path is on, as psutil tells it (``mountpoint, device, fstype, opts``); None if unknown."""
    real = path.resolve()
    above = [mount for mount in psutil.disk_partitions(all=True) if real.is_relative_to(mount.mountpoint)]
    # of two mounts on one folder, the later hides the earlier
    return max(reversed(above), key=lambda mount: len(mount.mountpoint), default=None)


def _companions(name: str, root: Path) -> list[str]:
    """All devices of the btrfs file system that a device belongs to; otherwise the device alone."""
    for mine in (root / "sys/fs/btrfs").glob(f"*/devices/{name}"):
        return sorted(path.name for path in mine.parent.iterdir())
    return [name]
