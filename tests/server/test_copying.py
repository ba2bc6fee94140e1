"""A copy is the same to the last bit and mode, shares no later change, and is whole or not there."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from benchlib.errors import PreflightError, ServerError
from benchlib.host.journal import Journal
from benchlib.host.shell import Shell, server_user
from benchlib.levers import volumes
from benchlib.levers.volumes import Place
from benchlib.server.copying import copy_tree

pytestmark = pytest.mark.root
MIB = 1 << 20


@pytest.fixture
def shell() -> Shell:
    return Shell(server_user())


@pytest.fixture
def provide(scratch, shell):
    """Makes file systems of their own, or skips with the reason."""
    run = scratch / "run-x"
    run.mkdir(mode=0o711)
    with Journal(run / "journal").scope() as scope:

        def make(kind, size):
            place = Place(file_system=kind, size=size)
            try:
                volumes.check(place, run)
            except PreflightError as reason:
                pytest.skip(str(reason))
            return volumes.provide(place, kind, run, shell, scope)

        yield make


def fill(shell: Shell, ground: Path) -> Path:
    """A folder of the servers' user with all that a data directory may hold."""
    folder = ground / "source"
    (folder / "base" / "5").mkdir(parents=True, mode=0o750)
    (folder / "empty").mkdir()
    (folder / "base" / "5" / "small").write_bytes(b"x" * 8191)
    (folder / "base" / "5" / "large").write_bytes(os.urandom(24 * MIB + 17))
    with (folder / "base" / "holes").open("wb") as file:
        file.seek(9 * MIB)
        file.write(os.urandom(MIB))
        file.truncate(40 * MIB)
    (folder / "secret").touch(mode=0o600)
    (folder / "pg_wal").symlink_to("/nowhere/wal")
    subprocess.run(["chown", "-hR", str(shell.uid), folder], check=True)
    return folder


@pytest.fixture
def source(scratch, shell) -> Path:
    """Such a folder, beside which the servers' user may write."""
    return fill(shell, shell.make_directory(scratch / "ground"))


def listing(folder: Path) -> dict[str, tuple[int, int, object]]:
    """Each path below with its owner, its mode and its content."""

    def row(path):
        status = path.lstat()
        read = {stat.S_IFLNK: path.readlink, stat.S_IFREG: path.read_bytes}
        return status.st_uid, status.st_mode, read.get(stat.S_IFMT(status.st_mode), lambda: None)()

    return {str(path.relative_to(folder)): row(path) for path in (folder, *folder.rglob("*"))}


def test_a_copy_is_the_same_and_never_made_over_what_is_there(source, shell):
    before, copy = listing(source), source.with_name("copy")
    copy_tree(shell, source, copy)
    assert listing(copy) == before == listing(source)
    assert (copy / "base" / "holes").stat().st_blocks < 5 * MIB // 512, "holes stay holes"
    with pytest.raises(ServerError, match="exists already"):
        copy_tree(shell, source, copy)
    assert listing(copy) == before


@pytest.mark.parametrize(
    ("kind", "size"),
    [("xfs", "304MB"), pytest.param("btrfs", "256MB", marks=pytest.mark.long), ("ext4", "128MB")],
)
def test_a_copy_shares_blocks_where_it_can_and_no_later_change(kind, size, shell, provide):
    folder = provide(kind, size)

    def free():
        os.sync()
        return os.statvfs(folder).f_bfree * os.statvfs(folder).f_frsize

    source, copy = fill(shell, folder), folder / "copy"
    room, before = free(), listing(source)
    copy_tree(shell, source, copy)
    assert (room - free() < 12 * MIB) == (kind != "ext4"), "shared blocks take no room"
    assert listing(copy) == before
    with (copy / "base" / "5" / "large").open("r+b") as file:
        file.write(b"changed")
    (copy / "base" / "5" / "small").unlink()
    assert listing(source) == before, "the template stays as it is"


def test_a_full_disk_is_reported_and_the_partial_copy_removed(source, shell, provide):
    folder = provide("tmpfs", "16MB")
    with pytest.raises(ServerError, match=r"^.*No space left on device.*$"):
        copy_tree(shell, source, folder / "copy")
    assert list(folder.iterdir()) == []
