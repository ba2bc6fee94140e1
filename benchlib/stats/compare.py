"""Contrasts of a fit with intervals, p values and two one-sided tests."""

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

from benchlib.stats.block_model import Fit
from benchlib.stats.dunnett import family_cut, family_tail, loadings
from benchlib.stats.power import Plan, blocks_to_answer, detectable

# Log values whose differences agree to the ninth digit in every block were copied, not measured: a t of
# them would be a quotient of rounding errors.
SAME = 1e-9
_SMALLEST_P = float(np.finfo(float).tiny)  # a p is never 0, not even by underflow


def by_itself(fit: Fit, weights: np.ndarray) -> tuple[pd.DataFrame, np.ndarray, bool]:
    """Return each of ``weights`` (c, levels) judged by itself, on the log scale; their unscaled covariance (c, c); and ``Noise.shared``.

    Columns: ``estimate``; ``factor``, its variance in units of a trial's; a trial's deviation ``sd`` with its degrees of freedom
    ``df``; the standard ``error``; the two-sided ``p``. NaN where nothing can be said.
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
    """Return a family's contrasts: the rows of :func:`by_itself`, and what holds for all of them together.

    Columns: ``low, high``, the simultaneous interval at 1 - alpha; ``p_adjusted``;
    ``p_tost``, the larger p of the two one-sided tests against ``margin``, adjusted for the family (Sidak);
    ``equal_low, equal_high``, the interval that lies within the margin exactly where ``p_tost`` is at most alpha;
    ``detectable``, the smallest increase that is found with 80 % power; ``blocks_needed``, in all
    to settle the contrast. The family is what has an estimate and noise.

    With ``one_reference`` and noise that leans on the family's the adjustment is Dunnett's; otherwise Sidak's, whose
    inequality holds for correlated contrasts whatever they are (Z. Sidak, 1967). ``families`` are
    analysed apart, this one among them, and ``alpha`` is the error rate of them all.
    """
    rows, unscaled, shared = by_itself(fit, weights)
    known = rows["p"].notna().to_numpy()
    shared = shared and one_reference
    estimate, factor, sd, df, error, p = rows[known].to_numpy().T
    count, own_alpha = len(sd), -np.expm1(np.log1p(-alpha) / families)  # Sidak's share
    lam, size = loadings(unscaled[np.ix_(known, known)]), np.abs(estimate) / error
    cut = np.array([family_cut(own_alpha, lam, each, shared=shared) for each in df])
    adjusted = np.array(
        [family_tail(value, lam, each, shared=shared) for value, each in zip(size, df, strict=True)]
    )
    together = -np.expm1(families * np.log1p(-np.minimum(adjusted, 1 - 1e-16)))
    beyond = np.log1p([margin, -margin])[:, None]
    tost = np.max(stdtr(df, np.array([[-1], [1]]) * (beyond - estimate) / error), axis=0)
    # Sidak's share of one of the two one-sided tests
    one_sided = -np.expm1(np.log1p(-alpha) / (max(count, 1) * families))
    equal_cut = -stdtrit(df, one_sided)
    blocks = len(fit.residual)

    def needed(deviation: float, variance: float) -> int | None:
        # were the design completed: one reference then makes all correlations equal
        loading = np.sqrt(np.clip(1 - 1 / variance, 0, 0.5)) if one_reference else 0.0
        plan = Plan(own_alpha, count, round(float(loading), 3), hosts=fit.hosts.shape[1])
        return blocks_to_answer(plan, deviation, variance, margin, blocks)

    judged = {
        "low": estimate - cut * error,
        "high": estimate + cut * error,
        "p_adjusted": np.max([adjusted, together, p], axis=0),
        "p_tost": -np.expm1(count * families * np.log1p(-np.minimum(tost, 1 - 1e-16))),
        "equal_low": estimate - equal_cut * error,
        "equal_high": estimate + equal_cut * error,
        "detectable": np.array([detectable(*each) for each in zip(cut, df, strict=True)]) * error,
        "blocks_needed": [needed(*each) for each in zip(sd, factor * blocks, strict=True)],
    }
    return rows.join(pd.DataFrame(judged, index=rows.index[known], dtype=float))
