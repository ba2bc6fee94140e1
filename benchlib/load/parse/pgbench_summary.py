"""pgbench's report of a run.

Source: ``printResults``, ``printProgressReport`` in pgbench.c, 9.5 to 19devel.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from benchlib.errors import ParseError
from benchlib.load.parse.pgbench_checks import check
from benchlib.load.parse.text import Line, Text, faults, keep, missing_line, options, require, typed_connect

INCLUDING = "including connections establishing"
"""Up to 13: with the time for connecting. Comparable only with ``-C``."""
EXCLUDING = "excluding connections establishing"
"""Up to 13: without the time for connecting. Comparable without ``-C``."""
WITHOUT = "without initial connection time"
"""From 14, without ``-C``: comparable with EXCLUDING."""
RECONNECTING = "including reconnection times"
"""From 14, with ``-C``: comparable with INCLUDING under ``-C``."""
TPS_DEFINITIONS = (INCLUDING, EXCLUDING, WITHOUT, RECONNECTING)

_INTRUDER = re.compile(
    r"progress: \d|starting vacuum|pgbench(?::| \(\d)|(?:NOTICE|WARNING):  |client \d+ |transaction type: "
)


def _unbroken(text: str) -> str | None:
    """Return the words unless torn or interrupted."""
    torn = text.startswith("<") and not text.endswith(">")  # a builtin script's name
    return None if torn or _INTRUDER.search(text) or faults([text]) else text


_OUTCOMES = (
    r"number of failed transactions: {failed_transactions:d} \({failed_percent:f} ?%\)",
    r"number of serialization failures: {serialization_failures:d} \({serialization_failures_percent:f} ?%\)",
    r"number of deadlock failures: {deadlock_failures:d} \({deadlock_failures_percent:f} ?%\)",
    r"number of other failures: {other_failures:d} \({other_failures_percent:f} ?%\)",
    r"number of transactions retried: {retried_transactions:d} \({retried_percent:f} ?%\)",
    r"total number of retries: {retries:d}",
    r"number of transactions skipped: {skipped_transactions:d} \({skipped_percent:f} ?%\)",
    r"latency average(?: =|:) {latency_average_ms:f} ms(?P<latency_includes_failures> \(including failures\))?",
    r"latency stddev(?: =|:) {latency_stddev_ms:f} ms",
)
_VERSION = r"\d[^(),:]*(?: \([^()]+\))?"  # distributions nest brackets
_SUMMARY = Line(
    rf"pgbench \((?P<client_version>{_VERSION})(?:, server (?P<server_version>{_VERSION}))?\)",
    "transaction type: (?P<transaction_type>.+)",
    "scaling factor: {scale:d}",
    "partition method: (?P<partition_method>range|hash|list)",
    "partitions: {partitions:d}",
    "query mode: (?P<query_mode>simple|extended|prepared)",
    "number of clients: {clients:d}",
    "number of threads: {threads:d}",
    "maximum number of tries: {max_tries:d}",
    "duration: {duration_s:d} s",
    "number of transactions per client: {transactions_per_client:d}",
    # up to 8.0 in other words
    "number of (?:transactions actually processed|processed transactions): {transactions:d}(?:/{transactions_planned:d})?",
    "number of transactions above the {latency_limit_ms:f} ms latency limit: "
    r"{late_transactions:d}(?:/{late_of:d})? \({late_percent:f} ?%\)",
    r"rate limit schedule lag: avg {rate_lag_average_ms:f} \(max {rate_lag_max_ms:f}\) ms",
    "initial connection time = {initial_connection_ms:f} ms",
    "average connection time = {average_connection_ms:f} ms",
    *_OUTCOMES,
)
_SCRIPT = Line(
    r"- weight(?::| =) {weight:d}(?: \(targets {target_percent:f}% of total\))?",
    r"- {transactions:d} transactions \({percent:f}% of total, tps = {tps:f}\)",
    r"- {transactions_attempted:d} transactions \({percent:f}% of total\)",
    r"- number of transactions actually processed: {transactions:d} \(tps = {tps:f}\)",
    *(f"- {outcome}" for outcome in _OUTCOMES),
)
_TPS = Line(rf"tps = {{tps:f}} ?\((?P<definition>{'|'.join(TPS_DEFINITIONS)})\)")
_REQUIRED = {
    "clients": "number of clients: …",
    "transactions": "number of transactions actually processed: …",
}
_SCRIPT_START = Line("SQL script {script:d}: (?P<name>.+)")
_DIGITS = re.compile(r"[\d/]+")
_STATEMENTS = re.compile(
    r"(?:- )?statement latencies in milliseconds(| and failures|, failures and retries)(?:, file \d+)?:"
)
# The heading says how many counts stand between latency and statement; a row without its statement is torn.
_ROWS = {
    heading: Line("{latency_ms:f9} +" + counts + r"(?P<statement>(?!ms )\S.*)")
    for heading, counts in {
        "": "", " and failures": "{failures:d} +", ", failures and retries": "{failures:d} +{retries:d} +",
    }.items()
}  # fmt: skip
_PROGRESS = Line(
    r"progress: (?:{epoch_s:f3}|{elapsed_s:f1}) s, {tps:f1} tps, lat {latency_ms:f3} ms stddev {stddev_ms:f3}"
    r"(?:, {failed:d} failed)?(?:, lag {lag_ms:f3} ms)?(?:, {skipped:d} skipped)?"
    r"(?:, {retried:d} retried, {retries:d} retries)?(?:(?:,| +[<#(/\[-]).*)?"
)
_LIKE_PROGRESS = re.compile(r".*?\bprogress: [\d.]+ s, ")
_LIKE_A_ROW = re.compile(r"\d+[.,]\d+ +(?!ms\b)\S")  # which the end of a torn reading is not
_COMMA = re.compile(r"tps = \d+,\d{6} ?\(")
_FIGURES = re.compile(
    r"(?:- )?(?:tps|latency|progress|rate limit|initial|average|number of|weight|\d+ trans)\b|\d+,\d+ "
)


def _with_points(line: str) -> str:
    """Replace decimal commas outside statements."""
    a_row = re.match(r"\d+,", line)
    return re.sub(r"(?<=\d),(?=\d)", ".", line, count=1 if a_row else 0) if _FIGURES.match(line) else line


def _reading(line: str) -> dict[str, Any] | None:
    return _PROGRESS.read(line[place:]) if (place := line.find("progress: ")) >= 0 else None


def parse(text: Text, argv: list[str] | None) -> dict[str, Any]:
    """Parse a run's report; refuse contradictions."""
    if any(map(_COMMA.match, text.lines)):
        text.lines = list(map(_with_points, text.lines))
    (top, tps, lists), command = _read(text), options(argv)
    unread = text.first_unread(_LIKE_PROGRESS, _reading)
    if unread and not faults(text.lines):  # an error may have broken into it
        raise ParseError(f'"{unread[:120]}" looks like a line of progress, and cannot be read')
    reconnect = "connect" in command or typed_connect(text.lines)
    definition = _definition(tps, reconnect, "client_version" in top, text)
    unlimited = "transactions_per_client" not in top
    require(top, _REQUIRED | ({"duration_s": "duration: … s"} if unlimited else {}), text)
    for each in lists["scripts"]:
        share = f"SQL script {each['script']}: … transactions (…% of total"
        require(each, {"percent": share}, text)
        if each.get("transactions_attempted") == 0:  # of which 18 prints no more
            each.setdefault("transactions", 0)
    errors = faults(text.lines)
    result: dict[str, Any] = {
        **_with_all(_SUMMARY.keys, top),
        "tps": tps[definition],
        "tps_definition": definition,
        "tps_including_connections": tps.get(INCLUDING),
        "tps_excluding_connections": tps.get(EXCLUDING),
        **lists,
        "scripts": [_with_all((*_SCRIPT_START.keys, *_SCRIPT.keys), each) for each in lists["scripts"]],
        "errors": errors,
        "notes": [],
    }
    result["transaction_type"] = _unbroken(result["transaction_type"] or "") or None
    # pgbench names the server's version only where it differs from its own
    result["server_version"] = result["server_version"] or result["client_version"]
    if not result["latency_average_ms"] and result["latency_stddev_ms"] is None:
        result["latency_average_ms"] = None  # 9.5 prints 0.000 under -t: it was not measured
    check(result, command)
    if result.pop("late_of") is None and result["late_transactions"] and result["skipped_transactions"]:
        result["notes"].append("this version counts skipped transactions as processed, in tps too")
    ended = sum(result[key] or 0 for key in ("transactions", "failed_transactions", "skipped_transactions"))
    return {"complete": not errors and ended >= (result["transactions_planned"] or 0), **result}


