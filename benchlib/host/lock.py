"""The lock of a host: two studies at once would measure each other.

Each user has a lock file (flock(2)). The guardian inherits the lock, and holds it until a dead study is cleaned up. Runs
of other users are found by their guardians.
"""

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from benchlib.errors import HostBusyError, PreflightError
from benchlib.host import files
from benchlib.host.shell import known, ticks

LOCK_VARIABLE = "BENCHLIB_LOCK"
UNNAMED = "a run of another user"
GUARDIAN = "benchlib.host.guardian"
_CLEANING_LIMIT_S = 60.0
_ENDING_LIMIT_S = 2.0
_BUSY = "two at once would measure each other; wait for it"


def lock_path() -> Path:
    """Return this user's lock file: ``BENCHLIB_LOCK`` or a default.

    Root's default lies in ``/var/run``, where no other user can make a file.
    """
    # on Linux a link to /run, and no link is followed below
    default = f"{'/var/tmp' if os.geteuid() else os.path.realpath('/var/run')}/benchlib.lock"
    return Path(f"{os.environ.get(LOCK_VARIABLE) or default}-{os.geteuid()}").absolute()


def lock_scope() -> str:
    """Return the word that guardians of the same ``BENCHLIB_LOCK`` share."""
    return os.environ.get(LOCK_VARIABLE) or "-"


def guardians() -> Iterator[tuple[psutil.Process, int, list[str]]]:
    """Yield each living guardian: process, user, and arguments (folder, scope)."""
    for process in psutil.process_iter():
        argv, uids = known(process.cmdline) or [], known(process.uids)
        if uids and GUARDIAN in argv[:-2]:
            yield process, uids.real, argv[-2:]


def held_by() -> str | None:
    """Return the name of this host's run, or :data:`UNNAMED`; None without a run."""
    with contextlib.suppress(OSError, PreflightError), os.fdopen(files.opened(lock_path())) as file:
        if (holder := _content(file.fileno())) and _is_alive(holder, os.fstat(file.fileno()).st_mtime):
            return holder
    return UNNAMED if _other_users() else None


@contextlib.contextmanager
def host_lock(what: str, tell: Callable[[str], None] = lambda message: None) -> Iterator[int]:
    """Hold this user's lock; yield the descriptor, for the guardian.

    Wait for up to a minute while a dead holder's guardian cleans up.

    Raises:
        HostBusyError: a run of this or another user is under way.
        PreflightError: the file cannot be used.

    """
    path, content = lock_path(), f"{what} (process {os.getpid()}, since {time.strftime('%F %R')})"
    try:
        lock = os.fdopen(files.opened(path, os.O_RDWR | os.O_CREAT, private=True), "r+b", 0)
    except (OSError, PreflightError) as reason:
        raise PreflightError(
            f"cannot use the lock {path} ({reason}): remove that file, or name another one in {LOCK_VARIABLE}"
        ) from reason
    with lock:
        _acquire(lock.fileno(), path, tell)
        check_no_other_user()
        os.ftruncate(lock.fileno(), 0)
        os.pwrite(lock.fileno(), content.encode(), 0)
        try:
            yield lock.fileno()
        finally:
            os.ftruncate(lock.fileno(), 0)
        # for all that inherited it; after an error the guardian may have to clean up, and keeps it
        fcntl.flock(lock, fcntl.LOCK_UN)


def check_no_other_user() -> None:
    """Raise a HostBusyError if another user's run is under way."""
    for _ in ticks(_ENDING_LIMIT_S):
        if not (others := _other_users()):
            return
    raise HostBusyError(f"a run of the user {', '.join(others)} is under way here: {_BUSY}")


def _acquire(descriptor: int, path: Path, tell: Callable[[str], None]) -> None:
    waited_for = ""
    for _ in ticks(_CLEANING_LIMIT_S):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        # a run that has ended has removed its name, though its guardian may still hold the lock
        holder = _content(descriptor)
        if _is_alive(holder, os.fstat(descriptor).st_mtime):
            raise HostBusyError(f"{holder} is running here: {_BUSY}")
        if holder and holder != waited_for:
            tell(f"waiting until the leftovers of {holder} are cleaned up")
            waited_for = holder
    raise HostBusyError(
        f"{path} is still held for {waited_for or 'a run'} after {_CLEANING_LIMIT_S:.0f} s: "
        f"'fuser -v {path}' shows by which process"
    )


def _content(descriptor: int) -> str:
    return files.one_line(os.pread(descriptor, 300, 0).decode(errors="replace"))


def _is_alive(holder: str, written_s: float) -> bool:
    if pids := re.findall(r"\(process (\d+), since ", holder):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(int(pids[-1]))
            # not a later process with the same number
            return process.status() != psutil.STATUS_ZOMBIE and process.create_time() < written_s + 1
    return False


def _other_users() -> list[str]:
    found = [(process, user) for process, user, words in guardians() if words[1] == lock_scope()]
    return sorted({known(process.username) or str(user) for process, user in found if user != os.geteuid()})
