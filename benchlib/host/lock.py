"""One study at a time on a host: two at once would measure each other.

The lock is an advisory one (flock(2)) on a file that all users of the host share, and its
content says who holds it. The guardian process inherits it, so that it is held until what a
dead study left has been cleaned up, and it goes with its last holder, however that ends.

Every user can hold it and write what they like to it. So who holds it is the kernel's to say; and what another user
holds counts as a run only where a guardian of theirs lives, as every run has one.
"""

import contextlib
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import psutil

from benchlib.errors import HostBusyError, PreflightError
from benchlib.host.files import one_line, open_plain
from benchlib.host.shell import known, ticks

LOCK_VARIABLE = "BENCHLIB_LOCK"
_CLEANING_LIMIT_S = 60.0


def lock_path() -> Path:
    """The lock's file: ``/var/tmp/benchlib.lock`` unless ``BENCHLIB_LOCK`` names another one."""
    return Path(os.environ.get(LOCK_VARIABLE) or "/var/tmp/benchlib.lock").absolute()


def held_by() -> str | None:
    """Who holds the lock by its content, if that is a run; nothing is locked to find out."""
    # no such file, or none that a run could hold
    with contextlib.suppress(OSError), open(lock_path(), opener=open_plain) as file:
        if _is_held_by_run(file.fileno()):
            return _content(file.fileno()) or None
    return None


@contextlib.contextmanager
def host_lock(what: str, tell: Callable[[str], None] = lambda message: None) -> Iterator[int]:
    """Hold the lock; ``what`` names the holder to others. The descriptor, for the guardian to inherit.

    Where the holder has died and its guardian still cleans up, that is waited for, up to a minute;
    ``tell`` gets a message that says so. What is no run and holds the lock, or has made a file that is none, keeps
    nobody from running: then it is gone without, and ``tell`` gets a message too.

    Raises:
        HostBusyError: another run holds the lock; one line with the remedy.
        PreflightError: its file cannot be used.

    """
    path = lock_path()
    with contextlib.ExitStack() as files:
        lock = files.enter_context(_open(path, tell))
        if not _acquire(lock.fileno(), path, tell):
            lock = files.enter_context(_own_lock(path, tell))
        os.ftruncate(lock.fileno(), 0)
        content = f"{what} (process {os.getpid()}, since {time.strftime('%F %R')})"
        os.pwrite(lock.fileno(), content.encode(), 0)
        try:
            yield lock.fileno()
        finally:
            os.ftruncate(lock.fileno(), 0)
        # for all who inherited it; after an error, a guardian may have to clean up and keeps it so long
        fcntl.flock(lock, fcntl.LOCK_UN)


def _acquire(descriptor: int, path: Path, tell: Callable[[str], None]) -> bool:
    """Get the lock; False where what holds it is no run."""
    waited_for = ""
    for _ in ticks(_CLEANING_LIMIT_S):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        holder = _content(descriptor)
        # a run that has ended has taken out its name, though its guardian may still hold the lock
        if holder and _is_held_by_run(descriptor):
            raise HostBusyError(
                f"{holder} is running here: two at once would measure each other; wait for it"
            )
        if holder and holder != waited_for:
            tell(f"waiting until what {holder} left behind is cleaned up")
            waited_for = holder
    if _no_run_here():
        return False
    raise HostBusyError(
        f"{path} is still held for {holder or 'a run'} after {_CLEANING_LIMIT_S:.0f} s: "
        f"'fuser -v {path}' shows by whom"
    )


def _content(descriptor: int) -> str:
    """Who holds the lock; empty until they have written it. Anybody may have written it."""
    return one_line(os.pread(descriptor, 300, 0).decode(errors="replace"))


def _own_lock(path: Path, tell: Callable[[str], None]) -> IO[bytes]:
    tell(f"the lock {path} is in the hands of what is no run: it is passed over")
    return tempfile.TemporaryFile()


def _is_held_by_run(descriptor: int) -> bool:
    """Whether a living process has locked the file, by the kernel's list, that is ours, root's, or of a user with a guardian.

    Where the kernel has no such list (macOS) nobody can say.
    """
    status = os.fstat(descriptor)
    with contextlib.suppress(OSError):
        # … FLOCK ADVISORY WRITE PID DEVICE:INODE 0 EOF
        rows = map(str.split, Path("/proc/locks").read_text().splitlines())
        for pid in [int(row[-4]) for row in rows if row[-3].endswith(f":{status.st_ino}")]:
            with contextlib.suppress(psutil.Error, ValueError):
                process = psutil.Process(pid)
                owner = process.uids().real
                # or the number has been given to another since the lock was written to
                lives = (
                    process.status() != psutil.STATUS_ZOMBIE and process.create_time() < status.st_mtime + 1
                )
                if lives and (owner in (0, os.geteuid()) or owner in _guarded_users()):
                    return True
    return False


def _guarded_users() -> set[int]:
    """The users of whom a guardian lives on this host."""
    guardians = [p for p in psutil.process_iter() if "benchlib.host.guardian" in (known(p.cmdline) or ())]
    return {uids.real for guardian in guardians if (uids := known(guardian.uids))}


def _no_run_here() -> bool:
    """Whether no run is under way on this host; where the processes of others are hidden, nobody can say."""
    return 1 in psutil.pids() and not _guarded_users()


def _open(path: Path, tell: Callable[[str], None]) -> IO[bytes]:
    """Open the file, or make it for everybody to use.

    Where users share a folder (sticky, as ``/var/tmp``), the kernel may refuse to open another user's
    file with ``O_CREAT``, even to root (fs.protected_regular): so it is made only if it is missing, and
    else opened without.
    """
    try:
        with contextlib.suppress(FileExistsError):
            descriptor = open_plain(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            os.fchmod(descriptor, 0o666)
            return os.fdopen(descriptor, "r+b", 0)
        descriptor = open_plain(path, os.O_RDWR)
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
            return os.fdopen(descriptor, "r+b", 0)
        os.close(descriptor)  # it will be written to: never what a link leads to
        reason = "not a plain file"
    except OSError as error:
        reason = str(error.strerror)
    with contextlib.suppress(OSError):
        if path.lstat().st_uid not in (0, os.geteuid()) and _no_run_here():
            return _own_lock(path, tell)
    raise PreflightError(
        f"cannot use the lock {path} ({reason}): remove that file, or name another one, the same for "
        f"every user of this host, in {LOCK_VARIABLE}"
    )
