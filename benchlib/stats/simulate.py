"""The block model on many complete sessions at once, for simulation: arrays in, arrays out.

The same numbers as ``analyze`` on each session (a test holds them together), some ten thousand
times as fast.
"""

from dataclasses import dataclass

import numpy as np
from scipy.stats import t

from benchlib.stats.block_model import arm_weights
from benchlib.stats.dunnett import critical


@dataclass(frozen=True)
class Sessions:
    """Log-scale results of n sessions; (n, c) for the c levels beside the baseline arms.

    ``single`` and ``family`` are half-widths of the intervals (unadjusted and Dunnett's),
    ``tost`` that of the interval at 1 - 2 alpha, ``p`` the unadjusted p; ``invalid`` (n,) where
    a control differs from the baseline.
    """

    estimate: np.ndarray
    single: np.ndarray
    family: np.ndarray
    tost: np.ndarray
    p: np.ndarray
    invalid: np.ndarray

    @property
    def differs(self) -> np.ndarray:
        """Where the verdict is faster or slower (n, c)."""
        return np.asarray((np.abs(self.estimate) > self.family) & ~self.invalid[:, None])

    def equivalent(self, margin: float = 0.03) -> np.ndarray:
        """Where the interval at 1 - 2 alpha lies inside the margin (n, c)."""
        inside = (self.estimate - self.tost > np.log1p(-margin)) & (
            self.estimate + self.tost < np.log1p(margin)
        )
        return np.asarray(inside & ~self.invalid[:, None])


def analyze_sessions(logs: np.ndarray, *, controls: int = 0, alpha: float = 0.05) -> Sessions:
    """Return the results of complete sessions ``logs`` (n, blocks, levels), baseline first, then controls."""
    _, blocks, levels = logs.shape
    arms = controls + 1
    df = (blocks - 1) * (levels - 1)
    centred = logs - logs.mean(axis=2, keepdims=True)
    mean = centred.mean(axis=1)
    sd = np.sqrt(((centred - mean[:, None, :]) ** 2).sum(axis=(1, 2)) / df)
    weights = arm_weights(levels, arms)
    error = sd[:, None] * np.sqrt((weights**2).sum(axis=1) / blocks)
    estimate = mean @ weights.T
    twins, asked = slice(0, controls), slice(controls, levels - 1)
    invalid = np.abs(estimate[:, twins]) > _cut(controls, 1, df, alpha) * error[:, twins]
    return Sessions(
        estimate=estimate[:, asked],
        single=t.isf(alpha / 2, df) * error[:, asked],
        family=_cut(levels - arms, arms, df, alpha) * error[:, asked],
        tost=t.isf(alpha, df) * error[:, asked],
        p=2 * t.sf(np.abs(estimate[:, asked]) / error[:, asked], df),
        invalid=invalid.any(axis=1),
    )


def _cut(comparisons: int, arms: int, df: int, alpha: float) -> float:
    if comparisons < 1:
        return float("nan")
    return critical(alpha, (float(np.sqrt(1 / (1 + arms))) if comparisons > 1 else 0.0,) * comparisons, df)
