"""What a design could have seen: minimum detectable effects and the blocks an answer takes.

Power of the two-sided t with the verdict's own (adjusted) cut, from the noncentral t; power of two
one-sided tests at a true zero by the usual 2 P(T > t) - 1 (K. F. Phillips, 1990). All effects
are log-ratios.
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
    """The test that is planned for, of ``count`` comparisons; ``loading`` is each one's on their common part, 0 for none.

    ``hosts`` run the blocks, which are compared with their host's others.
    """

    alpha: float
    count: int
    loading: float
    hosts: int = 1

    def df(self, blocks: int) -> float:
        """Degrees of freedom of a comparison's noise in a complete design with that many blocks."""
        return blocks - self.hosts + prior_df(blocks - self.hosts + 1, self.count)

    def cut(self, blocks: int) -> float:
        """Critical |t| of the family with that many blocks."""
        shared = self.loading > 0 and prior_df(blocks - self.hosts + 1, self.count) > 0
        return family_cut(self.alpha, (self.loading,) * self.count, self.df(blocks), shared=shared)


@lru_cache(maxsize=8192)
def detectable(cut: float, df: float) -> float:
    """Return the effect, in standard errors, that |t| > ``cut`` finds with 80 % power."""
    return float(brentq(lambda effect: _power(cut, df, effect) - POWER, 0.0, 10.0 * cut + 20.0, xtol=1e-9))


def blocks_to_answer(
    plan: Plan, sd: float, variance_factor: float, margin: float, present: int
) -> int | None:
    """Return the total number of blocks that would settle the question, None beyond MOST_BLOCKS.

    Settled: a true effect as large as ``margin`` (a fraction) would be found, and a true zero would
    be shown equivalent, each with 80 % power. ``sd`` is a trial's deviation, ``variance_factor``
    the contrast's variance in units of sd**2 / blocks. More than ``present`` in any case.
    """
    smallest = float(np.log1p(margin))

    def enough(blocks: int) -> bool:
        df, effect = plan.df(blocks), smallest / (sd * float(np.sqrt(variance_factor / blocks)))
        level = float(-stdtrit(df, -np.expm1(np.log1p(-plan.alpha) / plan.count)))
        return _power(plan.cut(blocks), df, effect) >= POWER and _power(level, df, effect) >= (1 + POWER) / 2

    blocks = bisect_left(range(MOST_BLOCKS + 1), True, lo=max(present, 2) + 1, key=enough)
    return blocks if blocks <= MOST_BLOCKS else None


def _power(cut: float, df: float, effect: float) -> float:
    """Return P(t > cut) of the noncentral t."""
    if cut > _HUGE_CUT:
        # scipy's gives up there; the noise of the mean no longer matters beside that of s
        return float(gammainc(df / 2, df / 2 * (effect / cut) ** 2))
    # of what is left below, scipy gives NaN where that is next to nothing
    return 1 - float(np.nan_to_num(nctdtr(df, effect, cut)))
