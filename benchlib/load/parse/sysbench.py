"""What sysbench prints for its database tests: versions 0.4, 0.5 and 1.0.

Source of the format: sysbench's ``src/sysbench.c`` and ``src/db_driver.c`` (0.4 and 0.5:
``sysbench/sysbench.c``, ``sysbench/tests/oltp``).
"""

from __future__ import annotations

import re
from typing import Any

from benchlib.errors import ParseError
from benchlib.load.parse.text import Text, put, wanted

KIND = "sysbench"
_N = r"(\d+\.\d+)"
_PER_SECOND = rf"(\d+) +\({_N} per sec\.\)"
_LINES = {
    r"sysbench (\d\S*?):? .*": ("version",),
    r"Number of threads: (\d+)": ("threads",),
    rf"transactions: +{_PER_SECOND}": ("transactions", "tps"),
    rf"queries: +{_PER_SECOND}": ("queries", "queries_per_s"),
    rf"read/write requests: +{_PER_SECOND}": ("queries", "queries_per_s"),
    rf"(?:ignored errors|deadlocks): +{_PER_SECOND}": ("errors", "errors_per_s"),
    rf"reconnects: +{_PER_SECOND}": ("reconnects", "reconnects_per_s"),
    rf"(?:total time|time elapsed): +{_N}s": ("duration_s",),
    r"min: +(\d+\.\d\d)(?:ms)?": ("latency_min_ms",),
    r"avg: +(\d+\.\d\d)(?:ms)?": ("latency_average_ms",),
    r"max: +(\d+\.\d\d)(?:ms)?": ("latency_max_ms",),
    r"(?:approx\. +95|95th) percentile: +(\d+\.\d\d)(?:ms)?": ("latency_p95_ms",),
}
_TABLE = [(re.compile(pattern, re.IGNORECASE), names) for pattern, names in _LINES.items()]
_COUNTS = {"threads", "transactions", "queries", "errors", "reconnects"}
_KEYS = tuple(dict.fromkeys(name for names in _LINES.values() for name in names))
_READINGS = (
    re.compile(
        rf"\[ *(?P<elapsed_s>\d+)s\] threads: (?P<threads>\d+), tps: (?P<tps>{_N}), "
        rf"reads: (?P<reads_per_s>{_N}), writes: (?P<writes_per_s>{_N}), "
        rf"response time: (?P<latency_p95_ms>{_N})ms \(95%\), errors: (?P<errors_per_s>{_N}), "
        r"reconnects: +(?P<reconnects_per_s>\d+\.\d\d)"
    ),
    re.compile(
        rf"\[ *(?P<elapsed_s>\d+)s \] thds: (?P<threads>\d+) tps: (?P<tps>{_N}) qps: (?P<queries_per_s>{_N}) "
        rf"\(r/w/o: (?P<reads_per_s>{_N})/(?P<writes_per_s>{_N})/(?P<others_per_s>{_N})\) "
        rf"lat \(ms, ?95%\): (?P<latency_p95_ms>{_N}) err/s: (?P<errors_per_s>{_N}) "
        r"reconn/s: (?P<reconnects_per_s>\d+\.\d\d)"
    ),
)
_READING_KEYS = (
    "elapsed_s", "threads", "tps", "queries_per_s", "reads_per_s", "writes_per_s", "others_per_s",
    "latency_p95_ms", "errors_per_s", "reconnects_per_s",
)  # fmt: skip
_FAULT = re.compile(r"\b(?:FATAL|ALERT): ")


def parse(text: Text, argv: list[str] | None) -> dict[str, Any]:
    """Read a run's report; ``benchlib.load.parse`` lists the keys.

    Raises ParseError when a line is missing, when figures contradict each other, and when the
    text holds two runs.
    """
    figures: dict[str, Any] = {}
    progress: list[dict[str, Any]] = []
    for line in text.lines:
        reading = next(filter(None, (pattern.fullmatch(line) for pattern in _READINGS)), None)
        if reading:
            values = reading.groupdict()
            row = {key: None if values.get(key) is None else float(values[key]) for key in _READING_KEYS}
            progress.append({**row, "threads": int(values["threads"])})
        for pattern, names in _TABLE:
            if match := pattern.fullmatch(line):
                for name, value in zip(names, match.groups(), strict=True):
                    kept = value if name == "version" else int(value) if name in _COUNTS else float(value)
                    put(figures, name, kept, line=line, kind=KIND)
    for key, line in (
        ("transactions", "transactions: N (… per sec.)"),
        ("duration_s", "total time: …s"),
        ("latency_average_ms", "avg: …"),
    ):
        if key not in figures:
            raise wanted(KIND, line, text)
    _check(figures, progress)
    errors = [line for line in text.lines if _FAULT.search(line)]
    return {
        "complete": not errors,
        **dict.fromkeys(_KEYS),
        **figures,
        "progress": progress,
        "error_lines": errors,
    }


def _check(figures: dict[str, Any], progress: list[dict[str, Any]]) -> None:
    for count, rate in (("transactions", "tps"), ("queries", "queries_per_s")):
        if (
            count in figures
            and abs(figures[count] - figures[rate] * figures["duration_s"]) > 1 + 0.05 * figures[count]
        ):
            raise ParseError(
                f"{KIND}: {figures[count]} {count} in {figures['duration_s']} s are not {figures[rate]} per second"
            )
    latency = [
        figures[key] for key in ("latency_min_ms", "latency_average_ms", "latency_max_ms") if key in figures
    ]
    if latency != sorted(latency):
        raise ParseError(f"{KIND}: latency min, avg, max are out of order: {latency}")
    if figures.get("latency_p95_ms", 0.0) > figures.get("latency_max_ms", float("inf")) * 1.2 + 0.01:
        raise ParseError(f"{KIND}: the 95th percentile is above the maximum")
    times = [row["elapsed_s"] for row in progress]
    if times != sorted(set(times)):
        raise ParseError(f"{KIND}: readings go back in time: two runs in one text")
