"""Servers side by side: what their owners have set, and what a million transactions cost on each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from benchlib.errors import InputError
from benchlib.plan.settings import quantity, shown
from benchlib.plan.words import size_words
from benchlib.report.figures.frames import amount, by_value, interval, known, rows_of, signed
from benchlib.report.figures.tables import Quiet, Table, html_table
from benchlib.report.sections import NothingToShowError, records, section
from benchlib.stats.means import geometric_mean
from benchlib.study.experiment import Experiment
from benchlib.study.published import matching
from benchlib.study.records import Parameters

OWN = "PostgreSQL's own"
_HIDDEN = "not shown"
_PER_HOUR = 3600


@section
def server_settings(experiment: Experiment) -> Table:
    """The parameters that differ from PostgreSQL's own defaults, or between the servers: a column for each server.

    Levels that run with the same are in one column. Parameters that only the server itself
    has derived from others are left out where they are the same everywhere.
    """
    levels = _asked(experiment)
    kept = {level: dict(record) for level, _, record in records(experiment, Parameters) if level in levels}
    if not kept:
        raise NothingToShowError(
            "What the servers run with was not kept with these trials, so their defaults are not known."
        )
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
    rows.sort(key=lambda row: len(set(row[1:-1])) == 1)
    note = (
        "Those that differ between servers come first; what is as PostgreSQL has it is muted. Of texts that may name "
        "a host, a folder or a user only that they are set is shown."
    )
    if absent := [level for level in levels if level not in kept]:
        note += f" Nothing was kept of {', '.join(absent)}."
    columns = ["setting", *(_heading(names, list(kept)) for names in alike), OWN]
    frame = pd.DataFrame(rows, columns=columns, dtype=object)
    return html_table(frame, "What the servers run with, beside PostgreSQL's own defaults", note=note)


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
        raise NothingToShowError(
            "No price per hour was given, so what a million transactions cost is not known."
        )
    unit = f", {currency}" if currency else ""
    cost, ends, hourly = f"a million transactions{unit}", f"95 % interval{unit}", f"price an hour{unit}"
    columns = ["level", cost, ends, "change", "interval", "against", hourly, "tps"]
    good = experiment.trials[experiment.trials["error"].isna()]
    rows = []
    for level in levels:
        tps, price = good.loc[good["level"] == level, "tps"].dropna().astype(float), by_level.get(level)
        row: dict[str, str | None] = {**dict.fromkeys(columns, ""), "level": level}
        row[hourly] = "" if price is None else amount(price)
        row[cost] = "no transactions" if tps.empty else "no price given"
        means = geometric_mean(tps.to_list())
        if len(tps):
            row["tps"] = amount(means[0])
        if len(tps) and price is not None:
            row[cost], high, low = (amount(price * 1e6 / (_PER_HOUR * mean)) for mean in means)
            row[ends] = f"[{low}, {high}]" if len(tps) > 1 else ""
            row |= _change(experiment, by_level, level)
        rows.append(row)
    note = (
        "The server's price alone: the load's machine, storage and traffic that are paid apart are not in it. Means are "
        "geometric, with the interval of a level's own trials; a change and its interval are the verdicts', where "
        "the baseline is the mean of its twins."
    )
    frame, formats = pd.DataFrame(rows, dtype=object), dict.fromkeys({*columns} - {"level", "against"}, str)
    return html_table(frame, "What a million transactions cost", formats=formats, note=note)


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
            raise InputError(
                f"prices: no level is called '{key}', or has it between commas; there are {'; '.join(levels)}"
            )
        for level in priced:
            if level in prices and level != key:
                continue
            if level in keys:
                raise InputError(f"prices: level '{level}' has two, of '{keys[level]}' and of '{key}'")
            keys[level] = key
    return {level: prices[key] for level, key in keys.items()}


def _change(experiment: Experiment, prices: Mapping[str, float], level: str) -> dict[str, str | None]:
    """How a level's cost differs from that of what it is compared with: ``change, interval, against``."""
    analysis = experiment.analysis
    other = analysis.against.get(level)
    if other is None or other not in prices or analysis.metric.name not in ("tps", "speed"):
        return {}
    row, ratio = rows_of(analysis)[level], prices[level] / prices[other]
    if row["verdict"] == "invalid":
        return {"change": "invalid", "against": other}
    change, low, high = (
        100 * (ratio / (1 + row[name] / 100) - 1) if known(row[name]) else math.nan
        for name in ("percent_change", "ci_high", "ci_low")
    )
    between = interval(low, high) if known(low, high) else None
    return {"change": signed(change) if known(change) else None, "interval": between, "against": other}
