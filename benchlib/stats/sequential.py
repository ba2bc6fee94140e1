"""Stopping early without fooling oneself: a few looks, each spending its share of alpha.

Alpha spending (K. K. G. Lan and D. L. DeMets, 1983) with the power family alpha (t / T)^1.5 of Kim
and DeMets (1987), looks at 3, 5, 7 and 9 blocks by default. The cuts are computed for the design
at hand, its levels, its controls and its degrees of freedom at each look, by simulating the largest
|t| over the looks; so the whole family's error over all the looks is alpha.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from benchlib.errors import InputError
from benchlib.plan.design import LOOKS
from benchlib.stats.analysis import LEAST_BLOCKS, Analysis, analyze
from benchlib.stats.block_model import fit_complete
from benchlib.stats.dunnett import complete_loadings, tail

_SESSIONS = 400_000
_CHUNK = 20_000
_EXPONENT = 1.5


@dataclass(frozen=True)
class SequentialPlan:
    """When to look, and the alpha that ``analyze`` is to be given at each look.

    ``alphas`` are nominal, for the family at that look alone (Dunnett's adjusted p is compared with
    them); ``cuts`` are the same as |t|.
    """

    looks: tuple[int, ...]
    alphas: tuple[float, ...]
    cuts: tuple[float, ...]


@dataclass(frozen=True)
class Decision:
    """What a look says: stop or go on to ``next_look`` blocks, and the analysis at this look's alpha."""

    stop: bool
    reason: str
    next_look: int | None
    analysis: Analysis


def plan_looks(
    levels: int, controls: int = 0, *, looks: tuple[int, ...] = LOOKS, alpha: float = 0.05
) -> SequentialPlan:
    """Return the looks and cuts for a design of ``levels`` arms in all, ``controls`` of them A/A arms.

    Takes about a second for a new design, nothing for one asked before. Raises InputError for looks
    that do not grow from at least 3 blocks and for a design without a comparison.
    """
    if list(looks) != sorted(set(looks)) or not looks or looks[0] < LEAST_BLOCKS:
        raise InputError(f"looks must grow, from at least {LEAST_BLOCKS} blocks on, not {looks}")
    if levels - controls < 1 or controls < 0 or levels < 2:
        raise InputError(f"a design of {levels} arms with {controls} controls compares nothing")
    if not 0 < alpha < 0.5:
        raise InputError(f"alpha is an error rate between 0 and 0.5, not {alpha!r}")
    return _plan(levels, controls, tuple(looks), alpha)


def decide(trials: pd.DataFrame, plan: SequentialPlan, **arguments: Any) -> Decision:
    """Return whether to stop after the blocks in ``trials``; ``arguments`` go on to ``analyze``.

    A study stops at a look where every level has its verdict, where the study is invalid, or at the
    last look. Between looks the answer is to go on: looking without a rule costs 17 % false alarms.
    """
    blocks = int(trials["block"].nunique()) if "block" in trials else 0  # analyze will say so
    passed = [index for index, look in enumerate(plan.looks) if look <= blocks]
    index = passed[-1] if passed else 0
    analysis = analyze(trials, alpha=plan.alphas[index], **arguments)
    asked = analysis.table[analysis.table["level"].isin(analysis.asked)]
    open_ = [str(name) for name in asked.loc[asked["verdict"] == "inconclusive", "level"]]
    following = next((look for look in plan.looks if look > blocks), None)
    if following is None:
        return Decision(True, "the last look", None, analysis)
    if blocks not in plan.looks:
        return Decision(False, f"between looks; the next is at {following} blocks", following, analysis)
    if not open_:
        word = "invalid" if (asked["verdict"] == "invalid").all() and len(asked) else "settled"
        return Decision(True, f"{word} at {blocks} blocks", None, analysis)
    return Decision(False, f"still open: {', '.join(open_)}", following, analysis)


@lru_cache(maxsize=64)
def _plan(levels: int, controls: int, looks: tuple[int, ...], alpha: float) -> SequentialPlan:
    largest = _largest_t(levels, controls, looks)
    alive = np.ones(len(largest), dtype=bool)
    lam = complete_loadings(levels - 1 - controls, controls + 1)
    cuts: list[float] = []
    for column, look in enumerate(looks):
        spent = alpha * (look / looks[-1]) ** _EXPONENT
        # how many of all the sessions may have crossed by now, less those that have
        allowed = round(spent * len(largest)) - int((~alive).sum())
        left = np.where(alive, largest[:, column], -np.inf)
        cuts.append(float(np.partition(left, -allowed - 1)[-allowed - 1]))
        alive &= largest[:, column] <= cuts[-1]
    alphas = [tail(cut, lam, (look - 1) * (levels - 1)) for cut, look in zip(cuts, looks, strict=True)]
    return SequentialPlan(looks, tuple(alphas), tuple(cuts))


def _largest_t(levels: int, controls: int, looks: tuple[int, ...]) -> np.ndarray:
    """Return the largest |t| of the family (sessions, looks) in simulated studies without any effect."""
    rng = np.random.default_rng(20_251)
    largest = np.empty((_SESSIONS, len(looks)))
    for start in range(0, _SESSIONS, _CHUNK):
        logs = rng.standard_normal((_CHUNK, looks[-1], levels))
        for column, look in enumerate(looks):
            estimate, error, _ = fit_complete(logs[:, :look], controls)
            largest[start : start + _CHUNK, column] = (np.abs(estimate) / error).max(axis=1)
    return largest
