"""From latencies, some at a time and in any order, to the figures of a trial."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from benchlib.errors import ParseError
from benchlib.load.latency.ahead import ahead

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}
EDGES_US = np.array([0, *np.ceil(10 ** (np.arange(10, 81) / 10))], np.int64)
"""Where the histogram's bins begin: ten per decade from 10 µs to 100 s, one below and one above."""

_SHARES = np.array([*QUANTILES.values()])
_OVER_TIME = ["n", *(f"{name}_ms" for name in (*QUANTILES, "max"))]
_FEW = 1 << 16  # µs; what took longer is so rare that it may take longer here too
_MOST_WINDOWS = 1_000_000


@dataclass(frozen=True)
class Latency:
    """How long the transactions of one trial took; skipped and failed ones have no latency.

    ``quantiles_ms`` (``p50``, ``p95``, ``p99``, ``p999``) interpolate linearly, as numpy's do, and are
    None without a transaction; ``lag_quantiles_ms``, how late transactions started under ``--rate``, is
    None without a rate. ``torn`` lines (of a killed pgbench) count nowhere else. With a
    ``sampling_rate`` pgbench logged only that share of the transactions, so all of it is of a sample.

    ``over_time`` has a row per window, those without a transaction too: ``start_s`` (since the epoch),
    ``n``, ``p50_ms``, ``p95_ms``, ``p99_ms``, ``p999_ms`` and ``max_ms``. ``counts`` has a row for each of
    these, and a column per bin that begins in ``EDGES_US``.
    """

    transactions: int
    failed: int
    skipped: int
    torn: int
    sampling_rate: float | None
    quantiles_ms: dict[str, float | None]
    lag_quantiles_ms: dict[str, float | None] | None
    over_time: pd.DataFrame
    counts: NDArray[np.int64]

    @property
    def histogram(self) -> pd.DataFrame:
        """How many transactions took from ``low_ms`` up to, but not including, ``high_ms``: ``n``."""
        low = EDGES_US / 1000
        return pd.DataFrame({"low_ms": low, "high_ms": [*low[1:], np.inf], "n": self.counts.sum(axis=0)})


class Extract:
    """What the figures need of some transactions.

    ``end_s`` is when each ended, whole seconds since the epoch; a null in ``latency_us`` is a failure, unless
    the ``status`` is "skipped".
    """

    def __init__(
        self,
        end_s: NDArray[np.int64],
        latency_us: pa.ChunkedArray,
        status: pa.ChunkedArray,
        lag_us: pa.ChunkedArray | None,
        window_s: int,
    ) -> None:
        self.skipped = self.failed = 0
        if latency_us.null_count:
            self.skipped = pc.sum(pc.equal(status.cast(pa.string()), "skipped")).as_py()
            self.failed = latency_us.null_count - self.skipped
            done = latency_us.is_valid()
            end_s, latency_us = end_s[done.to_numpy()], latency_us.drop_null()
            lag_us = None if lag_us is None else lag_us.filter(done)
        self.latencies = _narrow(latency_us.to_numpy())
        self.lags = None if lag_us is None else _narrow(lag_us.to_numpy())
        windows = end_s // window_s if window_s > 1 else end_s
        cuts = [0, *(np.flatnonzero(windows[1:] != windows[:-1]) + 1).tolist(), len(windows)]
        self.runs = [(int(windows[start]), slice(start, end)) for start, end in pairwise(cuts) if end]
        """Where transactions of the same window follow each other."""


