"""pgbench's report of a run: the summary on stdout, progress and errors on stderr.

Source of the format: ``printResults`` and ``printProgressReport`` of PostgreSQL's
``src/bin/pgbench/pgbench.c``, versions 9.5 to 19 in development.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from benchlib.errors import ParseError
from benchlib.load.parse.pgbench_checks import check
from benchlib.load.parse.text import (
    NAN,
    REAL,
    REAL3,
    Text,
    faults,
    options,
    put,
    real,
    typed_options,
    wanted,
    whole,
)

KIND = "pgbench summary"
INCLUDING = "including connections establishing"
"""Up to 13: connecting counts as running. The comparable figure only with ``-C``."""
EXCLUDING = "excluding connections establishing"
"""Up to 13: the time spent connecting is taken off. The comparable figure without ``-C``."""
WITHOUT = "without initial connection time"
"""From 14, without ``-C``: comparable with EXCLUDING."""
RECONNECTING = "including reconnection times"
"""From 14, with ``-C``: comparable with INCLUDING under ``-C``."""
TPS_DEFINITIONS = (INCLUDING, EXCLUDING, WITHOUT, RECONNECTING)

_INTRUDER = re.compile(
    r"progress: \d|starting vacuum|pgbench(?::| \(\d)|(?:NOTICE|WARNING):  |client \d+ |transaction type: "
)


def _words(text: str) -> str | None:
    """Keep words as printed, unless they are torn or another line broke into them."""
    torn = text.startswith("<") and not text.endswith(">")  # a builtin script's name
    return None if torn or _INTRUDER.search(text) or faults([text]) else text


Fields = Mapping[str, tuple[tuple[str, Callable[[str], Any]], ...]]
_VERSION = r"(\d[^(),:]*(?: \([^()]+\))?)"  # distributions nest brackets
_SHARE = rf"(\d+) \({REAL} ?%\)"

_HEADER: Fields = {
    rf"pgbench \({_VERSION}(?:, server {_VERSION})?\)": (("client_version", str), ("server_version", str)),
    r"transaction type: (.+)": (("transaction_type", _words),),
    r"scaling factor: (\d+)": (("scale", int),),
    r"partition method: (range|hash|list)": (("partition_method", str),),
    r"partitions: (\d+)": (("partitions", int),),
    r"query mode: (simple|extended|prepared)": (("query_mode", str),),
    r"number of clients: (\d+)": (("clients", int),),
    r"number of threads: (\d+)": (("threads", int),),
    r"maximum number of tries: (\d+)": (("max_tries", int),),
    r"duration: (\d+) s": (("duration_s", int),),
    r"number of transactions per client: (\d+)": (("transactions_per_client", int),),
    r"number of transactions actually processed: (\d+)(?:/(\d+))?": (
        ("transactions", int), ("transactions_planned", int)),
    rf"number of transactions above the {REAL} ms latency limit: (\d+)(?:/(\d+))? \({REAL} ?%\)": (
        ("latency_limit_ms", real), ("late_transactions", int), ("late_of", int), ("late_percent", real)),
    rf"rate limit schedule lag: avg {REAL} \(max {REAL}\) ms": (
        ("rate_lag_average_ms", real), ("rate_lag_max_ms", real)),
    rf"initial connection time = {REAL} ms": (("initial_connection_ms", real),),
    rf"average connection time = {REAL} ms": (("average_connection_ms", real),),
}  # fmt: skip
_OUTCOMES: Fields = {
    rf"number of failed transactions: {_SHARE}": (("failed_transactions", int), ("failed_percent", real)),
    rf"number of serialization failures: {_SHARE}": (
        ("serialization_failures", int), ("serialization_failures_percent", real)),
    rf"number of deadlock failures: {_SHARE}": (
        ("deadlock_failures", int), ("deadlock_failures_percent", real)),
    rf"number of other failures: {_SHARE}": (("other_failures", int), ("other_failures_percent", real)),
    rf"number of transactions retried: {_SHARE}": (
        ("retried_transactions", int), ("retried_percent", real)),
    r"total number of retries: (\d+)": (("retries", int),),
    rf"number of transactions skipped: {_SHARE}": (("skipped_transactions", int), ("skipped_percent", real)),
    rf"latency average(?: =|:) {REAL} ms( \(including failures\))?": (
        ("latency_average_ms", real), ("latency_includes_failures", bool)),
    rf"latency stddev(?: =|:) {REAL} ms": (("latency_stddev_ms", real),),
}  # fmt: skip
_SCRIPT: Fields = {
    rf"- weight(?::| =) (\d+)(?: \(targets {REAL}% of total\))?": (("weight", int), ("target_percent", real)),
    rf"- (\d+) transactions \({REAL}% of total, tps = {REAL}\)": (
        ("transactions", int), ("percent", real), ("tps", real)),
    rf"- (\d+) transactions \({REAL}% of total\)": (("transactions_attempted", int), ("percent", real)),
    rf"- number of transactions actually processed: (\d+) \(tps = {REAL}\)": (
        ("transactions", int), ("tps", real)),
} | {f"- {pattern}": names for pattern, names in _OUTCOMES.items()}  # fmt: skip
_STATEMENT_KEYS = ("script", "latency_ms", "failures", "retries", "statement")
_PROGRESS_KEYS = (
    "elapsed_s", "epoch_s", "tps", "latency_ms", "stddev_ms", "failed", "lag_ms", "skipped", "retried",
    "retries",
)  # fmt: skip


_REQUIRED = {
    "clients": "number of clients: …",
    "transactions": "number of transactions actually processed: …",
}

Table = list[tuple[re.Pattern[str], tuple[tuple[str, Callable[[str], Any]], ...]]]


def _table(fields: Fields) -> Table:
    return [(re.compile(pattern, re.IGNORECASE), names) for pattern, names in fields.items()]


def _keys(fields: Fields) -> list[str]:
    return list(dict.fromkeys(key for names in fields.values() for key, _ in names))


_SCRIPT_KEYS = ("script", "name", *_keys(_SCRIPT))
_TOP_LINES, _SCRIPT_LINES = _table({**_HEADER, **_OUTCOMES}), _table(_SCRIPT)
_TPS = re.compile(rf"tps = (\d+\.\d+|{NAN}) \(({'|'.join(TPS_DEFINITIONS)})\)", re.IGNORECASE)
_SCRIPT_START = re.compile(r"SQL script (\d+): (.+)")
_DIGITS = re.compile(r"[\d/]+")
_STATEMENTS = re.compile(
    r"(?:- )?statement latencies in milliseconds(| and failures|, failures and retries):"
)
# The heading says how many counts stand between latency and statement; a row without its statement is torn.
_ROWS = {
    heading: re.compile(rf"{REAL3} +{counts}((?!ms )\S.*)", re.IGNORECASE)
    for heading, counts in {
        "": "()()", " and failures": r"(\d+)() +", ", failures and retries": r"(\d+) +(\d+) +",
    }.items()
}  # fmt: skip
_PROGRESS = re.compile(
    rf"progress: (\d+\.\d|\d+\.\d{{3}}) s, (-?\d+\.\d|{NAN}) tps, lat {REAL3} ms stddev {REAL3}"
    rf"(?:, (\d+) failed)?(?:, lag {REAL3} ms)?(?:, (\d+) skipped)?(?:, (\d+) retried, (\d+) retries)?"
    r"(?:, .*)?",
    re.IGNORECASE,
)


def parse(text: Text, argv: list[str] | None) -> dict[str, Any]:
    """Read a run's report; ``benchlib.load.parse`` lists the keys.

    Raises ParseError when a line that every run prints is missing or torn, when lines contradict
    each other or the command line, and when the text holds two summaries.
    """
    top: dict[str, Any] = {}
    tps: dict[str, float | None] = {}
    scripts: list[dict[str, Any]] = []
    statements: list[dict[str, Any]] = []
    progress: list[dict[str, Any]] = []
    rows: re.Pattern[str] | None = None
    for once in ("transaction type: ", "number of transactions actually processed: "):
        if sum(line.startswith(once) for line in text.lines) > 1:
            raise ParseError(
                f'{KIND}: two summaries in one text (two lines "{once}…"); parse each on its own'
            )
    for index, line in enumerate(text.lines):
        if match := _TPS.fullmatch(line):
            if match[2].lower() in tps:
                raise ParseError(
                    f'{KIND}: two summaries in one text (a second "{line}"); parse each on its own'
                )
            tps[match[2].lower()] = real(match[1])
        elif match := _PROGRESS.fullmatch(line):
            _add_reading(progress, match, line)
        elif match := _SCRIPT_START.fullmatch(line):
            rows = None
            if not text.torn(index):
                scripts.append({"script": int(match[1]), "name": _words(match[2])})
        elif match := _STATEMENTS.fullmatch(line):
            if rows:
                raise wanted(KIND, f"SQL script {len(scripts) + 1}: …", text)
            rows = _ROWS[match[1]]
        elif rows and (match := rows.fullmatch(line)):
            statements.append(_statement(match, scripts, torn=text.torn(index)))
        elif scripts:
            if not text.torn(index):
                _read(line, _SCRIPT_LINES, scripts[-1])
        elif _read(line, _TOP_LINES, top) and _DIGITS.fullmatch("".join(text.lines[index + 1 : index + 2])):
            raise ParseError(f'{KIND}: "{line}" is torn: only digits follow')
    return _finish(text, argv, top, tps, scripts, statements, progress)


def _finish(
    text: Text,
    argv: list[str] | None,
    top: dict[str, Any],
    tps: dict[str, float | None],
    scripts: list[dict[str, Any]],
    statements: list[dict[str, Any]],
    progress: list[dict[str, Any]],
) -> dict[str, Any]:
    command = options(argv)
    reconnect = "connect" in {**typed_options(text.lines), **command}
    definition = _definition(tps, reconnect, "client_version" in top, text)
    for key, line in _REQUIRED.items():
        if key not in top:
            raise wanted(KIND, line, text)
    if "duration_s" not in top and "transactions_per_client" not in top:
        raise wanted(KIND, "duration: … s", text)
    for each in scripts:
        if "percent" not in each:
            raise wanted(KIND, f"SQL script {each['script']}: … transactions (…% of total", text)
    errors = faults(text.lines)
    result: dict[str, Any] = {
        **dict.fromkeys(_keys({**_HEADER, **_OUTCOMES})),
        **top,
        "tps": tps[definition],
        "tps_definition": definition,
        "tps_including_connections": tps.get(INCLUDING),
        "tps_excluding_connections": tps.get(EXCLUDING),
        "scripts": [{**dict.fromkeys(_SCRIPT_KEYS), **each} for each in scripts],
        "statements": statements,
        "progress": progress,
        "errors": errors,
        "notes": [],
    }
    if result["server_version"] is None:
        # pgbench names the server's version only where it differs from its own.
        result["server_version"] = result["client_version"]
    if not result["latency_average_ms"] and result["latency_stddev_ms"] is None:
        result["latency_average_ms"] = None  # 9.5 prints 0.000 under -t: it was not measured
    check(result, command)
    if result.pop("late_of") is None and result["late_transactions"] and result["skipped_transactions"]:
        result["notes"].append("this version counts skipped transactions as processed, in tps too")
    ended = sum(result[key] or 0 for key in ("transactions", "failed_transactions", "skipped_transactions"))
    return {"complete": not errors and ended >= (result["transactions_planned"] or 0), **result}


def _read(line: str, table: Table, into: dict[str, Any]) -> bool:
    for pattern, names in table:
        if match := pattern.fullmatch(line):
            for (key, convert), value in zip(names, match.groups(), strict=True):
                if value is not None or convert is bool:
                    put(into, key, convert(value), line=line, kind=KIND)
            return True
    return False


def _definition(tps: Mapping[str, float | None], reconnect: bool, banner: bool, text: Text) -> str:
    """Choose the comparable tps among those printed, and refuse where it is not there whole."""
    newer = [name for name in (WITHOUT, RECONNECTING) if name in tps]
    if len(newer) > 1 or (newer and len(tps) > 1):
        raise ParseError(f"{KIND}: two summaries in one text (tps both {' and '.join(tps)})")
    if banner and not newer and tps:
        raise ParseError(f'{KIND}: two runs in one text: versions before 14 print no line "pgbench (…)"')
    if newer:
        chosen = newer[0]
    else:
        missing = [name for name in (INCLUDING, EXCLUDING) if name not in tps]
        if missing:
            raise wanted(KIND, f"tps = … ({missing[0]})" if tps else "tps = …", text)
        chosen = INCLUDING if reconnect else EXCLUDING
    if tps[chosen] is None:
        raise ParseError(f'{KIND}: the line "tps = … ({chosen})" holds no number')
    return chosen


def _statement(match: re.Match[str], scripts: list[dict[str, Any]], *, torn: bool) -> dict[str, Any]:
    statement = _words(match[4])
    whole_text = match[4].endswith(";") and not match[4].endswith("\\;")
    if torn and not whole_text:
        statement = None  # the numbers are whole, the words may not be
    script = scripts[-1]["script"] if scripts else 1
    values = (script, real(match[1]), whole(match[2] or None), whole(match[3] or None), statement)
    return dict(zip(_STATEMENT_KEYS, values, strict=True))


def _add_reading(progress: list[dict[str, Any]], match: re.Match[str], line: str) -> None:
    when, tps, latency, stddev, failed, lag, skipped, retried, retries = match.groups()
    epoch = float(when) if len(when.partition(".")[2]) == 3 else None  # --progress-timestamp
    elapsed = None if epoch is not None else float(when)
    counts = (whole(failed), real(lag), whole(skipped), whole(retried), whole(retries))
    row = dict(
        zip(_PROGRESS_KEYS, (elapsed, epoch, real(tps), real(latency), real(stddev), *counts), strict=True)
    )
    if progress and row == progress[-1]:
        return
    if progress and elapsed is not None and elapsed <= (progress[-1]["elapsed_s"] or 0.0):
        raise ParseError(f'{KIND}: "{line}" goes back in time: readings of two runs in one text')
    progress.append(row)
