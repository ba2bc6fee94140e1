"""Does a pgbench summary agree with itself?

pgbench prints the same facts several times over: a rate is a count over a time, a
percentage is a count over a count, clients are latency times rate. A torn or garbled
number breaks such a tie. The tolerances are wide enough for every real run (slow
connecting, rate limits, stalls, aborted clients) and narrow enough for a lost digit.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from benchlib.errors import ParseError

_SHARED = (
    "failed_transactions", "serialization_failures", "deadlock_failures", "other_failures", "retried_transactions",
    "skipped_transactions", "late_transactions",
)  # fmt: skip
_ENDS = ("transactions", "failed_transactions", "skipped_transactions")


def check(summary: Mapping[str, Any]) -> None:
    """Raise ParseError with the first contradiction found."""
    for problem in _problems(summary):
        raise ParseError(f"pgbench summary: {problem}; the text is garbled, torn or not of one run")


def _problems(s: Mapping[str, Any]) -> Iterator[str]:
    done, tps, clients = s["transactions"], s["tps"], s["clients"]
    if clients < 1 or (done == 0) != (tps == 0):
        yield f"{clients} clients and {done} transactions cannot give tps = {tps}"
    planned, each = s["transactions_planned"], s["transactions_per_client"]
    if planned != (each and each * clients) or (planned is not None and done > planned):
        yield f"{done}/{planned} transactions do not fit {clients} clients with {each} each"
    for row in (s, *s["scripts"]):
        yield from _shares(row)
    late, of = s["late_transactions"] or 0, done if s["late_of"] is None else s["late_of"]
    if late > of or of not in (done, done + (s["skipped_transactions"] or 0)):
        yield f"{late} transactions above the latency limit, of {of}, beside {done} processed"
    if done:
        yield from _rates(s)
        yield from _latency(s)


def _shares(row: Mapping[str, Any]) -> Iterator[str]:
    """Check each count against the percentage beside it; versions differ in what they divide by."""
    done, failed, skipped = (row[key] or 0 for key in _ENDS)
    totals = {done, done + failed, done + skipped, done + failed + skipped} - {0}
    for key in _SHARED:
        count, percent = row.get(key), row.get(f"{key.removesuffix('_transactions')}_percent")
        if None in (count, percent) or not totals:
            continue
        if all(abs(100 * count / n - percent) > 0.002 for n in totals):
            yield f"{key} {count} is not {percent}% of {max(totals)}"
    if (row["retries"] or 0) < (row["retried_transactions"] or 0):
        yield f"{row['retries']} retries are fewer than {row['retried_transactions']} transactions retried"


def _elapsed(s: Mapping[str, Any]) -> float:
    """Seconds from start to end, with the connecting that the printed rate leaves out."""
    rate = s["tps_including_connections"] or s["tps"]
    return float(s["transactions"] / rate + (s["initial_connection_ms"] or 0.0) / 1000)


def _busy(s: Mapping[str, Any], average_ms: float) -> float:
    """How much of its time a client spent in transactions, by their average latency."""
    return float(average_ms / 1000 * s["transactions"] / (s["clients"] * _elapsed(s)))


def _rates(s: Mapping[str, Any]) -> Iterator[str]:
    including, excluding = s["tps_including_connections"], s["tps_excluding_connections"]
    if including and excluding and excluding < including * (1 - 1e-6):
        yield f"tps excluding connections {excluding} is below tps including them {including}"
    duration, elapsed, average = s["duration_s"], _elapsed(s), s["latency_average_ms"]
    if duration is None:
        return
    limited, measured = s["rate_lag_average_ms"] is not None, s["latency_stddev_ms"] is not None or not average
    # Clients that aborted end a run early; under a low rate the last wait is cut short.
    least = duration * 0.15 if limited else duration * 0.9 - 0.2
    short = elapsed < least and not s["errors"] and not (limited and s["transactions"] < 4)
    # A last transaction may outlast the run by any time, but then the clients were busy with it.
    excused = limited or s["errors"] or s["failed_transactions"] or s["average_connection_ms"] is not None
    idle = elapsed > 2 * duration + 5 and measured and _busy(s, average or 0.0) < 0.3 and not excused
    if short or idle or elapsed > 50 * duration + 3600:
        yield f"{s['transactions']} transactions at tps = {s['tps']} took {elapsed:.3g} s of a run of {duration} s"


def _latency(s: Mapping[str, Any]) -> Iterator[str]:
    average, clients = s["latency_average_ms"], s["clients"]
    if average is None or s["rate_lag_average_ms"] is not None:
        return  # under a rate, latency counts from the schedule and says nothing of the clients
    if s["latency_stddev_ms"] is not None or s["latency_limit_ms"] is not None:
        fits = _busy(s, average - 0.0006) <= 1.1
    else:
        # Not measured: pgbench derived it from one of these durations, which one depends on the version.
        done = s["transactions"] + (s["failed_transactions"] or 0)
        rates = [s[key] for key in ("tps", "tps_including_connections", "tps_excluding_connections") if s[key]]
        spans = [s["transactions"] / rate for rate in rates] + [_elapsed(s), s["duration_s"] or 0.0]
        derived = [1000 * clients * span / done for span in spans]
        fits = any(abs(average - value) <= 0.0006 + 0.03 * value for value in derived)
        fits = fits and bool(s["latency_includes_failures"] or not s["failed_transactions"])
    if not fits:
        yield f"latency average = {average} ms does not fit {clients} clients at tps = {s['tps']}"
