"""The block model: log value = block + level + error, by least squares.

Intra-block analysis of a (possibly incomplete) block design, after Scheffé, *The Analysis of
Variance* (1959), chapter 5: blocks are swept out first, which leaves one small symmetric system
for the levels. It gives exactly what ordinary least squares on dummies gives.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class Noise:
    """The error term: a trial's deviation (log units), NaN where it is not known, and its degrees of freedom."""

    sd: float
    df: float


@dataclass(frozen=True)
class Fit:
    """Level effects (k, up to a constant), their unscaled covariance (k, k), and what is left over.

    ``residual`` (blocks, k) is NaN where a trial is absent; ``df`` is 0 where nothing is left to estimate noise from.
    """

    effects: np.ndarray
    unscaled: np.ndarray
    residual: np.ndarray
    df: int

    @property
    def noise(self) -> Noise:
        """The pooled residual's deviation: what every contrast is judged by."""
        rss = float(np.nansum(self.residual**2))
        return Noise(float(np.sqrt(rss / self.df)) if self.df > 0 else float("nan"), self.df)

    def contrasts(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return estimates (c,) and unscaled covariance (c, c) of contrasts (c, k).

        A contrast between levels that no chain of blocks connects is NaN.
        """
        estimate = weights @ self.effects
        unscaled = weights @ self.unscaled @ weights.T
        unknown = ~np.isclose(weights @ self._projector, weights, atol=1e-8).all(axis=1)
        estimate[unknown] = np.nan
        unscaled[unknown, :] = unscaled[:, unknown] = np.nan
        return estimate, unscaled

    @property
    def _projector(self) -> np.ndarray:
        projector: np.ndarray = np.linalg.pinv(self.unscaled, hermitian=True) @ self.unscaled
        return projector


def fit_blocks(logs: pd.DataFrame) -> Fit:
    """Fit the additive model to logarithms (blocks, k). The contrasts of a level without a trial are NaN."""
    y = logs.to_numpy(dtype=float)
    counts = np.isfinite(y).astype(float)
    sizes = counts.sum(axis=1)
    centred = y - np.nanmean(y, axis=1, keepdims=True)
    information = np.diag(counts.sum(axis=0)) - counts.T @ (counts / sizes[:, None])
    unscaled = np.linalg.pinv(information, rcond=1e-10, hermitian=True)
    effects = unscaled @ np.nansum(centred, axis=0)
    residual = centred - effects + (counts @ effects / sizes)[:, None]
    rank = int(np.linalg.matrix_rank(information, tol=1e-8, hermitian=True))
    return Fit(effects, unscaled, residual, int(counts.sum()) - len(y) - rank)


def fit_complete(logs: np.ndarray, controls: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Fit many complete studies at once: estimates and standard errors (n, c), and the degrees of freedom.

    ``logs`` (n, blocks, levels) have the baseline first, then its controls; the c levels are the others
    or, where there are none, the last control. The figures are those of :func:`fit_blocks`.
    """
    _, blocks, levels = logs.shape
    df = (blocks - 1) * (levels - 1)
    centred = logs - logs.mean(axis=2, keepdims=True)
    mean = centred.mean(axis=1)
    variance = ((centred - mean[:, None, :]) ** 2).sum(axis=(1, 2)) / df
    weights = arm_weights(levels, controls + 1)[min(controls, levels - 2) :]
    return mean @ weights.T, np.sqrt(np.outer(variance, (weights**2).sum(axis=1) / blocks)), df


def arm_weights(levels: int, arms: int, against: Mapping[int, int] | None = None) -> np.ndarray:
    """Return the contrasts (c, levels) that a study asks for.

    The first ``arms`` levels are the baseline and its controls. ``against`` tells for each level that is
    compared, in their order, with which (by index); None is all with the baseline. A control is compared with
    its baseline twin; every other level that is compared with the baseline with the mean of all its arms.
    """
    pairs = dict.fromkeys(range(1, levels), 0) if against is None else against
    weights = np.zeros((len(pairs), levels))
    for row, (level, other) in enumerate(pairs.items()):
        weights[row, level] = 1.0
        if other == 0 and level >= arms:
            weights[row, :arms] = -1.0 / arms
        else:
            weights[row, other] = -1.0
    return weights
