"""What index and summary show of a study: read where nothing has changed, judged anew where something has."""

import json
import math
from pathlib import Path

import pytest
from benchlib.report.answers import Answer
from benchlib.report.entries import Entry, address_of, code_fingerprint, entries, study_fingerprint

from benchlib.errors import InputError
from benchlib.plan.model import Study
from benchlib.report import entries as module
from benchlib.study.store import StudyFolder


@pytest.fixture(autouse=True)
def reports(tmp_path: Path, data_root: Path) -> Path:
    (tmp_path / "reports").mkdir()
    return tmp_path / "reports"


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The studies that are judged."""
    names, judge = [], module.entry_of

    def counting(experiment, fingerprint):
        names.append(experiment.folder.name)
        return judge(experiment, fingerprint)

    monkeypatch.setattr(module, "entry_of", counting)
    return names


def test_a_study_is_judged_once_and_again_when_it_has_changed(keep, judged: list[str]) -> None:
    for name in ("a", "b"):
        keep(name)
    first = entries()
    assert [entry.name for entry in first[0]] == ["a", "b"]
    assert str(entries()) == str(first)
    assert judged == ["a", "b"]
    folder = StudyFolder("b")
    folder.write(folder.read().model_copy(update={"title": "Another"}))
    assert [entry.title for entry in entries()[0]] == ["Another", "Configuration"]
    assert judged == ["a", "b", "b"]
    assert [entry.name for entry in entries(["b"])[0]] == ["b"]
    with pytest.raises(InputError, match="no study 'c'"):
        entries(["c"])


def test_studies_stand_by_panel_and_title(keep) -> None:
    for name, panel, title in (("a", "costs", "X"), ("b", "changes", "Z"), ("c", "changes", "Y")):
        folder = keep(name)
        folder.write(folder.read().model_copy(update={"title": title, "parameters": {"panel": panel}}))
    assert [entry.name for entry in entries()[0]] == ["c", "b", "a"]


def test_an_entry_says_what_the_page_says(keep) -> None:
    keep("a")
    (entry,), _ = entries()
    assert (entry.notebook, entry.title, entry.facts["Blocks"]) == ("configuration", "Configuration", "3")
    assert (entry.answers[0].level, entry.answers[0].verdict) == ("tuned", "faster")
    assert entry.answers[0].percent_change == pytest.approx(100, abs=5)
    assert entry.headline
    assert entry.facts["Study"] == "a"


def test_the_index_leaves_the_levels_of_a_condition_to_the_page() -> None:
    limits = "5 trials of 30 s a level · not met: reads of 64 KiB (at “a”, “b (c” and 4 more); a scan (at “d”) · ours"
    entry = Entry(name="x", fingerprint="f", limits=limits)
    assert entry.short_limits == "5 trials of 30 s a level · not met: reads of 64 KiB; a scan · ours"


def test_what_is_not_known_is_null_in_the_file_and_no_number_afterwards(reports: Path) -> None:
    unknown = Answer("x", "y", "x", math.nan, math.nan, 1.0, verdict="invalid", gives_up="", said="invalid")
    Entry(name="x", fingerprint="f", answers=(unknown,), assumptions={"lag": math.nan}).keep()
    kept = json.loads((reports / "x.entry.json").read_text())["answers"][0]
    assert (kept["percent_change"], kept["ci_low"], kept["ci_high"]) == (None, None, 1)
    again = module.kept_entry("x", "f")
    assert again is not None
    assert math.isnan(again.answers[0].ci_low)
    assert math.isnan(again.assumptions["lag"])
    assert module.kept_entry("x", "g") is None
    (reports / "x.entry.json").write_text("{")
    assert module.kept_entry("x", "f") is None


def test_why_a_study_is_left_out_is_kept_too(keep, folder_of, judged: list[str]) -> None:
    keep("pilot", levels={})
    folder_of(name="bare")
    (folder_of(name="hurt").path / "study.json").write_text("{")
    for _ in range(2):
        shown, left_out = entries()
        assert shown == []
        assert "baseline alone" in left_out["pilot"]
        assert "no block with two good trials" in left_out["bare"]
        assert "damaged" in left_out["hurt"]
    assert sorted(judged) == ["bare", "pilot"]


def test_without_a_folder_of_pages_nothing_is_written(keep, reports: Path) -> None:
    keep("a")
    reports.rmdir()
    assert len(entries()[0]) == 1
    assert not reports.exists()


def test_a_fingerprint_changes_with_the_plan_the_trials_and_the_code(keep, folder_of) -> None:
    folder = keep("a")
    seen = [study_fingerprint(folder, "code"), study_fingerprint(folder, "other")]
    assert study_fingerprint(folder, "code") == seen[0]
    folder.write(Study.model_validate({**folder.read().model_dump(), "title": "Other"}))
    seen.append(study_fingerprint(folder, "code"))
    (folder.path / "SHA256SUMS").write_text("")
    seen.append(study_fingerprint(folder, "code"))
    next(folder.path.glob("trials/*/measurement.json")).unlink()
    seen.append(study_fingerprint(folder, "code"))
    assert len(set(seen)) == len(seen)
    assert code_fingerprint() == code_fingerprint()


def test_where_the_site_is_published_is_part_of_its_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_fingerprint()
    assert address_of("a.png") == ""
    monkeypatch.setenv("BENCHLIB_ADDRESS", "https://example.org/benchmarks/")
    assert address_of("a.png") == "https://example.org/benchmarks/a.png"
    assert code_fingerprint() != before


def test_a_link_in_a_study_is_not_read_for_its_fingerprint(folder_of) -> None:
    folder = folder_of(name="linked")
    (folder.path / "study.json").unlink()
    (folder.path / "study.json").symlink_to("/dev/zero")
    assert study_fingerprint(folder, "code")
