"""The block model: log value = block + level + error, by least squares.

Source: intra-block analysis, H. Scheffé, *The Analysis of Variance* (1959), chapter 5. Variances are
moderated (G. K. Smyth, 2004) with a fixed small prior.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

_RCOND = 1e-10
"""Eigenvalues below this part of the largest count as 0; rounding depends on the CPU."""


@dataclass(frozen=True)
class Noise:
    """The noise of contrasts: a trial's ``sd`` (..., c) in log units, with ``df`` (c,).

    ``shared``: statistics correlate as Dunnett's.
    """

    sd: np.ndarray
    df: np.ndarray
    shared: bool


@dataclass(frozen=True)
class Fit:
    """A fitted block model: ``effects`` (k, up to a constant), ``unscaled`` covariance (k, k).

    ``logs`` and ``residual`` (blocks, k) are NaN if missing. ``hosts`` (blocks, hosts) is 1 where a host
    ran the block.
    """

    effects: np.ndarray
    unscaled: np.ndarray
    residual: np.ndarray
    df: int
    hosts: np.ndarray
    logs: np.ndarray

    @property
    def residual_sd(self) -> float:
        """Return a trial's pooled deviation in log units."""
        return float(np.sqrt(np.nansum(self.residual**2) / self.df)) if self.df > 0 else float("nan")

    def noise(self, weights: np.ndarray) -> Noise:
        """Return the noise of contrasts (c, k)."""
        difference, size = in_blocks(self.residual, weights)
        scaled = difference / size
        counts = self.hosts.T @ np.isfinite(scaled).astype(float)
        means = self.hosts.T @ np.nan_to_num(scaled) / np.maximum(counts, 1)
        squares = np.nansum((scaled - self.hosts @ means) ** 2, axis=0)
        # the number of blocks on one host with the same degrees of freedom
        return _moderated(squares, counts.sum(axis=0) - (counts > 0).sum(axis=0) + 1)

    def contrasts(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return estimates (c,) and unscaled covariance (c, c) of contrasts (c, k).

        Unconnected levels give NaN.
        """
        estimate = weights @ self.effects
        unscaled = weights @ self.unscaled @ weights.T
        unknown = ~_estimable(weights, self.unscaled)
        estimate[unknown] = np.nan
        unscaled[unknown, :] = unscaled[:, unknown] = np.nan
        return estimate, unscaled

    def contrasts_alone(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return :meth:`contrasts`, each from its own levels' trials.

        A joint fit of incomplete blocks would assume equal noise.
        """
        estimate, unscaled = self.contrasts(weights)
        for row in np.flatnonzero(np.isfinite(estimate)) if np.isnan(self.logs).any() else ():
            used = weights[row] != 0
            logs = self.logs[:, used]
            effects, covariance, *_ = _additive(logs[np.isfinite(logs).any(axis=1)])
            weight = weights[row][used]
            if not _estimable(weight, covariance):
                estimate[row] = unscaled[row, :] = unscaled[:, row] = np.nan
                continue
            scale = np.sqrt(weight @ covariance @ weight / unscaled[row, row])
            estimate[row] = weight @ effects
            unscaled[row, :] *= scale
            unscaled[:, row] *= scale
        return estimate, unscaled


def _estimable(weights: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return whether blocks connect the levels of each contrast (..., k)."""
    connected = np.linalg.pinv(covariance, _RCOND, hermitian=True) @ covariance
    return np.asarray(np.isclose(weights @ connected, weights, atol=1e-8).all(axis=-1))


def in_blocks(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return contrasts (c, k) of values (blocks, k) inside blocks, with relative deviations."""
    present = np.isfinite(values).astype(float)
    filled, added, taken = np.nan_to_num(values), np.maximum(weights, 0.0), np.maximum(-weights, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = taken.sum(axis=1) / (present @ taken.T)
        difference = filled @ added.T - scale * (filled @ taken.T)
        size = np.sqrt((added**2).sum(axis=1) + scale**2 * (present @ (taken**2).T))
    usable = (present @ added.T == added.sum(axis=1)) & np.isfinite(scale)
    return np.where(usable, difference, np.nan), size


def fit_blocks(logs: pd.DataFrame, hosts: "pd.Series[Any] | None" = None) -> Fit:
    """Fit logarithms (blocks, k); ``hosts`` names each block's host."""
    y = logs.to_numpy(dtype=float)
    member = np.ones((len(y), 1)) if hosts is None else pd.get_dummies(hosts).to_numpy(dtype=float)
    effects, unscaled, residual, df = _additive(y)
    if member.shape[1] > 1:
        df = 0
        for blocks in member.T > 0:
            _, _, residual[blocks], host_df = _additive(y[blocks])
            df += host_df
    return Fit(effects, unscaled, residual, df, member, y)


def _additive(y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return effects, unscaled covariance, residual, df."""
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
    """Fit complete studies (n, blocks, levels), arms first.

    Returns estimates and standard errors (n, c), df and ``Noise.shared``.
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
    """Return the degrees of freedom that moderation adds.

    False positives stay below 6 % if one level is ten times as noisy (simulated).
    """
    return min(max(blocks - 3, 0), 3) if comparisons > 1 else 0


def _moderated(squares: np.ndarray, counts: np.ndarray) -> Noise:
    """Return noise from sums of squares (..., c)."""
    known = counts > 1
    single = squares / np.where(known, counts - 1, np.nan)
    prior = np.array([prior_df(int(count), int(known.sum())) for count in counts])
    df = np.where(known, counts - 1 + prior, 0)
    family = np.nanmean(single, axis=-1, keepdims=True) if known.any() else single
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = (squares + prior * family) / np.where(known, df, np.nan)
    return Noise(np.sqrt(variance), df, bool(known.any() and prior[known].all()))


def arm_weights(levels: int, arms: int, against: Mapping[int, int] | None = None) -> np.ndarray:
    """Return the contrasts (c, levels) of levels, arms (baseline and controls) first.

    ``against`` maps levels to references by index. Controls are compared with the baseline, others with
    the mean of all arms.
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
