"""A copy is the same to the last bit and mode, shares no later change, and is whole or not there."""

import errno
import os
import pwd
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchlib.errors import PreflightError, ServerError
from benchlib.host.journal import Journal
from benchlib.host.shell import Shell, server_user
from benchlib.levers import volumes
from benchlib.plan.level import FileSystem, Place
from benchlib.server import copying
from benchlib.server.copying import copy_tree

Provide = Callable[[FileSystem, str], Path]
MIB = 1 << 20


@pytest.fixture
def shell() -> Shell:
    return Shell(server_user())


@pytest.fixture
def provide(scratch: Path, shell: Shell) -> Iterator[Provide]:
    """Makes file systems of their own, or skips with the reason."""
    with Journal(scratch / "journal").chapter() as chapter:

        def make(kind: FileSystem, size: str) -> Path:
            place = Place(file_system=kind, size=size)
            try:
                volumes.check(place, scratch)
            except PreflightError as reason:
                pytest.skip(str(reason))
            return volumes.provide(place, kind, scratch, shell, chapter)

        yield make


@pytest.fixture
def fill(shell: Shell) -> Callable[[Path], Path]:
    """Makes a folder with all that a data directory may hold, of the servers' user."""

    def make(folder: Path) -> Path:
        folder.mkdir(mode=0o700)
        (folder / "base" / "5").mkdir(parents=True, mode=0o750)
        (folder / "empty").mkdir()
        (folder / "nothing").touch()
        (folder / "base" / "5" / "small").write_bytes(b"x" * 8191)
        (folder / "base" / "5" / "large").write_bytes(os.urandom(3 * MIB + 17))
        with (folder / "base" / "holes").open("wb") as file:
            for offset in (0, 9 * MIB, 21 * MIB):
                file.seek(offset)
                file.write(os.urandom(MIB))
            file.truncate(40 * MIB)
        (folder / "only a hole ä").touch()
        os.truncate(folder / "only a hole ä", 5 * MIB)
        (folder / "program").write_text("#!/bin/sh\n")
        (folder / "program").chmod(0o755)
        (folder / "secret").write_text("s")
        (folder / "secret").chmod(0o600)
        (folder / "pg_wal").symlink_to("/nowhere/wal")
        (folder / "to a folder").symlink_to("base")
        shell.own(folder)
        return folder

    return make


def listing(folder: Path) -> dict[str, tuple[int, object]]:
    """Each path below with its mode and its content."""
    found: dict[str, tuple[int, object]] = {}
    for path in [folder, *folder.rglob("*")]:
        status = path.lstat()
        content: object = None
        if path.is_symlink():
            content = path.readlink()
        elif path.is_file():
            content = path.read_bytes()
        found[str(path.relative_to(folder))] = (status.st_mode, content)
    return found


def owners(folder: Path) -> set[str]:
    return {pwd.getpwuid(path.lstat().st_uid).pw_name for path in [folder, *folder.rglob("*")]}


