"""From a few short trials to a study's cost: how long a trial, how many blocks, how many minutes.

The best length balances the noise inside a run, which a longer trial averages out, against the
deviation between runs, which only more trials do: T* = sqrt(C LRV / sigma_b^2), with C the seconds that a
trial costs beside its measurement. A few trials tell little of the noise between runs, so the plan is a range:
from the blocks that the noise seen would take to those that its upper bound takes.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import chdtri

from benchlib.errors import InputError
from benchlib.stats.compare import SAME
from benchlib.stats.dunnett import complete_loadings
from benchlib.stats.power import Plan, blocks_to_answer

SHORTEST_S, LONGEST_S = 10.0, 600.0
_FEWEST = 3
_ALPHA = 0.05
_SURE = 0.85
"""Confidence of the variance's upper bound: a little over the four of five that are promised, as the noise inside runs is uncertain, too."""


@dataclass(frozen=True)
class Pilot:
    """What the pilot found, and what the study will take.

    ``trial_sd``, of a trial of ``trial_s``, is a fraction, an upper bound. ``blocks`` and ``minutes`` are from what the
    noise seen takes to what its bound takes: in four of five pilots the latter settle the question. None where no practical
    number does.
    """

    trial_s: float
    trial_sd: float
    blocks: tuple[int | None, int | None]
    minutes: tuple[float | None, float | None]

    def sentence(self, margin: float) -> str:
        """Return the plan in words, to be read before the study starts."""
        noise = f"a {self.trial_s:.0f} s trial strays by at most {100 * self.trial_sd:.1f} %"
        (least, most), (shortest, longest) = self.blocks, self.minutes
        if least is None:
            return f"Here {noise}: no practical number of blocks settles ±{100 * margin:g} %."
        if most is None:
            return f"Here {noise}: {least} blocks at least settle ±{100 * margin:g} %, in {shortest:.0f} minutes or far more."
        return (
            f"Here {noise}: {least} to {most} blocks settle ±{100 * margin:g} %, in about {shortest:.0f} to {longest:.0f} "
            "minutes (the larger number does in four of five pilots)."
        )


def size_study(
    pilot: Sequence[Sequence[float]],
    *,
    levels: int,
    controls: int = 0,
    overhead_s: float,
    margin: float = 0.03,
    pairs: int = 0,
    blocks: Sequence[Hashable] | None = None,
) -> Pilot:
    """Return trial length, blocks and minutes for a study of ``levels`` arms, ``controls`` of them A/A arms.

    ``pairs`` is how many comparisons there are where some are not with the baseline; 0: each level with it.
    ``pilot``: at least three trials of the baseline, each its readings (tps) every second after the warm-up.
    ``blocks`` names the block of each: trials of one block are then compared with each other only, so that a host that
    drifts is not taken for noise. ``overhead_s`` is C: restart, warm-up and the rest of a trial, in seconds.
    Raises InputError for fewer than three trials of ten readings, and for readings that are not positive.
    """
    series = [np.asarray(trial, dtype=float) for trial in pilot]
    if len(series) < 3 or min(len(trial) for trial in series) < 10:
        raise InputError("a pilot takes at least three trials of ten readings each")
    if not all(np.isfinite(trial).all() and trial.mean() > 0 for trial in series):
        raise InputError("the pilot's readings must be finite, and each trial's mean positive")
    logs = pd.Series([np.log(trial.mean()) for trial in series])
    places = pd.Series([0] * len(series) if blocks is None else list(blocks), dtype=object)
    if places.nunique() > len(series) - 2:  # blocks of single trials: nothing is told inside them
        places[:] = 0
    inside = logs - logs.groupby(places).transform("mean")
    df = len(series) - places.nunique()
    seen = float((inside**2).sum() / df)
    seconds = float(np.mean([len(trial) for trial in series]))
    lrv = float(np.mean([_long_run_variance(trial / trial.mean()) for trial in series]))
    between = [max(total - lrv / seconds, 0.0) for total in (seen, seen * df / chdtri(df, _SURE))]
    best = np.sqrt(overhead_s * lrv / between[1]) if between[1] > 0 else LONGEST_S
    trial_s = float(np.clip(best, SHORTEST_S, LONGEST_S))
    least, most = (float(np.sqrt(each + lrv / trial_s)) for each in between)
    asked, arms, present = max(levels - 1 - controls, 1), controls + 1, _FEWEST - 1
    plan, factor = Plan(_ALPHA, asked, complete_loadings(asked, arms)[0]), 1 + 1 / arms
    if pairs:  # a trial against a trial, and no common part
        plan, factor = Plan(_ALPHA, pairs, 0.0), 2.0
    counts = [blocks_to_answer(plan, max(sd, SAME), factor, margin, present) for sd in (least, most)]
    minutes = [None if count is None else count * levels * (trial_s + overhead_s) / 60 for count in counts]
    return Pilot(trial_s, most, (counts[0], counts[1]), (minutes[0], minutes[1]))


def _long_run_variance(x: np.ndarray) -> float:
    """Return n times the variance of the mean of a series (n,).

    The larger of batch means of about sqrt(n) (Alexopoulos and Seila, 1998), which need no model, and a
    first-order autoregression's, which a short and strongly correlated run does not defeat so soon.
    """
    size = int(np.sqrt(len(x)))
    means = x[len(x) % size :].reshape(-1, size).mean(axis=1)
    centred = x - x.mean()
    total = float(centred @ centred)
    lag1 = min(max(float(centred[1:] @ centred[:-1]) / total, 0.0), 0.99) if total > 0 else 0.0
    return float(max(size * means.var(ddof=1), x.var(ddof=1) * (1 + lag1) / (1 - lag1)))
