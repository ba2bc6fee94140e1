"""What the server itself counted of each statement, where it has the extension pg_stat_statements."""

from __future__ import annotations

import html

import pandas as pd

from benchlib.report.figures.mechanism import means_in_words
from benchlib.report.figures.tables import Table, of_levels
from benchlib.report.sections import NothingToShowError, records, section
from benchlib.study.experiment import Experiment
from benchlib.study.records import Counters

MOST = 6
"""So many statements are shown, those on which some level's server spent the largest share of its time."""

_QUERY = 160  # characters of a statement that its table is headed by
_EACH = {
    "total_ms": "time, ms",
    "rows": "rows",
    "shared_blocks_hit": "pages hit",
    "shared_blocks_read": "pages read",
    "shared_blocks_dirtied": "pages dirtied",
    "shared_blocks_written": "pages written",
    "temp_blocks_written": "pages of temporary files written",
    "wal_bytes": "WAL, B",
}
"""What is shown of each call, by the name of its count."""


@section
def server_statements(experiment: Experiment) -> Table:
    """The statements that took the servers longest, a table each: what a call took, levels side by side.

    Raises:
        InputError: a file of counters is damaged.

    """
    figures = _figures(experiment)
    if figures.empty:
        raise NothingToShowError(
            "The servers did not count statements: that takes the setting shared_preload_libraries = pg_stat_statements, "
            "and an installation with that extension; “benchlib postgres list” tells which are here."
        )
    levels = list(experiment.plan.factor.levels)
    share = figures.groupby(["query", "level"])["share"].mean().groupby("query", sort=False).max()
    longest = share.sort_values(ascending=False, kind="stable").index[:MOST]
    queries = enumerate(longest, 1)
    tables = [_table(f"{n}. {query}", figures[figures["query"] == query], levels) for n, query in queries]
    note = (
        f"Mean ± one standard deviation between trials, by pg_stat_statements. Of {len(share)} statements those on which a level's "
        "server spent most; what is 0 at all levels is left out. Planning is not in the time."
    )
    if absent := [level for level in levels if level not in set(figures["level"])]:
        note += f" The extension was not there at {', '.join(absent)}."
    footer = f'<p class="bl-note">{html.escape(note)}</p>'
    return Table("What each statement took on the server", "".join([*tables, footer]))


def _figures(experiment: Experiment) -> pd.DataFrame:
    """A row per good trial and statement: ``level, query, share`` of the time of all in percent, ``calls``, and each call's figures."""
    trials = []
    for level, _, record in records(experiment, Counters):
        rows = pd.DataFrame(record.statements() or (), columns=["query", "calls", *_EACH])
        rows["query"] = rows["query"].str.split().str.join(" ")
        # one text may be several entries, such as inside a function and outside
        trial = rows.groupby("query", sort=False).sum(min_count=1).reset_index()
        trial["share"] = 100 * trial["total_ms"] / trial["total_ms"].sum()
        trial[list(_EACH)] = trial[list(_EACH)].div(trial["calls"], axis=0)
        trials.append(trial.assign(level=level))
    return pd.concat(trials, ignore_index=True) if trials else pd.DataFrame()


def _table(caption: str, figures: pd.DataFrame, levels: list[str]) -> str:
    """One statement: a row per figure, a column per level."""
    titles = {"share": "share of the time, %", "calls": "calls in a trial"}
    titles |= {name: f"{words} a call" for name, words in _EACH.items()}
    rows = [
        [title, *means_in_words(figures[name], figures["level"], levels)]
        for name, title in titles.items()
        if figures[name].fillna(0).ne(0).any()
    ]
    short = caption if len(caption) <= _QUERY else f"{caption[:_QUERY]}…"
    return of_levels("figure", levels, rows, short).html
