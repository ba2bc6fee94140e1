"""The only module that creates, opens, copies, owns and removes files by name.

The owner of a folder can replace anything in it by a link at any moment. So each component of a path is opened by the
descriptor of the one before it, without following links. Folders are of two kinds:

- *Trusted*: they and all above belong to :func:`owners`. Others may write there only if the folder is sticky.
- Another user's, such as a server's data directory. This module only reads (:func:`opened` with ``owner``) and removes
  there; a process of that user writes (:class:`benchlib.host.shell.Shell`).

All functions raise an OSError, or a PreflightError if a folder is not trusted.

Source: CERT C, rules FIO02 and POS01; ``openat(2)``, "Rationale for openat()".
"""

import contextlib
import errno
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from benchlib.errors import PreflightError

PENDING = ".pending-"
"""The prefix of the names of incomplete files."""
_WANTED = "want a folder that only root and this user can change"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def one_line(text: str) -> str:
    """Return untrusted text in one line, without control characters."""
    return "".join(character if character.isprintable() else "?" for character in text)


def owners() -> set[int]:
    """Return the trusted users: root, this user, and the owner of this library, whose code runs anyway."""
    return {0, os.geteuid(), Path(__file__).stat().st_uid}


def _distrust(status: os.stat_result) -> str | None:
    """Return why a folder is untrusted."""
    if status.st_uid not in owners():
        return "belongs to another user"
    if _others_may_write(status) and not status.st_mode & stat.S_ISVTX:
        return "can be written to by others, and is not sticky"
    return None


def _others_may_write(status: os.stat_result) -> bool:
    own_group = status.st_gid in (0, os.getegid(), *(os.getgroups() if os.geteuid() else ()))
    return bool(status.st_mode & (0o002 if own_group else 0o022))


@contextlib.contextmanager
def folder(path: Path, *, strict: bool | None = None, foreign: bool = False) -> Iterator[int]:
    """Open a folder component by component, without following links; yield its descriptor.

    Links above it are resolved first. With ``strict`` (the default for root) all must be trusted. With ``foreign`` those
    below the last trusted one may belong to anybody.
    """
    strict, path = os.geteuid() == 0 if strict is None else strict, path.absolute()
    above = path.parent
    if foreign:
        above = next(parent for parent in path.parents if trusted(parent))
    elif strict:
        for link in (*reversed(path.parents), path):
            if link.lstat().st_uid not in owners():
                raise PreflightError(f"{one_line(str(link))} belongs to another user: {_WANTED}")
    base, rest = Path(os.path.realpath(above)), path.relative_to(above).parts
    descriptor, current = os.open("/", _FOLDER), Path("/")
    try:
        for depth, name in enumerate((*base.parts[1:], *rest), 2):
            inner = os.open(name, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor, current = inner, current / name
            checked = strict and not (foreign and depth > len(base.parts))
            if checked and (reason := _distrust(os.fstat(descriptor))):
                raise PreflightError(f"{one_line(str(current))} {reason}: {_WANTED}")
        yield descriptor
    finally:
        os.close(descriptor)


def trusted(path: Path) -> bool:
    """Return whether :func:`check_folder` accepts the path."""
    try:
        check_folder(path)
    except PreflightError:
        return False
    return True


def check_folder(path: Path) -> None:
    """Raise a PreflightError unless the path is a trusted folder, and no link."""
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
    """Raise a PreflightError unless a run's folder is missing, or this user's alone in a trusted one."""
    check_folder(path.parent)
    try:
        status, above = path.lstat(), path.parent.lstat()
    except FileNotFoundError:
        return
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    # a user's own file system (FUSE) can claim any owner
    if not ours or status.st_mode & 0o066 or status.st_dev != above.st_dev:
        raise PreflightError(
            f"{one_line(str(path))} is not followed: want a folder of this user that is closed to others"
        )


def open_plain(path: str | Path, flags: int, mode: int = 0o600) -> int:
    """Open without following a final link, and without blocking."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)


def opened(path: Path, flags: int = os.O_RDONLY, *, owner: int | None = None, private: bool = False) -> int:
    """Open a plain file with one name; a new file has mode 0600.

    With ``owner`` it may be that user's, in a folder of that user. With ``private`` only this user may write to it.

    Raises:
        PreflightError: the file is another user's, not plain, or has two names.

    """
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with folder(path.parent, foreign=owner is not None) as parent:
        descriptor = os.open(path.name, flags & ~os.O_TRUNC, 0o600, dir_fd=parent)
    status = os.fstat(descriptor)
    if private:
        strange = status.st_uid != os.geteuid() or _others_may_write(status)
    else:
        strange = os.geteuid() == 0 and status.st_uid not in {*owners(), owner}
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and not strange:
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
        return descriptor
    os.close(descriptor)
    raise PreflightError(
        f"{one_line(str(path))} is not followed: want a plain file of this user with one name"
    )


def read_plain(path: Path, most: int = 64 << 20, *, follow: bool = True) -> bytes:
    """Return the content of a plain file, or of a link to one; never wait for a pipe.

    Raises:
        OSError: it is not plain, larger than ``most`` bytes, or a link without ``follow``.

    """
    extra = os.O_NONBLOCK if follow else os.O_NONBLOCK | os.O_NOFOLLOW
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | extra)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no plain file")
        if status.st_size > most:
            raise OSError(errno.EFBIG, f"it has more than {most >> 20} MiB")
        return file.read()


def write(path: Path, content: bytes | str, *, mode: int = 0o644, synced: bool = False) -> None:
    """Write a file of a trusted folder atomically."""
    data = content.encode() if isinstance(content, str) else content
    pending = f"{PENDING}{secrets.token_hex(4)}-{path.name}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with folder(path.parent) as parent:
        descriptor = os.open(pending, flags, mode, dir_fd=parent)
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
    """Make a folder, with the missing ones above; return it. Without ``new`` it may exist.

    Raises:
        PreflightError: the path is a link or no folder.

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
    """Change owner, group or mode in a trusted folder; OSError for a link."""
    with folder(path.parent) as parent:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path.name, flags, dir_fd=parent)
    try:
        os.fchown(descriptor, -1 if user is None else user, -1 if group is None else group)
        if mode is not None:
            os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with its content from a trusted folder, if it exists.

    The content may be another user's: :func:`shutil.rmtree` follows no link.
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
    """Rename between trusted folders; it replaces a file or an empty folder."""
    with folder(path.parent) as source, folder(target.parent) as goal:
        os.rename(path.name, target.name, src_dir_fd=source, dst_dir_fd=goal)


