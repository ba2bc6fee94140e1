"""The kernel's page cache: what it has of some files, seen with mincore(2) and dropped with posix_fadvise(2). Linux alone."""

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)


def files_below(folder: Path) -> Iterator[Path]:
    """The files in a folder and in those below it; no links to folders are followed."""
    return filter(Path.is_file, folder.rglob("*"))


def evict(folder: Path) -> None:
    """Drop the files below a folder from the page cache; what is dirty is written first, else it would stay.

    Raises:
        OSError: the kernel could not write all.

    """
    home = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # once for all: a file system's journal takes milliseconds for each file by itself
        if _LIBC.syncfs(home):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(home)
    for path in files_below(folder):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fill(folder: Path) -> None:
    """Read the files below a folder, so that the page cache has as much of them as it has room for."""
    for path in files_below(folder):
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 20):
                pass


def resident_share(folder: Path) -> float:
    """The share of the files below a folder, which are our user's, that the page cache has; 0 of nothing.

    Raises:
        OSError: the kernel does not tell.

    """
    cached = pages = 0
    for path in files_below(folder):
        if not path.stat().st_size:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as view:
            seen = (ctypes.c_ubyte * -(-len(view) // mmap.PAGESIZE))()
            start = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(view)))
            if _LIBC.mincore(start, ctypes.c_size_t(len(view)), seen):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            cached, pages = cached + bytes(seen).count(1), pages + len(seen)
    return cached / pages if pages else 0.0
