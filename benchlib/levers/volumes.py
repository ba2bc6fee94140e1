"""The directories of a server.

First writes to a sparse loop file are slower, so it is written in full. Direct I/O avoids caching twice.
"""

import os
import secrets
import tempfile
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from benchlib.errors import PreflightError, TrialError
from benchlib.host import facts, files
from benchlib.host.changes import OURS, Attached, Made, Mounted, loop_devices
from benchlib.host.files import check_folder
from benchlib.host.journal import Scope
from benchlib.host.shell import Shell, server_user
from benchlib.levers.lever import Size
from benchlib.plan.level import Model

FileSystem = Literal["ext4", "xfs", "btrfs", "tmpfs"]

_MAKE = {
    # -b: small ones would get blocks of 1 kB; -m: no blocks reserved for root
    "ext4": ["mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"],
    "xfs": ["mkfs.xfs", "-q", "-f", "-K"],
    "btrfs": ["mkfs.btrfs", "-q", "-f", "--nodiscard"],
}  # fmt: skip
_TRIAL_SIZE = 320 * facts.MEBIBYTE
"""Size of the file system in a test; xfs needs 300 MiB."""


class Place(Model):
    """A directory of the server, perhaps on a file system made for the study.

    A text is a ``path`` (``/…``) or a ``file_system``.
    """

    path: Annotated[str | None, Field(pattern="^/")] = None
    file_system: FileSystem | None = None
    size: Size | None = None
    mount_options: Annotated[str, Field(pattern=r"^[A-Za-z0-9_=,.:/-]*$")] = ""

    @model_validator(mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"path": value} if value.startswith("/") else {"file_system": value}
        return value

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.path is None and self.file_system is None:
            raise ValueError("set a 'path', a 'file_system', or both")
        if self.file_system is None and (self.size or self.mount_options):
            raise ValueError("'size' and 'mount_options' belong to a 'file_system' made for the study")
        if self.file_system and self.size is None:
            raise ValueError(f"a {self.file_system} made for the study needs a 'size', such as 4GB")
        if self.file_system == "tmpfs" and self.path:
            raise ValueError("a tmpfs lies in memory and has no 'path'")
        return self


def check(place: Place, scratch: Path) -> None:
    """Check a place by mounting a small copy in a temporary namespace.

    Raises:
        PreflightError: with reason and remedy.
    """
    if place.path is not None:
        _check_folder(Path(place.path), for_server=place.file_system is None)
    if place.file_system is None:
        return
    if os.geteuid() != 0:
        raise PreflightError(f"only root can make a {place.file_system}: run as root, or set a 'path' only")
    in_memory, folder = place.file_system == "tmpfs", Path(place.path or scratch)
    wanted = (place.size or 0) // facts.MEBIBYTE
    free = facts.available_memory_mib() if in_memory else facts.free_mib(folder)
    if wanted > free:
        where = "in memory" if in_memory else f"under {folder}"
        raise PreflightError(f"{place.file_system} of {wanted:,} MiB does not fit: {free:,} MiB free {where}")
    _try(place)


def _check_folder(path: Path, *, for_server: bool) -> None:
    if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
        raise PreflightError(f"{path} is not a writable directory: create it, or change its owner")
    check_folder(path)
    user = server_user()
    if for_server and Shell(user).run(["test", "-x", path]).returncode != 0:
        raise PreflightError(f"user {user} cannot enter {path}: run chmod o+x on it and its parents")


@cache
def _try(place: Place) -> None:
    source, make = "tmpfs", "true"
    if place.file_system != "tmpfs":
        source, size = "/tmp/image", min(place.size or 0, _TRIAL_SIZE)
        make = f"truncate -s {size} {source}; {' '.join([*_MAKE[str(place.file_system)], source])}"
    script = f"""
        set -e; mount -t tmpfs tmpfs /tmp; mkdir /tmp/mount; {make}
        mount -t {place.file_system} -o '{_mount_options(place)}' {source} /tmp/mount; mkdir /tmp/mount/files
    """
    # a slave follows unmounts outside; a private copy would keep them busy
    unshare = ["unshare", "--mount", "--propagation", "slave"]
    done = Shell().run([*unshare, "sh", "-c", script], timeout_s=60)
    if done.returncode != 0:
        raise PreflightError(f"cannot make {place.file_system}: {done.complaint}; mkfs and mount are needed")


def provide(place: Place, name: str, scratch: Path, shell: Shell, scope: Scope) -> Path:
    """Create a private empty directory (0700); the journal removes it.

    Raises:
        TrialError: with the program's output.
    """
    if place.file_system is None:
        return shell.make_directory(_home(place, scratch, scope) / name)
    source = "tmpfs"
    if place.file_system != "tmpfs":
        folder = _home(place, scratch, scope) if place.path else scratch
        source = _attach(_image(folder, place.size or 0, scratch), scratch, scope)
        _run([*_MAKE[place.file_system], source], scratch)
    return shell.make_directory(_mount(place, source, name, scratch, scope))


def mount_image(place: Place, image: Path, name: str, scratch: Path, scope: Scope) -> Path:
    """Mount a copy of an image; its own journal recovers it.

    Raises:
        TrialError: with the program's output.
    """
    return _mount(place, _attach(image, scratch, scope), name, scratch, scope)


def _mount(place: Place, source: str, name: str, scratch: Path, scope: Scope) -> Path:
    mount_point = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=scratch))
    scope.note(Mounted(target=mount_point))
    _run(["mount", "-t", str(place.file_system), "-o", _mount_options(place), source, mount_point], scratch)
    # not its root: initdb needs an empty directory, ext4 has lost+found
    return mount_point / "files"


def _home(place: Place, scratch: Path, scope: Scope) -> Path:
    home = Made(folder=Path(place.path or scratch).resolve() / f"{OURS}{secrets.token_hex(4)}")
    scope.note(home)
    home.make()
    return home.folder


def _image(folder: Path, size: int, scratch: Path) -> Path:
    """Return an unused file, or a new one."""
    spare = {image.stat().st_size: image for image in folder.glob("image-*") if not loop_devices(image)}
    if size in spare:
        return spare[size]
    for image in spare.values():
        files.remove(image)  # to use no more disk than one level needs
    image = folder / f"image-{secrets.token_hex(4)}"
    # 0600: it will hold the server's data
    _run(["install", "--mode=600", "/dev/null", image], scratch)
    zeros = ["dd", "if=/dev/zero", f"of={image}", "bs=4M", "iflag=count_bytes", f"count={size}"]
    try:  # contiguous if possible
        _run(["fallocate", "--posix", f"--length={size}", image], scratch)
        _run([*zeros, "oflag=direct", "conv=notrunc", "status=none"], scratch)
    except BaseException:
        files.remove(image)
        raise
    return image


def _attach(image: Path, scratch: Path, scope: Scope) -> str:
    scope.note(Attached(file=image))
    # if another process takes the free device, losetup looks for the next
    return _run(["losetup", "--find", "--show", "--direct-io=on", image], scratch)


def _run(argv: list[str | Path], scratch: Path) -> str:
    """Run a program where the guardian finds it."""
    done = Shell().run(argv, cwd=scratch, timeout_s=3600)
    done.insist(TrialError, "no space for the server's files: free some, or set another 'path'")
    return done.stdout.strip()


def _mount_options(place: Place) -> str:
    """Return the options; the user's win."""
    options = place.mount_options or "defaults"
    if place.file_system == "tmpfs":
        return f"{options},mode=0755,size={place.size}"
    return f"nodiscard,{options}" if place.file_system == "btrfs" else options