def copy(source: IO[bytes], target: Path) -> None:
    """Copy an open file to a new one (0600) in a trusted folder."""
    with os.fdopen(opened(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as made:
        shutil.copyfileobj(source, made, 1 << 20)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a trusted folder to a new one that everybody can read; links stay links."""
    check_folder(source)
    make(target.parent)
    check_folder(target.parent)
    shutil.copytree(source, target, symlinks=True)
    for path in (target, *target.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod((mode | 0o444 | (0o111 if mode & 0o111 else 0)) & 0o755)


def listed(path: Path, *, foreign: bool = False) -> list[str]:
    """Return the sorted names in a :func:`folder`."""
    with folder(path, foreign=foreign) as descriptor:
        return sorted(os.listdir(descriptor))  # noqa: PTH208 (a descriptor has no path)


def plain_files(path: Path) -> Iterator[int]:
    """Yield descriptors of the plain files below a folder that its owner owns; follow no link."""
    with folder(path, foreign=True) as top:
        owner = os.fstat(top).st_uid
        for _, _, names, parent in os.fwalk(".", dir_fd=top):
            for name in names:
                try:
                    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
                except OSError:  # removed meanwhile, or a link
                    continue
                try:
                    status = os.fstat(descriptor)
                    if stat.S_ISREG(status.st_mode) and status.st_uid == owner:
                        yield descriptor
                finally:
                    os.close(descriptor)


def sync(path: Path) -> None:
    """Write a file or folder to disk."""
    descriptor = open_plain(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def leave_foreign_temporary_folder() -> None:
    """As root, ignore a ``TMPDIR`` that others can change: Jupyter keeps a kernel's key there."""
    for name in ("TMPDIR", "TEMP", "TMP"):
        if os.geteuid() == 0 and name in os.environ and not trusted(Path(os.environ[name])):
            del os.environ[name]
            tempfile.tempdir = None  # it is chosen again


leave_foreign_temporary_folder()  # before anything of the library uses it
