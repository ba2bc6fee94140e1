"""What is measured: names, units, and whether more of it is better.

Direction belongs to the metric's definition, so that no other module has to ask what an
increase means: tps up and latency down are both "faster".
"""

import math
import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from benchlib.errors import InputError

Direction = Literal["faster", "slower"]
MOST_ANSWERS = 5
"""So many comparisons of a study answer its question at most."""


@dataclass(frozen=True)
class Metric:
    """One measured quantity; ``unit`` is printed after a value, ``title`` names it in a sentence."""

    name: str
    title: str
    unit: str = ""
    higher_is_better: bool = False

    @property
    def directions(self) -> tuple[Direction, Direction]:
        """The word for an increase and the word for a decrease."""
        return ("faster", "slower") if self.higher_is_better else ("slower", "faster")


_METRICS = (
    Metric("tps", "throughput", "tps", True),
    # transactions, or where loading is the work rows: comparable among levels of one workload
    Metric("speed", "speed", "per s", True),
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

_HIGHER = {"tps", "qps", "rps", "tpm", "tpmc", "qph", "iops", "throughput"}
_LOWER = {"latency", "latencies", "lat", "lag", "errors", "failures", "retries", "deadlocks", "timeouts"}
"""First words of a name that tell whether more or less of it is better."""
_TURNING = {
    *(
        "error",
        "failed",
        "fail",
        "loss",
        "lost",
        "drop",
        "dropped",
        "decrease",
        "increase",
        "change",
        "diff",
        "delta",
    ),
    *(
        "difference",
        "gain",
        "improvement",
        "reduction",
        "saved",
        "saving",
        "speedup",
        "slowdown",
        "overhead",
        "ratio",
    ),
    *("degradation", "regression", "penalty", "cost", "score", "rank", "stddev", "stdev", "sd", "std", "cv"),
    *(
        "variance",
        "deviation",
        "jitter",
        "spread",
        "skipped",
        "late",
        "met",
        "hits",
        "within",
        "ok",
        "avoided",
    ),
}
"""Words further on that may turn it round: such a name tells nothing."""


def metric(name: str) -> Metric:
    """Return the registered metric of that name, or raise InputError with the names nearest to it."""
    if name not in METRICS:
        near = ", ".join(get_close_matches(name, METRICS, n=8, cutoff=0.0))
        raise InputError(f"unknown metric {name!r}; known: {near} and {len(METRICS) - 8} more")
    return METRICS[name]


def described(name: str) -> Metric:
    """Return the registered metric of that name; of any other name only how it is called, which says nothing of a direction."""
    return METRICS.get(name) or Metric(name, name)


def foreign_metric(name: str, *, higher_is_better: bool = False, lower_is_better: bool = False) -> Metric:
    """Return the registered metric of that name, or a column of somebody's as a metric.

    Its direction is what is said of it, or what its name begins with, by whole words (``tps``, ``latency`` …). It is
    never guessed: a verdict the wrong way round is worse than none.

    Raises:
        InputError: the direction is not known; or what is said contradicts what is known; or both are said.

    """
    known = METRICS[name].higher_is_better if name in METRICS else _direction(name)
    if higher_is_better and lower_is_better:
        raise InputError(f"metric {name!r}: say that more of it is better, or that less is, not both")
    said = True if higher_is_better else False if lower_is_better else None
    if said is not None and known is not None and said is not known:
        raise InputError(
            f"{'more' if known else 'less'} {name} is better: give a figure of your own another name"
        )
    higher = known if said is None else said
    if higher is None:
        raise InputError(
            f"metric {name!r}: is more of it better, or less? Say --higher-is-better or --lower-is-better "
            "(in Python higher_is_better=True or lower_is_better=True)"
        )
    unit = "ms" if name.lower().endswith(("_ms", "(ms)", " ms")) else ""
    return METRICS.get(name) or Metric(name, name, unit, higher)


def _direction(name: str) -> bool | None:
    """Whether more of what a name begins with is better; None where the name does not tell."""
    words = re.findall(r"[^\W\d_]+", name.casefold())
    higher = {True: words[0] in _HIGHER, False: words[0] in _LOWER} if words else {}
    others = {*words[1:]}
    opposite = _LOWER if higher.get(True) else _HIGHER
    if others & (_TURNING | opposite):
        return None
    return next((more for more, holds in higher.items() if holds), None)


def confidence_words(alpha: float) -> str:
    """Return the coverage of an interval at 1 - alpha, ``95 %``: never 100."""
    return f"{100 * (1 - alpha):.{max(3, -math.floor(math.log10(alpha)))}g} %"


def percent_words(change: float, low: float = math.nan, high: float = math.nan) -> tuple[str, str]:
    """Return a percentage change and its interval in words, with no more digits than the interval carries.

    ``("+38.2\u00a0%", "30.1 to 46.8")``: no decimals where the interval is ten points wide or wider (but so many that one
    without zero shows none), and from +400 % on a factor, ``("57\u00a0×", "36 to 91")``. The interval is empty where it is not known, an unknown change a dash.
    """
    if not math.isfinite(change):
        return "–", ""
    factor = change >= 400
    value, *ends = (1 + each / 100 if factor else each for each in (change, low, high))
    width = ends[1] - ends[0]
    digits = 0 if width >= 10 else 2 if factor and width < 1 else 1
    if ends[0] > factor or ends[1] < factor:  # the end near to no change is not to look like it
        while digits < 3 and not round(min(abs(end - factor) for end in ends), digits):
            digits += 1
    while not factor and digits < 3 and -100 < value < -50 and round(value, digits) == -100:  # not quite all
        digits += 1

    def number(value: float, sign: str = "") -> str:
        places = digits or int(factor and value < 10)  # 0.7 × is no 1 ×
        rounded = round(value, places) + 0.0  # which is no negative zero
        return f"{rounded:{sign if rounded else ''},.{places}f}".replace("-", "−")

    between = " to ".join(map(number, ends)) if math.isfinite(width) else ""
    return f"{number(value, '' if factor else '+')}\u00a0{'×' if factor else '%'}", between
