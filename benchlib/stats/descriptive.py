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
