"""Trials and readings as a small study leaves them."""

import numpy as np
import pandas as pd


def make_trials(effects, *, blocks=5, drift=0.15, noise=0.02, failed=()):
    """Trials of levels with known effects in percent, on a host whose mood changes between blocks."""
    random = np.random.default_rng(7)
    rows, clock = [], 0.0
    for block in range(1, blocks + 1):
        host = np.exp(random.normal(0, drift))
        for position, level in enumerate(random.permutation(list(effects)), 1):
            tps = 1400 * host * (1 + effects[level] / 100) * np.exp(random.normal(0, noise))
            error = "3 clients aborted" if (block, level) in failed else None
            tps = np.nan if error else tps
            rows.append((block, position, str(level), tps, 8000 / tps, clock, error))
            clock += 19.0
    columns = ["block", "position", "level", "tps", "latency_average_ms", "started_s", "error"]
    return pd.DataFrame(rows, columns=columns)


def make_progress(trials, seconds=20):
    """Readings each second of the trials that ended well."""
    fine = trials.dropna(subset=["tps"])
    return pd.DataFrame(
        [
            (level, block, float(second), tps * (1 - 0.5 / second))
            for level, block, tps in fine[["level", "block", "tps"]].itertuples(index=False)
            for second in range(1, seconds + 1)
        ],
        columns=["level", "block", "elapsed_s", "tps"],
    )
