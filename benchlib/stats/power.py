"""Power of a design.

Noncentral t; equivalence at a true zero: 2 P(T > t) - 1 (K. F. Phillips, 1990). Effects are log-ratios.
"""

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammainc, nctdtr, stdtrit

from benchlib.stats.block_model import prior_df
from benchlib.stats.dunnett import family_cut

POWER = 0.80
_HUGE_CUT = 40.0
MOST_BLOCKS = 1000  # beyond this the answer is "not by more blocks"


@dataclass(frozen=True)
class Plan:
    """A planned test; ``loading`` is Dunnett's lambda, or 0."""

    alpha: float
    count: int
    loading: float
    hosts: int = 1

    def df(self, blocks: int) -> float:
        """Return a comparison's degrees of freedom."""
        return blocks - self.hosts + prior_df(blocks - self.hosts + 1, self.count)

    def cut(self, blocks: int) -> float:
        """Return the family's critical |t|."""
        shared = prior_df(blocks - self.hosts + 1, self.count) > 0
        return family_cut(self.alpha, (self.loading * shared,) * self.count, self.df(blocks))


@lru_cache(maxsize=8192)
def detectable(cut: float, df: float) -> float:
    """Return the effect, in standard errors, with 80 % power."""
    return float(brentq(lambda effect: _power(cut, df, effect) - POWER, 0.0, 10.0 * cut + 20.0, xtol=1e-9))


def blocks_to_answer(
    plan: Plan, sd: float, variance_factor: float, margin: float, present: int
) -> int | None:
    """Return the total blocks that would settle a comparison; None above MOST_BLOCKS.

    Settled: an effect of ``margin`` is found and a true zero is shown equivalent, each with 80 % power.
    ``sd`` is a trial's; ``variance_factor`` is in units of sd**2 / blocks.
    """
    smallest = float(np.log1p(margin))

    def enough(blocks: int) -> bool:
        df, effect = plan.df(blocks), smallest / (sd * float(np.sqrt(variance_factor / blocks)))
        level = float(-stdtrit(df, -np.expm1(np.log1p(-plan.alpha) / plan.count)))
        return _power(plan.cut(blocks), df, effect) >= POWER and _power(level, df, effect) >= (1 + POWER) / 2

    blocks = bisect_left(range(MOST_BLOCKS + 1), True, lo=max(present, 2) + 1, key=enough)
    return blocks if blocks <= MOST_BLOCKS else None


def blocks_to_find(plan: Plan, sd: float, change: float, power: float) -> int:
    """Return the blocks (3 to MOST_BLOCKS) that find a ``change`` (fraction) between two levels.

    ``sd`` is a trial's, in log units.
    """

    def enough(blocks: int) -> bool:
        effect = float(np.log1p(change)) / (sd * float(np.sqrt(2 / blocks)))
        return _power(plan.cut(blocks), plan.df(blocks), effect) >= power

    return bisect_left(range(MOST_BLOCKS), True, lo=3, key=enough)


def _power(cut: float, df: float, effect: float) -> float:
    """Return P(t > cut) of the noncentral t."""
    if cut > _HUGE_CUT:
        # scipy fails here; the noise of the mean is negligible compared with that of s
        return float(gammainc(df / 2, df / 2 * (effect / cut) ** 2))
    # scipy returns NaN for tiny probabilities
    return 1 - float(np.nan_to_num(nctdtr(df, effect, cut)))
