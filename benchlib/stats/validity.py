"""Is the study fit to answer at all? Each check gives a concern or None; the grave ones invalidate.

Checks on trials (outliers, drift) run inside every analysis. Those on what a trial left behind
(its per-second series, failures, the load client's CPU) are called with that data, and their
concerns are handed to ``analyze``. Nothing here ever drops a trial.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

from benchlib.stats.limits import Concern
from benchlib.stats.multiple import benjamini_hochberg

_OUTLIER_ALPHA = 0.01
_HOST_ALPHA, _DRIFT_ALPHA = 0.01, 0.001
_READINGS, _PROFILES = 4, 3
"""How many readings a trial, and how many such trials a level, must have to show an unsteady start or end."""
_UNSTEADY_ALPHA = 0.05
_QUARTER = 0.25
_TOLERATED_FAILURES = 0.001
BUSY_CLIENT = 0.9
FULL = 0.95
"""The share of processors, or of a disk's cap, from which on they are used up."""
_FLUSH_NOISE = 1.5
RATE_HELD = 0.98
_POISSON_SIGMAS = 3.0


def outliers(residual: np.ndarray, df: float) -> np.ndarray:
    """Return the trials (rows of block, level) whose externally studentised residual is beyond chance in the study.

    Two-sided t with df - 1 at 1 % over all trials (Bonferroni; Cook and Weisberg, 1982), for a
    complete design, in which all residuals have the same variance.
    """
    n = np.isfinite(residual).sum()
    if df < 2:
        return np.zeros((0, 2), dtype=int)
    scaled = residual**2 * n / df
    left = np.maximum(np.nansum(residual**2) - scaled, 1e-300) / (df - 1)
    beyond = np.sqrt(scaled / left) > -stdtrit(df - 1, _OUTLIER_ALPHA / (2 * n))
    return np.argwhere(beyond)


def drifts(logs: pd.DataFrame, pairs: Mapping[str, str], hosts: "pd.Series[Any]") -> list[Concern]:
    """Return the concerns about trends over the study, on the hosts that ran its blocks.

    A note where all levels' logs (blocks, levels) trend: the design cancels that. Grave ones about levels whose difference
    from what ``pairs`` says that they are compared with trends: then there is no one effect to report, as of a cluster that
    grows or degrades. These are tested at 0.001 over all comparisons, so that sound studies hardly ever pay for it.
    """
    (p, change), *_ = _trends(logs.mean(axis=1, skipna=False).to_frame(), hosts).to_numpy()
    concerns = []
    if p <= _HOST_ALPHA:
        concerns.append(Concern("host_drift", f"{change:+.1f} %"))
    trends = _trends(logs[list(pairs)] - logs[list(pairs.values())].to_numpy(), hosts)
    for name, _, change in trends[trends["p"] * len(pairs) <= _DRIFT_ALPHA].itertuples():
        concerns.append(Concern("effect_drift", f"{change:+.1f} %", grave=True, level=str(name)))
    return concerns


def _trends(logs: pd.DataFrame, hosts: "pd.Series[Any]") -> pd.DataFrame:
    """Return of each column the ``p`` of a straight trend over the blocks of each host, and its ``change`` from first to last in percent."""
    there, host = logs.notna(), pd.factorize(hosts)[0]
    place = there.astype(int).groupby(host).cumsum().where(there)
    x, y = (of - of.groupby(host).transform("mean") for of in (place, logs))
    df = there.sum() - there.groupby(host).any().sum() - 1
    both = (x * y).sum()
    slope = both / (x**2).sum()
    explained = slope * both / (y**2).sum()
    p = 2 * stdtr(df, -np.sqrt(explained * df / (1 - explained).clip(lower=1e-20)))
    told = (df >= 3) & (y.max() - y.min() >= 1e-12)
    change = 100 * np.expm1(slope * (place.max() - 1))
    return pd.DataFrame({"p": pd.Series(p, logs.columns).where(told, 1.0), "change": change})


