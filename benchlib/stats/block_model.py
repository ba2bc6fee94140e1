"""The block model: log value = block + level + error, by least squares.

Intra-block analysis of a (possibly incomplete) block design, after Scheffé, *The Analysis of
Variance* (1959), chapter 5: blocks are swept out first, which leaves one small symmetric system
for the levels. It gives exactly what ordinary least squares on dummies gives.

A contrast is judged by its own noise: levels on other storage, or of another workload, stray 3 to 20 times as
much as their baseline, and a residual pooled over all of them then finds differences that are none. With few
blocks a variance of its own is a poor one, so it is moderated toward the mean of the family's (after G. K. Smyth,
2004, whose prior is estimated; here it is fixed, small enough that one noisy level among quiet ones stays honest).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

_RCOND = 1e-10
"""What is smaller than this part of the largest eigenvalue is 0: with how much rounding it comes is the processor's."""


@dataclass(frozen=True)
class Noise:
    """The error of contrasts: for each a trial's deviation ``sd`` (..., c) in log units, and its degrees of freedom ``df`` (c,).

    NaN and 0 where nothing is known. ``shared`` tells whether the variances lean on each other: then the contrasts'
    statistics are correlated as Dunnett's are, otherwise they have denominators of their own.
    """

    sd: np.ndarray
    df: np.ndarray
    shared: bool


