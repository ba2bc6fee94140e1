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
UNNAMED = "a run that does not say its name"
_CLEANING_LIMIT_S = 60.0
_OF_ROOT = Path("/var/run/benchlib.lock")
"""What root's runs lock besides, in a folder of root's: the owner of a shared file can exchange it."""


def lock_path() -> Path:
    """The lock's file: ``/var/tmp/benchlib.lock`` unless ``BENCHLIB_LOCK`` names another one."""
    return Path(os.environ.get(LOCK_VARIABLE) or "/var/tmp/benchlib.lock").absolute()


def held_by() -> str | None:
    """Return who holds the lock by its content, or :data:`UNNAMED`, if that is a run; nothing is locked to find out."""
    # no such file, or none that a run could hold
    with contextlib.suppress(OSError), open(lock_path(), opener=open_plain) as file:
        if _is_held_by_run(file.fileno()):
            return _content(file.fileno()) or UNNAMED
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
    path, content = lock_path(), f"{what} (process {os.getpid()}, since {time.strftime('%F %R')})"
    with contextlib.ExitStack() as files:
        if os.geteuid() == 0 and LOCK_VARIABLE not in os.environ:
            files.enter_context(_held_by_root(content))
        lock = files.enter_context(_locked(path, tell))
        os.ftruncate(lock.fileno(), 0)
        os.pwrite(lock.fileno(), content.encode(), 0)
        try:
            yield lock.fileno()
        finally:
            os.ftruncate(lock.fileno(), 0)
        # for all who inherited it; after an error, a guardian may have to clean up and keeps it so long
        fcntl.flock(lock, fcntl.LOCK_UN)


@contextlib.contextmanager
def _held_by_root(content: str) -> Iterator[None]:
    """Hold the lock of root's runs."""
    with os.fdopen(open_plain(_OF_ROOT, os.O_RDWR | os.O_CREAT), "r+b", 0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _content(file.fileno()) or UNNAMED
            raise HostBusyError(
                f"{holder} is running here: two at once would measure each other; wait for it"
            ) from None
        os.ftruncate(file.fileno(), 0)
        os.pwrite(file.fileno(), content.encode(), 0)
        yield


def _locked(path: Path, tell: Callable[[str], None]) -> IO[bytes]:
    """Open the file and lock it; one that was exchanged for another meanwhile does not count."""
    for _ in ticks(_CLEANING_LIMIT_S):
        with contextlib.ExitStack() as files:
            if (lock := _open(path)) is None or not _acquire(files.enter_context(lock).fileno(), path, tell):
                return _own_lock(path, tell)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock.fileno()), path.lstat()):
                    files.pop_all()
                    return lock
    raise PreflightError(f"the lock {path} is exchanged again and again: remove that file")


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


def _open(path: Path) -> IO[bytes] | None:
    """Open the file, or make it for everybody to use; None where somebody's who runs nothing here cannot be used.

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
            return None
    raise PreflightError(
        f"cannot use the lock {path} ({reason}): remove that file, or name another one, the same for "
        f"every user of this host, in {LOCK_VARIABLE}"
    )
