"""Metrics: names, units, and whether more is better."""

import math
import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from benchlib.errors import InputError

Direction = Literal["faster", "slower"]
MOST_ANSWERS = 5
"""Largest number of comparisons that may answer a study's question."""
MOST_STATED = 1000
"""Few blocks give intervals without practical ends: beyond this percentage, or factor, an end is not stated."""


@dataclass(frozen=True)
class Metric:
    """A measured quantity; ``title`` names it in a sentence."""

    name: str
    title: str
    unit: str = ""
    higher_is_better: bool = False

    @property
    def directions(self) -> tuple[Direction, Direction]:
        """Return the words for an increase and a decrease."""
        return ("faster", "slower") if self.higher_is_better else ("slower", "faster")


_METRICS = (
    Metric("tps", "throughput", "tps", True),
    # transactions, or rows where loading is measured: comparable inside one workload
    Metric("speed", "speed", "per s", True),
    # of one script of a workload that counts it
    Metric("new_orders_per_minute", "new orders per minute", "per min", True),
    Metric("latency_average_ms", "mean latency", "ms"),
    Metric("latency_stddev_ms", "latency deviation", "ms"),
    Metric("latency_p50_ms", "median latency", "ms"),
    Metric("latency_p95_ms", "p95 latency", "ms"),
    Metric("latency_p99_ms", "p99 latency", "ms"),
    Metric("latency_p999_ms", "p99.9 latency", "ms"),
    Metric("time_to_steady_s", "time to 95 % of the steady rate", "s"),
    Metric("schedule_lag_average_ms", "mean schedule lag", "ms"),
    Metric("schedule_lag_max_ms", "highest schedule lag", "ms"),
    Metric("init_s", "loading time", "s"),
    Metric("replay_lag_ms", "replay lag", "ms"),
    Metric("wal_bytes_per_transaction", "WAL per transaction", "B"),
    Metric("server_cpu_ms_per_transaction", "server CPU per transaction", "ms"),
    Metric("pooler_cpu_ms_per_transaction", "pooler's CPU per transaction", "ms"),
    Metric("tool_cpu_ms_per_transaction", "load tool's CPU per transaction", "ms"),
    Metric("context_switches_per_transaction", "context switches per transaction"),
    Metric("read_kib_per_transaction", "read per transaction", "KiB"),
    Metric("written_kib_per_transaction", "written per transaction", "KiB"),
    Metric("flushes_per_transaction", "device flushes per transaction"),
    Metric("full_page_images_per_transaction", "full-page images per transaction"),
    Metric("buffers_by_checkpointer_per_transaction", "pages by the checkpointer per transaction"),
    Metric("buffers_by_bgwriter_per_transaction", "pages by the background writer per transaction"),
    Metric("buffers_by_backends_per_transaction", "pages by backends per transaction"),
    Metric("blocks_read_per_transaction", "pages read into the buffers per transaction"),
    Metric("temp_bytes_per_transaction", "temporary files per transaction", "B"),
    Metric("client_cpu_share", "busy share of a load thread"),
    Metric("checkpoints", "checkpoints per trial"),
)
METRICS = {known.name: known for known in _METRICS}

_AS_FACTOR = 400
"""From this change in percent on, a factor is shown."""
_EXACT = 1e15
"""A double has no more decimal digits."""
_HIGHER = {"tps", "qps", "rps", "tpm", "tpmc", "qph", "iops", "throughput"}
_LOWER = {"latency", "latencies", "lat", "lag", "errors", "failures", "retries", "deadlocks", "timeouts"}
"""First words of a column's name that show whether more or less is better."""
_TURNING = re.compile(
    "error|failed|fail|loss|lost|drop|dropped|decrease|increase|change|diff|delta|difference|gain|"
    "improvement|reduction|saved|saving|speedup|slowdown|overhead|ratio|degradation|regression|"
    "penalty|cost|score|rank|stddev|stdev|sd|std|cv|variance|deviation|jitter|spread|skipped|late|met|"
    "hits|within|ok|avoided"
)
"""Later words that may reverse the direction; such a name shows no direction."""


