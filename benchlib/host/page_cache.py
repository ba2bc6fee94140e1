"""The page cache of files, by mincore(2) and posix_fadvise(2). Linux only."""

import ctypes
import mmap
import os
from pathlib import Path

from benchlib.host import files

_LIBC = ctypes.CDLL(None, use_errno=True)


def evict(folder: Path) -> None:
    """Write files to disk, and drop them from the page cache."""
    with files.folder(folder, foreign=True) as descriptor:
        # one call for all files: a sync of each file costs milliseconds
        _check(_LIBC.syncfs(descriptor))
    for file in files.plain_files(folder):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def fill(folder: Path) -> None:
    """Read files into the page cache."""
    for file in files.plain_files(folder):
        while os.read(file, 1 << 20):
            pass


def resident_share(folder: Path) -> float:
    """Return the cached share of the files; 0 without files."""
    cached = pages = 0
    for file in files.plain_files(folder):
        if not os.fstat(file).st_size:
            continue
        with mmap.mmap(file, 0, access=mmap.ACCESS_COPY) as view:
            resident = (ctypes.c_ubyte * -(-len(view) // mmap.PAGESIZE))()
            start = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(view)))
            _check(_LIBC.mincore(start, ctypes.c_size_t(len(view)), resident))
            cached, pages = cached + bytes(resident).count(1), pages + len(resident)
    return cached / pages if pages else 0.0


def _check(status: int) -> None:
    if status:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
