"""The only place that creates, opens, copies, owns and removes files by name.

A process of root that works by path below a folder of somebody else can be led anywhere: who owns a folder can exchange
what is in it for a link at any moment. So here every component of a path is opened in its turn, by the descriptor of the
one before, and no link is followed. Two kinds of folders are worked in:

- *Trusted* ones (:func:`trusted`): they and all above them belong to root, to this user or to the owner of this library,
  and others may write there only where the folder is sticky.
- Those of another user, such as the data directory of a server: what happens there is done by a process of that user
  (:class:`benchlib.host.shell.Shell`). From here they are only read (:func:`opened` with ``owner``) and removed.

Source: CERT C, rule FIO02 and POS01; ``openat(2)``, "Rationale for openat()".
"""

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from benchlib.errors import PreflightError

PENDING = ".pending-"
"""How the names of files begin that are not yet complete."""
_WANTED = "want a folder that only root and this user can change"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def one_line(text: str) -> str:
    """Return a foreign text in one line, without what a terminal would obey."""
    return "".join(character if character.isprintable() else "?" for character in text)


def owners() -> set[int]:
    """Return the users whose folders are trusted: root, this one, and the owner of this library, whose code runs anyway."""
    return {0, os.geteuid(), Path(__file__).stat().st_uid}


def distrust(status: os.stat_result) -> str | None:
    """Return why a folder is not to be worked in; None where it is."""
    if status.st_uid not in owners():
        return "belongs to somebody else"
    if _others_may_write(status) and not status.st_mode & stat.S_ISVTX:
        return "can be written to by others, and is not sticky"
    return None


