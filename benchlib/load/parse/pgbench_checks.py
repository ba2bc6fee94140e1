"""Consistency checks of a pgbench summary and its command line.

Tolerances accept real runs but not a lost digit.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from benchlib.errors import ParseError
from benchlib.plan.metrics import number_words

_SHARED = (
    "failed_transactions", "serialization_failures", "deadlock_failures", "other_failures", "retried_transactions",
    "skipped_transactions", "late_transactions",
)  # fmt: skip
_ENDS = ("transactions", "failed_transactions", "skipped_transactions")
_REQUESTED = {"client": "clients", "time": "duration_s", "protocol": "query_mode"} | {
    "transactions": "transactions_per_client"
}


def check(summary: Mapping[str, Any], command: Mapping[str, str]) -> None:
    """Raise ParseError with the first contradiction."""
    # given for a log beside the summary
    command = {} if command.keys() <= {"sampling-rate"} else command
    for problem in _problems(summary, command):
        raise ParseError(f"{problem}; the text is garbled, torn or not of one run")


def _problems(s: Mapping[str, Any], command: Mapping[str, str]) -> Iterator[str]:
    for option, key in _REQUESTED.items():
        value = command.get(option, "")
        value = value.lstrip("0") if value.isdecimal() else value
        if value and s[key] is not None and value != str(s[key]):
            yield f"{key} is {s[key]}, but the command line says --{option}={command[option]}"
    if s["initial_connection_ms"] is not None and "connect" in command:
        yield "initial connection time was printed, but the command line says --connect"
    if command and s["average_connection_ms"] is not None and "connect" not in command:
        yield "average connection time was printed, but the command line has no --connect"
    done, tps, clients = s["transactions"], s["tps"], s["clients"]
    if clients < 1 or (done == 0) != (tps == 0):
        yield f"{clients} clients and {done} transactions cannot give tps = {tps}"
    planned, per_client = s["transactions_planned"], s["transactions_per_client"]
    if (planned is None) != (per_client is None):
        yield f"{done} transactions in all and {per_client} per client do not tell how many were planned"
    if planned is not None and (done > planned or per_client * clients != planned):
        yield f"{done}/{planned} transactions do not fit {clients} clients with {per_client} each"
    for row in (s, *s["scripts"]):
        yield from _shares(row)
    late, of = s["late_transactions"], s["late_of"]
    if late is not None and late > (done if of is None else of):
        yield f"{late} transactions above the latency limit, of {of or done}"
    if of is not None and of not in (done, done + (s["skipped_transactions"] or 0)):
        yield f"the latency limit counts {of} transactions, the summary {done}"
    yield from _scripts(s)
    if done:
        yield from _rates(s)
        yield from _latency(s)


def _shares(row: Mapping[str, Any]) -> Iterator[str]:
    """Compare counts with percentages; divisors differ by version."""
    parts = [row[key] or 0 for key in _ENDS]
    totals = {parts[0], parts[0] + parts[1], parts[0] + parts[2], sum(parts)} - {0}
    for key in _SHARED:
        count, percent = row.get(key), row.get(f"{key.removesuffix('_transactions')}_percent")
        if count is None or percent is None or not totals:
            continue
        if all(abs(100 * count / n - percent) > 0.002 for n in totals):
            yield f"{key} {count} is not {percent}% of {max(totals)}"
    retried, retries = row["retried_transactions"], row["retries"]
    if retried is not None and retries is not None and retries < retried:
        yield f"{retries} retries are fewer than {retried} transactions retried"


def _scripts(s: Mapping[str, Any]) -> Iterator[str]:
    """Compare shares; unlocked counters lose a little."""
    tried = [row["transactions_attempted"] or row["transactions"] or 0 for row in s["scripts"]]
    totals = {s["transactions"], sum(s[key] or 0 for key in _ENDS), sum(tried)} - {0}
    for row, count in zip(s["scripts"], tried, strict=True):
        if row["percent"] is not None and all(abs(100 * count / n - row["percent"]) > 1 for n in totals):
            yield f"{count} transactions of script {row['script']} are not {row['percent']}% of {max(totals)}"
    wanted = [row["target_percent"] for row in s["scripts"]]
    shares = [row["percent"] for row in s["scripts"]] if None in wanted else wanted
    # each is rounded to a tenth of a percent
    if tried and sum(share or 0.0 for share in shares) < 100 - max(2, 0.051 * len(tried)):
        yield f'no line "SQL script {len(tried) + 1}: …", though those before it do not add up to 100%'


def _elapsed(s: Mapping[str, Any]) -> float:
    """Return the seconds, with connecting."""
    rate = s["tps_including_connections"] or s["tps"]
    return float(s["transactions"] / rate + (s["initial_connection_ms"] or 0.0) / 1000)


def _busy(s: Mapping[str, Any]) -> float:
    """Return the busy share of clients."""
    average = (s["latency_average_ms"] or 0.0) / 1000
    return float(average * s["transactions"] / (s["clients"] * _elapsed(s)))


def _rates(s: Mapping[str, Any]) -> Iterator[str]:
    including, excluding = s["tps_including_connections"], s["tps_excluding_connections"]
    if including and excluding and excluding < including * (1 - 1e-6):
        yield f"tps excluding connections {excluding} is below tps including them {including}"
    duration, elapsed = s["duration_s"], _elapsed(s)
    if duration is None:
        return
    limited = s["rate_lag_average_ms"] is not None
    # Clients that aborted end a run early; under a low rate the last wait is cut short.
    least = duration * 0.15 if limited else duration * 0.9 - 0.2
    stopped = elapsed < least and not s["errors"] and not (limited and s["transactions"] < 4)
    # A last transaction may outlast the run by any time, but then the clients were busy with it.
    excused = limited or s["errors"] or s["failed_transactions"] or s["average_connection_ms"] is not None
    measured = s["latency_stddev_ms"] is not None or s["latency_average_ms"] is None
    idle = elapsed > 2 * duration + 5 and measured and _busy(s) < 0.3 and not excused
    if stopped or idle or elapsed > 50 * duration + 3600:
        done = f"{s['transactions']} transactions at tps = {s['tps']}"
        yield f"{done} took {number_words(elapsed)} s of a run of {duration} s"


def _latency(s: Mapping[str, Any]) -> Iterator[str]:
    average, clients = s["latency_average_ms"], s["clients"]
    if average is None or s["rate_lag_average_ms"] is not None:
        return  # under a rate, latency counts from the schedule and says nothing of the clients
    what = f"latency average = {average} ms does not fit {clients} clients at tps = {s['tps']}"
    if s["latency_stddev_ms"] is not None or s["latency_limit_ms"] is not None:
        if _busy({**s, "latency_average_ms": max(average - 0.0006, 0)}) > 1.1:
            yield what
        return
    if s["failed_transactions"] and not s["latency_includes_failures"]:
        yield f'no line "latency average = … ms (including failures)" beside {s["failed_transactions"]} failures'
    # Not measured: pgbench derived it from one of these durations, which one depends on the version.
    done = s["transactions"] + (s["failed_transactions"] or 0)
    rates = [s[key] for key in ("tps", "tps_including_connections", "tps_excluding_connections") if s[key]]
    spans = [s["transactions"] / rate for rate in rates] + [_elapsed(s), s["duration_s"] or 0.0]
    derived = [1000 * clients * span / done for span in spans]
    if all(abs(average - value) > 0.0006 + 0.03 * value for value in derived):
        yield what
