"""Servers side by side: what their owners have set, what statements took there, and what a million transactions cost."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import pandas as pd

from benchlib.errors import InputError
from benchlib.plan.settings import quantity, shown
from benchlib.plan.words import size_words
from benchlib.report.figures.frames import amount, by_value, known
from benchlib.report.figures.mechanism import means_in_words
from benchlib.report.figures.tables import Quiet, Table, html_table, of_levels
from benchlib.report.sections import NothingToShowError, records, section
from benchlib.stats.descriptive import geometric_mean
from benchlib.study.experiment import Experiment
from benchlib.study.published import matching
from benchlib.study.records import Counters, Parameters

OWN = "PostgreSQL's own"
_HIDDEN = "not shown"
_PER_HOUR = 3600
MOST = 6
"""So many statements are shown, those on which some level's server spent the largest share of its time."""

_QUERY = 160  # characters of a statement that its table is headed by
_FIGURES = {
    "share": "share of the time, %",
    "calls": "calls in a trial",
    "total_ms": "time, ms a call",
    "rows": "rows a call",
    "shared_blocks_hit": "pages hit a call",
    "shared_blocks_read": "pages read a call",
    "shared_blocks_dirtied": "pages dirtied a call",
    "shared_blocks_written": "pages written a call",
    "temp_blocks_written": "pages of temporary files written a call",
    "wal_bytes": "WAL, B a call",
}
"""What is shown of a statement; from the third on by the name of its count."""
_EACH = list(_FIGURES)[2:]


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
    columns = ["setting", *(_heading(names, list(kept)) for names in alike), OWN]
    frame = pd.DataFrame(differ, columns=columns, dtype=object)
    details = f"The same on all, other than {OWN}: {'; '.join(same)}." if same else ""
    note = "Muted: as PostgreSQL has it."
    return html_table(frame, "What the servers run with", note=note, details=details)


@section
def cost_per_million(experiment: Experiment, prices: Mapping[str, float], currency: str = "") -> Table:
    """What a million transactions cost at each level, given what its server costs an hour.

    A key of ``prices`` is a level's name, or comma-separated parts of names: ``crm`` is the price of "run, crm".
    A level's own price goes before one by parts.
    The cost is price / throughput by the geometric mean of the trials, with the t interval (95 %) of its logarithm.

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
        trials = good.loc[good["level"] == level, "tps"]
        mean, low, high = geometric_mean(trials.dropna().astype(float).to_list())
        cost = "no price given" if known(mean) else "no transactions"
        if known(mean) and price is not None:
            cost, most, least = (amount(price * 1e6 / (_PER_HOUR * tps)) for tps in (mean, low, high))
            cost += f" ({least} to {most})" if known(low) else ""
        rows.append((level, cost, amount(price) if price else "", amount(mean)))
    columns = ["level", f"a million transactions{unit}", f"price an hour{unit}", "tps"]
    frame, formats = pd.DataFrame(rows, columns=columns, dtype=object), dict.fromkeys(columns[1:], str)
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
    others = {part for name in all_levels if name not in levels for part in name.split(", ")}
    shared = set.intersection(*(set(name.split(", ")) for name in levels)) - others
    return ", ".join(part for part in levels[0].split(", ") if part in shared) or "; ".join(levels)


def _prices(prices: Mapping[str, float], levels: list[str]) -> dict[str, float]:
    """The price of each level that has one: its own, or else that of some parts of its name."""
    keys: dict[str, str] = {}
    for key, price in prices.items():
        if not known(price) or price <= 0:
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
    levels, tables = list(experiment.plan.factor.levels), []
    share = figures.groupby(["query", "level"])["share"].mean().groupby("query", sort=False).max()
    for number, query in enumerate(share.astype(float).nlargest(MOST).index, 1):
        of = figures[figures["query"] == query]
        rows = [
            [title, *means_in_words(of[name], of["level"], levels)]
            for name, title in _FIGURES.items()
            if of[name].fillna(0).ne(0).any()
        ]
        caption = textwrap.shorten(f"{number}. {query}", _QUERY, placeholder="…")
        tables.append(of_levels("figure", levels, rows, caption).html)
    return Table("What each statement took on the server", "".join(tables))


def _figures(experiment: Experiment) -> pd.DataFrame:
    """A row per good trial and statement: ``level, query, share`` of the time of all in percent, ``calls``, and each call's figures."""
    trials = []
    for level, _, record in records(experiment, Counters):
        rows = pd.DataFrame(record.statements() or (), columns=["query", "calls", *_EACH])
        rows["query"] = rows["query"].str.split().str.join(" ")
        # one text may be several entries, such as inside a function and outside
        trial = rows.groupby("query", sort=False).sum(min_count=1).reset_index()
        trial["share"] = 100 * trial["total_ms"] / trial["total_ms"].sum()
        trial[_EACH] = trial[_EACH].div(trial["calls"], axis=0)
        trials.append(trial.assign(level=level))
    return pd.concat(trials, ignore_index=True) if trials else pd.DataFrame()
