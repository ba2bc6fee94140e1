"""A kept study gets another name, other words, goes, or travels in one file: whole at any moment, whatever comes in between."""

import os
import stat
import zipfile
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from clusters import begun
from fakes import FakeBench

from benchlib.errors import HostBusyError, InputError, StudyError
from benchlib.host import lock
from benchlib.study import curate
from benchlib.study.experiment import shown
from benchlib.study.loop import keep_study, run_study
from benchlib.study.store import CHECKSUMS, StudyFolder, study_names
from benchlib.study.trim import trim


@pytest.fixture
def study(folder_of, tmp_path: Path) -> StudyFolder:
    """A study of three blocks that has been run, with a trial that was set aside."""
    folder: StudyFolder = folder_of(3)
    tps = dict.fromkeys(folder.read().plan.factor.levels, 1000.0) | {"tuned": 1500.0}
    run_study(folder, FakeBench(folder.read().plan, tmp_path, tps, instruments=True).open)
    folder.set_aside(next(iter(folder.kept())))
    return folder


def contents(folder: StudyFolder) -> dict[str, bytes]:
    paths = [path for path in folder.path.rglob("*") if path.is_file() and "study.json" not in path.name]
    return {path.relative_to(folder.path).as_posix(): path.read_bytes() for path in paths}


def hidden(root: Path) -> list[str]:
    return [path.name for path in root.iterdir() if path.name.startswith(".")]


