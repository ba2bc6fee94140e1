"""A gate over saved studies: what counts, what is told in which form, and that nobody's text is obeyed there."""

import xml.etree.ElementTree as ET

import mistune
import pytest
from bs4 import BeautifulSoup
from hypothesis import given
from hypothesis import strategies as st

from benchlib.errors import InputError
from benchlib.plan.level import Level
from benchlib.report.gate import NOISE, Row, gate_study, gated, status, written
from benchlib.stats.gate import PASSED, SLOWER, UNKNOWN
from benchlib.study.store import StudyFolder

LEVELS = {"tuned": Level(settings={"work_mem": "8MB"}), "other": Level(settings={"work_mem": "9MB"})}
ANSWER = {"factor": "template", "answers": {"other": "the other"}}


@pytest.fixture
def rows(kept):
    """The rows of a gate over a study whose level “tuned” has an effect in percent."""

    def make(percent=0.0, *, tolerance=None, **more):
        return gate_study(kept("gate", percent, levels=LEVELS, blocks=6, **more).name, tolerance)

    return make


def outcomes(rows: list[Row]) -> list[tuple[str, str]]:
    return [(outcome, comparison) for outcome, _, comparison, *_ in rows]


@pytest.mark.parametrize(
    ("percent", "more", "outcome", "exit_status"),
    [
        (0, {}, PASSED, 0),
        (-10, {}, SLOWER, 3),
        (-10, {"tolerance": 0.2}, PASSED, 0),
        (0, {"noise": 0.2}, UNKNOWN, 4),
        (0, {"failing": {"tuned": "it broke"}}, UNKNOWN, 4),
        (-10, {"failing": {"other": "it broke"}}, SLOWER, 3),  # what is slower is
    ],
)
def test_every_comparison_counts_and_the_control_shows_the_noise(percent, more, outcome, exit_status, rows):
    found = rows(percent, **more)
    assert outcomes(found)[0] == (outcome, "tuned against defaults")
    assert outcomes(found)[2] == (NOISE, "control against defaults")
    assert status(found) == exit_status
    if outcome == SLOWER:
        assert found[0][3].startswith(("−9.9", "−10."))


def test_declared_answers_count_alone_and_so_does_what_is_missing(rows):
    found = rows(-10, about={"parameters": ANSWER})
    assert outcomes(found) == [(PASSED, "other against defaults"), (NOISE, "control against defaults")]
    folder = StudyFolder("gate")
    folder.write(folder.read().model_copy(update={"left_out": {"third": "there is no such version here"}}))
    folder.set_aside(folder.read().trials[-1].id)
    told = {(outcome, what): why for outcome, _, what, _, why in gate_study("gate", None)}
    assert told[UNKNOWN, "third"] == "left out: there is no such version here"
    assert told[UNKNOWN, "every trial"].startswith("not complete: 1 ")
    assert status(gate_study("gate", None)) == 4


def test_what_has_nothing_to_compare_cannot_be_said(kept, folder_of):
    folder_of(name="never-run")
    kept("alone", levels={})
    for name in ("never-run", "alone"):
        found = gate_study(name, None)
        assert (found[0][0], status(found)) == (UNKNOWN, 4)
    assert status([]) == 4
    with pytest.raises(InputError, match="no study 'nope'"):
        gate_study("nope", None)


words = st.text(min_size=1)
ROW = {"n": 9, "percent_change": -8.0, "ci_low": -9.0, "ci_high": -7.0, "equal_low": -9.0, "equal_high": -7.0}
ATTRS = {"controls": [], "blocks": 9, "margin": 0.03, "higher_is_better": True}


def of_any_text(level: str, limit: str) -> list[Row]:
    """A row that is slower and one that is invalid, of a level and for a reason of that name."""
    row = {**ROW, "level": level, "against": level, "limit": limit}
    return gated("a", [{**row, "verdict": verdict} for verdict in ("slower", "invalid")], ATTRS, 0.03)


@given(words, words)
def test_any_text_is_well_formed_xml_and_says_the_same(level, limit):
    rows = of_any_text(level, limit)
    (suite,) = ET.fromstring(written(rows, "junit"))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "1", "1")
    assert [case.get("name") for case in suite] == [row[2] for row in rows]
    assert (len(suite.findall("*/failure")), len(suite.findall("*/error"))) == (1, 1)


HOSTILE = "<script>x</script> | [x](http://evil) @all `code` **bold**\n| new | row |\n# heading \x1b[31m"


def test_nobody_s_text_is_obeyed_in_markdown():
    text = written(of_any_text(HOSTILE, HOSTILE)[:1], "markdown", "https://example.org/")
    page = BeautifulSoup(mistune.create_markdown(escape=False, plugins=["table"])(text), "html.parser")
    assert [a["href"] for a in page.find_all("a")] == ["https://example.org/a.html"]
    assert (len(page.find_all("tr")), len(page.find_all("td"))) == (2, 5)
    assert not page.find_all(["script", "h1"])
    assert {strong.get_text() for strong in page.find_all("strong")} == {"slower"}
    assert "\x1b" not in text