def unsteady(
    readings: Mapping[str, Sequence[Sequence[float]]],
    margin: float,
    cycles: Mapping[str, int] = MappingProxyType({}),
    under_way: Mapping[str, float] = MappingProxyType({}),
) -> list[Concern]:
    """Return the concerns about levels whose trials start or end otherwise than they run.

    ``readings``: of each level a series per trial. By how much the mean of a trial would change without its first, or
    its last, quarter is 0 on average where all of it is alike, however much neighbours resemble each other. Whether it
    is so over the trials (each of a block of its own) is tested by t, over all levels and both ends at a false discovery
    rate of 5 %. Grave where the mean would change by more than ``margin``.
    ``cycles`` is how many whole cycles of checkpoints a level's trials are long. A quarter then differs by the phase that it
    holds: it counts only where whole cycles differ too. ``under_way`` is which share of a level's transactions run at once: so
    many may have no end in a quarter, which is no change of speed. What is not more than that cannot be seen, nor anything of
    trials of one cycle, or of a level with fewer than three trials of four readings.
    """
    short, good, ends = dict[str, str](), dict[str, list[np.ndarray]](), list[tuple[str, str, np.ndarray]]()
    for level, trials in readings.items():
        series = [x[np.isfinite(x)] for x in (np.asarray(trial, dtype=float) for trial in trials)]
        good[level] = series = [x for x in series if len(x) >= _READINGS and x.any()]
        if len(series) < _PROFILES:
            short[level] = f"fewer than {_PROFILES} trials with {_READINGS} readings"
            continue
        ends += [(level, end, _without(_QUARTER, end, series)) for end in ("first", "last")]
    told = dict[str, tuple[str, float]]()
    p = benjamini_hochberg([_p_of_zero(changes) for *_, changes in ends])
    for (level, end, changes), q in zip(ends, p, strict=True):
        # an end that differs moves the mean without the other end too: the one that moves it more is told
        if q <= _UNSTEADY_ALPHA and abs(changes.mean()) > abs(told.get(level, ("", 0.0))[1]):
            told[level] = end, float(changes.mean())
    concerns = list[Concern]()
    for level, (end, change) in told.items():
        left_out = f"{end} quarter"
        # so much the rest of a trial then has beyond its share
        if abs(change) <= under_way.get(level, 0.0) / (1 - _QUARTER):
            short[level] = "hardly more transactions than clients"
            continue
        if count := cycles.get(level):
            whole = max(round(count / 4), 1)
            if whole == count:
                short[level] = "one cycle of checkpoints a trial"
                continue
            changes = _without(whole / count, end, good[level])
            if _p_of_zero(changes) > _UNSTEADY_ALPHA:
                continue
            left_out = f"{end} cycle of checkpoints" if whole == 1 else f"{end} {whole} cycles of checkpoints"
            change = float(changes.mean())
        value = f"its mean changes by {100 * change:+.1f} % without the {left_out} of each trial"
        concerns.append(Concern("no_steady_state", value, abs(change) > margin, level))
    return concerns + [Concern("too_short", reason, level=level) for level, reason in short.items()]


def _without(share: float, end: str, trials: Sequence[np.ndarray]) -> np.ndarray:
    """Return by which share of itself the mean of each trial would change without that share of it, at its first or last end."""
    kept = [(x if end == "first" else x[::-1])[max(round(share * len(x)), 1) :] for x in trials]
    return np.array([rest.mean() / x.mean() - 1 for rest, x in zip(kept, trials, strict=True)])


def _p_of_zero(values: np.ndarray) -> float:
    """Return the two-sided p of a mean of zero, by t; values that are all alike have no noise to hide in."""
    error = values.std(ddof=1) / np.sqrt(len(values))
    if error <= 1e-12:
        return float(abs(values.mean()) <= 1e-12)
    return float(2 * stdtr(len(values) - 1, -abs(values.mean()) / error))


def failures(level: str, transactions: int, failed: int, retried: int = 0) -> Concern | None:
    """Return the concern about failed or retried transactions of a level, over all its trials.

    Grave when more than one in a thousand failed: their work is missing from the tps.
    """
    total = transactions + failed
    if total <= 0:
        return Concern("no_transactions", grave=True, level=level)
    if failed:
        share = failed / total
        value = f"{failed} of {total} ({100 * share:.2g} %)"
        return Concern("failed_transactions", value, grave=share > _TOLERATED_FAILURES, level=level)
    if retried > _TOLERATED_FAILURES * total:
        return Concern("retried_transactions", f"{retried} of {total}", level=level)
    return None


