"""Is the study fit to answer at all? Each check gives a concern or None; the grave ones invalidate.

Checks on trials (outliers, drift) run inside every analysis. Those on what a trial left behind
(its per-second series, failures, the load client's CPU) are called with that data, and their
concerns are handed to ``analyze``. Nothing here ever drops a trial.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr
from scipy.stats import t

from benchlib.stats.concerns import Concern

_OUTLIER_ALPHA = 0.01
_DRIFT_ALPHA = 0.001
_BATCH = 5
_STEADY_SIGMAS = 4.0
_TOLERATED_FAILURES = 0.001
_BUSY_CLIENT = 0.9
_FLUSH_NOISE = 1.5
_RATE_HELD = 0.98
_POISSON_SIGMAS = 3.0


def outliers(logs: np.ndarray, residual: np.ndarray, df: float) -> np.ndarray:
    """Return the trials (indices) whose externally studentised residual is beyond chance in the study.

    Two-sided t with df - 1 at 1 % over all trials (Bonferroni; Cook and Weisberg, 1982), for a
    complete design, in which all residuals have the same variance.
    """
    n = len(logs)
    if df < 2:
        return np.zeros(0, dtype=int)
    rss = float(residual @ residual)
    leverage_free = df / n
    scaled = residual**2 / leverage_free
    left = np.maximum(rss - scaled, 1e-300) / (df - 1)
    statistic = np.sqrt(scaled / left)
    found: np.ndarray = np.flatnonzero(statistic > t.isf(_OUTLIER_ALPHA / (2 * n), df - 1))
    return found


def host_drift(block_means: np.ndarray) -> Concern | None:
    """Return a note when the blocks' mean logs (b,) trend over the study; the design cancels that."""
    p, percent = _trend(block_means)
    if p > 0.01:
        return None
    return Concern(
        "host_drift",
        f"the host drifted by {percent:+.1f} % over the study; comparing inside blocks cancels it",
    )


def effect_drift(level: str, differences: np.ndarray, comparisons: int) -> Concern | None:
    """Return a grave concern when a level's within-block log differences (b,) trend over the study.

    Then there is no one effect to report: a cluster that grows or degrades. Tested at 0.001 over all
    comparisons, so that sound studies hardly ever pay for it.
    """
    p, percent = _trend(differences)
    if p * comparisons > _DRIFT_ALPHA:
        return None
    message = f"the effect of {level!r} drifted by {percent:+.1f} % from the first block to the last"
    return Concern("effect_drift", message, grave=True, level=level)


@dataclass(frozen=True)
class Steadiness:
    """How a trial's series settled: seconds to cut (MSER-5), lag-1 autocorrelation, effective size."""

    cut_s: float
    autocorrelation: float
    effective_n: float
    steady: bool


