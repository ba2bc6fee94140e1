"""pgbench's log files: one line per transaction (``-l``), or per interval (``--aggregate-interval``).

Source of the formats: ``doLog`` of PostgreSQL's ``src/bin/pgbench/pgbench.c``, versions 9.6 to 19
in development. pgbench writes a file per thread; give the files of one run as one text.

Logs of gigabytes are read by ``benchlib.load.latency``, which takes from here what a line may look like
and gives the same quantiles (they interpolate linearly, as numpy does by default).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from benchlib.errors import ParseError
from benchlib.load.parse.text import Text, options, real, wanted

TRANSACTIONS, AGGREGATES = "transaction log", "aggregate log"
WORDS = ("skipped", "failed", "serialization", "deadlock", "other")
"""What stands in place of a latency: skipped under a rate, the others are failures."""

TRANSACTION_LINE = re.compile(
    rf"\d{{1,7}} \d+ (?:\d+|{'|'.join(WORDS)}) \d+ (?:\d{{9,10}}|0) \d{{1,6}}(?: \d+){{0,2}}"
)
AGGREGATE_LINE = re.compile(r"\d{9,10}(?: -?\d+){5}(?: -?\d+){0,10}")
_COLUMNS = ("client", "transaction", "latency", "script", "epoch_s", "epoch_us")
_UNCLEAR = "lag_or_retries"
_SHAPES = {6: 0, 10: 4, 11: 5, 15: 9, 16: 10}
_MERGED = (
    "start_epoch_s", "transactions", "latency_mean_ms", "latency_stddev_ms", "latency_min_ms",
    "latency_max_ms", "lag_mean_ms", "lag_min_ms", "lag_max_ms", "skipped", "retried", "retries",
    "serialization_failures", "deadlock_failures", "other_failures",
)  # fmt: skip


def _columns(
    text: Text, kind: str, line: re.Pattern[str], shapes: Sequence[int]
) -> tuple[int, list[str], int]:
    """Return the number of columns, the lines of that shape, and how many lines are torn.

    A killed run leaves each file with a torn last line, which in a text of several files
    runs into the first line of the next.
    """
    rows = [each for each in text.lines if line.fullmatch(each)]
    # A last line without newline may have lost columns, so it does not say how many there are.
    sure = rows[:-1] if _doubtful(text, rows) else rows
    counts = Counter(each.count(" ") + 1 for each in sure)
    columns = max((n for n in counts if n in shapes), key=lambda n: (counts[n], n), default=0)
    if not columns:
        raise wanted(
            kind, "0 1 1523 0 1795178920 475654" if kind == TRANSACTIONS else "1795178927 802 926231 …", text
        )
    whole = [each for each in rows if each.count(" ") + 1 == columns]
    figures = [each for each in text.lines if re.match(r"\d+(?: |$)", each)]
    torn = len(figures) - len(whole)
    if torn > max(2, len(whole) // 100):
        odd = next(each for each in figures if each.count(" ") + 1 != columns or not line.fullmatch(each))
        raise ParseError(f'{kind}: lines of different shapes, such as "{odd}": torn, or logs of several runs')
    return columns, whole, torn


def _doubtful(text: Text, rows: list[str]) -> bool:
    """Tell whether the last row is whole but for its last figure, which may have lost digits."""
    return not text.terminated and bool(rows) and text.lines[-1] == rows[-1]


def parse_transactions(text: Text, argv: list[str] | None) -> dict[str, Any]:
    """Read a transaction log; ``benchlib.load.parse`` lists the keys.

    Raises ParseError when the lines are not of one shape, when a transaction is there twice, and
    when the columns are not those that the command line asks for.
    """
    columns, lines, torn = _columns(text, TRANSACTIONS, TRANSACTION_LINE, (6, 7, 8))
    rows = [line.split(" ") for line in lines]
    doubtful = _doubtful(text, lines)
    if doubtful and columns == 6 and len(rows) > 1 and _time(rows[-1]) < _time(rows[-2]):
        rows.pop()  # the microseconds lost digits: a thread logs in order of time
        doubtful, torn = False, torn + 1
    names = log_columns(columns, argv)
    has_lag, has_retries = "lag" in names, "retries" in names
    unclear = "the seventh column is lag or retries: only the command line can tell, so neither is given"
    ends = Counter(row[2] if row[2] in WORDS else "done" for row in rows)
    # 10 counts no skipped transaction, so those share a number.
    numbers = Counter((row[0], row[1]) for row in rows if row[2] != "skipped")
    if numbers and max(numbers.values()) > 1:
        raise ParseError(
            f"{TRANSACTIONS}: client and transaction {numbers.most_common(1)[0][0]} twice: several runs"
        )
    done = [row for row in rows if row[2] not in WORDS]
    sure = rows[:-1] if doubtful else rows
    retries = [int(row[-1]) for row in sure if row[2] != "skipped"] if has_retries else None
    lags = (
        [int(row[6]) for row in (sure if columns == 7 else rows) if row[2] not in WORDS] if has_lag else None
    )
    times = [_time(row) for row in (sure if columns == 6 else rows)] or [0.0]
    detailed = bool(ends["serialization"] or ends["deadlock"])
    return {
        "complete": torn == 0,
        "transactions": len(done),
        "failed_transactions": len(rows) - len(done) - ends["skipped"],
        "skipped_transactions": ends["skipped"],
        "serialization_failures": ends["serialization"] if detailed else None,
        "deadlock_failures": ends["deadlock"] if detailed else None,
        "latency_ms": _quantiles([int(row[2]) for row in done]),
        "lag_ms": None if lags is None else _quantiles(lags),
        "retries": None if retries is None else sum(retries),
        "retried_transactions": None if retries is None else sum(1 for each in retries if each),
        "sampling_rate": real(options(argv).get("sampling-rate")),
        "scripts": [
            {"script": number, "transactions": len(own), "latency_ms": _quantiles(own)}
            for number, own in sorted(_by_script(done).items())
        ],
        "first_epoch_s": min(times),
        "last_epoch_s": max(times),
        "torn_lines": torn,
        "notes": [unclear] if _UNCLEAR in names else [],
    }


def _time(row: list[str]) -> float:
    return int(row[4]) + int(row[5]) / 1e6


def _by_script(done: list[list[str]]) -> dict[int, list[int]]:
    latencies: dict[int, list[int]] = defaultdict(list)
    for row in done:
        latencies[int(row[3])].append(int(row[2]))
    return latencies


def log_columns(columns: int, argv: Sequence[str] | None) -> tuple[str, ...]:
    """The names of a transaction log's columns, of which there are ``columns``.

    A seventh could be ``lag`` or ``retries``; without a command line it is ``lag_or_retries``.

    Raises ParseError when the command line asks for others.
    """
    command = options(argv)
    if not command:
        extra = {7: [_UNCLEAR], 8: ["lag", "retries"]}.get(columns, [])
    else:
        retried = command.get("max-tries", "1") != "1"
        extra = ["lag"] * ("rate" in command) + ["retries"] * retried
        if 6 + len(extra) != columns:
            raise ParseError(
                f"{TRANSACTIONS}: {columns} columns, but the command line asks for {6 + len(extra)}"
            )
    return (*_COLUMNS, *extra)


def _quantiles(microseconds: list[int]) -> dict[str, float | int | None]:
    """Sum up durations given in microseconds, in milliseconds."""
    if not microseconds:
        return {"n": 0, **dict.fromkeys(("mean", "stddev", "min", "p50", "p90", "p95", "p99", "p999", "max"))}
    ms = np.asarray(microseconds, dtype=np.float64) / 1000
    p50, p90, p95, p99, p999 = (float(each) for each in np.quantile(ms, (0.5, 0.9, 0.95, 0.99, 0.999)))
    return {
        "n": len(microseconds),
        "mean": float(ms.mean()),
        "stddev": float(ms.std()),
        "min": float(ms.min()),
        "p50": p50,
        "p90": p90,
        "p95": p95,
        "p99": p99,
        "p999": p999,
        "max": float(ms.max()),
    }


def parse_aggregates(text: Text, argv: list[str] | None) -> dict[str, Any]:
    """Read an aggregate log, the threads' intervals merged; ``benchlib.load.parse`` lists the keys.

    Raises ParseError when the lines are not of one shape, or figures of a line contradict each other.
    """
    columns, lines, torn = _columns(text, AGGREGATES, AGGREGATE_LINE, tuple(_SHAPES))
    command = options(argv)
    doubtful = _doubtful(text, lines) and not lines[-1].endswith(" 0")  # digits may be missing
    if doubtful and columns == 11:
        lines.pop()  # its last figure says how many of its transactions were skipped
        doubtful, torn = False, torn + 1
    groups: dict[int, list[list[int | None]]] = defaultdict(list)
    for line in lines:
        row: list[int | None] = [int(each) for each in line.split(" ")]
        start, count, total, squares, low, high = row[:6]
        skipped = row[10] if columns == 11 else 0
        if columns == 11 and count is not None and skipped is not None:
            row[1] = count = count - skipped  # up to 14, skipped transactions count too
        if None in (start, count, total, low, high, squares) or not _plausible(*row[1:6]):
            raise ParseError(f'{AGGREGATES}: the figures in "{line}" contradict each other')
        groups[int(line.split(" ")[0])].append(row)
    if doubtful:
        groups[int(lines[-1].split(" ")[0])][-1][columns - 1] = None
    intervals = [_merge(start, groups[start], columns, command) for start in sorted(groups)]
    starts, asked = sorted(groups), command.get("aggregate-interval", "")
    steps = [later - earlier for earlier, later in pairwise(starts)]
    interval = int(asked) if asked.isdecimal() else min(steps, default=None)
    notes = (
        ["the threads' intervals do not line up, so they overlap"]
        if interval and any(s % interval for s in steps)
        else []
    )
    return {
        "complete": torn == 0,
        "interval_s": interval,
        "threads": max(len(rows) for rows in groups.values()),
        "transactions": sum(each["transactions"] for each in intervals),
        "intervals": intervals,
        "torn_lines": torn,
        "notes": notes,
    }


def _plausible(*figures: int | None) -> bool:
    count, total, squares, low, high = (each or 0 for each in figures)
    if count == 0:
        return total == squares == 0
    # Sums are rounded to whole microseconds, so the bounds are not exact.
    fits = low * count - count <= total <= high * count + count
    return low <= high and fits and squares * count * 1.001 + count >= total * total * 0.999


def _merge(start: int, rows: list[list[int | None]], columns: int, command: Any) -> dict[str, Any]:
    def add(column: int) -> int | None:
        values = [row[column] for row in rows]
        return None if None in values else sum(value for value in values if value is not None)

    def edge(column: int, choose: Any) -> float | None:
        values = [row[column] for row in rows if row[1]]
        return None if None in values or not values else float(choose(values) / 1000)

    count, total, squares = add(1) or 0, add(2) or 0, add(3) or 0
    mean = total / count if count else None
    stddev = max(squares / count - mean * mean, 0.0) ** 0.5 if mean is not None else None
    merged: dict[str, Any] = dict.fromkeys(_MERGED)
    merged |= {
        "start_epoch_s": start,
        "transactions": count,
        "latency_mean_ms": None if mean is None else mean / 1000,
        "latency_stddev_ms": None if stddev is None else stddev / 1000,
        "latency_min_ms": edge(4, min),
        "latency_max_ms": edge(5, max),
    }
    lag = add(6) if columns >= 10 else None
    # From 15 on the columns are always there, with zeros for what was not asked for.
    if count and lag is not None and (lag or columns < 15 or "rate" in command):
        merged |= {"lag_mean_ms": lag / count / 1000, "lag_min_ms": edge(8, min), "lag_max_ms": edge(9, max)}
    for column, (key, option) in enumerate(_COUNTS.items(), start=10):
        if column < columns and (not command or option in command):
            merged[key] = add(column)
    return merged


_COUNTS = {
    "skipped": "latency-limit",
    "retried": "max-tries",
    "retries": "max-tries",
    "serialization_failures": "failures-detailed",
    "deadlock_failures": "failures-detailed",
    "other_failures": "failures-detailed",
}
