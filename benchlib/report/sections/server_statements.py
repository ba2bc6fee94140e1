"""What the server itself counted of each statement, where it has the extension pg_stat_statements."""

from __future__ import annotations

import html

import pandas as pd

from benchlib.report.figures.mechanism import mean_words
from benchlib.report.figures.tables import Table, html_table
from benchlib.report.view import Statement, View
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
"""What is told of each call, by the name of its count."""


def server_statements(view: View) -> Table | Statement:
    """The statements that took the servers longest, a table each: what a call took, levels side by side.

    Raises:
        InputError: a file of counters is damaged.

    """
    experiment = view.experiment
    found = _frame(experiment)
    if found.empty:
        return Statement(
            "The servers did not count statements: that takes the setting shared_preload_libraries = pg_stat_statements, "
            "and an installation with that extension; “benchlib postgres list” tells which are here."
        )
    levels = list(experiment.plan.factor.levels)
    share = found.groupby(["query", "level"], sort=False)["share"].mean().groupby("query", sort=False).max()
    shown = share.sort_values(ascending=False, kind="stable").index[:MOST]
    tables = [
        _table(f"{place}. {query}", found[found["query"] == query], levels)
        for place, query in enumerate(shown, 1)
    ]
    words = (
        f"Mean ± one standard deviation between trials, by pg_stat_statements. Of {len(share)} statements those on which a level's "
        "server spent most; what is 0 at all levels is left out. Planning is not in the time."
    )
    if untold := [level for level in levels if level not in set(found["level"])]:
        words += f" The extension was not there at {', '.join(untold)}."
    caption = "What each statement took on the server"
    return Table(caption, "".join(tables) + f'<p class="bl-note">{html.escape(words)}</p>')


def _frame(experiment: Experiment) -> pd.DataFrame:
    """A row per good trial and statement: ``level, query, share`` of the time of all in percent, ``calls``, and each call's figures."""
    good = set(
        experiment.trials.loc[experiment.trials["error"].isna(), ["level", "block"]].itertuples(
            index=False, name=None
        )
    )
    trials = []
    for trial_id, m in experiment.folder.kept().items():
        kept = Counters.read(experiment.folder, trial_id)
        told = kept.statements() if kept else None
        if told and (m.trial.level, m.trial.block) in good:
            rows = pd.DataFrame(told, columns=["query", "calls", *_EACH])
            rows["query"] = rows["query"].str.split().str.join(" ")
            # one text may be several entries, such as inside a function and outside
            trial = rows.groupby("query", sort=False).sum(min_count=1).reset_index()
            trial["share"] = 100 * trial["total_ms"] / trial["total_ms"].sum()
            trial[list(_EACH)] = trial[list(_EACH)].div(trial["calls"], axis=0)
            trials.append(trial.assign(level=m.trial.level))
    return pd.concat(trials, ignore_index=True) if trials else pd.DataFrame()


def _table(caption: str, found: pd.DataFrame, levels: list[str]) -> str:
    """One statement: a row per figure, a column per level."""
    rows = []
    for name, words in {"share": "share of the time, %", "calls": "calls in a trial", **_EACH}.items():
        if found[name].fillna(0).eq(0).all():
            continue
        by_level = found.groupby("level")[name]
        means, deviations = by_level.mean().reindex(levels), by_level.std().reindex(levels)
        cells = [
            None if pd.isna(mean) else mean_words(mean, sd)
            for mean, sd in zip(means, deviations, strict=True)
        ]
        rows.append([words if name in ("share", "calls") else f"{words} a call", *cells])
    short = caption if len(caption) <= _QUERY else f"{caption[:_QUERY]}…"
    frame = pd.DataFrame(rows, columns=["figure", *levels], dtype=object)
    return html_table(
        frame, short, formats=dict.fromkeys(levels, str), labels={level: level for level in levels}
    ).html
