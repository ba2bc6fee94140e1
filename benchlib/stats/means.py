"""Means of a few trials, with intervals."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import sem, t


def geometric_mean(values: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of positive values and its 95 % interval by Student's t; NaN where there is none."""
    logs = np.log(np.asarray(values, float))
    mean = math.exp(logs.mean()) if len(logs) else math.nan
    if len(logs) < 2:
        return mean, math.nan, math.nan
    # not by a test, which warns where all trials are alike
    factor = math.exp(t.ppf(0.975, len(logs) - 1) * sem(logs))
    return mean, mean / factor, mean * factor
