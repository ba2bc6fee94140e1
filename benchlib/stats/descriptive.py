"""Figures that are shown beside verdicts: means with their intervals, bends of curves, correlations inside trials."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.special import stdtrit

_FEWEST = 20


def geometric_mean(values: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of positive values and its 95 % interval by Student's t; NaN where there is none."""
    mean, error = pd.Series(np.log(np.asarray(values, float))).agg(["mean", "sem"]).to_numpy()
    reach = stdtrit(len(values) - 1, 0.975) * error
    return float(np.exp(mean)), float(np.exp(mean - reach)), float(np.exp(mean + reach))


def enough(speeds: Sequence[float], margin: float) -> int:
    """Return the first place from which on no later speed is higher by more than ``margin``, a fraction."""
    return next(place for place, speed in enumerate(speeds) if max(speeds[place:]) <= speed * (1 + margin))


def unseen_drift(levels: Sequence[str], speeds: Sequence[float], *, in_order: bool) -> tuple[float, float]:
    """By how much runs of a level change from the first to the last, and what drift between two levels nobody can exclude, in percent.

    Runs are given in their order in time. The drift is of the length from the middle of one level's runs to that of another's, as
    fast as the upper end of the 95 % interval of the straight trend inside levels. Not ``in_order`` it is the worst there can be:
    each level's runs were sorted by time, one level after the other. NaN where nothing tells.
    """
    frame = pd.DataFrame({"level": levels, "log": np.log(np.asarray(speeds, float))})
    if not in_order:
        frame = frame.sort_values(["level", "log"])
    frame["place"] = np.arange(len(frame), dtype=float)
    of = frame.groupby("level")
    centred = frame[["log", "place"]] - of[["log", "place"]].transform("mean")
    df, squares = len(frame) - of.ngroups - 1, (centred["place"] ** 2).sum()
    if df < 1:
        return np.nan, np.nan
    slope = (centred["log"] * centred["place"]).sum() / squares
    left = ((centred["log"] - slope * centred["place"]) ** 2).sum() / df
    fastest = abs(slope) + (stdtrit(df, 0.975) * np.sqrt(left / squares) if in_order else 0.0)
    span, apart = np.ptp(of["place"].agg(["min", "max"]), axis=1).max(), np.ptp(of["place"].mean())
    return float(100 * np.expm1(slope * span)), float(100 * np.expm1(fastest * apart))


def within_trials(frame: pd.DataFrame, rows: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """Spearman's rank correlation of each of ``rows`` with each of ``columns``, inside trials.

    ``frame`` has ``level, block`` and those figures, a row per second. Ranks are taken inside each trial and centred
    there, so neither levels nor blocks make a correlation. A trial in which one of the two stands still
    tells nothing of them, nor does a second in which a row's figure or one of the columns is missing; null where fewer
    than 20 seconds are left.
    """
    trial = frame.groupby(["level", "block"]).ngroup()
    rhos = [_pooled(frame[[row, *columns]].dropna(), trial) for row in rows]
    return pd.DataFrame(rhos, pd.Index(rows), list(columns), dtype=float)


def _pooled(figures: pd.DataFrame, trial: "pd.Series[int]") -> list[float]:
    """Pearson's correlation of the first figure's centred ranks with those of each other, all trials together."""
    ranks = figures.groupby(trial).rank()
    of = ranks.groupby(trial)
    # a long trial's ranks weigh no more each
    centred = (ranks - of.transform("mean")).div(of.transform("size"), axis=0)
    moving = centred.where(of.transform("nunique") > 1)
    return moving.corr(min_periods=_FEWEST).iloc[0, 1:].to_list()
