"""Distributed load."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchlib.plan.model import Load

_SUMMED = re.compile(
    r"(\w+_)?(transactions|failures)|transactions_attempted|clients|threads|tps|speed|failed|skipped|retried|retries"
)
"""Figures of a report and of its rows that are sums."""
_MEANS = ("latency_average_ms", "latency_ms", "rate_lag_average_ms", "lag_ms")
"""Those that are means."""
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
    first, counts = reports[0], _counts(reports)
    lags: list[Any] = [report.get("rate_lag_max_ms") for report in reports]
    scripts = zip(*(report["scripts"] for report in reports), strict=True)
    statements = zip(*(report["statements"] for report in reports), strict=True)
    total = {
        **_joined(reports, counts),
        "seed": first.get("seed"),  # the others' follow from it
        "complete": all(report["complete"] for report in reports),
        "errors": [line for report in reports for line in report["errors"]],
        "notes": [line for report in reports for line in report.get("notes", ())],
        "rate_lag_max_ms": None if None in lags else max(lags),
        "progress": _common_progress([report["progress"] for report in reports]),
        "scripts": [_joined(rows, _counts(rows)) for rows in scripts],
        "statements": [_joined(rows, counts) for rows in statements],
    }
    if begins and (tps := common_tps(reports, begins)) is not None:
        for row in total["scripts"]:
            row["tps"] = row["tps"] and row["tps"] * tps / total["tps"]
        total |= {name: tps for name in ("tps", "speed") if name in first}
    return total | {name: None for name in first if name.startswith(("latency_p", "tps_in", "tps_ex"))}


def _counts(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    return [row.get("transactions") or 0 for row in rows]


def _joined(rows: Sequence[Mapping[str, Any]], weights: Sequence[Any]) -> dict[str, Any]:
    """Return sums, weighted means, what is common to all, and else None."""
    joined: dict[str, Any] = {}
    for name in rows[0]:
        values: list[Any] = [row.get(name) for row in rows]
        if name in _MEANS:
            joined[name] = _mean(values, weights)
        elif _SUMMED.fullmatch(name):
            joined[name] = None if None in values else sum(values)
        else:
            joined[name] = values[0] if all(value == values[0] for value in values) else None
    if "latency_stddev_ms" in joined:
        joined["latency_stddev_ms"] = _deviation(rows, joined["latency_average_ms"], weights)
    return joined


def _mean(values: Sequence[Any], weights: Sequence[Any]) -> float | None:
    known = None not in values and None not in weights and any(weights)
    return float(np.average(values, weights=weights)) if known else None


def _deviation(rows: Sequence[Mapping[str, Any]], mean: float | None, weights: Sequence[Any]) -> float | None:
    """Return the standard deviation of all, from means and standard deviations."""
    if mean is None or None in [row["latency_stddev_ms"] for row in rows]:
        return None
    squares = [row["latency_average_ms"] ** 2 + row["latency_stddev_ms"] ** 2 for row in rows]
    return math.sqrt(max(float(np.average(squares, weights=weights)) - mean**2, 0.0))


def _common_progress(progress: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    by_second = [{round(row["elapsed_s"]): row for row in rows if row["elapsed_s"]} for rows in progress]
    common = []
    for second in sorted(set.intersection(*map(set, by_second))):
        rows = [readings[second] for readings in by_second]
        joined = _joined(rows, [row["tps"] for row in rows])
        common.append(joined | {"elapsed_s": rows[0]["elapsed_s"], "stddev_ms": None})
    return common


def overlap(windows: Sequence[tuple[float, float]]) -> float:
    """Return the share (0 to 1) of the time in which all measured."""
    begins, ends = zip(*windows, strict=True)
    total = max(ends) - min(begins)
    return max(min(ends) - max(begins), 0.0) / total if total > 0 else 0.0
