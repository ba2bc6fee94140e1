"""Servers side by side: what their owners have set, what statements took there, and what a million transactions cost."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

import pandas as pd

from benchlib.errors import InputError
from benchlib.plan.settings import quantity, shown
from benchlib.plan.words import size_words
from benchlib.report.figures.frames import amount, by_value, change_words, known, rows_of
from benchlib.report.figures.mechanism import means_in_words
from benchlib.report.figures.tables import Quiet, Table, html_table, of_levels
from benchlib.report.sections import NothingToShowError, records, section
from benchlib.stats.means import geometric_mean
from benchlib.study.experiment import Experiment
from benchlib.study.published import matching
from benchlib.study.records import Counters, Parameters

OWN = "PostgreSQL's own"
_HIDDEN = "not shown"
_PER_HOUR = 3600
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
def server_settings(experiment: Experiment) -> Table:
    """The parameters that differ between the servers, a column for each, and folded those that differ from PostgreSQL's own defaults alone.

    Levels that run with the same are in one column. Parameters that only the server itself
    has derived from others are left out where they are the same everywhere.
    """
    levels = _asked(experiment)
    kept = {level: dict(record) for level, _, record in records(experiment, Parameters) if level in levels}
    if not kept:
        raise NothingToShowError("What the servers run with was not kept with these trials.")
    settings = {level: str({n: row["setting"] for n, row in of.items()}) for level, of in kept.items()}
    alike = list(by_value(settings).values())
    servers = [kept[names[0]] for names in alike]
    rows = []
    for name in sorted({name for parameters in servers for name in parameters}):
        of_servers = [parameters.get(name) for parameters in servers]
        known_rows = [row for row in of_servers if row]
        chosen = any(row["source"] != "default" and row["setting"] != row["boot_val"] for row in known_rows)
        if chosen or len({row["setting"] for row in known_rows}) > 1:
            own = " or ".join(dict.fromkeys(_shown(row, "boot_val") for row in known_rows))
            rows.append([name, *(_cell(row, own) for row in of_servers), own])
    if not rows:
        raise NothingToShowError("Every server runs with PostgreSQL's own defaults.")
    differ = [row for row in rows if len(set(row[1:-1])) > 1] or rows
    same = [f"{row[0]} {row[1]}" for row in rows if row not in differ]
    note = "Muted: as PostgreSQL has it."
    if absent := [level for level in levels if level not in kept]:
        note += f" Nothing was kept of {', '.join(absent)}."
    columns = ["setting", *(_heading(names, list(kept)) for names in alike), OWN]
    frame = pd.DataFrame(differ, columns=columns, dtype=object)
    details = f"The same on all, other than {OWN}: {'; '.join(same)}." if same else ""
    return html_table(frame, "What the servers run with", note=note, details=details)


@section
def cost_per_million(experiment: Experiment, prices: Mapping[str, float], currency: str = "") -> Table:
    """What a million transactions cost at each level, given what its server costs an hour.

    A key of ``prices`` is a level's name, or comma-separated parts of names: ``crm`` is the price of "run, crm".
    A level's own price goes before one by parts.
    The cost is price / throughput by the geometric mean of the trials, with the t interval (95 %) of its logarithm;
    the change against another level is the ratio of prices / the analysis's ratio of throughputs, with its interval.

    Raises:
        InputError: a price is no positive number, is of no level, or a level has two.

    """
    levels = _asked(experiment)
    by_level = _prices(prices, levels)
    if not by_level:
        raise NothingToShowError("No price per hour was given.")
    unit, rows = f", {currency}" if currency else "", []
    good = experiment.trials[experiment.trials["error"].isna()]
    for level in levels:
        price = by_level.get(level)
        mean, low, high = geometric_mean(
            good.loc[good["level"] == level, "tps"].dropna().astype(float).to_list()
        )
        cost = "no price given" if known(mean) else "no transactions"
        if known(mean) and price is not None:
            cost, most, least = (amount(price * 1e6 / (_PER_HOUR * tps)) for tps in (mean, low, high))
            cost += f" ({least} to {most})" if known(low) else ""
        change, against = _change(experiment, by_level, level)
        row = {"level": level, f"a million transactions{unit}": cost, "change": change, "against": against}
        row |= {
            f"price an hour{unit}": amount(price) if price else "",
            "tps": amount(mean) if known(mean) else "",
        }
        rows.append(row)
    frame = pd.DataFrame(rows, dtype=object)
    formats = dict.fromkeys(frame.columns.difference(["level", "against"]), str)
    return html_table(frame, "What a million transactions cost", formats=formats)


def _asked(experiment: Experiment) -> list[str]:
    """The levels without the controls, which are the baseline once more."""
    factor = experiment.plan.factor
    return [level for level in factor.levels if level not in factor.controls]


def _cell(row: Mapping[str, Any] | None, own: str) -> str:
    """What a server has of a parameter, muted where PostgreSQL itself would have it so."""
    if row is None:
        return Quiet("not set" if own == _HIDDEN else "not there")
    text = _shown(row, "setting")
    return Quiet(text) if row["setting"] == row["boot_val"] else text


def _shown(row: Mapping[str, Any], which: str) -> str:
    """A value with its unit, sizes as people write them: ``128 MB``, ``300 s``."""
    value, unit = row[which], row["unit"]
    if value is None:
        return _HIDDEN
    if not unit or value.startswith("-"):
        return value or "empty"
    read = quantity(shown(value, unit))
    return size_words(int(read[0])) if read and read[1] == "B" else f"{value} {unit}"


def _heading(levels: list[str], all_levels: list[str]) -> str:
    """What some levels are called together: "crm" for "load, crm" and "run, crm", if no other has this part; else all names."""
    if len(levels) == len(all_levels):
        return "all servers"
    others = {part for name in all_levels if name not in levels for part in name.split(", ")}
    shared = set.intersection(*(set(name.split(", ")) for name in levels)) - others
    return ", ".join(part for part in levels[0].split(", ") if part in shared) or "; ".join(levels)


def _prices(prices: Mapping[str, float], levels: list[str]) -> dict[str, float]:
    """The price of each level that has one: its own, or else that of some parts of its name."""
    keys: dict[str, str] = {}
    for key, price in prices.items():
        if isinstance(price, bool) or not known(price) or price <= 0:
            raise InputError(f"prices: '{key}' is {price!r}: want a price per hour above 0, or leave it out")
        if not (priced := matching(key, levels)):
            raise InputError(f"prices: no level is called '{key}', or has it as a part: {'; '.join(levels)}")
        for level in priced:
            if level in prices and level != key:
                continue
            if level in keys:
                raise InputError(f"prices: level '{level}' has two, of '{keys[level]}' and of '{key}'")
            keys[level] = key
    return {level: prices[key] for level, key in keys.items()}


def _change(experiment: Experiment, prices: Mapping[str, float], level: str) -> tuple[str, str]:
    """How a level's cost differs from that of what it is compared with, and what that is; nothing where it is not known."""
    analysis = experiment.analysis
    other = analysis.against.get(level, "")
    if not {level, other} <= prices.keys() or analysis.metric.name not in ("tps", "speed"):
        return "", ""
    row, ratio = rows_of(analysis)[level], prices[level] / prices[other]
    if row["verdict"] == "invalid":
        return "invalid", other
    # the higher a speed, the lower the cost
    ends = {"percent_change": "percent_change", "ci_low": "ci_high", "ci_high": "ci_low"}
    costs = {end: 100 * (ratio / (1 + row[of] / 100) - 1) for end, of in ends.items() if known(row[of])}
    return change_words(costs), other


# --- statements ---------------------------------------------------------------------


@section
def server_statements(experiment: Experiment) -> Table:
    """The statements that took the servers longest, a table each: what a call took, levels side by side.

    Raises:
        InputError: a file of counters is damaged.

    """
    figures = _figures(experiment)
    if figures.empty:
        raise NothingToShowError(
            "No statements were counted: set shared_preload_libraries = pg_stat_statements."
        )
    levels = list(experiment.plan.factor.levels)
    share = figures.groupby(["query", "level"])["share"].mean().groupby("query", sort=False).max()
    longest = share.sort_values(ascending=False, kind="stable").index[:MOST]
    queries = enumerate(longest, 1)
    tables = [_table(f"{n}. {query}", figures[figures["query"] == query], levels) for n, query in queries]
    note = f"Mean ± standard deviation. Of {len(share)} statements those that took a server longest."
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
