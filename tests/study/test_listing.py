"""The list of saved studies is read again only where a study's files have changed."""

from pathlib import Path

from kept import ran

from benchlib.study.listing import listing
from benchlib.study.store import StudyFolder


def test_a_study_is_read_once_and_again_when_it_has_changed(folder_of, tmp_path: Path, monkeypatch) -> None:
    folder = folder_of(name="one")
    (folder_of(name="bad").path / "study.json").write_text("{")
    row = {"study": "one", "trials": 6, "kept": 0, "failed": 0, "title": "Small"}
    rows, (damaged,) = listing()
    assert rows == [row]
    assert "bad/study.json is damaged" in damaged
    with monkeypatch.context() as patched:
        patched.delattr(StudyFolder, "kept")
        assert listing() == ([row], [damaged]), "nothing of it is read"
    ran(folder, tmp_path, failing={2: "lost"})
    assert listing() == ([{**row, "kept": 6, "failed": 1}], [damaged])
