"""How figures move together inside trials, whatever differs between the trials."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_FEWEST = 20


def within_trials(frame: pd.DataFrame, rows: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """Spearman's rank correlation of each of ``rows`` with each of ``columns``, inside trials.

    ``frame`` has ``level, block`` and those figures, a row per second. Ranks are taken inside each trial and centred
    there, so neither levels nor blocks make a correlation. A trial in which one of the two stands still
    tells nothing of them; null where fewer than 20 seconds are left.
    """
    trials = [trial for _, trial in frame.groupby(["level", "block"])]
    ranks = [trial[list({*rows, *columns})].rank() for trial in trials]
    return pd.DataFrame(
        [[_pooled([(trial[row], trial[column]) for trial in ranks]) for column in columns] for row in rows],
        index=pd.Index(rows),
        columns=list(columns),
        dtype=float,
    )


def _pooled(pairs: "Sequence[tuple[pd.Series[float], pd.Series[float]]]") -> float:
    """Pearson's correlation of the centred ranks of all trials together."""
    centred: list[NDArray[np.float64]] = []
    for pair in pairs:
        both = pd.concat(pair, axis=1).dropna().rank().to_numpy(float)
        if len(both) > 1 and (np.ptp(both, axis=0) > 0).all():
            centred.append((both - both.mean(axis=0)) / len(both))  # a long trial's ranks weigh no more each
    if sum(map(len, centred)) < _FEWEST:
        return float("nan")
    a, b = np.concatenate(centred).T
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))
