"""The command that undoes what a crash left, as its callers meet it."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from benchlib.cli import main
from benchlib.host.changes import Made, Written
from benchlib.host.journal import Journal


class Outcome(NamedTuple):
    status: str | int | None
    out: str
    err: str


@pytest.fixture
def recover(capsys: pytest.CaptureFixture[str], scratch: Path) -> Callable[[], Outcome]:
    def call() -> Outcome:
        status: str | int | None = 0
        try:
            main(["recover"])
        except SystemExit as reason:
            status = reason.code
        return Outcome(status, *capsys.readouterr())

    return call


@pytest.fixture
def crashed(scratch: Path) -> Journal:
    """The journal of a run that ended without a word."""
    (scratch / "run-gone").mkdir(mode=0o700)
    return Journal(scratch / "run-gone" / "journal")


def test_each_run_has_a_line_that_says_what_was_undone(
    recover: Callable[[], Outcome], crashed: Journal, scratch: Path, tmp_path: Path, kernel_root: Path
) -> None:
    tunable = kernel_root / "proc/sys/vm/swappiness"
    tunable.parent.mkdir(parents=True)
    tunable.write_text("7")
    chapter = crashed.chapter()
    chapter.note(Written(path=tunable, former="60", value="7"))
    made = Made(folder=tmp_path / "benchlib-x")
    chapter.note(made)
    made.make()
    (scratch / "run-older").mkdir(mode=0o711)  # as they were made formerly
    assert recover() == Outcome(
        0,
        f"run-gone: undid the {tunable} set to 7, before 60; undid the folder {made.folder}; removed its folder\n"
        "run-older: removed its folder\n",
        "",
    )
    assert tunable.read_text() == "60"
    assert not made.folder.exists()
    assert list(scratch.iterdir()) == []


def test_what_resists_is_named_and_is_undone_when_it_no_longer_does(
    recover: Callable[[], Outcome], crashed: Journal, scratch: Path, kernel_root: Path
) -> None:
    tunable = kernel_root / "proc/sys/vm/swappiness"
    tunable.mkdir(parents=True)  # no file, so it cannot be written
    crashed.chapter().note(Written(path=tunable, former="60", value="7"))
    outcome = recover()
    assert outcome.status == 1
    first, last = outcome.err.splitlines()
    assert first.startswith(f"run-gone: resists: {tunable} set to 7, before 60: ")
    assert last.startswith("benchlib: something resists: undo it by hand and remove ")
    assert str(crashed.path.parent) in last
    assert outcome.out == "run-gone: nothing could be undone\n"
    assert crashed.path.exists()
    tunable.rmdir()
    assert recover().status == 0
    assert list(scratch.iterdir()) == []
