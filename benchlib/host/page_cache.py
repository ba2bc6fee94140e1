"""The kernel's page cache: what it has of some files, seen with mincore(2) and dropped with posix_fadvise(2). Linux alone."""

import ctypes
import mmap
import os
from pathlib import Path

from benchlib.host import files

_LIBC = ctypes.CDLL(None, use_errno=True)


def evict(folder: Path) -> None:
    """Drop the files below a folder from the page cache; what is dirty is written first, else it would stay.

    Raises:
        OSError: the kernel could not write all.

    """
    with files.folder(folder, foreign=True) as home:
        # once for all: a file system's journal takes milliseconds for each file by itself
        if _LIBC.syncfs(home):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    for file in files.plain_files(folder):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def fill(folder: Path) -> None:
    """Read the files below a folder, so that the page cache has as much of them as it has room for."""
    for file in files.plain_files(folder):
        while os.read(file, 1 << 20):
            pass


def resident_share(folder: Path) -> float:
    """The share of the files below a folder, which are our user's, that the page cache has; 0 of nothing.

    Raises:
        OSError: the kernel does not tell.

    """
    cached = pages = 0
    for file in files.plain_files(folder):
        if not os.fstat(file).st_size:
            continue
        with mmap.mmap(file, 0, access=mmap.ACCESS_COPY) as view:
            seen = (ctypes.c_ubyte * -(-len(view) // mmap.PAGESIZE))()
            start = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(view)))
            if _LIBC.mincore(start, ctypes.c_size_t(len(view)), seen):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            cached, pages = cached + bytes(seen).count(1), pages + len(seen)
    return cached / pages if pages else 0.0
