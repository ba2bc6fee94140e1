"""The list of saved studies is read again only where a study's files have changed."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import FakeBench

from benchlib.study.listing import listing
from benchlib.study.loop import run_study
from benchlib.study.store import StudyFolder


def test_a_study_is_read_once_and_again_when_it_has_changed(
    folder_of: Callable[..., StudyFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(name="one")
    row = {"study": "one", "trials": 6, "kept": 0, "failed": 0, "title": "Small"}
    assert listing() == ([row], [])
    with monkeypatch.context() as patched:
        patched.delattr(StudyFolder, "kept")
        assert listing() == ([row], []), "nothing of it is read"
    run_study(folder, FakeBench(folder.read().plan, tmp_path).open)
    assert listing() == ([{**row, "kept": 6}], [])


def test_a_damaged_study_is_named_each_time(folder_of: Callable[..., StudyFolder]) -> None:
    (folder_of(name="bad").path / "study.json").write_text("{")
    for _ in range(2):
        rows, damaged = listing()
        assert rows == []
        assert "bad/study.json is damaged" in damaged[0]