def steadiness(series: Sequence[float], *, warmup_s: float, interval_s: float = 1.0) -> Steadiness:
    """Return how one trial's readings (at ``interval_s``, warm-up included) settled.

    Unsteady when MSER-5 (K. P. White, 1997) would cut more than the study's fixed warm-up, or half the
    run, *and* what it cuts beyond the warm-up differs from the rest by over four standard errors of a
    long-run mean: on correlated readings MSER-5 alone would cut somewhere at random.
    """
    x = np.asarray(series, dtype=float)
    x = x[np.isfinite(x)]
    cut = mser5(x)
    skip = min(round(warmup_s / interval_s), len(x))
    kept = x[max(skip, min(cut, len(x) // 2)) :]
    lag1 = autocorrelation(kept)
    size = effective_size(kept)
    steady = True
    if cut > skip and len(kept) > 2 * _BATCH:
        extra = x[skip:cut]
        error = np.sqrt(long_run_variance(kept) * (1 / len(extra) + 1 / len(kept)))
        steady = bool(abs(extra.mean() - kept.mean()) <= _STEADY_SIGMAS * error)
    return Steadiness(cut * interval_s, lag1, size, steady)


def unsteady(level: str, trials: Sequence[Steadiness]) -> Concern | None:
    """Return the concern about a level's trials: grave when most of them had no steady state."""
    bad = sum(not trial.steady for trial in trials)
    if not bad:
        return None
    message = f"{bad} of {len(trials)} trials of {level!r} reached no steady state within the warm-up"
    return Concern("no_steady_state", message, grave=2 * bad > len(trials), level=level)


def mser5(series: np.ndarray) -> int:
    """Return how many readings MSER-5 would cut: it minimises the standard error of what remains.

    Batches of five; a minimum in the second half of the run means that it never settled, and the
    whole first half is cut.
    """
    batches = len(series) // _BATCH
    if batches < 4:
        return 0
    means = series[: batches * _BATCH].reshape(batches, _BATCH).mean(axis=1)
    cuts = np.arange(batches // 2 + 1)
    score = [means[cut:].var() / (batches - cut) for cut in cuts]
    return int(np.argmin(score)) * _BATCH


def autocorrelation(series: np.ndarray) -> float:
    """Return the lag-1 autocorrelation, 0 where nothing varies."""
    centred = np.asarray(series, dtype=float) - np.mean(series) if len(series) else np.zeros(0)
    total = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / total if total > 0 else 0.0


def long_run_variance(series: np.ndarray) -> float:
    """Return n times the variance of the series' mean.

    The larger of batch means of about sqrt(n) (Alexopoulos and Seila, 1998), which need no model, and a
    first-order autoregression's, which a short and strongly correlated run does not defeat so soon.
    """
    x = np.asarray(series, dtype=float)
    if len(x) < 4:
        return float("nan")
    size = max(int(np.sqrt(len(x))), 1)
    count = len(x) // size
    means = x[len(x) - count * size :].reshape(count, size).mean(axis=1)
    lag1 = min(max(autocorrelation(x), 0.0), 0.99)
    return float(max(size * means.var(ddof=1), x.var(ddof=1) * (1 + lag1) / (1 - lag1)))


def effective_size(series: np.ndarray) -> float:
    """Return how many independent readings the series is worth."""
    variance = long_run_variance(series)
    return len(series) * float(np.var(series, ddof=1)) / variance if variance > 0 else float(len(series))


def failures(
    level: str, transactions: int, failed: int, retried: int = 0, *, tolerated: float = _TOLERATED_FAILURES
) -> Concern | None:
    """Return the concern about failed or retried transactions of a level, over all its trials.

    Grave when more than ``tolerated`` (a fraction) failed: their work is missing from the tps.
    """
    total = transactions + failed
    if total <= 0:
        return Concern("no_transactions", f"{level!r} completed no transaction", grave=True, level=level)
    if failed:
        share = failed / total
        message = f"{failed} of {total} transactions of {level!r} failed ({100 * share:.2g} %)"
        return Concern("failed_transactions", message, grave=share > tolerated, level=level)
    if retried > tolerated * total:
        return Concern(
            "retried_transactions",
            f"{retried} of {total} transactions of {level!r} were retried",
            level=level,
        )
    return None


def behind_schedule(
    level: str,
    rate_tps: float,
    transactions: Sequence[float],
    tps: Sequence[float],
    lag_ms: Sequence[float],
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
    late = lag / 1000 > (1 - _RATE_HELD) / 2 * seconds
    behind = (done < _RATE_HELD * due) & (late | (done < _RATE_HELD * due - _POISSON_SIGMAS * np.sqrt(due)))
    if not behind.any():
        return None
    message = (
        f"{level!r} did not hold the rate of {rate_tps:,.4g} tps in {behind.sum()} of {len(behind)} trials: there it reached "
        f"{reached[behind].mean():,.4g} tps and began transactions {lag[behind].mean():,.4g} ms late on average, so that "
        "their latency depends on how long a trial is"
    )
    return Concern("rate_not_held", message, grave=2 * int(behind.sum()) > len(behind), level=level)


def skipped(level: str, transactions: int, skipped: int) -> Concern | None:
    """Return a note when transactions of a level were too late for the latency limit before they began."""
    if not skipped:
        return None
    total = transactions + skipped
    message = (
        f"{skipped} of {total} transactions of {level!r} were skipped ({100 * skipped / total:.2g} %): "
        "they were beyond the latency limit before they began, and no latency counts them"
    )
    return Concern("skipped_transactions", message, level=level)


def client_bound(shares: Mapping[str, Sequence[float]], *, busy: float = _BUSY_CLIENT) -> tuple[Concern, ...]:
    """Return a grave concern per level whose load client was the bottleneck in most trials.

    ``shares``: per level, per trial, the client's CPU time over what its threads could have used (0 to 1).
    """
    found = []
    for level, trials in shares.items():
        known = np.array([share for share in trials if np.isfinite(share)])
        if len(known) and np.median(known) >= busy:
            busy_percent = 100 * np.median(known)
            message = f"the load client was the bottleneck of {level!r}: {busy_percent:.0f} % of its CPU busy"
            found.append(Concern("client_bound", message, grave=True, level=level))
    return tuple(found)


def _trend(values: np.ndarray) -> tuple[float, float]:
    """Return the p of a straight trend over (b,) logs and its change from first to last in percent."""
    y = np.asarray(values, dtype=float)
    y = y[np.isfinite(y)]
    if len(y) < 5 or np.ptp(y) < 1e-12:
        return 1.0, 0.0
    # the t of scipy's linregress, which is too slow for every level of every simulated study
    x = np.arange(len(y)) - (len(y) - 1) / 2
    slope = float(x @ y) / float(x @ x)
    left = y - y.mean() - slope * x
    error = np.sqrt(max(float(left @ left), 1e-300) / (len(y) - 2) / float(x @ x))
    return 2 * float(stdtr(len(y) - 2, -abs(slope) / error)), float(100 * np.expm1(slope * (len(y) - 1)))


def implausible(
    level: str, commits_per_s: float, fsyncs_per_s: float, clients: int, *, tolerated: float = _FLUSH_NOISE
) -> Concern | None:
    """Return the concern about more durable commits a second than the WAL's device could have flushed.

    For loads in which every transaction writes, with ``fsync`` on and a ``synchronous_commit`` other than
    ``off``. ``fsyncs_per_s`` is what ``pg_test_fsync`` reaches there by the ``wal_sync_method`` in force. One
    flush commits for all who wait, but a client waits for its own commit before it begins the next, so
    ``clients`` a flush is the most (group commit; PostgreSQL documentation, "Asynchronous Commit"). Devices
    vary between the two measurements: ``tolerated`` times as much is let pass.
    """
    most = fsyncs_per_s * clients
    if commits_per_s <= tolerated * most:
        return None
    message = (
        f"{level!r} committed {commits_per_s:,.0f} times a second, but at {fsyncs_per_s:,.0f} flushes {clients} clients "
        f"can commit {most:,.0f} times: not every commit was on disk when it was acknowledged, or the device has changed"
    )
    return Concern("implausible_commit_rate", message, level=level)
