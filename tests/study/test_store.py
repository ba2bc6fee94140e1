"""What is kept is whole or not there, and what is damaged is named."""

import errno
import os
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import pytest
from kept import contents, refused

from benchlib.errors import StudyError
from benchlib.host import files
from benchlib.plan.design import Trial
from benchlib.plan.model import Measurement
from benchlib.study import store
from benchlib.study.store import CHECKSUMS, MEASUREMENT, StudyFolder, project_root, study_names, walk

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
OUTPUT = b"tps = 5\r\n\xff\n"


def measurement(trial: Trial, error: str = "“lost”") -> Measurement:
    return Measurement(trial=trial, started_s=1.0, finished_s=2.0, error=error)


@pytest.fixture
def folder(folder_of) -> StudyFolder:
    return folder_of()


@pytest.fixture
def trial(folder: StudyFolder) -> Trial:
    return folder.read().trials[0]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """What a trial has left where it ran."""
    (folder := tmp_path / "raw").mkdir()
    for name, content in {"stdout": OUTPUT, "stderr": b"", "statistics.json": b'{"before": {}}'}.items():
        (folder / name).write_bytes(content)
    return folder


BAD_NAMES = (
    "", "a b", "a\n", "a\0", "x" * 101, "..", "a/b", "/etc", ".hidden", "-p", "é", "index", "summary", "calibration",
    "comparisons", "campaign", "x.study",
)  # fmt: skip


def test_names_that_are_no_portable_names_of_folders_are_refused(data_root: Path) -> None:
    for name in BAD_NAMES:
        assert repr(name) in refused(StudyFolder, name)
    assert not any(data_root.iterdir())


def test_data_are_where_the_variable_says_else_in_the_project(data_root, tmp_path, monkeypatch) -> None:
    assert store.data_root() == data_root
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(store.DATA_VARIABLE, "here")
    assert f"BENCHLIB_DATA names {tmp_path}/here" in refused(store.data_root)
    (tmp_path / "here").mkdir()
    assert store.data_root() == tmp_path / "here"
    monkeypatch.setenv(store.DATA_VARIABLE, "")
    for name in ("notebooks", "deep/er"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep" / "er")
    assert project_root() == tmp_path
    assert store.data_root() == tmp_path / "data"


def test_a_study_that_cannot_be_written_leaves_the_former_one(folder, study_of, monkeypatch) -> None:
    monkeypatch.setattr(os, "fsync", Mock(side_effect=FULL))
    assert "free some space" in refused(folder.write, study_of(5), kind=StudyError)
    assert folder.read().blocks == 2
    folder.withdraw()
    assert not folder.path.exists(), "it has no trials"


def test_only_studies_are_listed_and_named_where_another_is_asked_for(folder_of, data_root: Path) -> None:
    assert study_names() == []
    assert "(there is: none yet)" in refused(StudyFolder("c").read)
    for name in ("b", "a"):
        folder_of(name=name)
    for name in ("published", "old copy"):
        (data_root / name).mkdir()
    (data_root / "old copy" / "study.json").write_bytes((data_root / "a" / "study.json").read_bytes())
    assert study_names() == [folder.name for folder in walk()] == ["a", "b"]
    assert refused(StudyFolder("c").read) == "no study 'c' in data/ (there is: a, b)"


def test_a_trial_is_kept_with_its_raw_files_verbatim(folder: StudyFolder, raw: Path) -> None:
    other, trial = folder.read().trials[:2]
    folder.keep(measurement(trial), raw)
    folder.keep(measurement(other), raw)
    assert list(folder.kept()) == [other.id, trial.id], "in the order of the design"
    assert folder.kept()[trial.id].error == "“lost”"
    assert folder.raw(trial.id, "stdout") == OUTPUT
    assert folder.raw(trial.id, "nothing") is None
    saved = contents(folder.path / "trials" / trial.id)
    assert saved.pop(MEASUREMENT)
    assert saved == contents(raw)
    (folder.path / "trials" / trial.id / MEASUREMENT).write_text("{}")
    assert refused(folder.kept).startswith(f"small: trials/{trial.id}/measurement.json is damaged (")
    (folder.path / "study.json").write_bytes(b"\xff\xfe")
    assert refused(folder.read).startswith("small/study.json is damaged (")


@pytest.mark.parametrize("reason", [FULL, KeyboardInterrupt()], ids=["full disk", "interruption"])
@pytest.mark.parametrize(
    ("module", "step", "done"), [(files, "copy", 0), (files, "copy", 2), (os, "rename", 0), (os, "rename", 2)]
)
def test_a_trial_that_is_cut_off_leaves_nothing(
    folder: StudyFolder, trial: Trial, raw: Path, monkeypatch: pytest.MonkeyPatch, module, step, done, reason
) -> None:
    stopped = Mock(wraps=getattr(module, step), side_effect=[*[DEFAULT] * done, reason])
    with monkeypatch.context() as patched:
        patched.setattr(module, step, stopped)
        with pytest.raises(StudyError if reason is FULL else KeyboardInterrupt, match=r"No space left|^$"):
            folder.keep(measurement(trial), raw)
    assert folder.kept() == {}
    assert contents(folder.path).keys() <= {"study.json", CHECKSUMS}
    (pending := folder.path / "trials" / f".pending-{trial.id}").mkdir()
    (pending / "plans.json").write_text("{}")  # as a kill leaves it, and in the list half a line
    with (folder.path / CHECKSUMS).open("ab") as listed:
        listed.write(b"0123456789abcdef" * 3)
    again = StudyFolder(folder.name)
    again.keep(measurement(trial, "lost again"), raw)
    assert [*again.kept()] == [path.name for path in pending.parent.iterdir()] == [trial.id]
    assert contents(pending.parent / trial.id).keys() == (kept := {*contents(raw), MEASUREMENT})
    assert again.checksums().keys() == {f"trials/{trial.id}/{name}" for name in kept}
    assert {len(either) for either in again.checksums().values()} == {1}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the names of open files are Linux's to tell")
def test_everything_is_on_disk_before_the_name_is_given(folder, trial: Trial, raw: Path, monkeypatch) -> None:
    done, rename = [], os.rename
    monkeypatch.setattr(
        os, "fsync", lambda handle: done.append(Path(f"/proc/self/fd/{handle}").readlink().name)
    )
    monkeypatch.setattr(os, "rename", lambda name, to, **at: (done.append(to), rename(name, to, **at)))
    folder.keep(measurement(trial), raw)
    before = done[: done.index(trial.id)]
    assert {*before} >= {*contents(raw), MEASUREMENT, f".pending-{trial.id}"}
    assert done[-1] == "trials"


def test_a_trial_set_aside_stays_as_evidence_each_time(folder: StudyFolder, trial: Trial, raw: Path) -> None:
    (folder.path / "spoilt" / f"{trial.id}.2").mkdir(parents=True)  # of a former trial, whose first is gone
    for number in (1, 3):
        folder.keep(measurement(trial, error=f"lost {number}"), raw)
        folder.set_aside(trial.id)
        assert folder.kept() == {}
    assert folder.checksums() == {}
    for number in (1, 3):
        evidence = contents(folder.path / "spoilt" / f"{trial.id}.{number}")
        assert f'"lost {number}"' in evidence[MEASUREMENT].decode()
        assert evidence["stdout"] == OUTPUT
    folder.withdraw()
    assert folder.exists(), "there is evidence"
