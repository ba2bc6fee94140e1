"""The calibration's page: each promise with what was found, whole without the other half, asking nothing of a network."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from bs4 import BeautifulSoup

from benchlib.report.calibration import (
    publish,
    real_promises,
    render_calibration,
    sentence,
    simulated_promises,
)

KEPT = Path(__file__).parents[2] / "data" / "calibration"


@pytest.fixture(scope="module")
def cells():
    return pd.read_csv(KEPT / "simulated.csv")


@pytest.fixture(scope="module")
def rest():
    return json.loads((KEPT / "simulated.json").read_text())


def found(sessions=20, flagged=2, changes=19):
    rows = [
        {"session": n, "level": level, "percent_change": x, "ci_low": x - 2, "ci_high": x + 2, "p_value": p, "verdict": word}
        for n in range(1, sessions + 1)
        for level, x, p, word in (("control", -0.4, 0.6, "equivalent"), ("+5 %", 5.1, 1e-4, "faster"), ("same", 0.2, None, "inconclusive"))
    ]  # fmt: skip
    return {
        "options": {"sessions": sessions, "blocks": 5, "duration_s": 2, "effect": 0.05, "seed": 1},
        "work": {"fixed_us": 47.0, "step_us": 0.042, "baseline": 22_700, "injected": 21_500},
        "twins": 2 * sessions, "flagged": flagged, "flagged_interval": [0.006, 0.169],
        "injected": sessions, "found": changes, "found_interval": [0.75, 0.99], "invalid": 0,
        "changes": {"control": [-0.4, -0.9, 0.1], "+5 %": [4.97, 4.61, 5.33], "same": [0.2, None, None]},
        "sigma_d": 0.02, "minutes": 40.0, "server": "PostgreSQL 18.4", "created": "2026-11-20T14:41:12+00:00",
        "host": {"processors": 2, "processor": "Some processor"}, "verdicts": rows,
    }  # fmt: skip


@pytest.fixture(scope="module")
def html(cells, rest):
    return render_calibration(cells, rest, found())


@pytest.fixture(scope="module")
def soup(html):
    return BeautifulSoup(html, "html.parser")


def test_the_kept_simulation_keeps_every_promise_and_is_precise_enough(cells, rest):
    promises = simulated_promises(cells, rest)
    assert [p.what for p in promises if not p.kept] == []
    assert len(promises) == 10
    assert len(cells) >= 324
    assert cells["error"].max() < 0.0025


@pytest.mark.parametrize(
    ("column", "value", "broken"),
    [
        ("alarms", 0.057, 2),  # and drift moves them
        ("alarms", 0.043, 2),
        ("family", 0.057, 1),
        ("coverage", 0.93, 1),
        ("coverage", 0.97, 1),
    ],
)
def test_one_bad_situation_breaks_its_promise(cells, rest, column, value, broken):
    worse = cells.copy()
    worse.loc[worse.index[(worse["contamination"] == 0) & (worse["drift"] > 0)][5], column] = value
    assert sum(not p.kept for p in simulated_promises(worse, rest)) == broken


@pytest.mark.parametrize(
    ("sessions", "flagged", "changes", "kept"),
    [(20, 5, 16, [True, True]), (20, 6, 15, [False, False]), (40, 10, 31, [True, False]), (4, 0, 4, [None, None])],
)  # fmt: skip
def test_the_real_bars(sessions, flagged, changes, kept):
    assert [p.kept for p in real_promises(found(sessions, flagged, changes))] == kept


def test_the_sentence_has_counts_intervals_and_the_true_effect():
    said = sentence(found())
    assert "2 of 40 (5 %, interval 1 to 17 %) A/A comparisons were flagged" in said
    assert "19 of 20 (95 %, interval 75 to 99 %) injected changes of +5 % were found" in said
    assert "+4.97 % [4.61, 5.33]" in said
    assert "too few to judge" in sentence(found(4, 0, 4))


def test_every_promise_is_told_with_a_word_and_every_chart_with_numbers(soup):
    first = soup.find("table")
    words = [row.find_all(["th", "td"])[1].get_text() for row in first.find("tbody").find_all("tr")]
    assert words == ["kept"] * 12
    assert "12 of 12 promises kept" in soup.find(class_="bl-headline").get_text()
    figures = soup.find_all("figure")
    assert len(figures) == 3
    for figure in figures:
        for drawing in figure.find_all("svg"):
            assert len(re.findall(r"\d\.\d\d", drawing["aria-label"])) >= 6
        assert figure.find("figcaption").get_text()
    for table in soup.find_all("table"):
        assert table.find_parent(class_="bl-scroll")["tabindex"] == "0"
    assert len(soup.find_all("table")[-1].find_all("tr")) == 61


def test_the_page_loads_nothing_and_repeats(html, soup, cells, rest):
    assert not soup.find_all(src=re.compile("^(?!data:)"))
    assert not re.search(r"url\((?!#|data:)|@import|https?://(?!www\.w3\.org)", html.replace("http%3A", ""))
    assert len({tag["id"] for tag in soup.find_all(id=True)}) == len(soup.find_all(id=True))
    assert html == render_calibration(cells, rest, found())


def test_either_half_makes_a_page(cells, rest):
    assert "10 of 10 promises kept" in render_calibration(cells, rest, None)
    few = render_calibration(None, {}, found(1, 0, 1))
    assert "too few sessions" in few
    assert "By simulation" not in few


def test_publishing_writes_page_and_downloads_or_nothing(data_root, tmp_path):
    reports = tmp_path / "reports"
    publish(reports)
    assert not reports.exists()
    reports.mkdir()
    folder = data_root / "calibration"
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(found()))
    (folder / "trials.csv").write_text("session,block\n")
    publish(reports)
    page = BeautifulSoup((reports / "calibration.html").read_text(), "html.parser")
    for link in page.find(class_="bl-downloads").find_all("a"):
        assert (reports / link["href"]).is_file()
