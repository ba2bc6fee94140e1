"""Cumulative ladders: each step adds one change; what does it add, and what have all brought so far?"""

from collections.abc import Sequence
from itertools import pairwise

import pandas as pd

from benchlib.stats.verdicts import analyze

_COLUMNS = {"percent_change": "percent", "ci_low": "low", "ci_high": "high", "p_adjusted": "p"}


def ladder(
    trials: pd.DataFrame,
    steps: Sequence[str],
    *,
    controls: Sequence[str] = (),
    metric: str = "tps",
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
    parts = []
    for part, against in {"step": {step: before for before, step in pairwise(steps)}, "total": {}}.items():
        analysis = analyze(
            trials, baseline=steps[0], controls=controls, metric=metric, alpha=alpha, against=against
        )
        rows = analysis.table.set_index("level").loc[list(steps[1:]), list(_COLUMNS)]
        parts.append(rows.rename(columns=_COLUMNS).add_prefix(f"{part}_"))
    return pd.concat(parts, axis=1).reset_index()


def enough(speeds: Sequence[float], margin: float) -> int:
    """Return the first place from which on no later speed is higher by more than ``margin``, a fraction."""
    return next(place for place, speed in enumerate(speeds) if max(speeds[place:]) <= speed * (1 + margin))
