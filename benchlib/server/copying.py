"""Restoring a loaded data set by the fastest way that the file system has.

Where it can share blocks between files (xfs and btrfs, inside one file system), a copy is a
matter of names. Elsewhere several threads copy pieces of files, so that one large table does
not leave the other processors idle and the disk sees more than one request. The kernel moves the
bytes (``sendfile``): as fast as ``copy_file_range`` where that works, and it works between two
file systems as well; reading into a buffer of ours and writing it took about twice as long.
Times are in ``data/restore.csv``, made by ``benchmarks/restore.py``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from benchlib.errors import ServerError
from benchlib.host.shell import Shell

_FICLONE = 0x40049409
"""The request to share a file's blocks: ``ioctl_ficlone(2)``."""
_CANNOT_SHARE = {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS}
_PIECE = 32 << 20
_THREADS = min(8, os.cpu_count() or 1)
_MIB = 1 << 20


class _Piece(NamedTuple):
    """Bytes of a file that are still to be copied."""

    here: Path
    there: Path
    offset: int
    length: int


def copy_tree(shell: Shell, source: Path, target: Path) -> str:
    """Copy a folder that nobody writes to; how it was done, in words: ``reflink`` or ``parallel copy``.

    The copy is a new folder of the shell's user and shares no later change with the source.
    Modes, symbolic links and holes are kept, times are not. It is not yet on disk when this returns.

    Raises:
        ServerError: the copy failed; nothing of it is left.

    """
    if os.path.lexists(target):
        raise ServerError(f"{target} is there already: a data set is copied to a new folder")
    try:
        if sys.platform != "linux":
            return _copy_elsewhere(shell, source, target)
        return _copy(shell, source, target)
    except OSError as reason:
        words = _words(reason, source, target)
        shutil.rmtree(target, ignore_errors=True)
        raise ServerError(words) from reason
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _words(reason: OSError, source: Path, target: Path) -> str:
    """What went wrong, told while the half copy still takes its room."""
    if reason.errno not in (errno.ENOSPC, errno.EDQUOT):
        return f"copying the loaded data set failed: {reason.strerror}: {reason.filename or target}"
    size = sum(path.lstat().st_blocks for path in source.rglob("*")) * 512
    return (
        f"no room for a copy of the loaded data set in {target.parent}: it takes {size // _MIB:,} MiB, "
        f"{shutil.disk_usage(target.parent).free // _MIB:,} were left: make room, or take a smaller scale or another place"
    )


def share_blocks(source: Path, target: Path) -> None:
    """Make a new file that shares all blocks with another: what that holds at one moment, be it written to or not.

    Raises:
        OSError: the file system cannot.

    """
    with _opened(source, os.O_RDONLY) as here, _opened(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as there:
        fcntl.ioctl(there, _FICLONE, here)


def can_share(folder: Path) -> bool:
    """Whether files in a folder can share blocks; tried, and nothing of it remains."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        one, other = (Path(own) / name for name in ("one", "other"))
        one.write_bytes(bytes(4096))
        try:
            share_blocks(one, other)
        except OSError as reason:
            if reason.errno not in _CANNOT_SHARE:
                raise
            return False
        return True


def _copy_elsewhere(shell: Shell, source: Path, target: Path) -> str:
    done = shell.run(["cp", "-a", source, target], timeout_s=3600)
    if done.returncode != 0:
        raise ServerError(f"copying the loaded data set failed: {done.stderr.strip().splitlines()[-1]}")
    return "copy"


def _copy(shell: Shell, source: Path, target: Path) -> str:
    entry = pwd.getpwnam(shell.user) if shell.user else None
    share = True
    pieces: list[_Piece] = []
    for here, there, status in _entries(source, target):
        if stat.S_ISLNK(status.st_mode):
            there.symlink_to(here.readlink())
        elif stat.S_ISDIR(status.st_mode):
            there.mkdir(mode=0o700)
        elif stat.S_ISREG(status.st_mode):
            # the first file decides: all of a folder's files lie on one file system, or are copied
            share = _new_file(here, there, status.st_size, share=share, pieces=pieces)
        else:
            raise ServerError(f"{here} is neither file, folder nor link: it cannot be copied")
        if entry:
            os.chown(there, entry.pw_uid, entry.pw_gid, follow_symlinks=False)
        if not stat.S_ISLNK(status.st_mode):
            there.chmod(stat.S_IMODE(status.st_mode))
    threads = ThreadPoolExecutor(_THREADS)
    try:
        for _ in threads.map(_copy_piece, pieces):
            pass
    finally:
        threads.shutdown(cancel_futures=True)
    return "reflink" if share else "parallel copy"


def _entries(here: Path, there: Path) -> Iterator[tuple[Path, Path, os.stat_result]]:
    """A path and all below it, each with that of its copy, folders before what is in them."""
    status = here.lstat()
    yield here, there, status
    if stat.S_ISDIR(status.st_mode):
        for path in sorted(here.iterdir()):
            yield from _entries(path, there / path.name)


def _new_file(here: Path, there: Path, size: int, *, share: bool, pieces: list[_Piece]) -> bool:
    """Make a file's copy, of shared blocks or empty with its ``pieces`` to do; whether blocks can be shared."""
    with _opened(here, os.O_RDONLY) as source, _opened(there, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as target:
        if share:
            try:
                fcntl.ioctl(target, _FICLONE, source)
                return True
            except OSError as reason:
                if reason.errno not in _CANNOT_SHARE:
                    raise
        os.ftruncate(target, size)
        pieces += [_Piece(here, there, offset, length) for offset, length in _data(source, size)]
        return False


def _data(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Offset and length of what a file holds between its holes, in pieces."""
    position = 0
    while position < size:
        try:
            start = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError as reason:
            if reason.errno == errno.ENXIO:  # nothing but a hole up to the end
                return
            raise
        position = os.lseek(descriptor, start, os.SEEK_HOLE)
        for offset in range(start, position, _PIECE):
            yield offset, min(_PIECE, position - offset)


def _copy_piece(piece: _Piece) -> None:
    with _opened(piece.here, os.O_RDONLY) as source, _opened(piece.there, os.O_WRONLY) as target:
        os.lseek(target, piece.offset, os.SEEK_SET)
        position, end = piece.offset, piece.offset + piece.length
        while position < end:
            done = os.sendfile(target, source, position, end - position)
            if done == 0:
                raise ServerError(f"{piece.here} became shorter while it was copied")
            position += done


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
