"""How sure one trial is of its own figure: an interval *within this run only*.

It says nothing of the next run, which differs by more than any single run can show: on real pgbench runs a
binomial interval for p99 covered the true value in under a tenth of them. Show it with ``LABEL``, and take
comparisons from trials in blocks.
"""

import numpy as np
from scipy.stats import t

from benchlib.errors import InputError
from benchlib.stats.validity import long_run_variance

LABEL = "within this run only"
_BATCHES = 20


def mean_interval(series: np.ndarray, alpha: float = 0.05) -> tuple[float, float]:
    """Return the interval of the mean of one run's readings (n,), by its long-run variance.

    Degrees of freedom as of sqrt(n) batches. Raises InputError for fewer than 20 readings.
    """
    x = np.asarray(series, dtype=float)
    if len(x) < _BATCHES:
        raise InputError(f"an interval within a run takes at least {_BATCHES} readings, not {len(x)}")
    reach = t.isf(alpha / 2, int(np.sqrt(len(x))) - 1) * np.sqrt(long_run_variance(x) / len(x))
    return float(x.mean() - reach), float(x.mean() + reach)


def quantile_interval(values: np.ndarray, q: float, alpha: float = 0.05) -> tuple[float, float]:
    """Return the interval of a quantile of one run's latencies (n,), in the order of their completion.

    Twenty batches in time, each with its own quantile, and their t interval moved onto the whole run's
    quantile (batching with Nakayama's (2014) centring): no independence between neighbouring
    transactions is assumed. Raises InputError where a batch would hold fewer than ten values beyond ``q``.
    """
    x = np.asarray(values, dtype=float)
    if not 0 < q < 1:
        raise InputError(f"a quantile lies between 0 and 1, not at {q!r}")
    if len(x) / _BATCHES * min(q, 1 - q) < 10:
        raise InputError(f"{len(x)} values are too few for the {100 * q:g} % quantile and its interval")
    batches = np.array([np.quantile(batch, q) for batch in np.array_split(x, _BATCHES)])
    centre = float(np.quantile(x, q))
    spread = float(((batches - centre) ** 2).sum() / (_BATCHES - 1))
    reach = t.isf(alpha / 2, _BATCHES - 1) * np.sqrt(spread / _BATCHES)
    return centre - float(reach), centre + float(reach)
