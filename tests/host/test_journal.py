"""What is noted is undone, at whatever byte a crash cuts the journal off."""

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from host_parts import spoilt
from hypothesis import given, settings
from hypothesis import strategies as st

from benchlib.errors import PreflightError, StudyError
from benchlib.host import facts
from benchlib.host import journal as module
from benchlib.host.changes import Written
from benchlib.host.journal import Change, Journal
from benchlib.server.changes import Altered

OF_A_SERVER = Altered(server="s", name="work_mem", former=None, value="8MB")


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "journal")


def setting(path, value="7"):
    return Written(path=path, former="60", value=value)


# --- any prefix ---------------------------------------------------------------------


CHANGES = st.tuples(st.integers(0, 2), st.integers(0, 99).map(str), st.booleans())


@given(st.lists(st.one_of(st.just("open"), st.just("undo"), CHANGES), max_size=9))
@settings(max_examples=12)
def test_after_a_crash_at_any_moment_all_is_as_it_was(steps):
    with tempfile.TemporaryDirectory() as name, mock.patch.object(facts, "ROOT", Path(name)):
        files = [Path(name, f"proc/sys/tunable{n}") for n in range(3)]
        files[0].parent.mkdir(parents=True)
        for file in files:
            file.write_text("60")
        journal, pictures = Journal(Path(name, "journal")), []
        journal.path.touch(mode=0o600)

        def film(written=None):
            """All that a crash may leave now; of the last line any part, as long as it is being written."""
            text, values = journal.path.read_bytes(), [file.read_text() for file in files]
            start, end = text[:-1].rfind(b"\n") + 1, len(text)
            cuts = {start, start + 1, (start + end) // 2, end - 1, end} if written else {end}
            pictures.extend((text[:cut], values) for cut in cuts)

        scopes = [journal.scope()]
        with mock.patch("os.fsync", film):
            for step in steps:
                if step == "open":
                    scopes.append(journal.scope())
                elif step == "undo":
                    scopes[-1].undo()
                    scopes[1:] = scopes[1:-1]
                else:
                    number, value, made = step
                    scopes[-1].note(setting(files[int(number)], str(value)))
                    if made:
                        files[int(number)].write_text(str(value))
                film()
        for text, values in pictures:
            journal.path.write_bytes(text)
            for file, value in zip(files, values, strict=True):
                file.write_text(value)
            assert journal.undo() == []
            assert [file.read_text() for file in files] == ["60", "60", "60"]
            assert (journal.standing(), journal.undo()) == ([], [])


# --- what is written ----------------------------------------------------------------


def test_a_line_is_on_disk_before_its_change(journal, kernel, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    journal.scope().note(setting(kernel("a")))
    file, folder = journal.path, journal.path.parent
    assert synced == [file.stat().st_ino, folder.stat().st_ino], "and the file's name too"
    assert file.stat().st_mode & 0o777 == 0o600
    before = file.read_bytes()
    journal.undo()
    assert file.read_bytes().startswith(before), "lines are only ever added"


def test_what_cannot_be_noted_is_refused(journal, kernel, monkeypatch):
    scope, write = journal.scope(), os.write
    scope.note(setting(kernel("a")))
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda fd, data: write(fd, data[:9]))
        with pytest.raises(StudyError, match=r"nothing was changed, .*No space left on device"):
            scope.note(setting(kernel("b")))
        scope.undo()  # which cannot be noted either, so that it is done again
    scope.note(setting(kernel("c")))
    assert journal.standing() == [setting(kernel("a")), setting(kernel("c"))]
    assert journal.undo() == []


@spoilt
def test_only_a_plain_file_of_our_own_with_one_name_is_followed(spoil, journal, kernel, tmp_path):
    elsewhere, file = Journal(tmp_path / "evil"), kernel("a")
    elsewhere.scope().note(Written(path=file, former="evil", value="7"))
    spoil(journal.path, elsewhere.path)
    with pytest.raises(PreflightError, match="journal "):
        journal.undo()
    assert file.read_text() == "60"
    assert os.path.lexists(journal.path)


# --- undoing ------------------------------------------------------------------------


def test_only_its_own_scope_is_undone(journal, kernel):
    study, trial = kernel("study"), kernel("trial")
    journal.scope().note(setting(study))
    study.write_text("7")
    with contextlib.suppress(KeyboardInterrupt), journal.scope() as scope:
        scope.note(setting(trial))
        scope.note(Written(path=trial, former="7", value="8"))  # the newest is undone first
        trial.write_text("8")
        raise KeyboardInterrupt
    assert (study.read_text(), trial.read_text()) == ("7", "60")
    assert journal.standing() == [setting(study)]


def test_what_resists_is_named_stays_noted_and_holds_up_nothing(journal, kernel):
    older, stubborn, newer = files = [kernel(name) for name in ("older", "stubborn", "newer")]
    scope = journal.scope()
    for path in files:
        scope.note(setting(path))
        path.write_text("7")
    stubborn.unlink()
    stubborn.mkdir()  # no file, so it cannot be written
    with pytest.raises(StudyError, match=rf"^[^\n]*the kernel refuses '60' for {stubborn}[^\n]*$"):
        scope.undo()
    assert (older.read_text(), newer.read_text()) == ("60", "60")
    (line,) = Journal(journal.path).undo()
    assert str(stubborn) in line
    assert journal.standing() == [setting(stubborn)]
    stubborn.rmdir()
    newer.write_text("8")
    scope.undo()
    assert (journal.standing(), newer.read_text()) == ([], "8"), "what is undone is done with"


@pytest.mark.parametrize(
    "line",
    [
        b"garbage \xff",
        b'{"id": "1", "change": {"kind": "unheard-of", "path": "/x"}}',
        b'{"id": "1", "change": {"kind": "written", "path": "/x", "former": "1"}}',
        b'{"id": "1", "change": {"kind": "made", "folder": "/home/somebody"}}',
        b'{"struck": "1", "more": 1}',
    ],
)
def test_a_line_that_cannot_be_read_is_reported_alone(line, journal, kernel):
    files = [kernel("a"), kernel("b")]
    for file in files:
        journal.scope().note(setting(file))
        file.write_text("7")
    first, last = journal.path.read_bytes().splitlines(keepends=True)
    journal.path.write_bytes(line + b"\n" + first + line + b"\n" + last)
    for _ in range(2):
        told = [text.partition(", undo it by hand: ")[0] for text in journal.undo()]
        assert told == [f"line {number} of {journal.path} cannot be read" for number in (1, 3)]
        assert [file.read_text() for file in files] == ["60", "60"]


def test_a_process_that_knows_no_kind_of_change_reads_them_all(journal):
    """As the guardian, or ``benchlib recover`` after a crash."""
    changes = (setting(Path("/proc/sys/vm/swappiness")), OF_A_SERVER)
    for change in changes:
        journal.scope().note(change)
    script = "import sys, pathlib as p, benchlib.host.journal as j; print(*j.Journal(p.Path(sys.argv[1])).standing(), sep='\\n')"
    argv = [sys.executable, "-c", script, journal.path]
    assert subprocess.check_output(argv, text=True).splitlines() == [str(change) for change in changes]


def test_a_kind_that_is_gone_holds_up_nothing(journal, kernel, monkeypatch):
    file = kernel("a")
    file.write_text("7")
    for change in (setting(file), OF_A_SERVER):
        journal.scope().note(change)
    monkeypatch.setattr(module, "MODULES_OF_CHANGES", ("benchlib.host.changes", "benchlib.gone"))
    monkeypatch.setattr(Change, "__subclasses__", lambda: [Written])
    (complaint,) = journal.undo()
    assert complaint.startswith("line 2 of ")
    assert file.read_text() == "60"