@pytest.mark.parametrize("piece", [MIB, 32 * MIB])
def test_a_copy_is_the_same_and_its_users(
    piece: int, scratch: Path, shell: Shell, fill: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_PIECE", piece)
    source = fill(scratch / "source")
    before = listing(source)
    assert copy_tree(shell, source, scratch / "copy") in ("parallel copy", "reflink", "copy")
    assert listing(scratch / "copy") == before == listing(source)
    assert owners(scratch / "copy") == {shell.user or pwd.getpwuid(os.geteuid()).pw_name}
    for name in ("base/holes", "only a hole ä"):
        assert (scratch / "copy" / name).stat().st_blocks < 5 * MIB // 512, "holes stay holes"


def test_the_copy_is_the_shells_users_whoever_made_the_source(
    scratch: Path, shell: Shell, fill: Callable[[Path], Path]
) -> None:
    if shell.user is None:
        pytest.skip("only root gives files away")
    source = fill(scratch / "source")
    Shell("nobody").own(source)
    copy_tree(shell, source, scratch / "copy")
    assert owners(scratch / "copy") == {shell.user}
    assert shell.user not in owners(source)


@pytest.mark.parametrize(
    ("kind", "size", "method"),
    [("xfs", "304MB", "reflink"), ("btrfs", "256MB", "reflink"), ("ext4", "128MB", "parallel copy"),
     ("tmpfs", "128MB", "parallel copy")],
)  # fmt: skip
def test_each_file_system_copies_its_own_way(
    kind: FileSystem,
    size: str,
    method: str,
    scratch: Path,
    shell: Shell,
    provide: Provide,
    fill: Callable[[Path], Path],
) -> None:
    folder = provide(kind, size)
    source = fill(folder / "source")
    (source / "bulk").write_bytes(os.urandom(24 * MIB))
    shell.own(source)
    os.sync()
    used = os.statvfs(folder).f_bfree * os.statvfs(folder).f_frsize
    before = listing(source)
    assert copy_tree(shell, source, folder / "copy") == method
    os.sync()
    used -= os.statvfs(folder).f_bfree * os.statvfs(folder).f_frsize
    assert (used < 12 * MIB) == (method == "reflink"), "shared blocks take no room"
    assert listing(folder / "copy") == before
    assert len(owners(folder / "copy")) == 1
    with (folder / "copy" / "bulk").open("r+b") as file:
        file.write(b"changed")
    (folder / "copy" / "base" / "5" / "small").unlink()
    assert listing(source) == before, "the template stays as it is"


def test_between_two_file_systems_it_is_copied(
    scratch: Path, shell: Shell, provide: Provide, fill: Callable[[Path], Path]
) -> None:
    folder = provide("xfs", "304MB")
    source = fill(scratch / "source")
    assert copy_tree(shell, source, folder / "there") == "parallel copy"
    assert copy_tree(shell, folder / "there", scratch / "back") == "parallel copy"
    assert listing(source) == listing(folder / "there") == listing(scratch / "back")


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_a_full_disk_is_told_with_its_figures_and_the_half_copy_goes(
    kind: FileSystem, scratch: Path, shell: Shell, provide: Provide
) -> None:
    folder = provide(kind, "32MB")
    source = scratch / "source"
    source.mkdir()
    for name in ("one", "two"):
        (source / name).write_bytes(os.urandom(20 * MIB))
    with pytest.raises(
        ServerError, match=rf"no room for a copy .* in {folder}: it takes 40 MiB, \d+ were left: make room"
    ) as caught:
        copy_tree(shell, source, folder / "copy")
    assert "\n" not in str(caught.value)
    assert list(folder.iterdir()) == []


def test_a_failure_names_its_reason_and_the_file(
    scratch: Path, shell: Shell, fill: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(target: int, source: int, offset: int, count: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "sendfile", broken)
    monkeypatch.setattr(copying, "_FICLONE", 0)
    source = fill(scratch / "source")
    with pytest.raises(ServerError, match=r"copying the loaded data set failed: Input/output error: .*copy"):
        copy_tree(shell, source, scratch / "copy")
    assert not (scratch / "copy").exists()


@pytest.mark.parametrize("reason", [KeyboardInterrupt, MemoryError])
def test_an_interruption_goes_on_and_leaves_no_half_copy(
    reason: type[BaseException],
    scratch: Path,
    shell: Shell,
    fill: Callable[[Path], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(piece: object) -> None:
        raise reason

    monkeypatch.setattr(copying, "_copy_piece", interrupted)
    source = fill(scratch / "source")
    monkeypatch.setattr(copying, "_FICLONE", 0)
    before = listing(source)
    with pytest.raises(reason):
        copy_tree(shell, source, scratch / "copy")
    assert not (scratch / "copy").exists()
    assert listing(source) == before


def test_ctrl_c_stops_a_copy_that_is_under_way(
    scratch: Path, shell: Shell, fill: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []

    def slow(piece: object) -> None:
        if not done:
            signal.raise_signal(signal.SIGINT)
        done.append(piece)

    monkeypatch.setattr(copying, "_PIECE", 4096)
    monkeypatch.setattr(copying, "_FICLONE", 0)
    monkeypatch.setattr(copying, "_copy_piece", slow)
    former = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            copy_tree(shell, fill(scratch / "source"), scratch / "copy")
    finally:
        signal.signal(signal.SIGINT, former)
    assert not (scratch / "copy").exists()


def test_what_is_there_already_is_never_touched(
    scratch: Path, shell: Shell, fill: Callable[[Path], Path]
) -> None:
    source, other = fill(scratch / "source"), fill(scratch / "other")
    before = listing(other)
    with pytest.raises(ServerError, match="is there already"):
        copy_tree(shell, source, other)
    assert listing(other) == before


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("missing", "copy", "No such file or directory: .*missing"),
        ("source", "no/such", "No such file .*no/such"),
    ],
)
def test_a_path_that_is_not_there_is_named(
    source: str, target: str, words: str, scratch: Path, shell: Shell, fill: Callable[[Path], Path]
) -> None:
    fill(scratch / "source")
    with pytest.raises(ServerError, match=words):
        copy_tree(shell, scratch / source, scratch / target)


def test_what_is_no_file_is_refused(scratch: Path, shell: Shell, fill: Callable[[Path], Path]) -> None:
    source = fill(scratch / "source")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(source / "s"))
        assert stat.S_ISSOCK((source / "s").stat().st_mode)
        with pytest.raises(ServerError, match=r"source/s is neither file, folder nor link"):
            copy_tree(shell, source, scratch / "copy")
    assert not (scratch / "copy").exists()
