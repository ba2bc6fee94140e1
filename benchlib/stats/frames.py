"""The frames beside the table: what plots and readers take from an analysis."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from benchlib.stats.compare import Comparison
from benchlib.stats.trials import Trials


def equivalence(all_: Comparison, levels: Sequence[str], alpha: float, margin: float) -> pd.DataFrame:
    """Return two one-sided tests per compared level (see ``Analysis.equivalence``)."""
    within = all_.p_tost <= alpha
    return pd.DataFrame(
        {
            "level": list(levels),
            "low": percent(all_.low_tost),
            "high": percent(all_.high_tost),
            "p_value": all_.p_tost,
            "equivalent": within,
            "meaningful": (all_.low > np.log1p(margin)) | (all_.high < np.log1p(-margin)),
            "tiny": within & ((all_.low > 0) | (all_.high < 0)),
        }
    )


def differences(data: Trials, arms: int, against: Mapping[str, str]) -> pd.DataFrame:
    """Return each level of ``against`` against its own there, inside its block, in percent.

    Where that is the baseline, its first ``arms`` levels stand for it, those that the block holds.
    """
    logs = np.full((len(data.blocks), len(data.levels)), np.nan)
    logs[data.block, data.level] = np.log(data.value)
    present = np.isfinite(logs[:, :arms])
    count = present.sum(axis=1)
    total = np.where(present, logs[:, :arms], 0.0).sum(axis=1)
    reference = np.divide(total, count, out=np.full(len(logs), np.nan), where=count > 0)
    change = np.full_like(logs, np.nan)
    for index, name in enumerate(data.levels):
        if name in against:
            other = data.levels.index(against[name])
            whole = other == 0 and index >= arms  # a control is compared with the baseline alone
            change[:, index] = logs[:, index] - (reference if whole else logs[:, other])
    block, level = np.nonzero(np.isfinite(change))
    return pd.DataFrame(
        {
            "block": [data.blocks[index] for index in block],
            "level": [data.levels[index] for index in level],
            "percent": percent(change[block, level]),
        }
    )


def residuals(data: Trials, residual: np.ndarray, sd: float) -> pd.DataFrame:
    """Return the trials with their residuals in standard deviations."""
    return pd.DataFrame(
        {
            "block": [data.blocks[index] for index in data.block],
            "level": [data.levels[index] for index in data.level],
            "value": data.value,
            "residual": residual / sd,
        }
    )


def percent(log_ratio: np.ndarray) -> np.ndarray:
    """Return log-ratios as percentage changes."""
    with np.errstate(over="ignore"):  # an interval may well end at infinity
        change: np.ndarray = 100.0 * np.expm1(log_ratio)
    return change
