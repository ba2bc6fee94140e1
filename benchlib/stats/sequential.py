"""Early stopping at planned looks.

Alpha spending (Lan and DeMets, 1983), power family alpha (t / T)^1.5 (Kim and DeMets, 1987), by simulation.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from benchlib.plan.design import LOOKS
from benchlib.stats.analysis import Analysis
from benchlib.stats.block_model import fit_complete, prior_df
from benchlib.stats.dunnett import complete_loading, family_tail
from benchlib.stats.limits import Concern
from benchlib.stats.verdicts import analyze

ALPHA = 0.05
EXTENSION = 0.1
"""The share of alpha for an unplanned extension; the total error rate is then 6 % (simulated)."""
_SESSIONS = 200_000
_CHUNK = 20_000
_EXPONENT = 1.5
_UNEQUAL = 10.0
"""Cuts hold for equal noise, and if half of the levels are this much noisier."""


def decide(
    trials: pd.DataFrame,
    looks: Sequence[int],
    *,
    controls: Sequence[str] = (),
    answers: Collection[str] = (),
    **arguments: Any,
) -> tuple[Analysis, str | None]:
    """Return the analysis at the last look passed, and the reason to stop, or None.

    Each family spends its own error rate. The answers decide when to stop.
    """
    compared = {*trials["level"]} - {arguments["baseline"], *controls}
    answering = compared & {*answers} if answers else compared
    sizes = trials.groupby("block")["level"].nunique()
    blocks = int((sizes == sizes.max()).sum())  # complete blocks only
    look = max((look for look in looks if look <= blocks), default=looks[0])
    alpha, exploratory_alpha = (
        plan_looks(1 + len(controls) + max(len(family), 1), len(controls), tuple(looks))[look]
        for family in (answering, compared - answering or answering)
    )
    rates: dict[str, Any] = {"alpha": alpha, "exploratory_alpha": exploratory_alpha, "control_alpha": alpha}
    analysis = analyze(trials, controls=controls, answers=answers, **rates, **arguments)
    verdicts = set(analysis.table.set_index("level")["verdict"][[*answering]])
    if blocks >= looks[-1]:
        return analysis, "the last look"
    if blocks not in looks or "inconclusive" in verdicts:
        return analysis, None
    if verdicts == {"invalid"}:
        return analysis, f"invalid at {blocks} blocks"
    note = Concern("stopped_early", f"{blocks} of {looks[-1]} blocks")
    return replace(analysis, warnings=(*analysis.warnings, note)), f"settled at {blocks} blocks"


@lru_cache(maxsize=64)
def plan_looks(levels: int, controls: int, looks: tuple[int, ...] = LOOKS) -> dict[int, float]:
    """Return the nominal alpha at each look for ``levels`` arms, controls included; a new design takes about a second."""
    comparisons = max(levels - 1 - controls, 1)
    loading = complete_loading(controls + 1)
    cuts = [_cuts(_largest_t(levels, controls, looks, ratio), looks) for ratio in (1.0, _UNEQUAL)]
    alphas = []
    for cut, look in zip(np.max(cuts, axis=0).tolist(), looks, strict=True):
        prior = prior_df(look, comparisons)
        alphas.append(family_tail(cut, (loading * (prior > 0),) * comparisons, look - 1 + prior))
    return dict(zip(looks, alphas, strict=True))


def _cuts(largest: np.ndarray, looks: tuple[int, ...]) -> list[float]:
    """Return the |t| at each look."""
    alive = np.ones(len(largest), dtype=bool)
    cuts: list[float] = []
    for column, look in enumerate(looks):
        spent = ALPHA * (look / looks[-1]) ** _EXPONENT
        # sessions that may cross at this look
        allowed = round(spent * len(largest)) - int((~alive).sum())
        left = np.where(alive, largest[:, column], -np.inf)
        cuts.append(float(np.partition(left, -allowed - 1)[-allowed - 1]))
        alive &= largest[:, column] <= cuts[-1]
    return cuts


def _largest_t(levels: int, controls: int, looks: tuple[int, ...], ratio: float) -> np.ndarray:
    """Return the largest |t| (sessions, looks) without effects.

    Half of the compared levels have ``ratio`` times the noise.
    """
    sd = np.ones(levels)
    sd[levels - (levels - controls) // 2 :] = ratio
    rng = np.random.default_rng(20_251)
    largest = np.empty((_SESSIONS, len(looks)))
    for start in range(0, _SESSIONS, _CHUNK):
        logs = sd * rng.standard_normal((_CHUNK, looks[-1], levels))
        for column, look in enumerate(looks):
            estimate, error, *_ = fit_complete(logs[:, :look], controls)
            largest[start : start + _CHUNK, column] = (np.abs(estimate) / error).max(axis=1)
    return largest
