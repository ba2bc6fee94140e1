"""Servers side by side: what their owners have set, and what a million transactions cost."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from benchlib.errors import InputError
from benchlib.plan.settings import quantity, shown
from benchlib.plan.words import size_words
from benchlib.report.figures.frames import amount, by_value, known
from benchlib.report.figures.tables import Quiet, Table, html_table
from benchlib.report.sections import NothingToShowError, records, section
from benchlib.stats.descriptive import geometric_mean
from benchlib.study.experiment import Experiment
from benchlib.study.published import matching
from benchlib.study.records import Parameters

OWN = "PostgreSQL's own"
_HIDDEN = "not shown"
_PER_HOUR = 3600


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
            own = " or ".join(dict.fromkeys(_own(row) for row in known_rows))
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
    return Quiet(text) if row["setting"] == row["boot_val"] or row["source"] == "default" else text


def _own(row: Mapping[str, Any]) -> str:
    """What PostgreSQL itself has of a parameter; it may derive that from others, or from how the cluster was made."""
    derived = row["source"] == "default" and row["setting"] != row["boot_val"]
    return "automatic" if derived else _shown(row, "boot_val")


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
