"""Means of a few trials, with intervals."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import t


def geometric_mean(values: Sequence[float], alpha: float = 0.05) -> tuple[float, float, float]:
    """The geometric mean of positive values, and the interval that Student's t gives it; NaN where there is none."""
    logs = np.log(np.asarray(values, float))
    mean = float(logs.mean()) if len(logs) else math.nan
    if len(logs) < 2:
        return math.exp(mean), math.nan, math.nan
    half = float(t.ppf(1 - alpha / 2, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs)))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)
