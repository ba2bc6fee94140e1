"""Cumulative ladders: each step adds one change; what does it add, and what have all brought so far?"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from benchlib.errors import InputError
from benchlib.stats.block_model import fit_blocks
from benchlib.stats.compare import compare
from benchlib.stats.dunnett import critical, tail
from benchlib.stats.trials import read_trials


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
    absent = [name for name in names if name not in data.levels]
    if absent:
        raise InputError(f"step {absent[0]!r} has no trial; the levels are: {', '.join(data.levels)}")
    fit = fit_blocks(data.block, data.level, np.log(data.value), len(data.levels))
    place = np.zeros((len(names), len(data.levels)))
    for row, name in enumerate(names):
        place[row, data.levels.index(name)] = 1.0
    place[0, : 1 + len(controls)] = 1.0 / (1 + len(controls))
    sd, df = float(np.sqrt(fit.variance)), float(fit.df)
    total = compare(*fit.contrasts(place[1:] - place[0]), sd, df, alpha, margin)
    step, unscaled = fit.contrasts(np.diff(place, axis=0))
    error = sd * np.sqrt(np.diag(unscaled))
    free = (0.0,) * len(step)
    reach = critical(alpha, free, df) * error if df > 0 else np.full(len(step), np.nan)
    frame = pd.DataFrame({"level": names[1:]})
    for name, value in (("percent", step), ("low", step - reach), ("high", step + reach)):
        frame[f"step_{name}"] = 100 * np.expm1(value)
    known = np.isfinite(reach)
    frame["step_p"] = [
        tail(abs(value), free, df) if ok else np.nan for value, ok in zip(step / error, known, strict=True)
    ]
    for name, value in (("percent", total.estimate), ("low", total.low), ("high", total.high)):
        frame[f"total_{name}"] = 100 * np.expm1(value)
    frame["total_p"] = total.p_adjusted
    return frame
