"""A copy is the same to the last bit and mode, shares no later change, and is whole or not there."""

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchlib.errors import PreflightError, ServerError
from benchlib.host.journal import Journal
from benchlib.host.shell import Shell, server_user
from benchlib.levers import volumes
from benchlib.levers.volumes import FileSystem, Place
from benchlib.server.copying import copy_tree

Provide = Callable[[FileSystem, str], Path]
pytestmark = pytest.mark.root
MIB = 1 << 20


@pytest.fixture
def shell() -> Shell:
    return Shell(server_user())


@pytest.fixture
def ground(scratch: Path, shell: Shell) -> Path:
    """A folder that the servers' user may write to."""
    return shell.make_directory(scratch / "ground")


@pytest.fixture
def provide(scratch: Path, shell: Shell) -> Iterator[Provide]:
    """Makes file systems of their own, or skips with the reason."""
    run = scratch / "run-x"
    run.mkdir(mode=0o711)
    with Journal(run / "journal").chapter() as chapter:

        def make(kind: FileSystem, size: str) -> Path:
            place = Place(file_system=kind, size=size)
            try:
                volumes.check(place, run)
            except PreflightError as reason:
                pytest.skip(str(reason))
            return volumes.provide(place, kind, run, shell, chapter)

        yield make


def fill(shell: Shell, folder: Path) -> Path:
    """A folder of the servers' user with all that a data directory may hold."""
    (folder / "base" / "5").mkdir(parents=True, mode=0o750)
    (folder / "empty").mkdir()
    (folder / "nothing").touch()
    (folder / "base" / "5" / "small").write_bytes(b"x" * 8191)
    (folder / "base" / "5" / "large").write_bytes(os.urandom(24 * MIB + 17))
    with (folder / "base" / "holes").open("wb") as file:
        file.seek(9 * MIB)
        file.write(os.urandom(MIB))
        file.truncate(40 * MIB)
    (folder / "secret").write_text("s")
    (folder / "secret").chmod(0o600)
    (folder / "pg_wal").symlink_to("/nowhere/wal")
    subprocess.run(["chown", "-hR", str(shell.uid), folder], check=True)
    return folder


def listing(folder: Path) -> dict[str, tuple[int, int, object]]:
    """Each path below with its owner, its mode and its content."""
    rows: dict[str, tuple[int, int, object]] = {}
    for path in [folder, *folder.rglob("*")]:
        status = path.lstat()
        content: object = None
        if path.is_symlink():
            content = path.readlink()
        elif stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
        rows[str(path.relative_to(folder))] = (status.st_uid, status.st_mode, content)
    return rows


def test_a_copy_is_the_same(ground: Path, shell: Shell) -> None:
    source = fill(shell, ground / "source")
    before = listing(source)
    copy_tree(shell, source, ground / "copy")
    assert listing(ground / "copy") == before == listing(source)
    assert (ground / "copy" / "base" / "holes").stat().st_blocks < 5 * MIB // 512, "holes stay holes"


@pytest.mark.parametrize(
    ("kind", "size"),
    [("xfs", "304MB"), pytest.param("btrfs", "256MB", marks=pytest.mark.long), ("ext4", "128MB")],
)
def test_a_copy_shares_blocks_where_it_can_and_no_later_change(
    kind: FileSystem, size: str, shell: Shell, provide: Provide
) -> None:
    folder = provide(kind, size)
    source = fill(shell, folder / "source")
    os.sync()
    used = os.statvfs(folder).f_bfree * os.statvfs(folder).f_frsize
    before = listing(source)
    copy_tree(shell, source, folder / "copy")
    os.sync()
    used -= os.statvfs(folder).f_bfree * os.statvfs(folder).f_frsize
    assert (used < 12 * MIB) == (kind != "ext4"), "shared blocks take no room"
    assert listing(folder / "copy") == before
    with (folder / "copy" / "base" / "5" / "large").open("r+b") as file:
        file.write(b"changed")
    (folder / "copy" / "base" / "5" / "small").unlink()
    assert listing(source) == before, "the template stays as it is"


def test_a_full_disk_is_told_and_the_half_copy_goes(ground: Path, shell: Shell, provide: Provide) -> None:
    folder = provide("tmpfs", "16MB")
    with pytest.raises(ServerError, match="No space left on device") as caught:
        copy_tree(shell, fill(shell, ground / "source"), folder / "copy")
    assert "\n" not in str(caught.value)
    assert list(folder.iterdir()) == []


def test_an_interruption_leaves_no_half_copy(
    ground: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = fill(shell, ground / "source")

    run = Shell.run

    def interrupted(self: Shell, argv: list[str | Path], **options: Any) -> Any:
        done = run(self, argv, **options)
        if argv[0] == "cp":
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(Shell, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        copy_tree(shell, source, ground / "copy")
    assert not (ground / "copy").exists()


def test_what_is_there_already_is_never_touched(ground: Path, shell: Shell) -> None:
    folders = source, other = [shell.make_directory(ground / name) for name in ("source", "other")]
    for folder in folders:
        (folder / "file").write_text(folder.name)
    with pytest.raises(ServerError, match="is there already"):
        copy_tree(shell, source, other)
    assert (other / "file").read_text() == "other"
    assert list(other.iterdir()) == [other / "file"]
