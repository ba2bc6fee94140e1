"""Contrasts of a fit with intervals, p values and two one-sided tests."""

from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.special import stdtr

from benchlib.stats.block_model import Fit, Noise
from benchlib.stats.dunnett import family_cut, family_tail, loadings
from benchlib.stats.power import Plan, blocks_to_answer, detectable

_JUDGED = ("error", "df", "low", "high", "p", "p_adjusted", "p_tost", "detectable", "blocks_needed")
# Log values whose differences agree to the ninth digit in every block were copied, not measured: a t of
# them would be a quotient of rounding errors.
SAME = 1e-9
_SMALLEST_P = float(np.finfo(float).tiny)  # a p is never 0, not even by underflow


def compare(
    fit: Fit,
    weights: np.ndarray,
    alpha: float,
    margin: float,
    *,
    one_reference: bool,
    families: int,
) -> pd.DataFrame:
    """Return a family's contrasts on the log scale: one row for each of ``weights`` (c, levels).

    Columns: ``estimate``, its standard ``error`` and degrees of freedom ``df``; ``low, high``, the simultaneous interval at
    1 - alpha; ``p, p_adjusted``;
    ``p_tost``, the larger p of the two one-sided tests against ``margin``, adjusted for the family (Sidak);
    ``detectable``, the smallest increase that is found with 80 % power; ``blocks_needed``, in all
    to settle the contrast. NaN where nothing can be said; the family is what has an estimate and noise.

    With ``one_reference`` and noise that leans on the family's the adjustment is Dunnett's; otherwise Sidak's, whose
    inequality holds for correlated contrasts whatever they are (Z. Sidak, 1967). ``families`` are
    analysed apart, this one among them, and ``alpha`` is the error rate of them all.
    """
    estimate, unscaled, known, noise = _known(fit, weights)
    rows = pd.DataFrame({"estimate": estimate}, columns=["estimate", *_JUDGED], dtype=float)
    if not known.any():
        return rows
    sd, df = noise.sd, noise.df
    count, own_alpha = len(sd), -np.expm1(np.log1p(-alpha) / families)  # Sidak's share
    lam = loadings(unscaled[np.ix_(known, known)])
    shared = noise.shared and one_reference
    value, factor = estimate[known], np.diag(unscaled)[known]
    error = sd * np.sqrt(factor)
    size = np.abs(value) / error
    cut = np.array([family_cut(own_alpha, lam, each, shared=shared) for each in df])
    adjusted = np.array(
        [family_tail(*pair, shared=shared) for pair in zip(size, [lam] * count, df, strict=True)]
    )
    together = -np.expm1(families * np.log1p(-np.minimum(adjusted, 1 - 1e-16)))
    beyond = np.log1p([margin, -margin])[:, None]
    tost = np.max(stdtr(df, np.array([[-1], [1]]) * (beyond - value) / error), axis=0)
    blocks = len(fit.residual)
    judged = {
        "error": error,
        "df": df,
        "low": value - cut * error,
        "high": value + cut * error,
        "p": (single := _single(size, df)),
        "p_adjusted": np.max([adjusted, together, single], axis=0),
        "p_tost": -np.expm1(count * families * np.log1p(-np.minimum(tost, 1 - 1e-16))),
        "detectable": np.array([detectable(*each) for each in zip(cut, df, strict=True)]) * error,
        "blocks_needed": [
            # were the design completed: one reference then makes all correlations equal
            blocks_to_answer(
                Plan(
                    own_alpha,
                    count,
                    _loading(each * blocks) if one_reference else 0.0,
                    hosts=fit.hosts.shape[1],
                ),
                deviation,
                each * blocks,
                margin,
                blocks,
            )
            for deviation, each in zip(sd, factor, strict=True)
        ],
    }
    rows.loc[known, list(judged)] = pd.DataFrame(judged, index=rows.index[known], dtype=float)
    return rows


def single_p(fit: Fit, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the estimates (c,) and the ``p`` (c,) of :func:`compare`, and no more."""
    estimate, unscaled, known, noise = _known(fit, weights)
    p = np.full(len(estimate), np.nan)
    p[known] = _single(np.abs(estimate[known]) / (noise.sd * np.sqrt(np.diag(unscaled)[known])), noise.df)
    return estimate, p


def _known(fit: Fit, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, Noise]:
    """Return the estimates (c,), their unscaled covariance (c, c), which have a noise (c,), and that of those."""
    estimate, unscaled = fit.contrasts(weights)
    noise = fit.noise(weights[np.isfinite(estimate)])
    known, judged_by = np.isfinite(estimate), noise.sd > SAME
    known[known] = judged_by
    return estimate, unscaled, known, replace(noise, sd=noise.sd[judged_by], df=noise.df[judged_by])


def _single(size: np.ndarray, df: np.ndarray) -> np.ndarray:
    """Return the two-sided p (c,) of each |t| by itself."""
    p: np.ndarray = np.maximum(2.0 * stdtr(df, -size), _SMALLEST_P)
    return p


def _loading(variance: float) -> float:
    """The loading of a level whose difference from the reference has that ``variance`` in units of a trial's."""
    return round(float(np.sqrt(np.clip(1.0 - 1.0 / variance, 0.0, 0.5))), 3)
