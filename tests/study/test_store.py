"""What is kept is whole or not there, and what is damaged is named."""

import errno
import json
import os
from pathlib import Path
from typing import IO

import pytest

from benchlib.errors import InputError, StudyError
from benchlib.host import files
from benchlib.plan.design import Trial
from benchlib.plan.model import Measurement
from benchlib.study import store
from benchlib.study.store import StudyFolder, project_root, study_names, walk


def measurement(trial: Trial, **changes: object) -> Measurement:
    return Measurement.model_validate(
        {"trial": trial, "started_s": 1.0, "finished_s": 2.0, "error": "“lost”", **changes}
    )


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    folder.mkdir()
    (folder / "stdout").write_bytes(b"tps = 5\r\n\xff\n")
    (folder / "stderr").write_bytes(b"")
    (folder / "statistics.json").write_text('{"before": {}}')
    return folder


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def refused(kind, action, *args) -> str:
    with pytest.raises(kind) as caught:
        action(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "a/b",
        "/etc",
        ".hidden",
        "-p",
        "a b",
        "a\n",
        "é",
        "x" * 101,
        "a\0",
        "index",
        "summary",
        "calibration",
    ],
)
def test_a_study_may_not_have_another_name(name: str, data_root: Path) -> None:
    assert refused(InputError, StudyFolder, name).startswith(f"study name {name!r}: want letters")
    assert not any(data_root.iterdir())


def test_data_are_where_the_variable_says_else_in_the_project(
    data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.data_root() == data_root
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(store.DATA_VARIABLE, "here")
    assert refused(InputError, store.data_root).startswith(
        f"BENCHLIB_DATA names {tmp_path}/here, which is not there"
    )
    (tmp_path / "here").mkdir()
    assert store.data_root() == tmp_path / "here"
    monkeypatch.setenv(store.DATA_VARIABLE, "")
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep" / "er")
    assert project_root() == tmp_path
    assert store.data_root() == tmp_path / "data"


def test_a_study_that_cannot_be_written_leaves_the_former_one(
    folder_of, study_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(2)
    monkeypatch.setattr(os, "fsync", full_disk)
    message = refused(StudyError, folder.write, study_of(5))
    assert "free some space, or make it writable, and run again" in message
    assert folder.read().blocks == 2


def test_an_unknown_study_is_told_with_those_that_there_are(folder_of, data_root: Path) -> None:
    assert refused(InputError, StudyFolder("smal").read) == "no study 'smal' in data/ (there is: none yet)"
    folder_of()
    folder_of(name="other")
    assert (
        refused(InputError, StudyFolder("smal").read) == "no study 'smal' in data/ (there is: other, small)"
    )


def test_a_damaged_study_is_named(folder_of) -> None:
    folder = folder_of()
    (folder.path / "study.json").write_bytes(b"\xff\xfe")
    assert refused(InputError, folder.read).startswith("small/study.json is damaged (")


def test_a_trial_is_kept_with_its_raw_files_verbatim(folder_of, raw: Path) -> None:
    folder = folder_of()
    other, trial = folder.read().trials[:2]
    folder.keep(measurement(trial), raw)
    folder.keep(measurement(other), raw)
    assert list(folder.kept()) == [other.id, trial.id], "in the order of the design"
    assert folder.kept()[trial.id].error == "“lost”"
    place = folder.path / "trials" / trial.id
    assert everything(place) == ["measurement.json", "statistics.json", "stderr", "stdout"]
    assert folder.raw(trial.id, "stdout") == b"tps = 5\r\n\xff\n"
    assert folder.raw(trial.id, "nothing") is None


def test_nothing_is_visible_of_a_copy_that_fails_half_way(
    folder_of, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of()
    trial = folder.read().trials[0]
    copy = files.copy

    def failing(source: IO[bytes], target: Path) -> None:
        copy(source, target)
        if len(list(target.parent.iterdir())) == 2:
            full_disk()

    monkeypatch.setattr(files, "copy", failing)
    message = refused(StudyError, folder.keep, measurement(trial), raw)
    assert message.endswith("(No space left on device)")
    assert folder.kept() == {}
    assert everything(folder.path) == ["study.json"]
    monkeypatch.undo()


def test_nothing_is_visible_when_a_kill_comes_in_between(
    folder_of, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of()
    trial = folder.read().trials[0]

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            folder.keep(measurement(trial), raw)
    assert folder.kept() == {}
    (raw / "statistics.json").unlink()  # the next attempt fails earlier, and leaves less
    folder.keep(measurement(trial), raw)
    assert [path.name for path in (folder.path / "trials").iterdir()] == [trial.id]
    assert [*folder.kept()] == [trial.id]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the names of open files are Linux's to tell")
def test_everything_is_on_disk_before_the_name_is_given(
    folder_of, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of()
    trial = folder.read().trials[0]
    synced: list[Path] = []
    before: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(Path(f"/proc/self/fd/{handle}").readlink()))
    rename = os.rename

    def renamed(name: str, target: str, **folders: int) -> None:
        if target == trial.id:
            before.extend(synced)
        rename(name, target, **folders)

    monkeypatch.setattr(os, "rename", renamed)
    folder.keep(measurement(trial), raw)
    names = {path.name for path in before}
    assert names >= {"stdout", "stderr", "statistics.json", "measurement.json", f".pending-{trial.id}"}
    assert synced[-1] == folder.path / "trials"


def test_a_damaged_measurement_is_named(folder_of, raw: Path) -> None:
    folder = folder_of()
    trial = folder.read().trials[0]
    folder.keep(measurement(trial), raw)
    (folder.path / "trials" / trial.id / "measurement.json").write_text("{}")
    message = refused(InputError, folder.kept)
    assert message.startswith(f"small: trials/{trial.id}/measurement.json is damaged (")


def test_a_trial_set_aside_stays_as_evidence_each_time(folder_of, raw: Path) -> None:
    folder = folder_of()
    trial = folder.read().trials[0]
    for number in (1, 2):
        folder.keep(measurement(trial, error=f"lost {number}"), raw)
        folder.set_aside(trial.id)
        assert folder.kept() == {}
    spoilt = folder.path / "spoilt"
    assert sorted(path.name for path in spoilt.iterdir()) == [f"{trial.id}.1", f"{trial.id}.2"]
    for number in (1, 2):
        kept = json.loads((spoilt / f"{trial.id}.{number}" / "measurement.json").read_text())
        assert kept["error"] == f"lost {number}"
        assert (spoilt / f"{trial.id}.{number}" / "stdout").read_bytes() == b"tps = 5\r\n\xff\n"


def test_only_studies_are_listed(folder_of, data_root: Path) -> None:
    assert study_names() == []
    folder_of(name="b")
    folder_of(name="a")
    (data_root / "published").mkdir()
    (data_root / "old copy").mkdir()
    (data_root / "old copy" / "study.json").write_bytes((data_root / "a" / "study.json").read_bytes())
    assert study_names() == ["a", "b"]
    assert [folder.name for folder in walk()] == ["a", "b"]
