"""Variance history: earlier studies of the same workload on the same host steady the noise estimate.

Empirical Bayes: G. K. Smyth (2004), *Linear models and empirical Bayes methods*, section 6.2. A
study's residual variance s^2 on d degrees of freedom is taken as s0^2 F(d, d0); d0 and s0^2 are
estimated from the earlier studies by the moments of log s^2, never assumed, and the present
variance becomes (d0 s0^2 + d s^2) / (d0 + d) on d0 + d degrees of freedom.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import digamma, polygamma
from scipy.stats import f

from benchlib.errors import InputError
from benchlib.stats.concerns import Concern

LEAST_STUDIES = 12
_RANGE = 0.99


@dataclass(frozen=True)
class Prior:
    """What earlier studies say of the residual variance: ``variance`` worth ``df`` degrees of freedom."""

    variance: float
    df: float
    studies: int

    def moderate(self, variance: float, df: float) -> tuple[float, float, Concern]:
        """Return the variance and degrees of freedom to use, and what was done.

        The plain ones come back where the present variance lies outside the prior's 99 % range: a
        host that has changed must not be judged by its past.
        """
        ratio = variance / self.variance
        if min(f.cdf(ratio, df, self.df), f.sf(ratio, df, self.df)) < (1 - _RANGE) / 2:
            said = "the noise is unlike that of earlier studies here, so their history is not used"
            return variance, df, Concern("history_refused", said)
        total = df + self.df
        moderated = (df * variance + self.df * self.variance) / total
        said = f"noise steadied by {self.studies} earlier studies (worth {self.df:.1f} degrees of freedom)"
        return float(moderated), float(total), Concern("history_used", said)


def estimate_prior(variances: Sequence[float], dfs: Sequence[float]) -> Prior | None:
    """Return the prior from earlier residual variances (squared log units) and their degrees of freedom.

    None with fewer than twelve usable studies, and where the variances differ so much that the
    past says nothing. d0 is held at no more than the studies' number: so few variances cannot prove
    a constant noise, and an infinite d0 would claim just that.
    Raises InputError when the two differ in length.
    """
    if len(variances) != len(dfs):
        raise InputError(f"{len(variances)} variances but {len(dfs)} degrees of freedom")
    s2, df = np.asarray(variances, dtype=float), np.asarray(dfs, dtype=float)
    usable = np.isfinite(s2) & (s2 > 0) & np.isfinite(df) & (df > 0)
    s2, df = s2[usable], df[usable]
    if len(s2) < LEAST_STUDIES:
        return None
    centred = np.log(s2) - digamma(df / 2) + np.log(df / 2)
    spread = float(centred.var(ddof=1) - polygamma(1, df / 2).mean())
    d0 = float(len(s2)) if spread <= 0 else min(2.0 * _inverse_trigamma(spread), float(len(s2)))
    if d0 < 1.0:
        return None
    s0 = float(np.exp(centred.mean() + digamma(d0 / 2) - np.log(d0 / 2)))
    return Prior(s0, d0, len(s2))


def _inverse_trigamma(value: float) -> float:
    return float(brentq(lambda x: polygamma(1, x) - value, 1e-8, 1.0 / value + 1.0))
