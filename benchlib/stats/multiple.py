"""Adjustments for many p values."""

from collections.abc import Sequence

import numpy as np
import pandas as pd


def holm(p_values: Sequence[float]) -> np.ndarray:
    """Return p values adjusted for the family-wise error rate (S. Holm, 1979)."""
    p = pd.Series(p_values, dtype=float)
    known = p.dropna().sort_values()
    steps = known * np.arange(len(known), 0, -1)
    return steps.cummax().clip(upper=1).reindex(p.index).to_numpy()


def benjamini_hochberg(p_values: Sequence[float]) -> np.ndarray:
    """Return p values adjusted for the false discovery rate (Benjamini and Hochberg, 1995)."""
    p = pd.Series(p_values, dtype=float)
    known = p.dropna().sort_values(ascending=False)
    steps = known * (len(known) / np.arange(len(known), 0, -1))
    return steps.cummin().clip(upper=1).reindex(p.index).to_numpy()
