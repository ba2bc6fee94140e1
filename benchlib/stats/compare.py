"""Contrasts of a fit with intervals, p values and two one-sided tests."""

import numpy as np
import pandas as pd
from scipy.stats import t

from benchlib.stats.block_model import Fit, Noise
from benchlib.stats.dunnett import critical, loadings, tail
from benchlib.stats.power import Plan, blocks_to_answer, detectable

_JUDGED = ("low", "high", "p", "p_adjusted", "p_tost", "detectable", "blocks_needed")
_SMALLEST_P = float(np.finfo(float).tiny)  # a p is never 0, not even by underflow


def compare(
    fit: Fit,
    weights: np.ndarray,
    noise: Noise,
    alpha: float,
    margin: float,
    *,
    one_reference: bool,
    families: int,
) -> pd.DataFrame:
    """Return a family's contrasts on the log scale: one row for each of ``weights`` (c, levels).

    Columns: ``estimate``; ``low, high``, the simultaneous interval at 1 - alpha; ``p, p_adjusted``;
    ``p_tost``, the larger p of the two one-sided tests
    against ``margin``; ``detectable``, the smallest increase that is found with 80 % power; ``blocks_needed``, in all
    to settle the contrast. NaN where nothing can be said; the family is what has an estimate.

    With ``one_reference`` the adjustment is Dunnett's; contrasts with several references are correlated in no such
    simple way, and Sidak's inequality holds for them whatever they are (Z. Sidak, 1967). ``families`` are
    analysed apart, this one among them, and ``alpha`` is the error rate of them all.
    """
    estimate, unscaled = fit.contrasts(weights)
    rows = pd.DataFrame({"estimate": estimate}, columns=["estimate", *_JUDGED], dtype=float)
    known = np.isfinite(estimate)
    if not (np.isfinite(noise.sd) and noise.df > 0 and known.any()):
        return rows
    count, own_alpha = int(known.sum()), -np.expm1(np.log1p(-alpha) / families)  # Sidak's share
    lam = loadings(unscaled[np.ix_(known, known)]) if one_reference else (0.0,) * count
    value, factor = estimate[known], np.diag(unscaled)[known]
    error = noise.sd * np.sqrt(factor)
    size = np.abs(value) / error
    cut = critical(own_alpha, lam, noise.df)
    adjusted = np.array([tail(statistic, lam, noise.df) for statistic in size])
    together = -np.expm1(families * np.log1p(-np.minimum(adjusted, 1 - 1e-16)))
    blocks, levels = fit.residual.shape
    per_block = levels - 1
    extra_df = max(noise.df - per_block * (blocks - 1), 0.0)

    def plan(factor: float) -> Plan:
        """The test with more blocks, were the design completed: one reference then makes all correlations equal."""
        share = np.clip(1.0 - 1.0 / (factor * blocks), 0.0, 0.5) if one_reference and count > 1 else 0.0
        return Plan(own_alpha, (round(float(np.sqrt(share)), 3),) * count, per_block, extra_df)

    above = t.sf((value - np.log1p(-margin)) / error, noise.df)
    below = t.sf((np.log1p(margin) - value) / error, noise.df)
    judged = {
        "low": value - cut * error,
        "high": value + cut * error,
        "p": np.maximum(2.0 * t.sf(size, noise.df), _SMALLEST_P),
        "p_adjusted": np.maximum(np.maximum(adjusted, together), _SMALLEST_P),
        "p_tost": np.maximum(above, below),
        "detectable": detectable(cut, noise.df) * error,
        "blocks_needed": [
            blocks_to_answer(plan(each), noise.sd, each * blocks, margin, blocks) for each in factor
        ],
    }
    rows.loc[known, list(judged)] = pd.DataFrame(judged, index=rows.index[known], dtype=float)
    return rows
