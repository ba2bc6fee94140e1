"""Validity checks. Grave concerns invalidate verdicts."""

from collections.abc import Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

from benchlib.plan.metrics import number_words, signed
from benchlib.stats.limits import Concern
from benchlib.stats.multiple import benjamini_hochberg

_OUTLIER_ALPHA = 0.01
_HOST_ALPHA, _DRIFT_ALPHA = 0.01, 0.001
_READINGS, _PROFILES = 4, 3
"""Minimum readings per trial, and such trials per level, for a test of steadiness."""
_UNSTEADY_ALPHA = 0.05
_QUARTER = 0.25
_TOLERATED_FAILURES = 0.001
BUSY_CLIENT = 0.9
FULL = 0.95
"""Utilisation from which CPU or a disk limit counts as saturated."""
_FLUSH_NOISE = 1.5
RATE_HELD = 0.98
_POISSON_SIGMAS = 3.0


def outliers(residual: np.ndarray, df: float) -> np.ndarray:
    """Return the (block, level) indices of extreme studentised residuals.

    Two-sided t at 1 % over all trials (Bonferroni; Cook and Weisberg, 1982).
    """
    n = np.isfinite(residual).sum()
    scaled = residual**2 * n / df
    left = np.maximum(np.nansum(residual**2) - scaled, 1e-300) / max(df - 1, 1)
    # without a second degree of freedom nothing is an outlier
    return np.argwhere((df >= 2) & (np.sqrt(scaled / left) > -stdtrit(df - 1, _OUTLIER_ALPHA / (2 * n))))


def drifts(logs: pd.DataFrame, pairs: Mapping[str, str], hosts: "pd.Series[Any]") -> list[Concern]:
    """Return the concerns about trends of logs (blocks, levels).

    A trend of all levels is a note, because blocks cancel it. A trend of a comparison is grave.
    """
    whole = _trends(logs.mean(axis=1, skipna=False).to_frame(), hosts)
    trends = _trends(logs[list(pairs)] - logs[list(pairs.values())].to_numpy(), hosts)
    drifting = trends["change"][trends["p"] * len(pairs) <= _DRIFT_ALPHA]
    return [
        *(Concern("host_drift", signed(change)) for change in whole["change"][whole["p"] <= _HOST_ALPHA]),
        *(Concern("effect_drift", signed(drift), True, str(name)) for name, drift in drifting.items()),
    ]


def _trends(logs: pd.DataFrame, hosts: "pd.Series[Any]") -> pd.DataFrame:
    """Return each column's ``p``, and ``change`` in percent."""
    present, host = logs.notna(), pd.factorize(hosts)[0]
    place = present.astype(int).groupby(host).cumsum().where(present)
    x, y = (frame - frame.groupby(host).transform("mean") for frame in (place, logs))
    df = present.sum() - present.groupby(host).any().sum() - 1
    both = (x * y).sum()
    slope = both / (x**2).sum()
    explained = slope * both / (y**2).sum()
    p = 2 * stdtr(df, -np.sqrt(explained * df / (1 - explained).clip(lower=1e-20)))
    testable = (df >= 3) & (y.max() - y.min() >= 1e-12)
    change = 100 * np.expm1(slope * (place.max() - 1))
    return pd.DataFrame({"p": pd.Series(p, logs.columns).where(testable, 1.0), "change": change})


def unsteady(
    readings: Mapping[str, Sequence[Sequence[float]]],
    margin: float,
    cycles: Mapping[str, int] = MappingProxyType({}),
    under_way: Mapping[str, float] = MappingProxyType({}),
) -> list[Concern]:
    """Return the concerns about levels whose trials start or end differently.

    Test: the mean without the first or last quarter is the same (t over trials, false discovery rate 5 %).

    - ``readings``: a series per trial, by level
    - ``cycles``: checkpoint cycles per trial; whole cycles must differ too
    - ``under_way``: the share of transactions that run at once
    """
    short, good = dict[str, str](), dict[str, list[np.ndarray]]()
    for level, trials in readings.items():
        series = [x[np.isfinite(x)] for x in (np.asarray(trial, dtype=float) for trial in trials)]
        series = [x for x in series if len(x) >= _READINGS and x.any()]
        if len(series) < _PROFILES:
            short[level] = f"fewer than {_PROFILES} trials with {_READINGS} readings"
        else:
            good[level] = series
    ends = list(product(good, ("first", "last")))
    tested = [_without(_QUARTER, end, good[level]) for level, end in ends]
    frame = pd.DataFrame(ends, columns=["level", "end"]).assign(change=[change.mean() for change in tested])
    frame = frame[benjamini_hochberg([*map(_p_of_zero, tested)]) <= _UNSTEADY_ALPHA]
    # one unsteady end affects both tests; report the larger change
    largest = frame.sort_values("change", key=abs, ascending=False, kind="stable").drop_duplicates("level")
    concerns = list[Concern]()
    for level, end, change in largest.sort_index().itertuples(index=False):
        left_out = f"{end} quarter"
        # transactions still running at a quarter's end explain this much
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
        value = f"{signed(100 * change)} without the {left_out} of each trial"
        concerns.append(Concern("no_steady_state", value, abs(change) > margin, level))
    return concerns + [Concern("too_short", reason, level=level) for level, reason in short.items()]


