"""Where a server's folders lie: in a folder that the user names, or on a file system made for the study.

A file system other than tmpfs lies in a file behind a loop device. The file is written in full: in one
that is sparse or only reserved the first write to each block costs more than any later one (writing 800 MB
was a third slower), so a trial would measure how much of the disk earlier trials had touched. A full disk
thus also shows at once, not in mid-trial. In the run's own folder such a file serves one file system after the other. The device reads and writes the file directly: through the page
cache all would be cached twice, and once outside the servers' control group. What file systems do in
the background by themselves (ext4's late initialisation, discarding, which would punch holes into the
file) is off unless the mount options ask for it.
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
from benchlib.host.journal import Chapter
from benchlib.host.shell import Shell, server_user
from benchlib.levers.lever import Size
from benchlib.plan.level import Model

FileSystem = Literal["ext4", "xfs", "btrfs", "tmpfs"]

_MAKE = {
    # without -b small ones get blocks of 1 kB; nobody but the server uses it, so nothing is set aside for root
    "ext4": ["mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"],
    "xfs": ["mkfs.xfs", "-q", "-f", "-K"],
    "btrfs": ["mkfs.btrfs", "-q", "-f", "--nodiscard"],
}  # fmt: skip
_MAKERS = "Debian: e2fsprogs, xfsprogs, btrfs-progs"
_TRIAL_SIZE = 320 * facts.MEBIBYTE
"""Of the small file system that is made to see whether it can be: xfs wants 300 MiB."""


class Place(Model):
    """Where a folder of the server lies: in a given folder, or on a file system made for the study.

    A file system other than ``tmpfs`` is made on a loop device, whose file lies in ``path`` or
    the scratch folder. ``size`` is in bytes. A text that begins with ``/`` stands for the
    ``path``, another one for the ``file_system``.
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
            raise ValueError("a place has a 'path', a 'file_system', or both")
        if self.file_system is None and (self.size or self.mount_options):
            raise ValueError("'size' and 'mount_options' belong to a 'file_system' made for the study")
        if self.file_system and self.size is None:
            raise ValueError(f"a {self.file_system} made for the study needs a 'size', such as 4GB")
        if self.file_system == "tmpfs" and self.path:
            raise ValueError("a tmpfs lies in memory and has no 'path'")
        return self


def check(place: Place, scratch: Path) -> None:
    """See whether a place can be provided on this machine; nothing of the attempt remains.

    A file system is really made and mounted, a small one in memory, in a mount namespace that goes
    with the process that does it, so that even a crash leaves nothing.

    Raises:
        PreflightError: it cannot; the message says why and what to do.

    """
    if place.path is not None:
        _check_folder(Path(place.path), for_server=place.file_system is None)
    if place.file_system is None:
        return
    if os.geteuid() != 0:
        raise PreflightError(
            f"only root can make a file system ({place.file_system}): run as root, or mount one yourself and "
            "name its folder as the 'path'"
        )
    in_memory, folder = place.file_system == "tmpfs", Path(place.path or scratch)
    wanted = (place.size or 0) // facts.MEBIBYTE
    free = facts.available_memory_mib() if in_memory else facts.free_mib(folder)
    if wanted > free:
        where = "of memory" if in_memory else f"under {folder}"
        raise PreflightError(
            f"a {place.file_system} of {wanted:,} MiB does not fit: {free:,} MiB {where} are free: "
            "name a smaller 'size' or another 'path'"
        )
    _try(place)


def _check_folder(path: Path, *, for_server: bool) -> None:
    if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
        raise PreflightError(
            f"the place {path} is no folder that we can write to: make it, mount a disk there, or change its owner"
        )
    check_folder(path)
    user = server_user()
    if for_server and Shell(user).run(["test", "-x", path]).returncode != 0:
        raise PreflightError(
            f"the servers' user {user} cannot enter the place {path}: give x to others on it and the folders above"
        )


@cache
def _try(place: Place) -> None:
    """Make and mount a small file system of the kind, with the options, where nobody sees it; once, if it works."""
    source, make = "tmpfs", "true"
    if place.file_system != "tmpfs":
        source, size = "/tmp/image", min(place.size or 0, _TRIAL_SIZE)
        make = f"truncate -s {size} {source}; {' '.join([*_MAKE[str(place.file_system)], source])}"
    script = f"""
        set -e; mount -t tmpfs tmpfs /tmp; mkdir /tmp/mount; {make}
        mount -t {place.file_system} -o '{_mount_options(place)}' {source} /tmp/mount; mkdir /tmp/mount/files
    """
    # a slave lets go of what is unmounted outside; a private copy would keep it busy meanwhile
    unshare = ["unshare", "--mount", "--propagation", "slave"]
    done = Shell().run([*unshare, "sh", "-c", script], timeout_s=60)
    if done.returncode != 0:
        raise PreflightError(
            f"a {place.file_system} cannot be made here: {done.complaint}; it takes a kernel that has it, the right "
            f"to mount, the mount options of its kind and its mkfs ({_MAKERS}): else name a folder as the 'path'"
        )


