"""Tables: headers, alignment, gaps, and the verdicts of a study."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from benchlib.report.figures.frames import against_words, percent_words
from benchlib.report.figures.tables import html_table, mean_words, of_levels, p_words, verdict_table
from bs4 import BeautifulSoup

from benchlib.stats.analysis import Concern
from benchlib.stats.verdicts import analyze


def parsed(table):
    return BeautifulSoup(table._repr_html_(), "html.parser")


def test_headers_alignment_and_gaps():
    frame = pd.DataFrame({"level": ["a<b", "c"], "wal_bytes": [1234.5, np.nan], "kept": ["yes", None]})
    labels = {"wal_bytes": "WAL, bytes"}
    soup = parsed(html_table(frame, "Written", labels=labels, note="per trial", details="by <pgbench>"))
    assert soup.caption.get_text() == "Written"
    assert [th["scope"] for th in soup.thead.find_all("th")] == ["col"] * 3
    assert [th.get_text() for th in soup.thead.find_all("th")] == ["level", "WAL, bytes", "kept"]
    assert [th["scope"] for th in soup.tbody.find_all("th")] == ["row", "row"]
    assert soup.tbody.th.get_text() == "a<b"
    cells = soup.tbody.find_all("td")
    assert cells[0].get_text() == "1,234"
    assert cells[0]["class"] == ["bl-number"]
    assert "class" not in cells[1].attrs
    for cell in cells[2:]:
        assert cell.get_text() == "–"
        assert cell.abbr["title"] == "not measured"
    region = soup.find(class_="bl-scroll")
    assert (region["role"], region["tabindex"], region["aria-label"]) == ("region", "0", "Written")
    assert soup.find(class_="bl-note").get_text() == "per trial"
    assert soup.details.p.get_text() == "by <pgbench>"


def test_formats_write_a_column_and_align_it():
    frame = pd.DataFrame({"step": ["x"], "size": ["7"], "fine": [True]})
    soup = parsed(html_table(frame, "Steps", formats={"size": lambda v: f"{v} GB"}))
    size, fine = soup.tbody.find_all("td")
    assert size.get_text() == "7 GB"
    assert size["class"] == ["bl-number"]
    assert fine.get_text() == "True"
    assert "class" not in fine.attrs


def test_an_empty_frame_still_has_its_headers():
    soup = parsed(html_table(pd.DataFrame({"level": [], "tps": []}), "Nothing"))
    assert len(soup.thead.find_all("th")) == 2
    assert soup.tbody.find_all("tr") == []


def test_what_a_level_is_compared_with_is_named_by_what_differs_unless_that_is_another_level():
    pairs = {"fast, 4 clients": "slow, 4 clients", "b, 2 clients": "a, 2 clients", "b": "a"}
    levels = [*pairs, *pairs.values()]
    trials = pd.DataFrame([(block, level, 100 + block) for block in range(3) for level in levels])
    trials.columns = ["block", "level", "tps"]
    analysis = analyze(trials, baseline="a", against=pairs)
    assert [against_words(analysis, level) for level in pairs] == [
        "against slow",
        "against a, 2 clients",
        "against a",
    ]


@pytest.mark.parametrize(
    ("p", "words"), [(0.0342, "0.034"), (0.0004, "< 0.001"), (1.0, "1.000"), (np.nan, None), (None, None)]
)
def test_p_words(p, words):
    assert p_words(p) == words


def test_verdicts(analysis):
    soup = parsed(verdict_table(analysis, durability={"tuned": "the last commits"}))
    rows = {tr.th.get_text(): [td.get_text() for td in tr.find_all("td")] for tr in soup.tbody.find_all("tr")}
    assert list(rows) == ["defaults", "control", "tuned, synchronous_commit on", "tuned†"]
    assert rows["defaults"][:3] == ["", "baseline", ""]
    tuned = analysis.table.set_index("level").loc["tuned"]
    change, ends = percent_words(*tuned[["percent_change", "ci_low", "ci_high"]])
    mean = mean_words(tuned["mean"], tuned["sd"])
    assert rows["tuned†"] == [change, "▲\u00a0faster", f"{ends}\u00a0%", mean, "5", "< 0.001"]
    assert (
        soup.find(class_="bl-note")
        .get_text()
        .startswith("† gives up durability. Changes against defaults are of the geometric mean")
    )
    assert "† tuned – the last commits." in soup.details.get_text()
    assert "mean ± sd, tps" in soup.thead.get_text()


def test_a_difference_under_the_margin_and_a_control_that_differs_are_called_so(analysis):
    table = analysis.table.assign(
        verdict=["", "slower", "faster", "faster"], blocks_needed=[np.nan, np.nan, 9, np.nan]
    )
    tiny = dataclasses.replace(analysis, table=table, tiny=frozenset({"tuned"}))
    soup = parsed(verdict_table(tiny))
    words = [tr.find_all("td")[1].get_text() for tr in soup.tbody.find_all("tr")]
    assert words == ["baseline", "–\u00a0differs", "▲\u00a0faster", "▲\u00a0faster, under 3 %"]
    assert (
        "settle what is inconclusive if the noise stays as it is: “tuned, synchronous_commit on” 9."
        in soup.details.get_text()
    )


def test_what_is_invalid_has_no_figures_and_what_could_not_show_no_number_of_blocks(analysis):
    verdicts = ["", "equivalent", "inconclusive", "invalid"]
    table = analysis.table.assign(verdict=verdicts, blocks_needed=[np.nan, np.nan, 9, np.nan])
    why = Concern("condition", "a scan", level="tuned, synchronous_commit on")
    soup = parsed(verdict_table(dataclasses.replace(analysis, table=table, warnings=(why,))))
    *_, unshown, invalid = ([td.get_text() for td in tr.find_all("td")] for tr in soup.tbody.find_all("tr"))
    assert unshown[1] == "–\u00a0cannot be shown here"
    assert [invalid[0], invalid[1], invalid[2], invalid[-1]] == ["", "✕\u00a0invalid", "", ""]
    assert soup.details is None, "nothing is told of blocks"


def test_a_level_without_values_is_not_measured(analysis):
    gap = {"level": "broken", "n": 0, "verdict": None}
    table = pd.DataFrame([*analysis.table.to_dict("records"), gap])
    against = {**analysis.against, "broken": "defaults"}
    soup = parsed(verdict_table(dataclasses.replace(analysis, table=table, against=against)))
    last = soup.tbody.find_all("tr")[-1]
    assert [td.get_text() for td in last.find_all("td")] == ["–", "–", "–", "–", "0", "–"]


@pytest.mark.parametrize(("levels", "turned"), [(3, False), (6, False), (7, True), (24, True)])
def test_many_levels_have_a_row_each(levels, turned):
    names = [f"level_{number}" for number in range(levels)]
    rows = [["work_mem", *map(str, range(levels))], ["max_wal_size", *[None] * levels]]
    soup = parsed(of_levels("what", names, rows, "Levels"))
    heads = [th.get_text() for th in soup.thead.find_all("th")]
    assert heads == (["level", "work_mem", "max_wal_size"] if turned else ["what", *names])
    last = soup.tbody.find_all("tr")[-1]
    assert [last.th.get_text(), last.td.get_text()] == (
        [names[-1], str(levels - 1)] if turned else ["max_wal_size", "–"]
    )
    assert last.td["class"] == ["bl-number"]


def test_a_table_of_many_levels_goes_on_below_itself():
    levels = [f"level {number}" for number in range(13)]
    rows = [[f"figure {row}", *[f"{row}.{number}" for number in range(13)]] for row in range(14)]
    whole = of_levels("figure", levels, rows, "Figures", note="of all")
    assert whole.caption == "Figures"
    parts = parsed(whole).find_all("table")
    assert [part.caption.get_text() for part in parts] == ["Figures (1 of 2)", "Figures (2 of 2)"]
    heads = [[head.get_text() for head in part.thead.find_all("th")] for part in parts]
    assert heads == [["figure", *levels[:7]], ["figure", *levels[7:]]]
    assert [part.tbody.find_all("tr")[3].find_all("td")[-1].get_text() for part in parts] == ["3.6", "3.12"]
    assert parsed(whole).get_text().count("of all") == 1
