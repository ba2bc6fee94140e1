"""Dunnett's test: the distribution of the largest |t| of contrasts.

C. W. Dunnett (1955, 1964). ``scipy.stats.dunnett`` ignores blocks, so it is integrated here over
t_i = (lambda_i z + sqrt(1 - lambda_i^2) e_i) / s, z ~ N(0, 1), s = sqrt(chi2_df / df).
Exact for product correlations (complete designs), otherwise by J. C. Hsu (1992).
"""

from functools import lru_cache

import numpy as np
from scipy.optimize import brentq, least_squares
from scipy.special import gammainccinv, gammaincinv, gammaln, ndtr, stdtr, stdtrit, xlogy

_Z = np.linspace(0.0, 8.5, 44)  # the integrand is even in z: half the line, doubled
_Z_WEIGHT = np.exp(-(_Z**2) / 2) / np.sqrt(2 * np.pi) * (_Z[1] - _Z[0]) * np.where(_Z == 0.0, 1.0, 2.0)
_S_NODES = 160
_LARGEST_LOADING = 0.99


def loadings(covariance: np.ndarray) -> tuple[float, ...]:
    """Return lambda (c,): correlation_ij = lambda_i lambda_j, or nearly."""
    scale = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(scale, scale)
    rows, columns = np.triu_indices(len(scale), 1)
    wanted = correlation[rows, columns]
    if not len(wanted):
        return (0.0,)
    start = np.full(len(scale), np.sqrt(max(float(wanted.mean()), 0.0)))
    if not np.allclose(wanted, wanted.mean(), atol=1e-9) or wanted[0] < 0:

        def misfit(lam: np.ndarray) -> np.ndarray:
            return np.asarray(lam[rows] * lam[columns] - wanted)

        # unequal starts, or two negatively correlated contrasts would sit on a saddle
        spread = np.clip(start + np.linspace(0.1, -0.1, len(scale)), -0.98, 0.98)
        start = least_squares(misfit, spread, bounds=(-_LARGEST_LOADING, _LARGEST_LOADING)).x
    return tuple(float(value) for value in np.round(np.minimum(start, _LARGEST_LOADING), 12))


def complete_loading(arms: int) -> float:
    """Return lambda in a complete design."""
    return float(np.sqrt(1 / (1 + arms)))


def tail(cut: float, lam: tuple[float, ...], df: float) -> float:
    """Return P(max |t_i| > cut)."""
    single = float(2.0 * stdtr(df, -cut))
    s, weight = _scale_nodes(df)
    beyond = np.zeros((len(s), len(_Z)))
    for value in set(lam):
        rest = np.sqrt(1.0 - value * value)
        shift, reach = value * _Z[None, :] / rest, cut * s[:, None] / rest
        outside = np.minimum(ndtr(shift - reach) + ndtr(-shift - reach), 1.0 - 1e-16)
        beyond += lam.count(value) * np.log1p(-outside)
    joint = float(weight @ (-np.expm1(beyond)) @ _Z_WEIGHT)
    return min(max(joint, single), len(lam) * single, 1.0)


@lru_cache(maxsize=4096)
def critical(alpha: float, lam: tuple[float, ...], df: float) -> float:
    """Return the ``cut`` whose :func:`tail` is ``alpha``."""
    low, high = float(-stdtrit(df, alpha / 2)), float(-stdtrit(df, alpha / 2 / len(lam)))
    return float(brentq(lambda cut: tail(cut, lam, df) - alpha, low * 0.999, high * 1.001, xtol=1e-10))


@lru_cache(maxsize=1024)
def _scale_nodes(df: float) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights (n,) of s."""
    low, high = np.log(2 * gammaincinv(df / 2, 1e-13)) / 2, np.log(2 * gammainccinv(df / 2, 1e-15)) / 2
    log_chi = np.linspace(low, high, _S_NODES)
    density = (
        xlogy(df, np.exp(log_chi)) - np.exp(log_chi) ** 2 / 2 - gammaln(df / 2) - (df / 2 - 1) * np.log(2)
    )
    weight = np.exp(density) * (log_chi[1] - log_chi[0])
    return np.exp(log_chi) / np.sqrt(df), weight


def family_tail(size: float, lam: tuple[float, ...], df: float) -> float:
    """Return the adjusted p of |t| = ``size``: Dunnett's, or Sidak's (1967) without ``lam``."""
    if any(lam) and len(lam) > 1:
        return tail(size, lam, df)
    return float(-np.expm1(len(lam) * np.log1p(-min(2.0 * stdtr(df, -size), 1 - 1e-16))))


def family_cut(alpha: float, lam: tuple[float, ...], df: float) -> float:
    """Return the |t| whose :func:`family_tail` is ``alpha``."""
    if any(lam) and len(lam) > 1:
        return critical(alpha, lam, df)
    return float(-stdtrit(df, -np.expm1(np.log1p(-alpha) / len(lam)) / 2))