def latency(extracts: Iterable[Extract], *, torn: int, sampling_rate: float | None, window_s: int) -> Latency:
    """The figures of all transactions together.

    Raises:
        ParseError: they are so far apart in time that they cannot be of one trial.

    """
    parts = list(extracts)
    windows: dict[int, list[NDArray[Any]]] = defaultdict(list)
    for part in parts:
        for window, where in part.runs:
            windows[window].append(part.latencies[where])
    first, last = min(windows, default=0), max(windows, default=-1)
    if last - first > _MOST_WINDOWS:
        raise ParseError(
            f"transaction log: times from {first * window_s} to {last * window_s} s: not of one trial"
        )
    rows, counts = [np.zeros((0, len(_OVER_TIME)))], [np.zeros((0, len(EDGES_US)), np.int64)]
    batches = [range(start, min(start + 64, last + 1)) for start in range(first, last + 1, 64)]
    for some_rows, some_counts in ahead(lambda batch: _over_time(batch, windows), batches):
        rows.append(some_rows)
        counts.append(some_counts)
    over_time = pd.DataFrame(np.concatenate(rows), columns=_OVER_TIME).astype({"n": int})
    over_time.insert(0, "start_s", np.arange(first, last + 1) * window_s)
    lags = [part.lags for part in parts if part.lags is not None]
    return Latency(
        transactions=sum(len(part.latencies) for part in parts),
        failed=sum(part.failed for part in parts),
        skipped=sum(part.skipped for part in parts),
        torn=torn,
        sampling_rate=sampling_rate,
        quantiles_ms=_quantiles_of_all([part.latencies for part in parts]),
        lag_quantiles_ms=_quantiles_of_all(lags) if lags else None,
        over_time=over_time,
        counts=np.concatenate(counts),
    )


def _over_time(
    batch: range, windows: Mapping[int, list[NDArray[Any]]]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The figures and the histograms of some windows."""
    rows = np.full((len(batch), len(_OVER_TIME)), np.nan)
    rows[:, 0] = 0
    counts = np.zeros((len(batch), len(EDGES_US)), np.int64)
    for place, window in enumerate(batch):
        if window in windows:
            values = _sorted(np.concatenate(windows[window]))
            n = len(values)
            rows[place] = [n, *_quantiles_ms(n, values.__getitem__), values[-1] / 1000]
            counts[place] = np.diff(np.searchsorted(values, EDGES_US.astype(values.dtype)), append=n)
    return rows, counts


def _narrow(values: NDArray[np.int64]) -> NDArray[Any]:
    """Microseconds in half the memory, unless some are more than an hour."""
    return values.astype(np.uint32) if values.max(initial=0) < 1 << 32 else values


def _sorted(values: NDArray[Any]) -> NDArray[Any]:
    """Sort microseconds, of which few are long: numpy has a radix sort, four times faster, for 16 bits."""
    short = values < _FEW
    return np.concatenate([np.sort(values[short].astype(np.uint16), kind="stable"), np.sort(values[~short])])


def _quantiles_of_all(parts: Sequence[NDArray[Any]]) -> dict[str, float | None]:
    """The quantiles of millions: counted, but for the few that are long; None where there is none."""
    counts, longs = np.zeros(_FEW, np.int64), [np.array([], np.uint32)]
    for part_counts, part_long in ahead(_tally, parts):
        counts += part_counts
        longs.append(part_long)
    ends, long = np.cumsum(counts), np.sort(np.concatenate(longs))
    short, n = int(ends[-1]), int(ends[-1]) + len(long)

    def at(ranks: NDArray[np.int64]) -> NDArray[Any]:
        return np.array([np.searchsorted(ends, r, "right") if r < short else long[r - short] for r in ranks])

    if not n:
        return dict.fromkeys(QUANTILES)
    return dict(zip(QUANTILES, _quantiles_ms(n, at).tolist(), strict=True))


def _tally(values: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """How often each short time occurred, and the long ones."""
    return np.bincount(np.minimum(values, _FEW), minlength=_FEW + 1)[:_FEW], values[values >= _FEW]


def _quantiles_ms(n: int, at: Callable[[NDArray[np.int64]], NDArray[Any]]) -> NDArray[np.float64]:
    """Quantiles of ``n`` sorted values in microseconds, of which ``at`` gives those of some ranks.

    Source: Hyndman and Fan (1996), definition 7; numpy's default.
    """
    ranks = (n - 1) * _SHARES
    below = np.floor(ranks).astype(np.int64)
    low, high = (at(each).astype(np.float64) for each in (below, np.ceil(ranks).astype(np.int64)))
    return np.asarray((low + (high - low) * (ranks - below)) / 1000)