def walk(path: Path, *, strict: bool | None = None, foreign: bool = False) -> int:
    """Open a folder by descriptor, component by component, without following a link.

    Links above it are resolved first, and belong to those who are trusted, as does what they lead to; unless ``strict``,
    that is asked of root alone, since an ordinary user harms nobody else. With ``foreign`` the folder lies in one of another
    user: from the last trusted folder on anybody may own what is opened.

    Raises:
        OSError: one is not there, is closed, or is a link or no folder.
        PreflightError: a folder is not trusted; the message names it.

    """
    strict, path = os.geteuid() == 0 if strict is None else strict, path.absolute()
    above = path.parent
    if foreign:
        above = next(folder for folder in path.parents if trusted(folder))
    elif strict:
        for link in (*reversed(path.parents), path):
            if link.lstat().st_uid not in owners():
                raise PreflightError(f"{one_line(str(link))} belongs to somebody else: {_WANTED}")
    base, rest = Path(os.path.realpath(above)), path.relative_to(above).parts
    descriptor, at = os.open("/", _FOLDER), Path("/")
    try:
        for place, name in enumerate((*base.parts[1:], *rest), 2):
            inner = os.open(name, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor, at = inner, at / name
            checked = strict and not (foreign and place > len(base.parts))
            if checked and (reason := distrust(os.fstat(descriptor))):
                raise PreflightError(f"{one_line(str(at))} {reason}: {_WANTED}")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def folder(path: Path, **how: bool) -> Iterator[int]:
    """Open a folder as :func:`walk` does, and close it afterwards."""
    descriptor = walk(path, **how)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def trusted(path: Path) -> bool:
    """Whether there is a folder of that path, itself no link, which with all above it only root and this user can change."""
    try:
        with folder(path, strict=True):
            return True
    except (OSError, PreflightError):
        return False


def check_folder(path: Path) -> None:
    """See that a folder is a real one, and may be worked in.

    Raises:
        PreflightError: it is not; one line that names what is wrong with which folder.

    """
    try:
        with folder(path, strict=True):
            return
    except OSError as reason:
        what = reason.strerror
        with contextlib.suppress(OSError):
            mode = path.lstat().st_mode
            what = "is a link" if stat.S_ISLNK(mode) else what if stat.S_ISDIR(mode) else "is no folder"
        raise PreflightError(f"{one_line(str(path))} {what}: {_WANTED}") from None


def check_run_folder(path: Path) -> None:
    """See that a run's folder is one that this user has made, in a trusted one; one that is gone is accepted.

    Raises:
        PreflightError: it is not.

    """
    check_folder(path.parent)
    try:
        status, above = path.lstat(), path.parent.lstat()
    except FileNotFoundError:
        return
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    # a user's own file system could say of anything that it is root's
    if not ours or status.st_mode & 0o066 or status.st_dev != above.st_dev:
        raise PreflightError(
            f"{one_line(str(path))} is not followed: want a folder of our own that is closed to others"
        )


def open_ours(path: Path, flags: int) -> int:
    """Open a plain file with one name that only this user can write to; a new one is this user's alone (0600).

    Raises:
        OSError: there is none, or it is a link.
        PreflightError: it is something else, or somebody else's.

    """
    descriptor = open_plain(path, flags)
    status = os.fstat(descriptor)
    ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    if ours and status.st_nlink == 1 and not _others_may_write(status):
        return descriptor
    os.close(descriptor)
    raise PreflightError(f"{path} is not followed: want a plain file of our own with one name")


def _others_may_write(status: os.stat_result) -> bool:
    """Whether others may write to it; the group of root, or one of an ordinary user's own, is as good as the user."""
    own_group = status.st_gid in (0, os.getegid(), *(os.getgroups() if os.geteuid() else ()))
    return bool(status.st_mode & (0o002 if own_group else 0o022))


def open_plain(path: str | Path, flags: int, mode: int = 0o600) -> int:
    """As :func:`os.open`, but it follows no link at the end and waits for nobody; an ``opener`` for :func:`open`, too."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)


def opened(path: Path, flags: int = os.O_RDONLY, *, owner: int | None = None) -> int:
    """Open a plain file with one name, by the descriptor of its folder; a new one is this user's alone (0600).

    With ``owner`` the file may belong to that user too, and lie in a folder of that user.

    Raises:
        OSError: there is none, or it is a link.
        PreflightError: its folder is not trusted, or it is no plain file, has two names, or belongs to somebody else.

    """
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with folder(path.parent, foreign=owner is not None) as parent:
        descriptor = os.open(path.name, flags, 0o600, dir_fd=parent)
    status = os.fstat(descriptor)
    strange = os.geteuid() == 0 and status.st_uid not in {*owners(), owner}
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and not strange:
        return descriptor
    os.close(descriptor)
    raise PreflightError(
        f"{one_line(str(path))} is not followed: want a plain file of this user's with one name"
    )


def read_plain(path: Path, most: int = 64 << 20) -> bytes:
    """Return the content of a plain file that a user names, a link to one too; a pipe or a device is not waited for.

    Raises:
        OSError: it cannot be read, is no plain file, or is larger than ``most`` bytes.

    """
    with _closing(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as descriptor:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no plain file")
        if status.st_size > most:
            raise OSError(errno.EFBIG, f"it has more than {most >> 20} MiB")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read()


def write(path: Path, content: bytes | str, *, mode: int = 0o644, synced: bool = False) -> None:
    """Write a file of a trusted folder: it has the new content or the former one, never a part.

    Raises:
        OSError: the disk refused.
        PreflightError: the folder is not trusted.

    """
    data = content.encode() if isinstance(content, str) else content
    with folder(path.parent) as parent:
        pending = f"{PENDING}{secrets.token_hex(4)}-{path.name}"
        descriptor = os.open(
            pending, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=parent
        )
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                if synced:
                    os.fsync(file.fileno())
            os.rename(pending, path.name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(pending, dir_fd=parent)
            raise
        if synced:
            os.fsync(parent)


def make(
    path: Path, *, mode: int = 0o755, user: int | None = None, group: int | None = None, new: bool = False
) -> Path:
    """Make a folder in a trusted one, with those above it that are missing; one that is there stays as it is, unless ``new`` is asked for.

    ``user`` and ``group`` are who is to own a new one.

    Raises:
        OSError: it cannot be made.
        PreflightError: the folder above is not trusted, or what is there is a link or no folder.

    """
    if not os.path.lexists(path.parent):
        make(path.parent)
    with folder(path.parent) as parent:
        try:
            os.mkdir(path.name, mode, dir_fd=parent)
        except FileExistsError:
            if new:
                raise
            if not stat.S_ISDIR(os.stat(path.name, dir_fd=parent, follow_symlinks=False).st_mode):
                raise PreflightError(f"{one_line(str(path))} is a link or no folder: remove it") from None
            return path
        if user is not None or group is not None:
            give(path, user=user, group=group)
    return path


def give(path: Path, *, user: int | None = None, group: int | None = None, mode: int | None = None) -> None:
    """Give a file or folder that lies in a trusted folder to a user, or a group; never what a link leads to."""
    with folder(path.parent) as parent:
        descriptor = os.open(
            path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent
        )
    try:
        os.fchown(descriptor, -1 if user is None else user, -1 if group is None else group)
        if mode is not None:
            os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all in it, from a trusted folder, if it is there; a link, never what it leads to.

    What is below may belong to others: it is removed by descriptor (:func:`shutil.rmtree`, which follows no link).

    Raises:
        OSError: something of it cannot be removed.
        PreflightError: the folder is not trusted.

    """
    with contextlib.suppress(FileNotFoundError), folder(path.parent) as parent:
        if stat.S_ISDIR(os.stat(path.name, dir_fd=parent, follow_symlinks=False).st_mode):
            shutil.rmtree(path.name, dir_fd=parent)
        else:
            os.unlink(path.name, dir_fd=parent)


def link(path: Path, to: str) -> None:
    """Make a symbolic link in a trusted folder."""
    with folder(path.parent) as parent:
        os.symlink(to, path.name, dir_fd=parent)


def rename(path: Path, target: Path) -> None:
    """Give a file or folder of a trusted folder another name, in another trusted folder or the same; an empty folder or file there goes."""
    with folder(path.parent) as source, folder(target.parent) as goal:
        os.rename(path.name, target.name, src_dir_fd=source, dst_dir_fd=goal)


def copy(source: IO[Any] | Path, target: Path) -> None:
    """Copy the bytes of a file to a new one (0600) in a trusted folder."""
    with contextlib.ExitStack() as stack:
        original = stack.enter_context(source.open("rb")) if isinstance(source, Path) else source
        made = stack.enter_context(os.fdopen(opened(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb"))
        shutil.copyfileobj(original, made, 1 << 20)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder that is trusted, links as links, to a new one in a trusted folder, readable by everybody.

    Raises:
        OSError: the disk refused.
        PreflightError: one of the folders is not trusted.

    """
    check_folder(source)
    make(target.parent)
    check_folder(target.parent)
    shutil.copytree(source, target, symlinks=True)
    for place, _, names in os.walk(target):
        for path in (Path(place), *(Path(place) / name for name in names)):
            if not path.is_symlink():
                mode = path.stat().st_mode
                path.chmod((mode | 0o444 | (0o111 if mode & 0o111 else 0)) & 0o755)


def listed(path: Path, *, foreign: bool = False) -> list[str]:
    """Return the names in a folder, sorted; it is opened as by :func:`walk`."""
    with folder(path, foreign=foreign) as descriptor:
        return sorted(os.listdir(descriptor))  # noqa: PTH208 (a descriptor has no path)


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def plain_files(path: Path) -> Iterator[int]:
    """Open one after the other the plain files below a folder that belong to its owner, by descriptor; no link is followed."""
    with folder(path, foreign=True) as top:
        owner = os.fstat(top).st_uid
        for _, _, names, parent in os.fwalk(".", dir_fd=top):
            for name in names:
                try:
                    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
                except OSError:  # it has gone, or is a link
                    continue
                with _closing(descriptor):
                    status = os.fstat(descriptor)
                    if stat.S_ISREG(status.st_mode) and status.st_uid == owner:
                        yield descriptor


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, to disk, so that it survives a power cut."""
    descriptor = open_plain(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
