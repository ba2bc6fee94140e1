"""Contrasts of a fit with intervals, p values and two one-sided tests."""

import numpy as np
import pandas as pd
from scipy.stats import t

from benchlib.stats.block_model import Fit, Noise
from benchlib.stats.dunnett import critical, loadings, tail
from benchlib.stats.power import Plan, blocks_to_answer, detectable

_SMALLEST_P = float(np.finfo(float).tiny)  # a p is never 0, not even by underflow


def compare(
    fit: Fit,
    weights: np.ndarray,
    noise: Noise,
    alpha: float,
    margin: float,
    *,
    one_reference: bool = True,
    families: int = 1,
) -> pd.DataFrame:
    """Return a family's contrasts on the log scale: one row for each of ``weights`` (c, levels).

    Columns: ``estimate``; ``low, high``, the simultaneous interval at 1 - alpha; ``p, p_adjusted``;
    ``low_tost, high_tost``, the single interval at 1 - 2 alpha; ``p_tost``, the larger p of the two one-sided tests
    against ``margin``; ``detectable``, the smallest increase that is found with 80 % power; ``factor``, the
    contrast's variance in units of the trials'. NaN where nothing can be said; the family is what has an estimate.

    With ``one_reference`` the adjustment is Dunnett's; contrasts with several references are correlated in no such
    simple way, and Sidak's inequality holds for them whatever they are (Z. Sidak, 1967). ``families`` are
    analysed apart, this one among them, and ``alpha`` is the error rate of them all.
    """
    estimate, unscaled = fit.contrasts(weights)
    names = [
        "estimate",
        "low",
        "high",
        "p",
        "p_adjusted",
        "low_tost",
        "high_tost",
        "p_tost",
        "detectable",
        "factor",
    ]
    rows = pd.DataFrame({"estimate": estimate, "factor": np.diag(unscaled)}, columns=names, dtype=float)
    known = np.isfinite(estimate)
    if not (np.isfinite(noise.sd) and noise.df > 0 and known.any()):
        return rows
    lam = loadings(unscaled[np.ix_(known, known)]) if one_reference else (0.0,) * int(known.sum())
    value, error = estimate[known], noise.sd * np.sqrt(np.diag(unscaled)[known])
    cut, single = critical(shared(alpha, families), lam, noise.df), float(t.isf(alpha, noise.df))
    adjusted = np.array([tail(statistic, lam, noise.df) for statistic in np.abs(value) / error])
    if families > 1:
        together = -np.expm1(families * np.log1p(-np.minimum(adjusted, 1 - 1e-16)))
        adjusted = np.maximum(adjusted, together)
    above = t.sf((value - np.log1p(-margin)) / error, noise.df)
    below = t.sf((np.log1p(margin) - value) / error, noise.df)
    rows.loc[known, names[1:-1]] = np.column_stack([
        value - cut * error,
        value + cut * error,
        np.maximum(2.0 * t.sf(np.abs(value) / error, noise.df), _SMALLEST_P),
        np.maximum(adjusted, _SMALLEST_P),
        value - single * error,
        value + single * error,
        np.maximum(above, below),
        detectable(cut, noise.df) * error,
    ])  # fmt: skip
    return rows


def shared(alpha: float, families: int) -> float:
    """Return the error rate of each of so many independent families that together have ``alpha`` (Sidak)."""
    return float(-np.expm1(np.log1p(-alpha) / families))


def blocks_needed(
    factor: float,
    comparisons: int,
    noise: Noise,
    alpha: float,
    margin: float,
    shape: tuple[int, int],
    *,
    one_reference: bool = True,
) -> int | None:
    """Return the blocks in all that would settle one of ``comparisons``, were the design completed.

    ``factor`` is that contrast's variance in units of the trials', ``shape`` the study's blocks and levels.
    The family's correlations are taken as equal, as they are in every complete design with one reference.
    """
    blocks, levels = shape
    factor *= blocks
    share = 0.5 if comparisons < 2 else float(np.clip(1.0 - 1.0 / factor, 0.0, 0.5)) if one_reference else 0.0
    lam = (round(float(np.sqrt(share)), 3),) * comparisons
    extra_df = max(noise.df - (levels - 1) * (blocks - 1), 0.0)
    return blocks_to_answer(Plan(alpha, lam, levels - 1, extra_df), noise.sd, factor, margin, blocks)
