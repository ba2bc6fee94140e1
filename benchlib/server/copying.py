"""Copies of a data set; xfs and btrfs share its blocks.

Times: ``data/benchmarks/restore.csv``, from ``benchmarks/restore.py``.
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
    """Copy a directory that nothing writes to, without fsync.

    Raises:
        ServerError: the copy failed.

    """
    if shell.run(["test", "-e", target, "-o", "-L", target]).returncode == 0:
        raise ServerError(f"{target} exists already; a data set needs a new directory")
    try:
        done = shell.run([*_COPY, source, target], timeout_s=3600)
        done.insist(ServerError, "copying the loaded data set failed")
    except BaseException:
        shell.remove(target)
        raise


def share_blocks(source: Path, target: Path) -> None:
    """Create a file that shares all blocks of another (reflink).

    Raises:
        OSError: the file system does not support it.

    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with source.open("rb") as original, os.fdopen(files.opened(target, flags), "wb") as copy:
        fcntl.ioctl(copy, _FICLONE, original.fileno())
