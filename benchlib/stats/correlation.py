"""How figures move together inside trials, whatever differs between the trials."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

_FEWEST = 20


def within_trials(frame: pd.DataFrame, rows: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """Spearman's rank correlation of each of ``rows`` with each of ``columns``, inside trials.

    ``frame`` has ``level, block`` and those figures, a row per second. Ranks are taken inside each trial and centred
    there, so neither levels nor blocks make a correlation. A trial in which one of the two stands still
    tells nothing of them; null where fewer than 20 seconds are left.
    """
    trial = frame.groupby(["level", "block"]).ngroup()
    return pd.DataFrame(
        [[_pooled(frame[row], frame[column], trial) for column in columns] for row in rows],
        index=pd.Index(rows),
        columns=list(columns),
        dtype=float,
    )


def _pooled(one: "pd.Series[float]", other: "pd.Series[float]", trial: "pd.Series[int]") -> float:
    """Pearson's correlation of the centred ranks of all trials together."""
    both = pd.DataFrame({"one": one, "other": other}).dropna()
    ranks = both.groupby(trial).rank()
    of = ranks.groupby(trial)
    moved = (of.transform("max") > of.transform("min")).all(axis=1)
    if moved.sum() < _FEWEST:
        return float("nan")
    # a long trial's ranks weigh no more each
    centred = (ranks - of.transform("mean")).div(of["one"].transform("size"), axis=0)
    a, b = centred[moved].to_numpy(float).T
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))
