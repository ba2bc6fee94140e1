"""Distributed load."""

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchlib.plan.model import Load

_SUMMED = re.compile(
    r"(\w+_)?(transactions|failures)|transactions_attempted|clients|threads|tps|speed|failed|skipped|retried|retries"
)
"""Figures of a report and of its rows that are sums."""
_COMBINED = re.compile(rf"{_SUMMED.pattern}|latency_(average_|stddev_)?ms|lag_ms|rate_lag_(average|max)_ms")
"""Those, and means, deviations and maxima."""
_MAX_SEED = 2**31 - 1


def split(load: Load, seed: int) -> dict[str, tuple[Load, int]]:
    """Return the load and seed of each generator that gets a client."""
    names = load.generators[: load.clients]
    clients = _equal_parts(load.clients, len(names))
    threads = _equal_parts(max(load.threads, len(names)), len(names))
    shares = {}
    for n, name in enumerate(names):
        rate = load.rate * clients[n] / load.clients if isinstance(load.rate, int | float) else load.rate
        share = {"clients": clients[n], "threads": min(threads[n], clients[n]), "rate": rate}
        shares[name] = load.model_copy(update=share), (seed + n * 7919 - 1) % _MAX_SEED + 1
    return shares


def _equal_parts(count: int, parts: int) -> list[int]:
    return [count // parts + (n < count % parts) for n in range(parts)]


def measured_from(began_s: Sequence[float], reports: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return when each generator had connected."""
    took = [(report.get("initial_connection_ms") or 0) / 1000 for report in reports]
    return [begin + connected for begin, connected in zip(began_s, took, strict=True)]


def common_tps(reports: Sequence[Mapping[str, Any]], begins: Sequence[float]) -> float | None:
    """Return the transactions per second while all measured, or None.

    A sum of speeds is too high if one runs alone.
    """
    if not all(report["transactions"] and report["tps"] for report in reports):
        return None
    took = [report["transactions"] / report["tps"] for report in reports]
    start, end = max(begins), min(begin + lasted for begin, lasted in zip(begins, took, strict=True))
    if end <= start:
        return None
    done = 0.0
    for report, begin, lasted in zip(reports, begins, took, strict=True):
        rows = [row for row in report["progress"] if row["tps"] is not None and row["elapsed_s"]]
        rows = [row for row in rows if row["elapsed_s"] < lasted]
        times = [0.0, *(row["elapsed_s"] for row in rows), lasted]
        counted = np.cumsum(np.diff(times[:-1]) * [row["tps"] for row in rows])
        counts = [0.0, *counted, report["transactions"]]  # the end is an exact count
        before, until = np.interp([start - begin, end - begin], times, counts)
        done += float(until - before)
    return float(done / (end - start))


def merged(reports: Sequence[Mapping[str, Any]], begins: Sequence[float] = ()) -> dict[str, Any]:
    """Merge generators' reports: sum counts, weight means.

    With ``begins`` speeds refer to the common time.
    """
    first, counts = reports[0], [report["transactions"] or 0 for report in reports]
    scripts, statements = (
        zip(*(report[name] for report in reports), strict=True) for name in ("scripts", "statements")
    )
    total = {
        **_joined(reports, counts),
        "seed": first.get("seed"),  # the others' follow from it
        "complete": all(report["complete"] for report in reports),
        "errors": [line for report in reports for line in report["errors"]],
        "notes": [line for report in reports for line in report.get("notes", ())],
        "progress": _common_progress([report["progress"] for report in reports]),
        "scripts": [_joined(rows, [row.get("transactions") or 0 for row in rows]) for rows in scripts],
        "statements": [_joined(rows, counts) for rows in statements],
    }
    if begins and (tps := common_tps(reports, begins)) is not None:
        for row in total["scripts"]:
            row["tps"] = row["tps"] and row["tps"] * tps / total["tps"]
        total |= {name: tps for name in ("tps", "speed") if name in first}
    return total | {name: None for name in first if name.startswith(("latency_p", "tps_in", "tps_ex"))}


def _joined(rows: Sequence[Mapping[str, Any]], weights: Sequence[float | None]) -> dict[str, Any]:
    """Return sums, weighted means, what is common to all, and else None."""
    return {name: _figure(name, rows, weights) for name in rows[0]}


def _figure(name: str, rows: Sequence[Mapping[str, Any]], weights: Sequence[float | None]) -> Any:
    values: list[Any] = [row.get(name) for row in rows]
    if not _COMBINED.fullmatch(name):
        return values[0] if all(value == values[0] for value in values) else None
    if None in values:
        return None
    if name == "rate_lag_max_ms":
        return max(values)
    if _SUMMED.fullmatch(name):
        return sum(values)
    if None in weights or not any(weights):
        return None
    mean = partial(np.average, weights=weights)
    if name != "latency_stddev_ms":
        return float(mean(values))
    means = [row["latency_average_ms"] for row in rows]
    if None in means:
        return None
    squares = [average**2 + deviation**2 for average, deviation in zip(means, values, strict=True)]
    return math.sqrt(max(float(mean(squares)) - float(mean(means)) ** 2, 0.0))


def _common_progress(progress: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    by_second = [{round(row["elapsed_s"]): row for row in rows if row["elapsed_s"]} for rows in progress]
    common = []
    for second in sorted(set.intersection(*map(set, by_second))):
        rows = [readings[second] for readings in by_second]
        of_first = {"elapsed_s": rows[0]["elapsed_s"], "stddev_ms": None}
        common.append(_joined(rows, [row["tps"] for row in rows]) | of_first)
    return common


def overlap(windows: Sequence[tuple[float, float]]) -> float:
    """Return the share (0 to 1) of the time in which all measured."""
    begins, ends = zip(*windows, strict=True)
    total = max(ends) - min(begins)
    return max(min(ends) - max(begins), 0.0) / total if total > 0 else 0.0
