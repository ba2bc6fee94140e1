"""Early stopping at planned looks.

Alpha spending (Lan and DeMets, 1983), power family alpha (t / T)^1.5 (Kim and DeMets, 1987), by simulation.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from benchlib.plan.design import LOOKS
from benchlib.stats.analysis import Analysis
from benchlib.stats.block_model import fit_complete, prior_df
from benchlib.stats.dunnett import complete_loading, family_cut, family_tail
from benchlib.stats.limits import Concern
from benchlib.stats.verdicts import GRAVE, analyze

ALPHA = 0.05
MARGIN = 0.03
EXTENSION = 0.1
"""The share of alpha for an unplanned extension; the total error rate is then 6 % (simulated)."""
_SESSIONS = 200_000
_CHUNK = 20_000
_EXPONENT = 1.5
_UNEQUAL = 10.0
"""Cuts hold for equal noise, and if half of the levels are this much noisier."""


@dataclass(frozen=True)
class SequentialPlan:
    """The looks, with the nominal alpha at each."""

    looks: tuple[int, ...]
    alphas: tuple[float, ...]


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
    arms = 1 + len(controls)
    plan, others = (
        plan_looks(arms + max(len(family), 1), len(controls), tuple(looks))
        for family in (answering, compared - answering or answering)
    )
    sizes = trials.groupby("block")["level"].nunique()
    blocks = int((sizes == sizes.max()).sum())  # complete blocks only
    passed = sum(look <= blocks for look in plan.looks)
    alpha, exploratory_alpha = (each.alphas[max(passed - 1, 0)] for each in (plan, others))
    rates = {"alpha": alpha, "exploratory_alpha": exploratory_alpha}
    analysis = analyze(trials, controls=controls, answers=answers, **rates, **arguments)
    verdicts = set(analysis.table.set_index("level")["verdict"][analysis.asked])
    if passed == len(plan.looks):
        return analysis, "the last look"
    if blocks not in plan.looks or "inconclusive" in verdicts:
        return analysis, None
    if verdicts == {"invalid"}:
        return analysis, f"invalid at {blocks} blocks"
    note = Concern("stopped_early", f"{blocks} of {plan.looks[-1]} blocks")
    return replace(analysis, warnings=(*analysis.warnings, note)), f"settled at {blocks} blocks"


@lru_cache(maxsize=64)
def plan_looks(levels: int, controls: int, looks: tuple[int, ...] = LOOKS) -> SequentialPlan:
    """Return the looks for ``levels`` arms, controls included; a new design takes about a second."""
    comparisons = max(levels - 1 - controls, 1)
    loading = complete_loading(controls + 1)
    cuts = [_cuts(_largest_t(levels, controls, looks, ratio), looks) for ratio in (1.0, _UNEQUAL)]
    alphas = []
    for cut, look in zip(np.max(cuts, axis=0).tolist(), looks, strict=True):
        prior = prior_df(look, comparisons)
        alphas.append(family_tail(cut, (loading * (prior > 0),) * comparisons, look - 1 + prior))
    return SequentialPlan(looks, tuple(alphas))


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


class Judged(NamedTuple):
    """Simulated comparisons (sessions, c); critical |t| (sessions, 1)."""

    estimate: np.ndarray
    error: np.ndarray
    single: np.ndarray
    family: np.ndarray
    tost: np.ndarray

    def moved(self, effects: np.ndarray | float) -> "Judged":
        """Return the same studies with true effects (c,)."""
        return self._replace(estimate=self.estimate + effects)

    @property
    def different(self) -> np.ndarray:
        """Return whether each comparison differs."""
        return np.asarray(np.abs(self.estimate) > self.family * self.error)

    def equivalent(self, margin: float = MARGIN) -> np.ndarray:
        """Return whether each comparison is equivalent."""
        below = np.log1p(margin) - self.estimate >= self.tost * self.error
        return np.asarray(below & (self.estimate - np.log1p(-margin) >= self.tost * self.error))


def judge(logs: np.ndarray, controls: int, *, alpha: float = ALPHA) -> tuple[Judged, Judged]:
    """Judge studies (sessions, blocks, levels), and their first two arms."""
    return _judged(logs, controls, alpha), _judged(logs[:, :, :2], 0, alpha * GRAVE)


def _judged(logs: np.ndarray, controls: int, alpha: float) -> Judged:
    estimate, error, df, shared = fit_complete(logs, controls)
    count = estimate.shape[1]
    family = family_cut(alpha, (complete_loading(1 + controls) * shared,) * count, df)
    cuts = -stdtrit(df, alpha / 2), family, -stdtrit(df, -np.expm1(np.log1p(-alpha) / count))
    return Judged(estimate, error, *(np.full((len(logs), 1), cut) for cut in cuts))


def at_looks(logs: np.ndarray, plan: SequentialPlan, controls: int) -> list[tuple[Judged, np.ndarray]]:
    """Judge studies at each look, with invalid ones (sessions,)."""
    planned = zip(plan.looks, plan.alphas, strict=True)
    judged = (judge(logs[:, :look], controls, alpha=alpha) for look, alpha in planned)
    return [(fit, control.different[:, 0] & (controls > 0)) for fit, control in judged]


def stops(looks: list[tuple[Judged, np.ndarray]], effects: np.ndarray, margin: float = MARGIN) -> np.ndarray:
    """Return the look (sessions,) at which studies stop, as in ``decide``."""
    settled = [
        (studies.different | studies.equivalent(margin)).all(axis=1) | invalid
        for studies, invalid in ((fit.moved(effects), invalid) for fit, invalid in looks[:-1])
    ]
    return np.asarray(np.argmax([*settled, np.ones(len(looks[0][1]), dtype=bool)], axis=0))