def metric(name: str) -> Metric:
    """Return the registered metric.

    Raises:
        InputError: there is none.
    """
    if name not in METRICS:
        near = ", ".join(get_close_matches(name, METRICS, n=8, cutoff=0.0))
        raise InputError(f"unknown metric {name!r}; known: {near} and {len(METRICS) - 8} more")
    return METRICS[name]


def foreign_metric(name: str, *, higher_is_better: bool = False, lower_is_better: bool = False) -> Metric:
    """Return the registered metric, or one for a user's column.

    The direction comes from the arguments or from the name's first word; it is never guessed.

    Raises:
        InputError: the direction is unknown or contradictory.
    """
    known = METRICS[name].higher_is_better if name in METRICS else _direction(name)
    if higher_is_better and lower_is_better:
        raise InputError(f"metric {name!r}: say that more is better or that less is better, not both")
    stated = True if higher_is_better else False if lower_is_better else None
    if stated is not None and known is not None and stated is not known:
        better = "more" if known else "less"
        raise InputError(f"metric {name!r}: {better} of it is better; give your column another name")
    higher = known if stated is None else stated
    if higher is None:
        raise InputError(
            f"metric {name!r}: more or less may be better; give --higher-is-better or --lower-is-better "
            "(in Python higher_is_better=True or lower_is_better=True)"
        )
    unit = "ms" if name.lower().endswith(("_ms", "(ms)", " ms")) else ""
    return METRICS.get(name) or Metric(name, name, unit, higher)


def _direction(name: str) -> bool | None:
    """Return whether more is better; None if unclear."""
    words = re.findall(r"[^\W\d_]+", name.casefold())
    if not words or words[0] not in _HIGHER | _LOWER:
        return None
    higher, others = words[0] in _HIGHER, words[1:]
    turned = {*others} & (_LOWER if higher else _HIGHER) or any(map(_TURNING.fullmatch, others))
    return None if turned else higher


def signed(percent: float) -> str:
    """Return a percentage with its sign: ``−3.1 %``."""
    return f"{percent:+.1f} %".replace("-", "−")


def most_stated(change: float) -> float:
    """Return the largest percentage that is stated as the end of a change's interval."""
    return 100 * max(MOST_STATED - 1, 9 + change / 10) if change >= _AS_FACTOR else MOST_STATED


def ends_on_axis(change: float, low: float, high: float) -> tuple[float, float]:
    """Return an interval's ends in percent, no further than an axis should reach."""
    return max(low, min(change, -99.0)), min(high, most_stated(change))


def percent_words(change: float, low: float = math.nan, high: float = math.nan) -> tuple[str, str]:
    """Return a change and its interval as text: ``("+38.2\u00a0%", "30.1 to 46.8")``.

    An interval without zero never shows zero. From +400 % on, a factor. An end that is too far: ``> 1,000``.
    """
    if not math.isfinite(change):
        return "–", ""
    factor, beyond = change >= _AS_FACTOR, "> " if high > most_stated(change) else ""
    high = min(high, most_stated(change))
    value, *ends = (1 + percent / 100 if factor else percent for percent in (change, low, high))
    width = ends[1] - ends[0]
    digits = 0 if width >= 10 else 2 if factor and width < 1 else 1
    if ends[0] > factor or ends[1] < factor:  # an end near zero must not look like zero
        while digits < 3 and not round(min(abs(end - factor) for end in ends), digits):
            digits += 1
    if not factor and -100 < value < -50:  # not quite -100 %
        while digits < 3 and round(value, digits) == -100:
            digits += 1

    def number(value: float, sign: str = "") -> str:
        places = digits or int(factor and value < 10)  # 0.7 × must not become 1 ×
        rounded = round(value, places) + 0.0  # no negative zero
        return f"{rounded:{sign if rounded else ''},.{places}f}".replace("-", "−")

    interval = f"{number(ends[0])} to {beyond}{number(ends[1])}" if math.isfinite(width) else ""
    return f"{number(value, '' if factor else '+')}\u00a0{'×' if factor else '%'}", interval


def number_words(value: float, digits: int = 3) -> str:
    """Return significant digits, without a power of ten from 1 to 10^15: ``1,235``, ``99.7``, ``0.00012``."""
    text = f"{value:,.{digits}g}"
    return f"{value:,.0f}" if "e" in text and 1 <= abs(value) < _EXACT else text