def _read(text: Text) -> tuple[dict[str, Any], dict[str, float | None], dict[str, list[dict[str, Any]]]]:
    """Return values, ``tps`` by definition, and lists."""
    top: dict[str, Any] = {}
    tps: dict[str, float | None] = {}
    lists: dict[str, list[dict[str, Any]]] = {"scripts": [], "statements": [], "progress": []}
    scripts, statements, progress = lists.values()
    rows: Line | None = None
    for once in ("transaction type: ", "number of transactions actually processed: "):
        if sum(line.startswith(once) for line in text.lines) > 1:
            raise _two_summaries(f'two lines "{once}…"')
    for index, (line, following) in enumerate(pairwise([*text.lines, ""])):
        if rate := _TPS.read(line):
            definition = rate["definition"].lower()
            if definition in tps:
                raise _two_summaries(f'a second "{line}"')
            tps[definition] = rate["tps"]
        elif reading := _reading(line):
            before = progress[-1] if progress else {}
            if (reading["elapsed_s"] or 0.0) < (before.get("elapsed_s") or 0.0):
                raise ParseError(f'"{line}" goes back in time: readings of two runs in one text')
            progress += [reading] if reading != before else []
        elif script := _SCRIPT_START.read(line):
            rows = None
            if not text.torn(index):
                scripts.append(script | {"name": _unbroken(script["name"])})
        elif match := _STATEMENTS.fullmatch(line):
            if rows:
                raise missing_line(f"SQL script {len(scripts) + 1}: …", text)
            rows = _ROWS[match[1]]
        elif rows and (row := rows.read(line)):
            statements.append(_statement(row, scripts, torn=text.torn(index)))
        elif rows and _LIKE_A_ROW.match(line) and not text.torn(index):
            raise ParseError(f'"{line[:120]}" looks like a statement with its latency, and cannot be read')
        elif scripts:
            if not text.torn(index):
                keep(line, _SCRIPT, scripts[-1])
        elif keep(line, _SUMMARY, top) and _DIGITS.fullmatch(following):
            raise ParseError(f'"{line}" is torn: only digits follow')
    return top, tps, lists


