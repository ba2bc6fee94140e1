"""Cumulative ladders: each step adds one change; what does it add, and what have all brought so far?"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from benchlib.errors import InputError
from benchlib.stats.block_model import fit_blocks
from benchlib.stats.compare import compare
from benchlib.stats.trials import read_trials
from benchlib.stats.verdicts import percent


def ladder(
    trials: pd.DataFrame,
    steps: Sequence[str],
    *,
    controls: Sequence[str] = (),
    metric: str = "tps",
    margin: float = 0.03,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Return each step of a ladder against the one before and against the start.

    ``steps`` are levels in the order in which changes were added, the first being the start; the start
    counts as the mean of itself and ``controls``. One row per step but the first: ``level``, then for the
    step before ``step_percent, step_low, step_high, step_p``, and for the start ``total_percent,
    total_low, total_high, total_p``. Totals are Dunnett's; steps are simultaneous by Sidak's inequality
    (Z. Sidak, 1967), as neighbouring steps are negatively correlated and Dunnett's integral does not fit them.
    Raises InputError for a step without trials, and for what ``read_trials`` refuses.
    """
    names = [str(step) for step in steps]
    if isinstance(steps, str) or len(names) < 2 or len(set(names)) < len(names):
        raise InputError("a ladder takes at least two different steps, the start first")
    data = read_trials(trials, names[0], list(controls), metric)
    if absent := [name for name in names if name not in data.levels]:
        raise InputError(f"step {absent[0]!r} has no trial; the levels are: {', '.join(data.levels)}")
    fit = fit_blocks(data)
    place = pd.DataFrame(np.eye(len(data.levels)), index=list(data.levels)).loc[names].to_numpy(copy=True)
    place[0, : 1 + len(controls)] = 1.0 / (1 + len(controls))
    weights = {"step": np.diff(place, axis=0), "total": place[1:] - place[0]}
    frame = pd.DataFrame({"level": names[1:]})
    for part, contrasts in weights.items():
        rows = compare(fit, contrasts, fit.noise, alpha, margin, one_reference=part == "total")
        frame[[f"{part}_percent", f"{part}_low", f"{part}_high"]] = percent(rows[["estimate", "low", "high"]])
        frame[f"{part}_p"] = rows["p_adjusted"]
    return frame
