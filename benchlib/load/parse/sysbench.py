"""The output of sysbench's database tests.

Source: ``src/sysbench.c``, ``src/db_driver.c`` (0.4, 0.5: ``sysbench/sysbench.c``, ``sysbench/tests/oltp``).
"""

import re
from typing import Any

from benchlib.errors import ParseError
from benchlib.load.parse.text import Line, Text, keep, require

_LINES = Line(
    r"sysbench (?P<version>\d\S*?):? .*",
    "Number of threads: {threads:d}",
    r"transactions: +{transactions:d} +\({tps:f} per sec\.\)",
    r"(?:queries|read/write requests): +{queries:d} +\({queries_per_s:f} per sec\.\)",
    r"(?:ignored errors|deadlocks): +{errors:d} +\({errors_per_s:f} per sec\.\)",
    r"reconnects: +{reconnects:d} +\({reconnects_per_s:f} per sec\.\)",
    "(?:total time|time elapsed): +{duration_s:f}s",
    "min: +{latency_min_ms:f2}(?:ms)?",
    "avg: +{latency_average_ms:f2}(?:ms)?",
    "max: +{latency_max_ms:f2}(?:ms)?",
    r"(?:approx\. +95|95th) percentile: +{latency_p95_ms:f2}(?:ms)?",
)
_READING = Line(
    r"\[ *{elapsed_s:d}s\] threads: {threads:d}, tps: {tps:f}, reads(?:/s)?: {reads_per_s:f}, "
    r"writes(?:/s)?: {writes_per_s:f},? response time: (?:{latency_p95_ms:f}ms \(95%\)|\S+ms \(\d+%\))"
    r"(?:, errors: {errors_per_s:f}(?:, reconnects: +{reconnects_per_s:f2})?)?",
    r"\[ *{elapsed_s:d}s \] thds: {threads:d} tps: {tps:f} qps: {queries_per_s:f} "
    r"\(r/w/o: {reads_per_s:f}/{writes_per_s:f}/{others_per_s:f}\) lat \(ms, ?(?:95%\): {latency_p95_ms:f}|\d+%\): \S+) "
    r"err/s:? {errors_per_s:f} reconn/s:? (?:{reconnects_per_s:f2}|N/A)",
)
_REQUIRED = {
    "transactions": "transactions: N (… per sec.)",
    "duration_s": "total time: …s",
    "latency_average_ms": "avg: …",
}
_LATENCIES = ("latency_min_ms", "latency_average_ms", "latency_max_ms")
_LIKE_A_READING = re.compile(
    r"\[ *\d+s ?\] ?(?:thds|threads)\b"
)  # under a rate, other lines report the queue
_FAULT = re.compile(r"\b(?:FATAL|ALERT): ")


def parse(text: Text, argv: list[str] | None) -> dict[str, Any]:
    """Parse a run's report; refuse contradictions."""
    figures: dict[str, Any] = {}
    progress: list[dict[str, Any]] = []
    absent = dict.fromkeys(_READING.keys)
    for line in text.lines:
        keep(line, _LINES, figures)
        if row := _READING.read(line):
            progress.append(absent | row)
    if unread := text.first_unread(_LIKE_A_READING, _READING.read):
        raise ParseError(f'"{unread[:120]}" looks like a reading, and cannot be read')
    require(figures, _REQUIRED, text)
    _check(figures, progress)
    errors = [line for line in text.lines if _FAULT.search(line)]
    return {
        "complete": not errors,
        **dict.fromkeys(_LINES.keys),
        **figures,
        "progress": progress,
        "error_lines": errors,
    }


def _check(figures: dict[str, Any], progress: list[dict[str, Any]]) -> None:
    for count, rate in (("transactions", "tps"), ("queries", "queries_per_s")):
        number, speed, seconds = figures.get(count, 0), figures.get(rate, 0.0), figures["duration_s"]
        if abs(number - speed * seconds) > 1 + 0.05 * number:
            raise ParseError(f"{number} {count} in {seconds} s are not {speed} per second")
    latency = [figures[key] for key in _LATENCIES if key in figures]
    if latency != sorted(latency):
        raise ParseError(f"latency min, avg, max are out of order: {latency}")
    if figures.get("latency_p95_ms", 0.0) > figures.get("latency_max_ms", float("inf")) * 1.2 + 0.01:
        raise ParseError("the 95th percentile is above the maximum")
    times = [row["elapsed_s"] for row in progress]
    if times != sorted(times):  # a late one repeats the next second
        raise ParseError("readings go back in time: two runs in one text")