def _two_summaries(sign: str) -> ParseError:
    return ParseError(f"two summaries in one text ({sign}); parse each on its own")


def _with_all(keys: Sequence[str], values: dict[str, Any]) -> dict[str, Any]:
    """Add None for missing keys."""
    row = {**dict.fromkeys(keys), **values}
    if row["latency_average_ms"] is not None:
        row["latency_includes_failures"] = row["latency_includes_failures"] is not None
    return row


def _definition(tps: Mapping[str, float | None], reconnect: bool, banner: bool, text: Text) -> str:
    """Select the comparable tps."""
    newer = [name for name in (WITHOUT, RECONNECTING) if name in tps]
    if newer and len(tps) > 1:
        raise _two_summaries(f"tps both {' and '.join(tps)}")
    if banner and not newer and tps:
        raise ParseError('two runs in one text: versions before 14 print no line "pgbench (…)"')
    missing = [name for name in (INCLUDING, EXCLUDING) if name not in tps]
    if missing and not newer:
        error = missing_line(f"tps = … ({missing[0]})" if tps else "tps = …", text)
        unread = re.search(r"\btps ?[:=].*", "\n".join(line for line in text.lines if not _TPS.read(line)))
        raise ParseError(f'{error}; "{unread[0][:80]}" cannot be read as one') if unread else error
    chosen = newer[0] if newer else INCLUDING if reconnect else EXCLUDING
    if tps[chosen] is None:
        raise ParseError(f'the line "tps = … ({chosen})" holds no number')
    return chosen


def _statement(row: dict[str, Any], scripts: list[dict[str, Any]], *, torn: bool) -> dict[str, Any]:
    statement = row["statement"]
    if torn and (not statement.endswith(";") or statement.endswith("\\;")):
        statement = ""  # the numbers are whole, the words may not be
    row["statement"] = _unbroken(statement) or None
    return {"script": scripts[-1]["script"] if scripts else 1, "failures": None, "retries": None, **row}
