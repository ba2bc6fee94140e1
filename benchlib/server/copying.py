"""Restoring a loaded data set by the fastest way that the file system has.

Where it can share blocks between files (xfs and btrfs, inside one file system), a copy is a matter of names; elsewhere
the kernel moves the bytes (``copy_file_range``). ``cp`` of the GNU coreutils does both. Times are in
``data/benchmarks/restore.csv``, made by ``benchmarks/restore.py``.
"""

import fcntl
import os
import sys
from pathlib import Path

from benchlib.errors import ServerError
from benchlib.host import files
from benchlib.host.shell import Shell

_FICLONE = 0x40049409
"""The request to share a file's blocks: ``ioctl_ficlone(2)``."""
_COPY = ("cp", "-a", "--reflink=auto") if sys.platform == "linux" else ("cp", "-a")


def copy_tree(shell: Shell, source: Path, target: Path) -> None:
    """Copy a folder of the shell's user that nobody writes to; it is not yet on disk when this returns.

    Raises:
        ServerError: the copy failed; nothing of it is left.

    """
    if shell.run(["test", "-e", target, "-o", "-L", target]).returncode == 0:
        raise ServerError(f"{target} is there already: a data set is copied to a new folder")
    try:
        done = shell.run([*_COPY, source, target], timeout_s=3600)
        done.insist(ServerError, "copying the loaded data set failed")
    except BaseException:
        shell.remove(target)
        raise


def share_blocks(source: Path, target: Path) -> None:
    """Make a new file that shares all blocks with another: what that holds at one moment, be it written to or not.

    Raises:
        OSError: the file system cannot.

    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with source.open("rb") as original, os.fdopen(files.opened(target, flags), "wb") as copy:
        fcntl.ioctl(copy, _FICLONE, original.fileno())
