"""The list of saved studies says how complete each is, and what is damaged."""

from pathlib import Path

from kept import place, ran

from benchlib.study.listing import listing
from benchlib.study.store import MEASUREMENT


def test_each_study_is_listed_with_its_trials_and_a_damaged_one_is_named(folder_of, tmp_path: Path) -> None:
    folder = folder_of(name="one")
    (folder_of(name="bad").path / "study.json").write_text("{")
    row = {"study": "one", "trials": 6, "kept": 0, "failed": 0, "title": "Small"}
    rows, (damaged,) = listing()
    assert rows == [row]
    assert "bad/study.json is damaged" in damaged
    ran(folder, tmp_path, failing={2: "lost"})
    assert listing() == ([{**row, "kept": 6, "failed": 1}], [damaged])
    (place(folder) / MEASUREMENT).write_text("{}")
    assert f"{place(folder).name}/{MEASUREMENT} is damaged" in listing()[1][1]
