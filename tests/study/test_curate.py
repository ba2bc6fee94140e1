"""A kept study gets another name, other words, goes, or travels in one file: whole at any moment."""

import os
import stat
import zipfile
from pathlib import Path
from unittest.mock import Mock

import pytest
from kept import contents, ran, refused
from trim import trim

from benchlib.errors import HostBusyError
from benchlib.study import curate
from benchlib.study.experiment import shown
from benchlib.study.loop import keep_study
from benchlib.study.store import CHECKSUMS, StudyFolder, study_names


@pytest.fixture
def study(folder_of, tmp_path: Path) -> StudyFolder:
    """A study of two blocks that has been run, with a trial that was set aside."""
    folder = ran(folder_of(), tmp_path)
    folder.set_aside(next(iter(folder.kept())))
    return folder


def files(name: str) -> dict[str, bytes]:
    """All that is kept of a study but its own words."""
    return {path: data for path, data in contents(StudyFolder(name).path).items() if path != "study.json"}


def hidden(root: Path) -> list[str]:
    return [path.name for path in root.iterdir() if path.name.startswith(".")]


def test_a_study_gets_another_name_and_stays_what_it_is(study: StudyFolder) -> None:
    before, plan = files("small"), study.read().plan
    assert "study 'small' already exists in data/" in refused(curate.rename, "small", "small")
    curate.rename("small", "larger")
    renamed = StudyFolder("larger").read()
    assert study_names() == ["larger"]
    assert (renamed.name, renamed.parameters["study"], renamed.plan) == ("larger", "larger", plan)
    assert files("larger") == before
    assert hidden(study.path.parent) == []


RENAME, DELETE = lambda _: curate.rename("small", "x"), lambda _: curate.delete("small")


@pytest.mark.parametrize(("change", "ended"), [(RENAME, ["x"]), (DELETE, [])])
def test_an_interruption_leaves_it_whole_or_gone_and_the_same_again_ends_it(
    change, ended, study, monkeypatch
):
    before = files("small")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            change(study)
    assert study_names() == ["small"] * len(ended)
    change(study)
    assert study_names() == ended
    assert [files(name) for name in ended] == [before] * len(ended)
    assert hidden(study.path.parent) == []


@pytest.mark.parametrize("change", [RENAME, DELETE, trim])
def test_a_study_that_is_being_run_is_left_alone(change, study: StudyFolder, monkeypatch) -> None:
    monkeypatch.setattr(curate, "held_by", lambda: "study “small” (process 7)")
    assert "study “small” (process 7" in refused(change, study, kind=HostBusyError)
    assert study_names() == ["small"]
    monkeypatch.setattr(curate, "held_by", lambda: "study “smaller” (process 7)")
    with study.held():  # by a driver on this machine, whose fleet is elsewhere
        assert "study “small” is run by a fleet" in refused(change, study, kind=HostBusyError)
    change(study)


def test_a_study_goes_a_damaged_one_too_and_of_a_link_only_the_link(study, folder_of, tmp_path: Path) -> None:
    (folder_of(name="other").path / "study.json").write_text("{")
    study.path.rename(tmp_path / "elsewhere")
    study.path.symlink_to(tmp_path / "elsewhere")
    curate.delete("small")
    assert study_names() == ["other"]
    curate.delete("other")
    assert list(study.path.parent.iterdir()) == []
    assert (tmp_path / "elsewhere" / "study.json").is_file()
    assert "no study 'small'" in refused(curate.delete, "small")


def test_words_change_and_plan_and_data_do_not(study: StudyFolder) -> None:
    before, kept = files("small"), study.read()
    curate.edit("small", {"question": "Another?", "title": "Memory", "notes": "On the old disk."})
    asked = kept.changed(parameters={"question": "Does it help?"})
    now = keep_study(study, asked)  # the former question, asked again
    assert (now.plan.factor.question, now.title, now.notes) == ("Another?", "Memory", "On the old disk.")
    assert now.plan.changed(factor=kept.plan.factor) == kept.plan
    assert now.parameters["question"] == "Another?"
    assert files("small") == before
    curate.edit("small", {"question": "Third?", "notes": ""})
    assert study.read().provenance["question_as_run"] == kept.plan.factor.question
    assert "'benchlib studies edit'" in refused(keep_study, study, now)
    for words in ({}, {"question": " "}, {"title": ""}):
        refused(curate.edit, "small", words)


# --- one file and back --------------------------------------------------------------


def test_a_study_travels_in_one_file_with_identical_numbers(study: StudyFolder, tmp_path: Path) -> None:
    before, table, file = files("small"), shown(study).trials.to_csv(), tmp_path / "x.study.zip"
    (study.path / "link").symlink_to(tmp_path / "secret")
    (study.path / ".pending-study.json").write_text("half")
    curate.export("small", file)
    assert "there already" in refused(curate.export, "small", file)
    assert "'small' already exists in data/" in refused(curate.import_study, file)
    again = curate.import_study(file, "again")
    assert (again.name, again.read().name) == ("again", "again")
    assert files("again") == before, "links and unfinished files stayed at home"
    assert shown(again).trials.to_csv() == table
    curate.delete("small")
    assert curate.import_study(file).path == study.path
    assert hidden(tmp_path) == hidden(study.path.parent) == []
    with zipfile.ZipFile(file) as archive:
        assert archive.namelist()[-1] == f"small/{CHECKSUMS}", "after the trials that they list"


def test_what_is_damaged_or_has_no_place_is_not_handed_on(study: StudyFolder, tmp_path: Path) -> None:
    assert "cannot write" in refused(curate.export, "small", tmp_path / "nowhere" / "x.zip")
    next(study.path.glob("trials/*/stdout")).write_text("another")
    assert "its checksum differs" in refused(curate.export, "small", tmp_path / "x.zip")
    assert not (tmp_path / "x.zip").exists()


DEFLATED = zipfile.ZIP_DEFLATED
NO_FILES_OF_STUDIES = [
    "a/../../evil",
    "/etc/evil",
    "a/.ssh/keys",
    "a/b/c/d/e",
    "a/readme",
    "index/study.json",
]
HOSTILE = [
    *({name: b"x"} for name in NO_FILES_OF_STUDIES),
    {},
    {"a/study.json": b"{}", "b/study.json": b"{}"},
    {"a/study.json": b"/etc/passwd"},  # a link
    {f"x/trials/t{number}/stdout": b"" for number in range(4)},  # too many
    {"a/trials/1/x": bytes(30 << 20)},
]
CASES = [*((members, DEFLATED) for members in HOSTILE), ({"x/study.json": b"{}"}, zipfile.ZIP_LZMA)]


@pytest.mark.parametrize(("members", "method"), CASES)
@pytest.mark.usefixtures("data_root")
def test_what_is_no_study_is_refused_and_nothing_of_it_is_kept(members, method, tmp_path, monkeypatch):
    monkeypatch.setattr(curate, "_MOST_MEMBERS", 3)
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name, content in members.items():
            (member := zipfile.ZipInfo(name)).external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(member, content, method)
    before = sorted(tmp_path.rglob("*"))
    refused(curate.import_study, tmp_path / "x.zip")
    assert sorted(tmp_path.rglob("*")) == before
