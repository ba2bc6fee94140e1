"""Contrasts with intervals, p values and two one-sided tests: arrays in, arrays out."""

from dataclasses import dataclass

import numpy as np
from scipy.stats import t

from benchlib.stats.dunnett import critical, loadings, tail
from benchlib.stats.power import Plan, blocks_to_answer, detectable

_SMALLEST_P = float(np.finfo(float).tiny)  # a p is never 0, not even by underflow


@dataclass(frozen=True)
class Comparison:
    """One family of contrasts, arrays (c,) on the log scale; NaN where nothing can be said.

    ``low, high`` is the simultaneous interval at 1 - alpha, ``low_tost, high_tost`` the single one at
    1 - 2 alpha, ``p_tost`` the larger p of the two one-sided tests against the margin,
    ``detectable`` the smallest increase found with 80 % power, ``unscaled`` the variance of each
    contrast in units of the residual variance.
    """

    estimate: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray
    p_adjusted: np.ndarray
    low_tost: np.ndarray
    high_tost: np.ndarray
    p_tost: np.ndarray
    detectable: np.ndarray
    unscaled: np.ndarray


def compare(
    estimate: np.ndarray,
    unscaled: np.ndarray,
    sd: float,
    df: float,
    alpha: float,
    margin: float,
    *,
    one_reference: bool = True,
    families: int = 1,
) -> Comparison:
    """Return the family's comparisons from estimates (c,) and their unscaled covariance (c, c).

    ``sd`` is the residual deviation, NaN when it cannot be known. The family is whoever has an estimate.
    With ``one_reference`` the adjustment is Dunnett's; contrasts with several are correlated in no such
    simple way, and Sidak's inequality holds for them whatever they are (Z. Sidak, 1967). ``families`` are
    analysed apart, this one among them, and ``alpha`` is the error rate of them all.
    """
    size = len(estimate)
    columns = {name: np.full(size, np.nan) for name in Comparison.__dataclass_fields__}
    columns["estimate"], columns["unscaled"] = estimate, np.diag(unscaled)
    known = np.flatnonzero(np.isfinite(estimate))
    if np.isfinite(sd) and df > 0 and len(known):
        lam = loadings(unscaled[np.ix_(known, known)]) if one_reference else (0.0,) * len(known)
        error = sd * np.sqrt(np.diag(unscaled)[known])
        statistic = estimate[known] / error
        cut, single = critical(shared(alpha, families), lam, df), float(t.isf(alpha, df))
        below, above = np.log1p(-margin), np.log1p(margin)
        columns["low"][known], columns["high"][known] = _around(estimate[known], cut * error)
        columns["low_tost"][known], columns["high_tost"][known] = _around(estimate[known], single * error)
        columns["p"][known] = np.maximum(2.0 * t.sf(np.abs(statistic), df), _SMALLEST_P)
        adjusted = np.array([tail(abs(value), lam, df) for value in statistic])
        if families > 1:
            together = -np.expm1(families * np.log1p(-np.minimum(adjusted, 1 - 1e-16)))
            adjusted = np.maximum(adjusted, together)
        columns["p_adjusted"][known] = np.maximum(adjusted, _SMALLEST_P)
        columns["p_tost"][known] = np.maximum(
            t.sf((estimate[known] - below) / error, df), t.sf((above - estimate[known]) / error, df)
        )
        columns["detectable"][known] = detectable(cut, df) * error
    return Comparison(**columns)


def shared(alpha: float, families: int) -> float:
    """Return the error rate of each of so many independent families that together have ``alpha`` (Sidak)."""
    return float(-np.expm1(np.log1p(-alpha) / families))


def blocks_needed(
    family: Comparison,
    index: int,
    sd: float,
    df: float,
    alpha: float,
    margin: float,
    blocks: int,
    levels: int,
    *,
    one_reference: bool = True,
) -> int | None:
    """Return the blocks in all that would settle contrast ``index``, were the design completed.

    The family's correlations are taken as equal, which they are in every complete design with one reference.
    """
    size = int(np.isfinite(family.estimate).sum())
    factor = float(family.unscaled[index]) * blocks
    share = 0.5 if size < 2 else float(np.clip(1.0 - 1.0 / factor, 0.0, 0.5)) if one_reference else 0.0
    plan = Plan(
        alpha,
        (round(float(np.sqrt(share)), 3),) * size,
        levels - 1,
        max(df - (levels - 1) * (blocks - 1), 0.0),
    )
    return blocks_to_answer(plan, sd, factor, margin, blocks)


def _around(centre: np.ndarray, reach: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return centre - reach, centre + reach


def stack(first: Comparison, second: Comparison) -> Comparison:
    """Return two families one after the other, each keeping its own adjustment."""
    names = Comparison.__dataclass_fields__
    return Comparison(**{name: np.r_[getattr(first, name), getattr(second, name)] for name in names})
