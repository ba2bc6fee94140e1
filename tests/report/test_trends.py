"""Studies beside each other and over time: what is compared with what, what is new, and what the page and the CSV hold."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from fakes import speeds

from benchlib.errors import InputError
from benchlib.plan.level import Level
from benchlib.plan.model import Load
from benchlib.report.trends import compare, history
from benchlib.stats.between import WITHOUT

HOSTILE = "=1+1 <script>alert(1)</script>"


@pytest.fixture
def kept(view_of):
    """Keeps a study of six quiet blocks, made on a day, whose level `tuned` has an effect in percent."""

    def make(
        name,
        percent=0.0,
        *,
        day=1,
        notebook="nightly",
        memory="8MB",
        host="one",
        level="tuned",
        noise=0.003,
        **more,
    ):
        provenance = {
            "created": f"2026-01-{day:02d}T00:00:00+00:00",
            "host": {"processor": host, "processors": 2},
        }
        tps = speeds(day, noise, **{level: percent})
        about = {"notebook": notebook, "provenance": provenance, "title": "Nightly"}
        levels = {level: Level(settings={"work_mem": memory})}
        return view_of(tps, blocks=6, name=name, about=about, levels=levels, **more).experiment.folder

    return make


@pytest.fixture
def otava(monkeypatch: pytest.MonkeyPatch):
    """Stands for the package that finds change points, with the places that it finds."""

    def make(*places):
        module, seen = ModuleType("otava.analysis"), []
        module.compute_change_points = lambda series, min_magnitude: (
            seen.append(series) or [SimpleNamespace(index=place) for place in places],
            None,
        )
        monkeypatch.setitem(sys.modules, "otava", ModuleType("otava"))
        monkeypatch.setitem(sys.modules, "otava.analysis", module)
        return seen

    return make


def page_of(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(), "html.parser")


# --- two studies --------------------------------------------------------------------


def test_effects_are_compared_and_the_studies_stand_side_by_side(kept) -> None:
    kept("one", 10)
    kept("two", 30, day=2, host="another")
    kept("three", 10, day=3)
    words, path = compare(["one", "two", "three"])
    assert words["study"].to_list() == ["two", "three"]
    assert words["comparison"].to_list() == ["tuned against defaults"] * 2
    assert words["verdict"].to_list() == ["differs", "same within ±3 %"]
    assert words["difference"][0].startswith("+18")
    page = page_of(path)
    assert path.name == "compare~one~two~three.html"
    assert "2 processors (another)" in page.get_text()
    assert len(page.find_all("figure")) == 1
    csv = pd.read_csv(path.with_suffix(".csv"))
    assert csv["percent_change"][0] == pytest.approx(100 * (1.3 / 1.1 - 1), abs=1)
    assert [a["href"] for a in page.select(".bl-downloads a")] == ["compare~one~two~three.csv"]


def test_a_page_of_many_studies_has_a_name_that_a_file_may_have(kept) -> None:
    names = [letter * 90 for letter in "abc"]
    for name in names:
        kept(name, 10)
    _, path = compare(names)
    assert len(path.name) < 255
    assert path.is_file()


def test_what_has_nothing_in_common_is_not_compared(kept) -> None:
    kept("one")
    kept("other", level="another")
    for names in (["one"], ["one", "one"]):
        with pytest.raises(InputError, match="'one' is compared with other studies"):
            compare(names)
    with pytest.raises(InputError, match="no comparison in common"):
        compare(["one", "other"])
    kept("latency", metric="latency_average_ms")
    with pytest.raises(InputError, match="judged by one metric"):
        compare(["one", "latency"])
    with pytest.raises(InputError, match="no study 'nope'"):
        compare(["one", "nope"])
    with pytest.raises(InputError, match="want letters"):
        compare(["one", "../one"])


def test_nobody_s_text_is_obeyed(kept) -> None:
    for name in ("one", "two"):
        kept(name, level=HOSTILE, host=HOSTILE)
    _, path = compare(["one", "two"])
    assert HOSTILE in page_of(path).get_text()
    assert "<script>alert" not in path.read_text()
    assert not [line for line in path.with_suffix(".csv").read_text().splitlines() if line.startswith("=")]


# --- over time ----------------------------------------------------------------------


def test_effects_over_time_with_what_was_new(kept, otava) -> None:
    seen = otava(2)
    kept("c", 30, day=3, host="another", memory="9MB")
    kept("a", 10, day=1)
    kept("b", 10, day=2)
    kept("elsewhere", 50, day=4, notebook="weekly")
    words, remarks, path = history("nightly")
    assert remarks == []
    assert [name.split()[-1] for name in words["study"]] == ["a", "b", "c"]
    assert words["study"][0] == "2026-01-01 a"
    assert words["new"].to_list() == ["", "", "Machine, levels, change point"]
    assert words["change"][2].startswith("+30") or words["change"][2].startswith("+29")
    assert seen[0] == pytest.approx([1.1, 1.1, 1.3], abs=0.01), "effects, no rates"
    page = page_of(path)
    (figure,) = page.find_all("figure")
    assert "2026-01-03 c" in figure.get_text()
    csv = pd.read_csv(path.with_suffix(".csv"))
    assert {
        "study",
        "level",
        "comparison",
        "percent_change",
        "ci_low",
        "ci_high",
        "control",
        "Machine",
    } <= set(csv)
    assert history("notebooks/nightly.ipynb")[0].equals(words)


def test_what_was_run_otherwise_is_left_out_and_said(kept, folder_of, otava) -> None:
    otava()
    kept("a", day=1)
    kept("many", day=2, load=Load(duration_s=3, clients=8))
    kept("prepared", day=2, load=Load(duration_s=3, protocol="prepared"))
    kept("b", day=3)
    folder_of(name="bare")
    folder = folder_of(name="empty")
    folder.write(folder.read().model_copy(update={"notebook": "nightly"}))
    (folder_of(name="hurt").path / "study.json").write_text("{")
    (next(kept("torn", day=4).path.glob("trials/*/stdout"))).write_text("")
    words, remarks, _ = history("nightly")
    assert [name.split()[-1] for name in words["study"]] == ["a", "b"]
    assert remarks[0].startswith("left out: hurt/study.json is damaged (")
    assert remarks[1].startswith("left out: empty: study 'empty' has no block")
    for remark, name in zip(remarks[2:4], ("many", "prepared"), strict=True):
        assert remark == f"left out: {name}: it has another workload, load or size than the latest"
    assert remarks[4].startswith("left out: torn: trials/")
    with pytest.raises(InputError, match="no study of a notebook 'nope' is kept"):
        history("nope")
    with pytest.raises(InputError, match="unknown metric 'nope'"):
        history("nightly", "nope")


def test_by_another_metric_and_without_the_package(kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "otava.analysis", None)
    kept("a", 25)
    words, remarks, _ = history("nightly", "latency_average_ms")
    assert words["change"][0].startswith("−19.9")
    assert words["verdict"].to_list() == ["faster"]
    assert remarks == [WITHOUT]


def test_what_is_invalid_is_shown_and_is_no_point_of_the_series(kept, otava) -> None:
    seen = otava()
    kept("a", 10, day=1)
    kept("b", 10, day=2, failing={"tuned": "it broke"})
    kept("c", 10, day=3)
    words, _, _ = history("nightly")
    assert len(seen[0]) <= len(words)
    assert np.isfinite(seen[0]).all()
