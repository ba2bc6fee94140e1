"""Means of a few trials, with intervals."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit


def geometric_mean(values: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of positive values and its 95 % interval by Student's t; NaN where there is none."""
    logs = np.log(np.asarray(values, float))
    mean = math.exp(logs.mean()) if len(logs) else math.nan
    if len(logs) < 2:
        return mean, math.nan, math.nan
    factor = math.exp(stdtrit(len(logs) - 1, 0.975) * logs.std(ddof=1) / math.sqrt(len(logs)))
    return mean, mean / factor, mean * factor
