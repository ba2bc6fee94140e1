"""Means of a few trials, with intervals."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import ttest_1samp


def geometric_mean(values: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of positive values and its 95 % interval by Student's t; NaN where there is none."""
    logs = np.log(np.asarray(values, float))
    mean = math.exp(logs.mean()) if len(logs) else math.nan
    if len(logs) < 2:
        return mean, math.nan, math.nan
    interval = ttest_1samp(logs, 0).confidence_interval()
    return mean, math.exp(interval.low), math.exp(interval.high)
