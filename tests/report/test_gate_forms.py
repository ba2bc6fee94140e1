"""A gate over kept studies: what counts, what is told in which form, and that nobody's text is obeyed there."""

import shutil
import xml.etree.ElementTree as ET

import mistune
import pytest
from bs4 import BeautifulSoup
from fakes import speeds
from hypothesis import given
from hypothesis import strategies as st

from benchlib.errors import InputError
from benchlib.plan.level import Level
from benchlib.report.gate import Row, _row, gate_study, status, written
from benchlib.stats.gate import PASSED, SLOWER, UNKNOWN
from benchlib.study.store import StudyFolder

LEVELS = {"with": Level(settings={"work_mem": "8MB"}), "other": Level(settings={"work_mem": "9MB"})}


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """Where a study is laid by when it has run."""
    return tmp_path_factory.mktemp("studies")


@pytest.fixture
def gated(view_of, studies):
    """The rows of a study of nine quiet blocks whose level `with` has a true effect, in percent."""

    def make(percent=0.0, *, blocks=9, noise=0.003, tolerance=None, answers=None, failing=None, **about):
        folder, laid_by = StudyFolder("gate"), studies / f"{percent} {blocks} {noise} {failing}"
        shutil.rmtree(folder.path, ignore_errors=True)
        if laid_by.exists():
            shutil.copytree(laid_by, folder.path)
        else:
            tps = speeds(1, noise, **{"with": percent})
            view_of(tps, blocks=blocks, levels=LEVELS, name="gate", failing=failing)
            shutil.copytree(folder.path, laid_by)
        parameters = {"answers": answers or {}}
        folder.write(folder.read().model_copy(update={"parameters": parameters, **about}))
        return gate_study("gate", tolerance)

    return make


def outcomes(rows: list[Row]) -> list[tuple[str, str]]:
    return [(outcome, comparison) for outcome, _, comparison, *_ in rows]


def test_all_comparisons_count_and_the_control_says_what_noise_is(gated) -> None:
    rows = gated()
    assert outcomes(rows) == [
        (PASSED, "with against defaults"),
        (PASSED, "other against defaults"),
        ("noise", "control against defaults"),
    ]
    assert status(rows) == 0
    rows = gated(-10)
    assert outcomes(rows)[0] == (SLOWER, "with against defaults")
    assert rows[0][3].startswith("−10.")
    assert rows[0][4] == "slower by more than 3 %"
    assert status(rows) == 3
    assert status(gated(-10, tolerance=0.2)) == 0
    assert status(gated(noise=0.2)) == 4


def test_declared_answers_count_alone_and_what_is_missing_counts(gated) -> None:
    assert outcomes(gated(-10, answers={"other": "the other"}))[0] == (PASSED, "other against defaults")
    assert status(gated(-10, answers={"other": "the other"})) == 0
    rows = gated(left_out={"third": "there is no such version here"})
    assert (UNKNOWN, "gate", "third", "", "left out: there is no such version here") in rows
    assert status(rows) == 4
    rows = gated(failing={"other": "it broke"})
    assert (UNKNOWN, "other against nothing") in outcomes(rows) or (
        UNKNOWN,
        "other against defaults",
    ) in outcomes(rows)
    assert status(rows) == 4
    assert status(gated(-10, failing={"other": "it broke"})) == 3, "what is slower is"


def test_a_study_that_was_cut_off_cannot_be_said_though_all_is_quiet(gated) -> None:
    gated()
    StudyFolder("gate").set_aside(StudyFolder("gate").read().trials[-1].id)
    rows = gate_study("gate", None)
    assert {outcome for outcome, *_ in rows[:2]} == {PASSED}
    assert rows[-1] == (UNKNOWN, "gate", "every trial", "", "not complete: 1 of its 36 trials are missing")
    assert status(rows) == 4


def test_what_has_no_verdict_cannot_be_said(gated, view_of, folder_of) -> None:
    assert status(gated(blocks=2)) == 4
    folder_of(name="never-run")
    (row,) = gate_study("never-run", None)
    assert row[0] == UNKNOWN
    assert "no block with two good trials" in row[4]
    view_of(name="alone", levels={})
    rows = gate_study("alone", None)
    assert (rows[0][0], status(rows)) == (UNKNOWN, 4)
    assert status([]) == 4
    with pytest.raises(InputError, match="no study 'nope'"):
        gate_study("nope", None)


words = st.text(min_size=1)
some_rows = st.lists(
    st.tuples(st.sampled_from([PASSED, SLOWER, UNKNOWN]), st.sampled_from(["a", "b-2"]), words, words, words),
    max_size=5,
)


@given(some_rows)
def test_any_text_is_well_formed_xml_and_says_the_same(rows: list[Row]) -> None:
    rows = [_row(*row) for row in rows]
    root = ET.fromstring(written(rows, "junit"))
    cases = root.findall("*/testcase")
    assert len(cases) == len(rows)
    for suite in root:
        of_study = [row[0] for row in rows if row[1] == suite.get("name")]
        assert int(suite.get("tests", "")) == len(of_study)
        assert int(suite.get("failures", "")) == of_study.count(SLOWER) == len(suite.findall("*/failure"))
        assert int(suite.get("errors", "")) == of_study.count(UNKNOWN) == len(suite.findall("*/error"))
    assert sorted(case.get("name") for case in cases) == sorted(row[2] for row in rows)


HOSTILE = (
    "<script>alert(1)</script> | [x](http://evil) @all `code` **bold**\n| new | row |\n# heading \x1b[31m"
)


def test_nobody_s_text_is_obeyed_in_markdown() -> None:
    text = written([_row(SLOWER, "a", HOSTILE, "−5 %", HOSTILE)], "markdown", "https://example.org/")
    page = BeautifulSoup(mistune.create_markdown(escape=False, plugins=["table"])(text), "html.parser")
    assert [a["href"] for a in page.find_all("a")] == ["https://example.org/a.html"]
    assert len(page.find_all("tr")) == 2
    assert len(page.find_all("td")) == 5
    assert not page.find_all(["script", "h1"])
    assert {strong.get_text() for strong in page.find_all("strong")} == {"slower"}
    assert "\x1b" not in text


def test_text_has_a_line_for_each_comparison() -> None:
    rows = [
        (PASSED, "a", "x against y", "+1 % (0 to 2)", "no slower than 3 %"),
        (UNKNOWN, "a", "z", "", "left out: <no>"),
    ]
    assert written(rows).splitlines() == [
        "passed: a: x against y: +1 % (0 to 2): no slower than 3 %",
        "cannot be said: a: z: left out: <no>",
    ]
