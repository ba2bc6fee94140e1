"""How figures move together inside trials, whatever differs between the trials."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

_FEWEST = 20


def within_trials(frame: pd.DataFrame, rows: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """Spearman's rank correlation of each of ``rows`` with each of ``columns``, inside trials.

    ``frame`` has ``level, block`` and those figures, a row per second. Ranks are taken inside each trial and centred
    there, so neither levels nor blocks make a correlation. A trial in which one of the two stands still
    tells nothing of them, nor does a second in which a row's figure or one of the columns is missing; null where fewer
    than 20 seconds are left.
    """
    trial = frame.groupby(["level", "block"]).ngroup()
    rhos = [_pooled(frame[[row, *columns]], trial) for row in rows]
    return pd.DataFrame(rhos, pd.Index(rows), list(columns), dtype=float)


def _pooled(figures: pd.DataFrame, trial: "pd.Series[int]") -> list[float]:
    """Pearson's correlation of the first figure's centred ranks with those of each other, all trials together."""
    known = figures.dropna()
    if len(known) < _FEWEST:
        return [float("nan")] * (figures.shape[1] - 1)
    ranks = known.groupby(trial).rank()
    of = ranks.groupby(trial)
    moves = (of.transform("max") > of.transform("min")).to_numpy()
    # a long trial's ranks weigh no more each
    centred = (ranks - of.transform("mean")).div(of.transform("size"), axis=0).to_numpy(float)
    rhos = []
    for place in range(1, centred.shape[1]):
        moved = moves[:, 0] & moves[:, place]
        a, b = centred[moved, 0], centred[moved, place]
        rhos.append(float(a @ b / np.sqrt((a @ a) * (b @ b))) if moved.sum() >= _FEWEST else float("nan"))
    return rhos
