"""The block devices that a folder is on, by the kernel's names for them (``vda``, ``nvme0n1p2``, ``loop0``)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

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
    link = root / "sys/dev/block" / f"{os.major(device)}:{os.minor(device)}"
    if not link.exists():
        # btrfs and others number their files by a device of no hardware: the mount tells the source
        source = _mounted_from(path)
        if source is None:
            return []
        link = root / "sys/dev/block" / source
    return _companions(link.resolve().name, root) if link.exists() else []


def queue_of(name: str, *, root: Path = ROOT) -> str:
    """The device whose queue serves this one: a partition's disk, anything else itself.

    Raises:
        PreflightError: there is no such device.

    """
    folder = _folder(name, root)
    return folder.parent.name if (folder / "partition").exists() else name


def number(name: str, *, root: Path = ROOT) -> str:
    """The device's number as control groups want it: ``MAJOR:MINOR``.

    Raises:
        PreflightError: there is no such device.

    """
    return (_folder(name, root) / "dev").read_text().strip()


def _folder(name: str, root: Path) -> Path:
    folder = root / "sys/class/block" / name
    if not folder.exists():
        raise PreflightError(f"there is no block device '{name}' here")
    return folder.resolve()


def _mounted_from(path: Path) -> str | None:
    """The number of the device that the file system of a path is mounted from, if it is a device."""
    real = path.resolve()
    above = [m for m in psutil.disk_partitions(all=True) if real.is_relative_to(m.mountpoint)]
    if not above:
        return None
    # of two mounts on one folder, the later hides the earlier
    nearest = max(enumerate(above), key=lambda pair: (len(pair[1].mountpoint), pair[0]))[1]
    try:
        found = Path(nearest.device).stat()
    except OSError:
        return None
    if not stat.S_ISBLK(found.st_mode):
        return None
    return f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"


def _companions(name: str, root: Path) -> list[str]:
    """All devices of the btrfs file system that a device belongs to; otherwise the device alone."""
    for mine in (root / "sys/fs/btrfs").glob(f"*/devices/{name}"):
        return sorted(p.name for p in mine.parent.iterdir())
    return [name]