def _without(share: float, end: str, trials: Sequence[np.ndarray]) -> np.ndarray:
    """Return trials' relative changes without a share."""
    rests = [(x if end == "first" else x[::-1])[max(round(share * len(x)), 1) :] for x in trials]
    return np.array([rest.mean() / x.mean() - 1 for rest, x in zip(rests, trials, strict=True)])


def _p_of_zero(values: np.ndarray) -> float:
    """Return p of a zero mean (t)."""
    error = values.std(ddof=1) / np.sqrt(len(values))
    if error <= 1e-12:
        return float(abs(values.mean()) <= 1e-12)
    return float(2 * stdtr(len(values) - 1, -abs(values.mean()) / error))


def failures(level: str, transactions: int, failed: int, retried: int = 0) -> Concern | None:
    """Return the concern about failed or retried transactions."""
    total = transactions + failed
    if total <= 0:
        return Concern("no_transactions", grave=True, level=level)
    if failed:
        share = failed / total
        value = f"{failed} of {total} ({number_words(100 * share)} %)"
        return Concern("failed_transactions", value, grave=share > _TOLERATED_FAILURES, level=level)
    if retried > _TOLERATED_FAILURES * total:
        return Concern("retried_transactions", f"{retried} of {total}", level=level)
    return None


def behind_schedule(
    level: str, rate_tps: float, transactions: Sequence[float], tps: Sequence[float], lag_ms: Sequence[float]
) -> Concern | None:
    """Return the concern about trials that missed their fixed rate; grave if most did.

    Missed: below 98 % of the rate, and late by 1 % of the trial or beyond three standard deviations
    (Poisson).
    """
    done, reached, lag = (np.asarray(values, dtype=float) for values in (transactions, tps, lag_ms))
    seconds = done / reached
    due = rate_tps * seconds
    late = lag / 1000 > (1 - RATE_HELD) / 2 * seconds
    behind = (done < RATE_HELD * due) & (late | (done < RATE_HELD * due - _POISSON_SIGMAS * np.sqrt(due)))
    if not behind.any():
        return None
    value = (
        f"{number_words(reached[behind].mean(), 4)} of {number_words(rate_tps, 4)} tps, {lag[behind].mean():,.0f} ms late, "
        f"in {behind.sum()} of {len(behind)} trials"
    )
    return Concern("rate_not_held", value, grave=2 * int(behind.sum()) > len(behind), level=level)


def skipped(level: str, transactions: int, skipped: int) -> Concern | None:
    """Return a note about skipped transactions."""
    if not skipped:
        return None
    total = transactions + skipped
    value = f"{skipped} of {total} ({number_words(100 * skipped / total)} %)"
    return Concern("skipped_transactions", value, level=level)


def client_bound(level: str, shares: Sequence[float]) -> Concern | None:
    """Return a grave concern if the load tool was the bottleneck.

    ``shares``: CPU time over that of its threads, per trial.
    """
    busy = pd.Series(shares, dtype=float).median()
    if not busy >= BUSY_CLIENT:
        return None
    return Concern("client_bound", f"{100 * busy:.0f} %", grave=True, level=level)


def ceilings(shares: Mapping[str, Sequence[float]]) -> list[Concern]:
    """Return the concerns about saturated CPU; one for the study if all levels have it.

    ``shares``: busy CPU per trial.
    """
    medians = {level: pd.Series(trials, dtype=float).median() for level, trials in shares.items()}
    full = {level: 100 * share for level, share in medians.items() if share >= FULL}
    if full and len(full) == len(shares):
        return [Concern("ceiling", f"{min(full.values()):.0f} % or more")]
    return [Concern("ceiling", f"{busy:.0f} %", level=level) for level, busy in full.items()]


def implausible(level: str, commits_per_s: float, fsyncs_per_s: float, clients: int) -> Concern | None:
    """Return the concern about more durable commits than flushes allow."""
    most = fsyncs_per_s * clients
    if commits_per_s <= _FLUSH_NOISE * most:
        return None
    value = f"{commits_per_s:,.0f} commits/s, at most {most:,.0f}/s with {fsyncs_per_s:,.0f} flushes/s"
    return Concern("implausible_commit_rate", value, level=level)
