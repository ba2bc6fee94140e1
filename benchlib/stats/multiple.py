"""Many answers at once: Holm across factors, Benjamini-Hochberg for what is only exploratory.

Inside a factor Dunnett's test (``analyze``) already guards the family.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd


def holm(p_values: Sequence[float]) -> np.ndarray:
    """Return p values adjusted for the family-wise error rate (S. Holm, 1979); NaN stays and counts not."""
    p = pd.Series(p_values, dtype=float)
    known = p.dropna().sort_values()
    steps = known * np.arange(len(known), 0, -1)
    return steps.cummax().clip(upper=1).reindex(p.index).to_numpy()


def benjamini_hochberg(p_values: Sequence[float]) -> np.ndarray:
    """Return p values adjusted for the false discovery rate (Y. Benjamini and Y. Hochberg, 1995); NaN as above."""
    p = pd.Series(p_values, dtype=float)
    known = p.dropna().sort_values(ascending=False)
    steps = known * (len(known) / np.arange(len(known), 0, -1))
    return steps.cummin().clip(upper=1).reindex(p.index).to_numpy()
