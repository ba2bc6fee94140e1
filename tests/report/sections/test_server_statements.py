"""Statements as servers with pg_stat_statements counted them, levels side by side."""

import json

import pytest
from bs4 import BeautifulSoup
from fakes import FakeBench, counters

from benchlib.report.sections.server_statements import server_statements
from benchlib.report.view import View
from benchlib.study.experiment import shown
from benchlib.study.loop import run_study


def entry(query: str, *, calls: int, ms: float, toplevel: bool = True, **more: float) -> dict[str, object]:
    """A row of pg_stat_statements; all but what is given is 0."""
    told = dict.fromkeys(("shared_blks_hit", "shared_blks_read", "shared_blks_dirtied"), 0)
    told |= {"shared_blks_written": 0, "temp_blks_written": 0, "wal_bytes": 0, "rows": calls}
    row = {"queryid": hash(query), "toplevel": toplevel, "query": query, "calls": calls}
    return {**told, **row, "total_exec_time": ms, **more}


@pytest.fixture
def study(folder_of, tmp_path):
    """The view of a study whose trials counted these statements, by level; None where there is no extension."""

    def make(by_level):
        folder = folder_of(3)
        run_study(folder, FakeBench(folder.read().plan, tmp_path).open)
        for trial_id, m in folder.kept().items():
            kept = counters(3000)
            told = by_level(m.trial.level)
            kept["before"]["statements"], kept["after"]["statements"] = [] if told else None, told
            (folder.path / "trials" / trial_id / "statistics.json").write_text(json.dumps(kept))
        return View(shown(folder))

    return make


def tables(shown):
    """Each table's rows by their heading, by the table's caption."""
    found = {}
    for table in BeautifulSoup(shown.html, "html.parser").find_all("table"):
        rows = {row.th.get_text(): [td.get_text() for td in row.find_all("td")] for row in table.tbody("tr")}
        found[table.caption.get_text()] = rows
    return found


def test_a_call_of_each_statement_is_compared_and_the_longest_come_first(study):
    def told(level):
        if level == "control":
            return None
        update = entry("UPDATE  accounts\nSET x = $1", calls=1000, ms=250.0 if level == "tuned" else 500.0)
        inside = entry("UPDATE accounts SET x = $1", calls=1000, ms=0.0, toplevel=False, wal_bytes=64_000)
        return [entry("BEGIN", calls=2000, ms=10.0), update, inside]

    shown = server_statements(study(told))
    (first, rows), (second, _) = tables(shown).items()
    assert (first, second) == ("1. UPDATE accounts SET x = $1", "2. BEGIN")
    assert rows["calls in a trial"] == ["2,000", "–", "2,000"]
    assert rows["time, ms a call"] == ["0.25", "–", "0.125"]
    assert rows["WAL, B a call"] == ["32", "–", "32"]
    assert rows["share of the time, %"] == ["98.04", "–", "96.15"]
    assert "pages read a call" not in rows
    assert "The extension was not there at control." in shown.html


def test_what_a_version_does_not_count_is_left_out_and_not_0(study):
    shown = server_statements(study(lambda level: [entry("SELECT $1", calls=10, ms=1.0, wal_bytes=None)]))
    (rows,) = tables(shown).values()
    assert "WAL, B a call" not in rows


def test_a_long_statement_is_cut_and_what_it_says_is_escaped(study):
    shown = server_statements(study(lambda level: [entry("SELECT '<b>' < " + "1 + " * 100, calls=1, ms=1.0)]))
    (caption,) = tables(shown)
    assert caption.endswith("…")
    assert "<b>" not in shown.html


def test_without_the_extension_it_says_what_it_takes(study):
    assert "shared_preload_libraries = pg_stat_statements" in str(
        server_statements(study(lambda level: None))
    )
