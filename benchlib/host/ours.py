"""What is ours: nothing is obeyed, written or removed where somebody else could have put it, or could exchange it.

A folder is safe to work in if it and all on the way to it, links too, belong to root or to us, and others may write to it
only where it is sticky, so that what is ours in it can be renamed and removed by us alone. Then no look at it can be
out of date when it is used.
"""

import os
import stat
from pathlib import Path

from benchlib.errors import PreflightError, os_errors_as


def check_folder(folder: Path) -> None:
    """See that a folder is a real one, and safe to work in.

    Raises:
        PreflightError: it is not; one line that names what is wrong with which folder.

    """
    with os_errors_as(PreflightError, f"cannot look into {one_line(str(folder))}"):
        real = Path(os.path.realpath(folder))
        for path in [*reversed(folder.parents), folder, *reversed(real.parents)]:
            status = path.lstat()
            reason = None
            if status.st_uid not in (0, os.geteuid()):
                reason = "belongs to somebody else"
            elif stat.S_ISLNK(status.st_mode):
                reason = "is a link" if path == folder else None
            elif not stat.S_ISDIR(status.st_mode):
                reason = "is no folder"
            elif _open_to_others(status) and not status.st_mode & stat.S_ISVTX:
                reason = "can be written to by others, and is not sticky"
            if reason:
                raise PreflightError(
                    f"{one_line(str(path))} {reason}: want a folder that only root and we can exchange"
                )


def is_ours(folder: Path) -> bool:
    """Whether it is a folder of ours, of root's or of the owner of this library, to which not everybody may write."""
    try:
        status = folder.stat()
    except OSError:
        return False
    owners = (os.geteuid(), 0, Path(__file__).stat().st_uid)
    return stat.S_ISDIR(status.st_mode) and status.st_uid in owners and not status.st_mode & stat.S_IWOTH


def check_run_folder(folder: Path) -> None:
    """See that a run's folder is one that we have made, in a safe place; one that is gone is none to fear.

    Raises:
        PreflightError: it is not.

    """
    check_folder(folder.parent)
    try:
        status, above = folder.lstat(), folder.parent.lstat()
    except FileNotFoundError:
        return
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    # a user's own file system could say of anything that it is root's
    if not ours or status.st_mode & 0o066 or status.st_dev != above.st_dev:
        raise PreflightError(
            f"{one_line(str(folder))} is not followed: want a folder of our own that is closed to others"
        )


def open_ours(path: Path, flags: int) -> int:
    """A descriptor of a plain file with one name that only we can write to; a new one is ours alone (0600).

    Raises:
        OSError: there is none, or it is a link.
        PreflightError: it is something else, or somebody else's.

    """
    descriptor = open_plain(path, flags)
    status = os.fstat(descriptor)
    ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    if ours and status.st_nlink == 1 and not _open_to_others(status):
        return descriptor
    os.close(descriptor)
    raise PreflightError(f"{path} is not followed: want a plain file of our own with one name")


def open_plain(path: str | Path, flags: int) -> int:
    """As :func:`os.open`, but it follows no link and waits for nobody; as an ``opener`` for :func:`open` too."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


def one_line(text: str) -> str:
    """A text that somebody else has written in one line, without what a terminal would obey."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _open_to_others(status: os.stat_result) -> bool:
    """Whether others may write to it; the group that is our own as well as root's is ours."""
    own_group = status.st_gid in (0, os.getegid())
    return bool(status.st_mode & (0o002 if own_group else 0o022))
