"""Drift in trials from elsewhere."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.special import stdtrit


def unseen_drift(levels: Sequence[str], speeds: Sequence[float], *, in_order: bool) -> tuple[float, float]:
    """Return a level's drift from first to last run, and the largest undetected drift, in percent.

    The latter is the trend's upper 95 % limit between two levels' middles. If not ``in_order`` of time,
    the worst order is assumed.
    """
    frame = pd.DataFrame({"level": levels, "log": np.log(np.asarray(speeds, float))})
    if not in_order:
        frame = frame.sort_values(["level", "log"])
    frame["place"] = np.arange(len(frame), dtype=float)
    levels_runs = frame.groupby("level")
    centred = frame[["log", "place"]] - levels_runs[["log", "place"]].transform("mean")
    df, squares = len(frame) - levels_runs.ngroups - 1, (centred["place"] ** 2).sum()
    if df < 1:
        return np.nan, np.nan
    slope = (centred["log"] * centred["place"]).sum() / squares
    left = ((centred["log"] - slope * centred["place"]) ** 2).sum() / df
    fastest = abs(slope) + (stdtrit(df, 0.975) * np.sqrt(left / squares) if in_order else 0.0)
    place = levels_runs["place"]
    span, apart = (place.max() - place.min()).max(), np.ptp(place.mean())
    return float(100 * np.expm1(slope * span)), float(100 * np.expm1(fastest * apart))
