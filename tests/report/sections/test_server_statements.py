"""Statements as servers with pg_stat_statements counted them, levels side by side."""

import pytest
from bs4 import BeautifulSoup
from fakes import counters

from benchlib.report.sections.servers import server_statements


def entry(query: str, *, calls: int, ms: float, toplevel: bool = True, **more: float) -> dict[str, object]:
    """A row of pg_stat_statements; all but what is given is 0."""
    counts = dict.fromkeys(("shared_blks_hit", "shared_blks_read", "shared_blks_dirtied"), 0)
    counts |= {"shared_blks_written": 0, "temp_blks_written": 0, "wal_bytes": 0, "rows": calls}
    row = {"queryid": hash(query), "toplevel": toplevel, "query": query, "calls": calls}
    return {**counts, **row, "total_exec_time": ms, **more}


@pytest.fixture
def shown(view_of):
    """What is shown of a study whose trials counted these statements, by level; None where there is no extension."""

    def make(by_level):
        def leaving(trial):
            kept, entries = counters(3000), by_level(trial.level)
            kept["before"]["statements"], kept["after"]["statements"] = [] if entries else None, entries
            return {"statistics.json": kept}

        return server_statements(view_of(leaving=leaving))

    return make


def tables(table):
    """Each statement's rows by their heading, by its caption."""
    return {
        part.caption.get_text(): {
            row.th.get_text(): [td.get_text() for td in row("td")] for row in part.tbody("tr")
        }
        for part in BeautifulSoup(table.html, "html.parser").find_all("table")
    }


def test_a_call_of_each_statement_is_compared_and_the_longest_come_first(shown):
    def entries(level):
        if level == "control":
            return None
        update = entry("UPDATE  accounts\nSET x = $1", calls=1000, ms=250.0 if level == "tuned" else 500.0)
        inside = entry("UPDATE accounts SET x = $1", calls=1000, ms=0.0, toplevel=False, wal_bytes=64_000)
        return [entry("BEGIN", calls=2000, ms=10.0), update, inside]

    table = shown(entries)
    (first, rows), (second, _) = tables(table).items()
    assert (first, second) == ("1. UPDATE accounts SET x = $1", "2. BEGIN")
    assert rows["calls in a trial"] == ["2,000", "–", "2,000"]
    assert rows["time, ms a call"] == ["0.25", "–", "0.125"]
    assert rows["WAL, B a call"] == ["32", "–", "32"]
    assert rows["share of the time, %"] == ["98.04", "–", "96.15"]
    assert "pages read a call" not in rows


def test_what_a_version_does_not_count_is_left_out_and_not_0(shown):
    table = shown(lambda level: [entry("SELECT $1", calls=10, ms=1.0, wal_bytes=None)])
    (rows,) = tables(table).values()
    assert "WAL, B a call" not in rows


def test_without_the_extension_it_says_what_it_takes(shown):
    assert "shared_preload_libraries = pg_stat_statements" in str(shown(lambda level: None))