def behind_schedule(
    level: str, rate_tps: float, transactions: Sequence[float], tps: Sequence[float], lag_ms: Sequence[float]
) -> Concern | None:
    """Return the concern about trials of a level, under a fixed rate, that fell behind it: grave when most did.

    Per trial: how many transactions, how many a second, and their mean lag behind the schedule. A trial
    fell behind when it reached less than 98 % of the rate, and that is either beyond three standard
    deviations of the Poisson process by which pgbench schedules, or its mean lag is over 1 % of its time: under
    a constant overload the lag grows to twice its mean, and that share of the schedule is then undone.
    Latency counts from the scheduled start (PostgreSQL documentation, ``--rate``), so it is then that of a
    queue that grows with the trial; a stall that was caught up with is a latency like any other.
    """
    done, reached, lag = (np.asarray(values, dtype=float) for values in (transactions, tps, lag_ms))
    seconds = done / reached
    due = rate_tps * seconds
    late = lag / 1000 > (1 - RATE_HELD) / 2 * seconds
    behind = (done < RATE_HELD * due) & (late | (done < RATE_HELD * due - _POISSON_SIGMAS * np.sqrt(due)))
    if not behind.any():
        return None
    value = (
        f"{reached[behind].mean():,.4g} of {rate_tps:,.4g} tps, {lag[behind].mean():,.0f} ms late, "
        f"in {behind.sum()} of {len(behind)} trials"
    )
    return Concern("rate_not_held", value, grave=2 * int(behind.sum()) > len(behind), level=level)


def skipped(level: str, transactions: int, skipped: int) -> Concern | None:
    """Return a note when transactions of a level were too late for the latency limit before they began."""
    if not skipped:
        return None
    total = transactions + skipped
    value = f"{skipped} of {total} ({100 * skipped / total:.2g} %)"
    return Concern("skipped_transactions", value, level=level)


def client_bound(level: str, shares: Sequence[float]) -> Concern | None:
    """Return a grave concern when a level's load client was the bottleneck in most trials.

    ``shares``: per trial, the client's CPU time over what its threads could have used (0 to 1, NaN unknown).
    """
    busy = pd.Series(shares, dtype=float).median()
    if not busy >= BUSY_CLIENT:
        return None
    return Concern("client_bound", f"{100 * busy:.0f} %", grave=True, level=level)


def ceilings(shares: Mapping[str, Sequence[float]]) -> list[Concern]:
    """Return the concerns about levels that used up the machine's processors, the study's where all did.

    ``shares``: of each level, the share of all processors that was busy in each trial, NaN where unknown.
    """
    medians = {level: pd.Series(trials, dtype=float).median() for level, trials in shares.items()}
    full = {level: 100 * share for level, share in medians.items() if share >= FULL}
    if full and len(full) == len(shares):
        return [Concern("ceiling", f"{min(full.values()):.0f} % or more")]
    return [Concern("ceiling", f"{busy:.0f} %", level=level) for level, busy in full.items()]


def implausible(level: str, commits_per_s: float, fsyncs_per_s: float, clients: int) -> Concern | None:
    """Return the concern about more durable commits a second than the WAL's device could have flushed.

    For loads in which every transaction writes, with ``fsync`` on and a ``synchronous_commit`` other than
    ``off``. ``fsyncs_per_s`` is what ``pg_test_fsync`` reaches there by the ``wal_sync_method`` in force. One
    flush commits for all who wait, but a client waits for its own commit before it begins the next, so
    ``clients`` a flush is the most (group commit; PostgreSQL documentation, "Asynchronous Commit"). Devices
    vary between the two measurements: half as much again is let pass.
    """
    most = fsyncs_per_s * clients
    if commits_per_s <= _FLUSH_NOISE * most:
        return None
    value = f"{commits_per_s:,.0f} commits/s, at most {most:,.0f}/s with {fsyncs_per_s:,.0f} flushes/s"
    return Concern("implausible_commit_rate", value, level=level)