@dataclass(frozen=True)
class Fit:
    """Level effects (k, up to a constant), their unscaled covariance (k, k), and what is left over.

    ``logs`` and ``residual`` (blocks, k) are NaN where a trial is absent; ``df`` is 0 where nothing is left to estimate noise from.
    ``hosts`` (blocks, hosts) is 1 where a host ran the block, else 0. Where there are several, the residual is what is left over
    when each level may have another effect on each host: blocks are replicates of their host's others only.
    """

    effects: np.ndarray
    unscaled: np.ndarray
    residual: np.ndarray
    df: int
    hosts: "csr_array[Any, Any]"
    logs: np.ndarray

    @property
    def residual_sd(self) -> float:
        """The deviation of a trial, pooled over all levels (log units); NaN where nothing is left to estimate it from."""
        return float(np.sqrt(np.nansum(self.residual**2) / self.df)) if self.df > 0 else float("nan")

    def noise(self, weights: np.ndarray) -> Noise:
        """Return the noise of a family of contrasts (c, k), each from its differences inside the blocks of one host."""
        difference, size = in_blocks(self.residual, weights)
        scaled = difference / size
        counts = self.hosts.T @ np.isfinite(scaled).astype(float)
        means = self.hosts.T @ np.nan_to_num(scaled) / np.maximum(counts, 1)
        squares = np.nansum((scaled - self.hosts @ means) ** 2, axis=0)
        # as many as blocks of one host with these degrees of freedom
        return _moderated(squares, counts.sum(axis=0) - (counts > 0).sum(axis=0) + 1)

    def contrasts(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return estimates (c,) and unscaled covariance (c, c) of contrasts (c, k).

        A contrast between levels that no chain of blocks connects is NaN.
        """
        estimate = weights @ self.effects
        unscaled = weights @ self.unscaled @ weights.T
        connected = np.linalg.pinv(self.unscaled, _RCOND, hermitian=True) @ self.unscaled
        unknown = ~np.isclose(weights @ connected, weights, atol=1e-8).all(axis=1)
        estimate[unknown] = np.nan
        unscaled[unknown, :] = unscaled[:, unknown] = np.nan
        return estimate, unscaled

    def contrasts_alone(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return :meth:`contrasts`, each from the trials of its own levels alone.

        In complete blocks that is the same. Where a trial is absent, all levels together fill its place by least squares, which
        takes them for equally noisy: one that stalls then moves the others' estimates, and their own noise does not tell.
        """
        estimate, unscaled = self.contrasts(weights)
        for row in np.flatnonzero(np.isfinite(estimate)) if np.isnan(self.logs).any() else ():
            used = weights[row] != 0
            logs = self.logs[:, used]
            effects, own, *_ = _additive(logs[np.isfinite(logs).any(axis=1)])
            weight, together = weights[row][used], np.linalg.pinv(own, _RCOND, hermitian=True) @ own
            if not np.allclose(weight @ together, weight, atol=1e-8):
                estimate[row] = unscaled[row, :] = unscaled[:, row] = np.nan
                continue
            scale = np.sqrt(weight @ own @ weight / unscaled[row, row])
            estimate[row] = weight @ effects
            unscaled[row, :] *= scale
            unscaled[:, row] *= scale
        return estimate, unscaled


def in_blocks(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the contrasts (c, k) of values (blocks, k) inside each block (blocks, c), and by how much more than one of the values each strays.

    A block tells of a contrast when it holds the level, and some of what that is compared with: those then stand for all. NaN elsewhere.
    """
    there = np.isfinite(values).astype(float)
    filled, added, taken = np.nan_to_num(values), np.maximum(weights, 0.0), np.maximum(-weights, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = taken.sum(axis=1) / (there @ taken.T)
        difference = filled @ added.T - scale * (filled @ taken.T)
        size = np.sqrt((added**2).sum(axis=1) + scale**2 * (there @ (taken**2).T))
    told = (there @ added.T == added.sum(axis=1)) & np.isfinite(scale)
    return np.where(told, difference, np.nan), size


def fit_blocks(logs: pd.DataFrame, hosts: "pd.Series[Any] | None" = None) -> Fit:
    """Fit the additive model to logarithms (blocks, k). The contrasts of a level without a trial are NaN.

    ``hosts`` names the host of each block; None is one for all.
    """
    y = logs.to_numpy(dtype=float)
    places = np.zeros(len(y), dtype=int) if hosts is None else pd.factorize(hosts)[0]
    effects, unscaled, residual, df = _additive(y)
    if places.any():
        df = 0
        for blocks in np.split(places.argsort(kind="stable"), np.bincount(places).cumsum()[:-1]):
            _, _, residual[blocks], of_host = _additive(y[blocks])
            df += of_host
    member = csr_array((np.ones(len(y)), places, np.arange(len(y) + 1)))
    return Fit(effects, unscaled, residual, df, member, y)


def _additive(y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return effects, unscaled covariance, residual and degrees of freedom (see :class:`Fit`) of logarithms (blocks, k) of one host."""
    counts = np.isfinite(y).astype(float)
    sizes = counts.sum(axis=1, keepdims=True)
    centred = y - np.nanmean(y, axis=1, keepdims=True)
    information = np.diag(counts.sum(axis=0)) - counts.T @ (counts / sizes)
    unscaled = np.linalg.pinv(information, _RCOND, hermitian=True)
    effects = unscaled @ np.nansum(centred, axis=0)
    residual = centred - effects + counts @ effects[:, None] / sizes
    rank = int(np.linalg.matrix_rank(information, tol=1e-8, hermitian=True))
    return effects, unscaled, residual, int(counts.sum()) - len(y) - rank


def fit_complete(logs: np.ndarray, controls: int) -> tuple[np.ndarray, np.ndarray, float, bool]:
    """Fit many complete studies at once: estimates and standard errors (n, c), degrees of freedom, ``Noise.shared``.

    ``logs`` (n, blocks, levels) have the baseline first, then its controls; the c levels are the others
    or, where there are none, the last control. The figures are those of :func:`fit_blocks`.
    """
    _, blocks, levels = logs.shape
    weights = arm_weights(levels, controls + 1)[min(controls, levels - 2) :]
    differences = logs @ weights.T
    estimate = differences.mean(axis=1)
    size = (weights**2).sum(axis=1)
    squares = ((differences - estimate[:, None]) ** 2).sum(axis=1) / size
    noise = _moderated(squares, np.full(len(weights), blocks))
    return estimate, noise.sd * np.sqrt(size / blocks), float(noise.df[0]), noise.shared


def prior_df(blocks: int, comparisons: int) -> int:
    """Return how many degrees of freedom the family's mean variance adds to those of a comparison's own.

    None before the fourth block, then one a block, three at most; none for a comparison that stands alone. So
    one level ten times as noisy as its fellows, whose share in the mean is what misleads, stays within 6 %.
    """
    return min(max(blocks - 3, 0), 3) if comparisons > 1 else 0


def _moderated(squares: np.ndarray, counts: np.ndarray) -> Noise:
    """Return the noise of contrasts from sums of squares (..., c) of their scaled differences, ``counts`` (c,) of them each."""
    known = counts > 1
    own = squares / np.where(known, counts - 1, np.nan)
    prior = np.array([prior_df(int(count), int(known.sum())) for count in counts])
    df = np.where(known, counts - 1 + prior, 0)
    family = np.nanmean(own, axis=-1, keepdims=True) if known.any() else own
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = (squares + prior * family) / np.where(known, df, np.nan)
    return Noise(np.sqrt(variance), df, bool(known.any() and prior[known].all()))


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
