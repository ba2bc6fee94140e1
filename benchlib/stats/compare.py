"""Contrasts with intervals, p values and equivalence tests."""

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

from benchlib.stats.block_model import Fit
from benchlib.stats.dunnett import family_cut, family_tail, loadings
from benchlib.stats.power import Plan, blocks_to_answer, detectable

# Log differences that agree to nine digits in all blocks were copied: their t is a ratio of rounding errors.
SAME = 1e-9
_SMALLEST_P = float(np.finfo(float).tiny)  # p must not underflow to 0


def compare(
    fit: Fit, weights: np.ndarray, alpha: float, margin: float, *, one_reference: bool, families: int
) -> pd.DataFrame:
    """Return a family of contrasts (c, levels) on the log scale, a row each; NaN if unknown.

    - ``estimate``; standard ``error, df``; ``p``; ``low, high``; ``p_adjusted``
    - equivalence within ``margin``: ``p_tost``, interval ``equal_low, equal_high``
    - ``detectable`` with 80 % power; ``blocks_needed`` in total

    Adjustment: Dunnett's with ``one_reference`` and shared noise, else Sidak's (1967), valid for all
    correlations. All ``families`` share ``alpha``.
    """
    all_estimates, unscaled = fit.contrasts_alone(weights)
    noise = fit.noise(weights)
    known = np.isfinite(all_estimates) & (noise.sd > SAME)
    estimate, sd, df = all_estimates[known], noise.sd[known], noise.df[known].astype(float)
    unscaled = unscaled[np.ix_(known, known)]
    error, count = sd * np.sqrt(np.diag(unscaled)), len(sd)
    size = np.abs(estimate) / error
    p = np.maximum(2.0 * stdtr(df, -size), _SMALLEST_P)
    lam = loadings(unscaled) if noise.shared and one_reference else (0.0,) * count
    family_alpha = -np.expm1(np.log1p(-alpha) / families)  # Sidak's share
    cut = np.array([family_cut(family_alpha, lam, value) for value in df])
    adjusted = [family_tail(t, lam, value) for t, value in zip(size, df, strict=True)]
    together = -np.expm1(families * np.log1p(-np.minimum(adjusted, 1 - 1e-16)))
    beyond = np.log1p([margin, -margin])[:, None]
    tost = np.max(stdtr(df, np.array([[-1], [1]]) * (beyond - estimate) / error), axis=0)
    # Sidak's share of one of the two one-sided tests
    equal_cut = -stdtrit(df, -np.expm1(np.log1p(-alpha) / (max(count, 1) * families)))
    blocks = len(fit.residual)

    def needed(deviation: float, variance: float) -> int | None:
        # in a complete design with one reference all correlations are equal
        planned = np.sqrt(np.clip(1 - 1 / variance, 0, 0.5)) if one_reference else 0.0
        plan = Plan(family_alpha, count, round(float(planned), 3), hosts=fit.hosts.shape[1])
        return blocks_to_answer(plan, deviation, variance, margin, blocks)

    judged = {
        "error": error,
        "df": df,
        "p": p,
        "low": estimate - cut * error,
        "high": estimate + cut * error,
        "p_adjusted": np.max([adjusted, together, p], axis=0),
        "p_tost": -np.expm1(count * families * np.log1p(-np.minimum(tost, 1 - 1e-16))),
        "equal_low": estimate - equal_cut * error,
        "equal_high": estimate + equal_cut * error,
        "detectable": np.array([detectable(*pair) for pair in zip(cut, df, strict=True)]) * error,
        "blocks_needed": [needed(*pair) for pair in zip(sd, np.diag(unscaled) * blocks, strict=True)],
    }
    rows = pd.DataFrame(judged, index=np.flatnonzero(known), dtype=float).reindex(range(len(weights)))
    return rows.assign(estimate=all_estimates)
