"""Contrasts of a fit with intervals, p values and equivalence tests."""

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

from benchlib.stats.block_model import Fit
from benchlib.stats.dunnett import family_cut, family_tail, loadings
from benchlib.stats.power import Plan, blocks_to_answer, detectable

# Log differences that agree to nine digits in all blocks were copied: their t is a ratio of rounding errors.
SAME = 1e-9
_SMALLEST_P = float(np.finfo(float).tiny)  # p must not underflow to 0


def by_itself(fit: Fit, weights: np.ndarray) -> tuple[pd.DataFrame, np.ndarray, bool]:
    """Return single tests of contrasts (c, levels) on the log scale, covariance and ``Noise.shared``.

    Columns: ``estimate``; ``factor`` (variance in units of a trial's); ``sd`` and ``df`` of a trial; standard
    ``error``; two-sided ``p``. NaN if unknown. The unscaled covariance is (c, c).
    """
    estimate, unscaled = fit.contrasts_alone(weights)
    noise = fit.noise(weights)
    known = np.isfinite(estimate) & (noise.sd > SAME)
    sd, df = np.where(known, noise.sd, np.nan), np.where(known, noise.df, np.nan)
    factor = np.diag(unscaled)
    error = sd * np.sqrt(factor)
    p = np.maximum(2.0 * stdtr(df, -np.abs(estimate) / error), _SMALLEST_P)
    rows = {"estimate": estimate, "factor": factor, "sd": sd, "df": df, "error": error, "p": p}
    return pd.DataFrame(rows, dtype=float), unscaled, noise.shared


def compare(
    fit: Fit, weights: np.ndarray, alpha: float, margin: float, *, one_reference: bool, families: int
) -> pd.DataFrame:
    """Return a family of contrasts: the rows of :func:`by_itself` with simultaneous results.

    Columns: ``low, high`` (simultaneous interval at 1 - alpha); ``p_adjusted``; ``p_tost`` (the larger p of
    the two one-sided tests against ``margin``, Sidak); ``equal_low, equal_high`` (within the margin exactly if
    ``p_tost`` <= alpha); ``detectable`` (smallest increase with 80 % power); ``blocks_needed`` in total.

    Adjustment: Dunnett's with ``one_reference`` and shared noise, else Sidak's inequality (Z. Sidak, 1967),
    valid for all correlations. ``alpha`` is the error rate of all ``families`` together.
    """
    rows, unscaled, shared = by_itself(fit, weights)
    known = rows["p"].notna().to_numpy()
    shared = shared and one_reference
    estimate, factor, sd, df, error, p = rows[known].to_numpy().T
    count, family_alpha = len(sd), -np.expm1(np.log1p(-alpha) / families)  # Sidak's share
    lam, size = loadings(unscaled[np.ix_(known, known)]), np.abs(estimate) / error
    cut = np.array([family_cut(family_alpha, lam, value, shared=shared) for value in df])
    adjusted = np.array(
        [family_tail(t, lam, value, shared=shared) for t, value in zip(size, df, strict=True)]
    )
    together = -np.expm1(families * np.log1p(-np.minimum(adjusted, 1 - 1e-16)))
    beyond = np.log1p([margin, -margin])[:, None]
    tost = np.max(stdtr(df, np.array([[-1], [1]]) * (beyond - estimate) / error), axis=0)
    # Sidak's share of one of the two one-sided tests
    one_sided = -np.expm1(np.log1p(-alpha) / (max(count, 1) * families))
    equal_cut = -stdtrit(df, one_sided)
    blocks = len(fit.residual)

    def needed(deviation: float, variance: float) -> int | None:
        # in a complete design with one reference all correlations are equal
        loading = np.sqrt(np.clip(1 - 1 / variance, 0, 0.5)) if one_reference else 0.0
        plan = Plan(family_alpha, count, round(float(loading), 3), hosts=fit.hosts.shape[1])
        return blocks_to_answer(plan, deviation, variance, margin, blocks)

    judged = {
        "low": estimate - cut * error,
        "high": estimate + cut * error,
        "p_adjusted": np.max([adjusted, together, p], axis=0),
        "p_tost": -np.expm1(count * families * np.log1p(-np.minimum(tost, 1 - 1e-16))),
        "equal_low": estimate - equal_cut * error,
        "equal_high": estimate + equal_cut * error,
        "detectable": np.array([detectable(*pair) for pair in zip(cut, df, strict=True)]) * error,
        "blocks_needed": [needed(*pair) for pair in zip(sd, factor * blocks, strict=True)],
    }
    return rows.join(pd.DataFrame(judged, index=rows.index[known], dtype=float))