def provide(place: Place, name: str, scratch: Path, shell: Shell, chapter: Chapter) -> Path:
    """A private empty folder (0700) of the shell's user at the place; undoing the chapter takes all away.

    ``scratch`` is the run's folder, ``name`` what the place is for; both show in the mount's path. If this
    raises, what was made up to then is in the chapter too.

    Raises:
        TrialError: it cannot be made; the message says what was tried and has the program's own words and what to do.
        StudyError: a change could not be noted, so it was not made.

    """
    if place.file_system is None:
        return shell.make_directory(_home(place, scratch, chapter) / name)
    source = "tmpfs"
    if place.file_system != "tmpfs":
        folder = _home(place, scratch, chapter) if place.path else scratch
        source = _attach(_image(folder, place.size or 0, scratch), scratch, chapter)
        _run([*_MAKE[place.file_system], source], scratch)
    return shell.make_directory(_mount(place, source, name, scratch, chapter))


def mount_image(place: Place, image: Path, name: str, scratch: Path, chapter: Chapter) -> Path:
    """Mount a copy of a place's image; the folder in it that the server used. ``name`` and ``chapter`` as for :func:`provide`.

    A file system that was not unmounted recovers from its own journal.

    Raises:
        TrialError: it cannot be mounted; in the program's own words.
        StudyError: a change could not be noted, so it was not made.

    """
    return _mount(place, _attach(image, scratch, chapter), name, scratch, chapter)


def _mount(place: Place, source: str, name: str, scratch: Path, chapter: Chapter) -> Path:
    mount_point = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=scratch))
    chapter.note(Mounted(target=mount_point))
    _run(["mount", "-t", str(place.file_system), "-o", _mount_options(place), source, mount_point], scratch)
    # not its root: initdb wants an empty folder, and ext4 has its lost+found there
    return mount_point / "files"


def _home(place: Place, scratch: Path, chapter: Chapter) -> Path:
    home = Made(folder=Path(place.path or scratch).resolve() / f"{OURS}{secrets.token_hex(4)}")
    chapter.note(home)
    home.make()
    return home.folder


def _image(folder: Path, size: int, scratch: Path) -> Path:
    """A file of so many bytes that is written in full: one whose file system has gone, or a new one."""
    spare = [image for image in folder.glob("image-*") if not loop_devices(image)]
    for image in spare:
        if image.stat().st_size == size:
            return image
    for image in spare:
        files.remove(image)  # no more disk than the places of one level take
    unwritten, image = folder / "unwritten", folder / f"image-{secrets.token_hex(4)}"
    # ours alone, since the server's data are nobody else's business
    _run(["install", "--mode=600", "/dev/null", unwritten], scratch)
    zeros = ["dd", "if=/dev/zero", f"of={unwritten}", "bs=4M", "iflag=count_bytes", f"count={size}"]
    try:  # in one piece, as far as there is one
        _run(["fallocate", "--posix", f"--length={size}", unwritten], scratch)
        _run([*zeros, "oflag=direct", "conv=notrunc", "status=none"], scratch)
    except BaseException:
        files.remove(unwritten)
        raise
    files.rename(unwritten, image)
    return image


def _attach(image: Path, scratch: Path, chapter: Chapter) -> str:
    chapter.note(Attached(file=image))
    # where somebody else takes the free device that it has found, losetup looks for another by itself
    return _run(["losetup", "--find", "--show", "--direct-io=on", image], scratch)


def _run(argv: list[str | Path], scratch: Path) -> str:
    """Run a system's program as ourselves; what it printed.

    It works inside the run's folder, by which the guardian finds it.

    Raises:
        TrialError: it failed.

    """
    done = Shell().run(argv, cwd=scratch, timeout_s=3600)
    done.insist(TrialError, "there is no place for the server, so make room or name another")
    return done.stdout.strip()


def _mount_options(place: Place) -> str:
    """The user's own after ours, since of two that contradict each other the later holds; the size of a tmpfs last."""
    own = place.mount_options or "defaults"
    if place.file_system == "tmpfs":
        return f"{own},mode=0755,size={place.size}"
    return f"nodiscard,{own}" if place.file_system == "btrfs" else own
