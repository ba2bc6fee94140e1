"""Many answers at once: Holm across factors, Benjamini-Hochberg for what is only exploratory.

Inside a factor Dunnett's test (``analyze``) already guards the family.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.stats import false_discovery_control

from benchlib.stats.analysis import Analysis


def holm(p_values: Sequence[float]) -> np.ndarray:
    """Return p values adjusted for the family-wise error rate (S. Holm, 1979); NaN stays and counts not."""
    p = pd.Series(p_values, dtype=float)
    known = p.dropna().sort_values()
    steps = known * np.arange(len(known), 0, -1)
    return steps.cummax().clip(upper=1).reindex(p.index).to_numpy()


def benjamini_hochberg(p_values: Sequence[float]) -> np.ndarray:
    """Return p values adjusted for the false discovery rate (scipy's, Benjamini and Hochberg 1995)."""
    p = pd.Series(p_values, dtype=float)
    known = p.dropna()
    return pd.Series(false_discovery_control(known), known.index).reindex(p.index).to_numpy()


def exploratory(analyses: Mapping[str, Analysis]) -> pd.DataFrame:
    """Return every level by every metric with Benjamini-Hochberg adjusted p: leads, not verdicts.

    ``analyses`` are of one study, by metric. Columns ``metric, level, percent_change, p_value, p_bh,
    noteworthy``; controls are left out.
    """
    parts = []
    for metric, analysis in analyses.items():
        kept = analysis.table[analysis.table["level"].isin(analysis.asked)]
        parts.append(kept[["level", "percent_change", "p_value"]].assign(metric=metric))
    columns = ["metric", "level", "percent_change", "p_value"]
    frame = pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)
    frame["p_bh"] = benjamini_hochberg(frame["p_value"].to_list())
    return frame.assign(noteworthy=frame["p_bh"] <= 0.05)
