"""Studies beside each other and over time: what is compared with what, what is new, and what the page and the CSV file hold."""

import numpy as np
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from matplotlib import pyplot as plt

from benchlib.errors import InputError
from benchlib.plan.level import Level
from benchlib.plan.model import Load
from benchlib.report import trends
from benchlib.report.trends import compare, history
from benchlib.stats.between import WITHOUT

HOSTILE = "=1+1 <script>alert(1)</script>"


@pytest.fixture
def otava(monkeypatch):
    """Stands for the search for change points, with the places that it finds."""

    def make(*places):
        seen = []
        monkeypatch.setattr(trends, "change_points", lambda series, margin: seen.append(series) or [*places])
        return seen

    return make


def levels(name="tuned", memory="8MB"):
    return {"levels": {name: Level(settings={"work_mem": memory})}, "level": name}


def parsed(path):
    return BeautifulSoup(path.read_text(), "html.parser")


# --- several studies ----------------------------------------------------------------


def test_effects_are_compared_with_those_of_the_first_and_the_studies_stand_side_by_side(kept):
    for name, percent, day in (("one", 10, 1), ("two", 30, 2), ("three", 10, 3)):
        kept(name, percent, day=day)
    words, path = compare(["one", "two", "three"])
    assert words["study"].to_list() == ["two", "three"]
    assert words["comparison"].to_list() == ["tuned against defaults"] * 2
    assert words["verdict"].to_list() == ["differs", "same within ±3 %"]
    assert words["difference"][0].startswith("+18")
    page = parsed(path)
    assert path.name == "compare~one~two~three.html"
    assert "2 cores" in page.get_text()
    assert len(page.find_all("figure")) == 1
    csv = pd.read_csv(path.with_suffix(".csv"))
    assert csv["percent_change"][0] == pytest.approx(100 * (1.3 / 1.1 - 1), abs=1)
    assert path.with_suffix(".csv").name in [a["href"] for a in page.find_all("a")]
    assert path.with_name("methodology.html").is_file()
    assert not plt.get_fignums(), "all figures are closed"


def test_a_page_of_many_studies_has_a_name_that_a_file_may_have(kept):
    names = [letter * 90 for letter in "abc"]
    for name in names:
        kept(name, 10)
    path = compare(names)[1]
    assert len(path.name) < 255
    assert path.is_file()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["one"], "'one' is compared with other studies"),
        (["one", "one"], "'one' is compared with other studies"),
        (["one", "other"], "no comparison in common"),
        (["one", "latency"], "judged by one metric"),
        (["one", "nope"], "no study 'nope'"),
        (["one", "../one"], "expected at most 100 letters"),
    ],
)
def test_what_has_nothing_in_common_is_not_compared(names, message, kept):
    kept("one")
    kept("other", **levels("another"))
    kept("latency", metric="latency_average_ms")
    with pytest.raises(InputError, match=message):
        compare(names)


def test_nobody_s_text_is_obeyed(kept):
    for name in ("one", "two"):
        kept(name, **levels(HOSTILE))
    path = compare(["one", "two"])[1]
    assert HOSTILE in parsed(path).get_text()
    assert "<script>alert" not in path.read_text()
    assert not [line for line in path.with_suffix(".csv").read_text().splitlines() if line.startswith("=")]


# --- over time ----------------------------------------------------------------------


def test_effects_over_time_with_what_was_new(kept, otava):
    seen = otava(2)
    kept("c", 30, day=3, **levels(memory="9MB"))
    kept("a", 10, day=1)
    kept("b", 10, day=2)
    kept("elsewhere", 50, day=4, about={"notebook": "week.ly"})
    words, remarks, path = history("template")
    assert remarks == []
    assert words["study"].to_list() == ["a", "b", "c"]
    assert words["new"].to_list() == ["", "", "levels, change point"]
    assert words["change"][2][:3] in ("+29", "+30")
    assert seen[0] == pytest.approx([1.1, 1.1, 1.3], abs=0.01), "effects, no rates"
    assert len(parsed(path).find_all("figure")) == 1
    csv = pd.read_csv(path.with_suffix(".csv"))
    assert {"study", "level", "comparison", "percent_change", "ci_low", "ci_high", "machine", "measured"} <= {*csv}  # fmt: skip
    assert csv["measured"].to_list() == ["2026-01-01", "2026-01-02", "2026-01-03"]
    assert history("notebooks/template.ipynb")[0].equals(words)
    otava()
    assert history("week.ly")[0]["study"].to_list() == ["elsewhere"]


def test_what_was_run_otherwise_or_is_damaged_is_left_out_and_said(kept, folder_of, otava):
    otava()
    kept("a", day=1)
    kept("many", day=2, load=Load(duration_s=3, clients=8))
    kept("b", day=3)
    folder = folder_of(name="empty")
    folder.write(folder.read().model_copy(update={"notebook": "template"}))
    (folder_of(name="hurt").path / "study.json").write_text("{")
    next(kept("torn", day=4).path.glob("trials/*/stdout")).write_text("")
    words, remarks, _ = history("template")
    assert words["study"].to_list() == ["a", "b"]
    for name in ("hurt", "empty", "many", "torn"):
        assert [remark for remark in remarks if name in remark and remark.startswith("left out: ")], name


@pytest.mark.parametrize(
    ("words", "message"),
    [(["nope"], "no study of a notebook 'nope'"), (["template", "nope"], "unknown metric 'nope'")],
)
def test_what_is_not_there_is_refused(words, message, kept):
    kept("a")
    with pytest.raises(InputError, match=message):
        history(*words)


def test_by_another_metric_and_without_the_package(kept, monkeypatch):
    monkeypatch.setattr(trends, "change_points", lambda series, margin: None)
    kept("a", 25)
    words, remarks, _ = history("template", "latency_average_ms")
    assert words["change"][0].startswith(("−19.9", "−20.0"))
    assert words["verdict"].to_list() == ["faster"]
    assert remarks == [WITHOUT]


def test_what_has_no_valid_effect_is_no_point_of_the_series(kept, otava):
    seen = otava()
    for name, day, failing in (("a", 1, None), ("b", 2, {"tuned": "it broke"}), ("c", 3, None)):
        kept(name, 10, day=day, failing=failing)
    words, *_ = history("template")
    assert len(seen[0]) <= len(words)
    assert np.isfinite(seen[0]).all()
