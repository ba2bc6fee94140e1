"""pgbench's report of a run: the summary on stdout, progress and errors on stderr.

Source of the format: ``printResults`` and ``printProgressReport`` of PostgreSQL's
``src/bin/pgbench/pgbench.c``, versions 9.5 to 19 in development.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from benchlib.errors import ParseError
from benchlib.load.parse.text import Line, Text, faults, keep, options, require, wanted

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


def _unbroken(text: str) -> str | None:
    """Keep words as printed, unless they are torn or another line broke into them."""
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
_SUMMARY = [
    Line(template)
    for template in (
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
        "number of transactions actually processed: {transactions:d}(?:/{transactions_planned:d})?",
        "number of transactions above the {latency_limit_ms:f} ms latency limit: "
        r"{late_transactions:d}(?:/{late_of:d})? \({late_percent:f} ?%\)",
        r"rate limit schedule lag: avg {rate_lag_average_ms:f} \(max {rate_lag_max_ms:f}\) ms",
        "initial connection time = {initial_connection_ms:f} ms",
        "average connection time = {average_connection_ms:f} ms",
        *_OUTCOMES,
    )
]
_SCRIPT = [
    Line(f"- {template}")
    for template in (
        r"weight(?::| =) {weight:d}(?: \(targets {target_percent:f}% of total\))?",
        r"{transactions:d} transactions \({percent:f}% of total, tps = {tps:f}\)",
        r"{transactions_attempted:d} transactions \({percent:f}% of total\)",
        r"number of transactions actually processed: {transactions:d} \(tps = {tps:f}\)",
        *_OUTCOMES,
    )
]
_TPS = Line(rf"tps = {{tps:f}} \((?P<definition>{'|'.join(TPS_DEFINITIONS)})\)")
_REQUIRED = {
    "clients": "number of clients: …",
    "transactions": "number of transactions actually processed: …",
}
_SCRIPT_START = Line("SQL script {script:d}: (?P<name>.+)")
_DIGITS = re.compile(r"[\d/]+")
_STATEMENTS = re.compile(
    r"(?:- )?statement latencies in milliseconds(| and failures|, failures and retries):"
)
# The heading says how many counts stand between latency and statement; a row without its statement is torn.
_ROWS = {
    heading: Line("{latency_ms:f3} +" + counts + r"(?P<statement>(?!ms )\S.*)")
    for heading, counts in {
        "": "", " and failures": "{failures:d} +", ", failures and retries": "{failures:d} +{retries:d} +",
    }.items()
}  # fmt: skip
_PROGRESS = Line(
    r"progress: (?:{epoch_s:f3}|{elapsed_s:f1}) s, {tps:f1} tps, lat {latency_ms:f3} ms stddev {stddev_ms:f3}"
    r"(?:, {failed:d} failed)?(?:, lag {lag_ms:f3} ms)?(?:, {skipped:d} skipped)?"
    r"(?:, {retried:d} retried, {retries:d} retries)?(?:, .*)?"
)


def parse(text: Text, argv: list[str] | None) -> dict[str, Any]:
    """Read a run's report; ``benchlib.load.parse`` lists the keys.

    Raises ParseError when a line that every run prints is missing or torn, when lines contradict
    each other, and when the text holds two summaries.
    """
    top = _read(text)
    tps = top.pop("tps")
    definition = _definition(tps, "connect" in options(argv), text)
    require(KIND, top, _REQUIRED, text)
    if "transactions_per_client" not in top:
        require(KIND, top, {"duration_s": "duration: … s"}, text)
    for each in top["scripts"]:
        share = f"SQL script {each['script']}: … transactions (…% of total"
        require(KIND, each, {"percent": share}, text)
    errors = faults(text.lines)
    result: dict[str, Any] = {
        **_with_all(_SUMMARY, top),
        "tps": tps[definition],
        "tps_definition": definition,
        "tps_including_connections": tps.get(INCLUDING),
        "tps_excluding_connections": tps.get(EXCLUDING),
        "scripts": [_with_all([_SCRIPT_START, *_SCRIPT], each) for each in top["scripts"]],
        "errors": errors,
        "notes": [],
    }
    result["transaction_type"] = _unbroken(result["transaction_type"] or "") or None
    # pgbench names the server's version only where it differs from its own
    result["server_version"] = result["server_version"] or result["client_version"]
    if contradiction := _contradiction(result):
        raise ParseError(f"{KIND}: {contradiction}; the text is garbled, torn or not of one run")
    if result.pop("late_of") is None and result["late_transactions"] and result["skipped_transactions"]:
        result["notes"].append("this version counts skipped transactions as processed, in tps too")
    ended = sum(result[key] or 0 for key in ("transactions", "failed_transactions", "skipped_transactions"))
    return {"complete": not errors and ended >= (result["transactions_planned"] or 0), **result}


def _read(text: Text) -> dict[str, Any]:
    """What the lines tell; each ``tps`` by its definition."""
    top: dict[str, Any] = {"tps": {}, "scripts": [], "statements": [], "progress": []}
    tps, scripts, statements, progress = top.values()
    rows: Line | None = None
    for index, (line, following) in enumerate(pairwise([*text.lines, ""])):
        if rate := _TPS.read(line):
            tps[rate["definition"].lower()] = rate["tps"]
        elif reading := _PROGRESS.read(line):
            if progress and _time(reading) <= _time(progress[-1]):
                raise ParseError(f'{KIND}: "{line}" goes back in time: readings of two runs in one text')
            progress.append(reading)
        elif script := _SCRIPT_START.read(line):
            rows = None
            if not text.torn(index):
                scripts.append(script | {"name": _unbroken(script["name"])})
        elif match := _STATEMENTS.fullmatch(line):
            if rows:
                raise wanted(KIND, f"SQL script {len(scripts) + 1}: …", text)
            rows = _ROWS[match[1]]
        elif rows and (row := rows.read(line)):
            statements.append(_statement(row, scripts, torn=text.torn(index)))
        elif scripts:
            if not text.torn(index):
                keep(line, _SCRIPT, scripts[-1], tool=KIND)
        elif keep(line, _SUMMARY, top, tool=KIND) and _DIGITS.fullmatch(following):
            raise ParseError(f'{KIND}: "{line}" is torn: only digits follow')
    return top


def _with_all(lines: Sequence[Line], values: dict[str, Any]) -> dict[str, Any]:
    """All that ``lines`` could have told, absent where they did not."""
    row = {**dict.fromkeys(key for line in lines for key in line.keys), **values}
    if row["latency_average_ms"] is not None:
        row["latency_includes_failures"] = row["latency_includes_failures"] is not None
    return row


def _definition(tps: Mapping[str, float | None], reconnect: bool, text: Text) -> str:
    """Choose the comparable tps among those printed, and refuse where it is not there whole."""
    chosen = next((name for name in (WITHOUT, RECONNECTING) if name in tps), None)
    if chosen and len(tps) > 1:
        raise ParseError(f"{KIND}: two summaries in one text; parse each on its own")
    if not chosen:
        for name in (INCLUDING, EXCLUDING):
            if name not in tps:
                raise wanted(KIND, f"tps = … ({name})" if tps else "tps = …", text)
        chosen = INCLUDING if reconnect else EXCLUDING
    if tps[chosen] is None:
        raise ParseError(f'{KIND}: the line "tps = … ({chosen})" holds no number')
    return chosen


def _statement(row: dict[str, Any], scripts: list[dict[str, Any]], *, torn: bool) -> dict[str, Any]:
    statement = row["statement"]
    if torn and (not statement.endswith(";") or statement.endswith("\\;")):
        statement = ""  # the numbers are whole, the words may not be
    row["statement"] = _unbroken(statement) or None
    return {"script": scripts[-1]["script"] if scripts else 1, "failures": None, "retries": None, **row}


def _time(reading: Mapping[str, Any]) -> float:
    return float(reading["elapsed_s"] or reading["epoch_s"] or 0)


def _contradiction(s: Mapping[str, Any]) -> str | None:
    """How a count at the end of its line, where a lost digit leaves no trace, contradicts a figure that a unit guards.

    A rate is a count over a time, clients are latency times rate. The tolerances are wide enough for every real run (slow
    connecting, rate limits, stalls, aborted clients) and narrow enough for a lost digit.
    """
    done, tps, clients, average = (s[key] for key in ("transactions", "tps", "clients", "latency_average_ms"))
    planned, each, duration = s["transactions_planned"], s["transactions_per_client"], s["duration_s"]
    if clients < 1 or (done == 0) != (tps == 0):
        return f"{clients} clients and {done} transactions cannot give tps = {tps}"
    if planned != (each and each * clients) or (planned is not None and done > planned):
        return f"{done}/{planned} transactions do not fit {clients} clients with {each} each"
    if not done:
        return None
    # from start to end, with the connecting that the printed rate leaves out
    elapsed = done / (s["tps_including_connections"] or tps) + (s["initial_connection_ms"] or 0.0) / 1000
    # how much of its time a client spends in transactions, for each ms of their latency
    busy_per_ms = done / (1000 * clients * elapsed)
    limited = s["rate_lag_average_ms"] is not None
    measured = s["latency_stddev_ms"] is not None or average is None
    if duration is not None:
        # Clients that aborted end a run early; under a low rate the last wait is cut short.
        least = duration * 0.15 if limited else duration * 0.9 - 0.2
        short = elapsed < least and not s["errors"] and not (limited and done < 4)
        # A last transaction may outlast the run by any time, but then the clients were busy with it.
        excused = limited or s["errors"] or s["failed_transactions"] or s["average_connection_ms"] is not None
        idle = elapsed > 2 * duration + 5 and measured and (average or 0) * busy_per_ms < 0.3 and not excused
        if short or idle or elapsed > 50 * duration + 3600:
            return f"{done} transactions at tps = {tps} took {elapsed:.3g} s of a run of {duration} s"
    # under a rate, latency counts from the schedule and says nothing of the clients
    if average is None or limited:
        return None
    if measured or s["latency_limit_ms"] is not None:
        fits = (average - 0.0006) * busy_per_ms <= 1.1
    else:  # pgbench derived it from one of these durations, which one depends on the version
        rates = (tps, s["tps_including_connections"], s["tps_excluding_connections"])
        spans = [done / rate for rate in rates if rate] + [elapsed, duration or 0.0]
        derived = [1000 * clients * span / (done + (s["failed_transactions"] or 0)) for span in spans]
        fits = any(abs(average - value) <= 0.0006 + 0.03 * value for value in derived)
    return None if fits else f"latency average = {average} ms does not fit {clients} clients at tps = {tps}"
