"""All studies on one page: their answers by panel, and in numbers."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchlib.report.answers import Answer
from benchlib.report.entries import Entry, entries
from bs4 import BeautifulSoup

from benchlib import notebook
from benchlib.errors import InputError
from benchlib.report.site import Summary

ANSWER = Answer(
    level="tuned", against="defaults", words="the <tuned> set", percent_change=97.1, ci_low=90, ci_high=104,
    verdict="faster", gives_up="the last commits", said="faster",
)  # fmt: skip


FACTS = {"Machine": "2 GiB", "Measured": "2026-01-02"}


def entry(name: str, **about: Any) -> Entry:
    """The entry of a study with one answer."""
    given = {
        "title": name.capitalize(),
        "panel": "changes",
        "metric_title": "throughput",
    }
    return Entry(
        name=name,
        fingerprint="",
        **{**given, "answers": (ANSWER,), "facts": FACTS, **about},
    )


def parsed(shows_itself: Any) -> BeautifulSoup:
    return BeautifulSoup(shows_itself._repr_html_(), "html.parser")


def text(shows_itself: Any) -> str:
    return parsed(shows_itself).get_text(" ", strip=True)


def test_answers_have_their_numbers_and_link_to_their_pages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BENCHLIB_REPORTS", str(tmp_path))
    assert parsed(Summary([entry("one", answers=(ANSWER,))]).answers()).find("a") is None, "it has no page"
    (tmp_path / "one.html").touch()
    unknown = dataclasses.replace(
        ANSWER, percent_change=float("nan"), verdict="invalid", said="invalid", gives_up=""
    )
    table = parsed(Summary([entry("one", answers=(ANSWER, unknown))]).answers())
    first, second = (
        [cell.get_text() for cell in row.find_all(["th", "td"])] for row in table.tbody.find_all("tr")
    )
    assert first[:5] == ["One", "+97\u00a0%", "▲\u00a0faster", "the <tuned> set†", "90 to 104\u00a0%"]
    assert "the last commits" in first
    assert second[2].endswith("invalid")
    assert table.find("a")["href"] == "one.html"


def test_machines_are_told_apart_and_each_study_has_its_main_limit_once() -> None:
    second = entry(
        "two", facts=FACTS | {"Machine": "4 GiB"}, limits="one disk · 3 trials", answers=(ANSWER, ANSWER)
    )
    both = Summary([entry("one"), second])
    assert text(both.studies()) == "2 studies, measured 2026-01-02. 2 GiB; 4 GiB."
    assert text(both.answers()).count("one disk") == 1
    assert "3 trials" not in text(both.answers())


@pytest.mark.usefixtures("data_root")
def test_with_nothing_kept_there_is_nothing_to_show() -> None:
    summary = Summary(entries()[0])
    assert str(summary.studies()).startswith("No study")
    assert summary.panels() is summary.answers() is None


def test_a_notebook_opens_the_studies_that_it_names(keep, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("BENCHLIB_REPORTS", str(tmp_path))
    keep("one")
    keep("two")
    cell = 'factor: str = "summary"  # name\nstudies: str = ""  # names'
    names = {"In": [cell], "factor": "summary", "studies": " two, "}
    monkeypatch.setattr(notebook, "get_ipython", lambda: SimpleNamespace(user_ns=names))
    assert [each.name for each in notebook.open_summary().entries] == ["two"]
    monkeypatch.setattr(notebook, "get_ipython", lambda: None)
    with pytest.raises(InputError, match="open_summary"):
        notebook.open_summary()
