"""What is left of a run is stopped, undone and removed in an order that harms nobody."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from needs import root

from benchlib.host.changes import Made, Mounted
from benchlib.host.journal import Journal
from benchlib.host.sweep import JOURNAL, processes_of, sweep


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run-x").mkdir(mode=0o700)
    (tmp_path / "run-x" / "c000" / "data").mkdir(parents=True)
    (tmp_path / "run-x" / "c000" / "data" / "file").write_text("ours")
    return tmp_path / "run-x"


@pytest.fixture
def journal(folder: Path) -> Journal:
    return Journal(folder / JOURNAL)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started = []

    def process(*words: object, **more: object) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([str(word) for word in words], **more))  # type: ignore[call-overload]
        return started[-1]

    yield process
    for process_ in started:
        process_.kill()
        process_.wait()


@pytest.fixture
def mounted(folder: Path, mount: Callable[..., Path]) -> Path:
    """A file system in memory inside the folder, with a file that is not ours to remove."""
    target = mount(folder / "c000" / "m")
    (target / "precious").touch()
    return target


@root
def test_what_is_mounted_is_never_removed_through(folder: Path, mounted: Path) -> None:
    swept = sweep(folder)
    assert swept.resisting == [f"a file system is mounted on {mounted}"]
    assert (mounted / "precious").exists()
    assert str(swept) == "run-x: nothing could be undone"


@root
def test_a_mount_that_is_noted_is_undone_first(folder: Path, mounted: Path, journal: Journal) -> None:
    change = Mounted(target=mounted)
    journal.chapter().note(change)
    swept = sweep(folder)
    assert swept.resisting == []
    assert not folder.exists()
    assert str(swept) == f"run-x: undid the {change}; removed its folder"


def test_a_journal_that_cannot_be_read_in_part_stays_for_a_person(folder: Path, journal: Journal) -> None:
    journal.path.touch(mode=0o600)
    journal.path.write_text("garbage\n")
    (line,) = sweep(folder).resisting
    assert "cannot be read, undo it by hand: garbage" in line
    assert journal.path.exists()
    journal.path.unlink()
    assert sweep(folder).resisting == []
    assert not folder.exists()


def test_processes_in_a_folder_of_ours_elsewhere_are_stopped_too(
    folder: Path, journal: Journal, tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    made = Made(folder=tmp_path / "benchlib-x")
    journal.chapter().note(made)
    made.make()
    (made.folder / "data").mkdir()
    here = start("sleep", "99", cwd=made.folder / "data")
    neighbour = start("sleep", "99", cwd=tmp_path)
    assert [process.pid for process in processes_of(folder, made.folder)] == [here.pid]
    swept = sweep(folder)
    assert (swept.done[0], swept.resisting) == ("stopped 1 process(es)", [])
    assert here.wait(1) == -9
    assert neighbour.poll() is None
    assert not made.folder.exists()