def refused(kind, action, *args) -> str:
    with pytest.raises(kind) as caught:
        action(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


class Killed(BaseException):
    """What nothing catches, as a kill."""


# --- rename, delete, edit -----------------------------------------------------------


def test_a_study_gets_another_name_and_stays_what_it_is(study: StudyFolder, data_root: Path) -> None:
    before, plan = contents(study), study.read().plan
    curate.rename("small", "larger")
    renamed = StudyFolder("larger")
    assert study_names() == ["larger"]
    assert (renamed.read().name, renamed.read().plan) == ("larger", plan)
    assert renamed.read().parameters["study"] == "larger"
    assert contents(renamed) == before
    assert hidden(data_root) == []


def test_a_name_that_is_taken_or_none_is_refused(study: StudyFolder, folder_of, data_root: Path) -> None:
    folder_of(name="other")
    (data_root / "file").write_text("")
    for name in ("other", "file"):
        assert (
            refused(InputError, curate.rename, "small", name)
            == f"there is a '{name}' in data/ already: name another"
        )
    for name in ("../out", "a/b", ".hidden", "index", "summary", ""):
        assert refused(InputError, curate.rename, "small", name).startswith(
            f"study name {name!r}: want letters"
        )
    assert "no study 'none' in data/ (there is: other, small)" in refused(
        InputError, curate.rename, "none", "x"
    )
    assert study_names() == ["other", "small"]


def test_a_rename_that_is_killed_is_ended_by_the_same_again(
    study: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(study)
    rename = os.rename

    def killed(name: str, target: str, **folders: int) -> None:
        if name == study.name:
            raise Killed
        rename(name, target, **folders)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", killed)
        with pytest.raises(Killed):
            curate.rename("small", "larger")
    assert study_names() == ["small"]
    assert len(study.kept()) == 8
    curate.rename("small", "larger")
    assert contents(StudyFolder("larger")) == before


@pytest.mark.parametrize("change", [lambda: curate.rename("small", "x"), lambda: curate.delete("small"), lambda: trim(StudyFolder("small"))])  # fmt: skip
def test_a_study_that_is_being_run_is_left_alone(
    change, study: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curate, "held_by", lambda: "study “small” (process 7, since 2026-01-01 00:00)")
    assert "study “small” (process 7" in refused(HostBusyError, change)
    assert study_names() == ["small"]
    monkeypatch.setattr(curate, "held_by", lambda: "study “smaller” (process 7, since 2026-01-01 00:00)")
    with study.held():  # by a driver on this machine, whose fleet is elsewhere
        assert "study “small” is being run by a fleet" in refused(HostBusyError, change)
    change()


def test_who_runs_a_study_says_its_name() -> None:
    with lock.host_lock("study “small”"):
        if (holder := lock.held_by()) is None:
            pytest.skip("who holds a lock cannot be told here")
        assert "“small”" in holder


def test_a_study_goes_and_no_other(study: StudyFolder, folder_of, data_root: Path) -> None:
    folder_of(name="other")
    (data_root / "other" / "study.json").write_text("{")
    curate.delete("small")
    assert study_names() == ["other"]
    curate.delete("other")
    assert list(data_root.iterdir()) == []
    assert "no study 'small'" in refused(InputError, curate.delete, "small")


def test_of_a_study_that_is_a_link_only_the_link_goes(
    study: StudyFolder, data_root: Path, tmp_path: Path
) -> None:
    study.path.rename(tmp_path / "elsewhere")
    study.path.symlink_to(tmp_path / "elsewhere")
    curate.delete("small")
    assert study_names() == []
    assert (tmp_path / "elsewhere" / "study.json").is_file()


def test_words_change_and_plan_and_data_do_not(study: StudyFolder) -> None:
    before, plan = contents(study), study.read().plan
    curate.edit(
        "small", {"question": "Is more memory faster?", "title": "Memory", "notes": "On the old disk."}
    )
    now = study.read()
    assert (now.plan.factor.question, now.title, now.notes) == (
        "Is more memory faster?",
        "Memory",
        "On the old disk.",
    )
    assert now.parameters["question"] == "Is more memory faster?"
    assert now.plan.factor.model_copy(update={"question": plan.factor.question}) == plan.factor
    assert now.plan.model_copy(update={"factor": plan.factor}) == plan
    assert contents(study) == before
    curate.edit("small", {"question": "Third?", "notes": ""})
    assert study.read().provenance["question_as_run"] == plan.factor.question
    assert "Notes" not in shown(study).facts()
    for words in ({}, {"question": " "}, {"title": ""}):
        refused(InputError, curate.edit, "small", words)


def test_what_asks_the_former_question_again_goes_on_and_what_asks_a_third_is_told_how(
    study: StudyFolder,
) -> None:
    asked = study.read().model_copy(update={"parameters": {"question": "Does it help?"}})
    curate.edit("small", {"question": "Another?"})
    kept = keep_study(study, asked)
    assert (kept.plan.factor.question, kept.parameters["question"]) == ("Another?", "Another?")
    factor = asked.plan.factor.model_copy(update={"question": "A third?"})
    third = asked.model_copy(update={"plan": asked.plan.model_copy(update={"factor": factor})})
    message = refused(InputError, keep_study, study, third)
    assert message.endswith(
        "choose another name (-p study NAME), or change its question: 'benchlib studies edit'"
    )


# --- one file and back --------------------------------------------------------------


def test_a_study_travels_in_one_file_with_identical_numbers(study: StudyFolder, tmp_path: Path) -> None:
    before, table = contents(study), shown(study).analysis.table.to_csv()
    file = tmp_path / "x.study.zip"
    curate.export("small", file)
    assert "there already" in refused(InputError, curate.export, "small", file)
    assert "'small' in data/ already" in refused(InputError, curate.import_study, file)
    again = curate.import_study(file, "again")
    assert (again.name, again.read().name) == ("again", "again")
    assert contents(again) == before
    assert shown(again).analysis.table.to_csv() == table
    curate.delete("small")
    assert curate.import_study(file).path == study.path
    assert contents(study) == before
    assert hidden(tmp_path) == hidden(study.path.parent) == []


def test_checksums_are_read_after_the_trials_that_they_list(study: StudyFolder, tmp_path: Path) -> None:
    curate.export("small", tmp_path / "x.zip")
    with zipfile.ZipFile(tmp_path / "x.zip") as archive:
        assert archive.namelist()[-1] == f"small/{CHECKSUMS}"


def test_links_and_unfinished_files_stay_at_home(study: StudyFolder, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (study.path / "link").symlink_to(tmp_path / "secret")
    (study.path / ".pending-study.json").write_text("half")
    curate.export("small", tmp_path / "x.zip")
    with zipfile.ZipFile(tmp_path / "x.zip") as archive:
        assert not [name for name in archive.namelist() if "link" in name or "pending" in name]


def test_what_is_damaged_is_not_handed_on(study: StudyFolder, tmp_path: Path) -> None:
    next(study.path.glob("trials/*/stdout")).write_text("another")
    assert "it is not the one that was kept" in refused(
        InputError, curate.export, "small", tmp_path / "x.zip"
    )
    assert not (tmp_path / "x.zip").exists()


def test_where_nothing_can_be_written_is_said(study: StudyFolder, tmp_path: Path) -> None:
    file = tmp_path / "nowhere" / "x.zip"
    assert refused(InputError, curate.export, "small", file).startswith(f"cannot write {file} (")


STEPS: dict[str, Callable[[Path], object]] = {
    "export": lambda file: curate.export("small", file),
    "import": lambda file: curate.import_study(file, "again"),
    "rename": lambda _: curate.rename("small", "larger"),
    "delete": lambda _: curate.delete("small"),
}


def dying(step: str, number: int, file: Path) -> None:
    """Take a step, and be gone when so many files have been put on disk; in a process of its own."""
    calls = count()

    def dies(_: int) -> None:
        if next(calls) == number:
            os._exit(9)

    os.fsync = dies  # type: ignore[assignment]  # of this process alone
    STEPS[step](file)


@pytest.mark.parametrize(
    ("step", "number"),
    [("export", 0), ("export", 1), ("import", 0), ("import", 5), ("rename", 0), ("rename", 2), ("delete", 0)],
)
def test_a_kill_leaves_a_study_whole_or_not_at_all(
    step: str, number: int, study: StudyFolder, tmp_path: Path
) -> None:
    before, file = contents(study), tmp_path / "x.zip"
    if step == "import":
        curate.export("small", file)
    child = begun(dying, step, number, file)
    child.join()
    assert child.exitcode == 9
    names = study_names()
    if step == "export":
        assert names == ["small"]
        assert file.exists() == (number == 1), "it has its name once it is whole"
        if number == 0:
            curate.export("small", file)
        assert contents(curate.import_study(file, "again")) == before
    if step == "import":
        assert names == ["small"]
        assert contents(curate.import_study(file, "again")) == before
    if step == "rename":
        assert len(names) == 1
        assert contents(StudyFolder(names[0])) == before
        if names == ["small"]:
            curate.rename("small", "larger")
        assert len(StudyFolder("larger").kept()) == 8
    if step == "delete":
        assert names == []
        curate.delete("small")
    assert hidden(tmp_path) == hidden(study.path.parent) == []


def archive_of(path: Path, *members: tuple[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return path


HOSTILE = {
    "no archive": None,
    "empty": (),
    "above": (("../../etc/evil", b"x"),),
    "below": (("a/../../evil", b"x"),),
    "absolute": (("/etc/evil", b"x"),),
    "drive": (("C:\\evil\\study.json", b"x"),),
    "hidden": (("a/.ssh/keys", b"x"),),
    "deep": (("a/b/c/d/e", b"x"),),
    "two": (("a/study.json", b"{}"), ("b/study.json", b"{}")),
    "twice": (("a/study.json", b"{}"), ("a/study.json", b"{ }")),
    "bare": (("study.json", b"{}"),),
    "no study": (("a/readme", b"x"),),
    "broken": (("a/study.json", b"{"),),
    "a page": (("index/study.json", b"{}"),),
    "a bomb": tuple((f"a/trials/{number}/x", bytes(30 << 20)) for number in range(2)),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_no_study_is_refused_and_nothing_of_it_is_kept(
    kind: str, data_root: Path, tmp_path: Path
) -> None:
    file, members = tmp_path / "x.zip", HOSTILE[kind]
    if members is None:
        file.write_bytes(b"PK\x03\x04 is not all that it takes")
    else:
        archive_of(file, *members)
    before = sorted(tmp_path.rglob("*"))
    refused(InputError, curate.import_study, file)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_in_a_file_becomes_no_link(data_root: Path, tmp_path: Path) -> None:
    member = zipfile.ZipInfo("a/study.json")
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(member, "/etc/passwd")
    refused(InputError, curate.import_study, tmp_path / "x.zip")
    assert list(data_root.iterdir()) == []


def test_a_file_that_was_bent_is_refused_or_has_the_same_numbers(study: StudyFolder, tmp_path: Path) -> None:
    before, file, random = contents(study), tmp_path / "x.zip", np.random.default_rng(1)
    curate.export("small", file)
    curate.delete("small")
    whole = file.read_bytes()
    for place in random.integers(0, len(whole), 40).tolist():
        file.write_bytes(whole[:place] + random.bytes(2) + whole[place + 2 :])
        try:
            folder = curate.import_study(file)
        except (InputError, StudyError):
            assert study_names() == []
            continue
        assert contents(folder) == before
        curate.delete(folder.name)


def test_a_full_disk_while_a_study_comes_leaves_nothing(
    study: StudyFolder, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curate.export("small", tmp_path / "x.zip")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(zipfile.ZipFile, "extractall", full)
    message = refused(StudyError, curate.import_study, tmp_path / "x.zip", "b")
    assert message.endswith("(No space left on device)")
    assert study_names() == ["small"]
    assert hidden(data_root) == []
