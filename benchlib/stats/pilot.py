"""From a few short trials to a study's cost: how long a trial, how many blocks, how many minutes.

The best length balances the noise inside a run, which a longer trial averages out, against the
deviation between runs, which only more trials do: T* = sqrt(C LRV / sigma_b^2), with C the seconds that a
trial costs beside its measurement.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchlib.errors import InputError
from benchlib.stats.dunnett import complete_loadings
from benchlib.stats.power import Plan, blocks_to_answer
from benchlib.stats.validity import long_run_variance

SHORTEST_S, LONGEST_S = 10.0, 600.0
_DEFAULT_BLOCKS = 3
_ALPHA = 0.05


@dataclass(frozen=True)
class Pilot:
    """What the pilot found, and what the study will take.

    ``between_sd`` and ``trial_sd`` (of a trial of ``trial_s``) are fractions; ``lrv`` is the long-run
    variance per second (relative). ``blocks`` is None where no practical number reaches the margin.
    """

    between_sd: float
    lrv: float
    trial_s: float
    trial_sd: float
    blocks: int | None
    minutes: float | None

    def sentence(self, margin: float) -> str:
        """Return the plan in words, to be read before the study starts."""
        noise = f"a {self.trial_s:.0f} s trial strays by {100 * self.trial_sd:.1f} %"
        if self.blocks is None or self.minutes is None:
            return f"Here {noise}: no practical number of blocks settles ±{100 * margin:g} %."
        return f"Here {noise}: {self.blocks} blocks settle ±{100 * margin:g} %, in about {self.minutes:.0f} minutes."


def size_study(
    pilot: Sequence[Sequence[float]],
    *,
    levels: int,
    controls: int = 0,
    overhead_s: float,
    margin: float = 0.03,
) -> Pilot:
    """Return trial length, blocks and minutes for a study of ``levels`` arms, ``controls`` of them A/A arms.

    ``pilot``: at least three trials of one level, each its readings (tps) every second after the warm-up.
    ``overhead_s`` is C: restart, warm-up and the rest of a trial, in seconds. The noise comes from few trials
    and is itself uncertain: with three, by a factor of about two. Raises InputError for fewer than three
    trials of ten readings, for readings that are not positive, and for a study without a level to compare.
    """
    series = [np.asarray(trial, dtype=float) for trial in pilot]
    if len(series) < 3 or min(len(trial) for trial in series) < 10:
        raise InputError("a pilot takes at least three trials of ten readings each")
    if not all(np.isfinite(trial).all() and trial.mean() > 0 for trial in series):
        raise InputError("the pilot's readings must be finite, and each trial's mean positive")
    if levels - controls < 2:
        raise InputError("a pilot plans a study that takes two levels beside its controls")
    means = np.array([trial.mean() for trial in series])
    seconds = float(np.mean([len(trial) for trial in series]))
    relative = [long_run_variance(trial / trial.mean()) for trial in series]
    lrv = float(np.mean(relative))
    between = max(float(np.log(means).var(ddof=1)) - lrv / seconds, 0.0)
    best = np.sqrt(overhead_s * lrv / between) if between > 0 else LONGEST_S
    trial_s = float(np.clip(best, SHORTEST_S, LONGEST_S))
    sd = float(np.sqrt(between + lrv / trial_s))
    asked, arms = levels - 1 - controls, controls + 1
    plan = Plan(_ALPHA, asked, complete_loadings(asked, arms)[0])
    blocks = (
        blocks_to_answer(plan, sd, 1 + 1 / arms, margin, _DEFAULT_BLOCKS - 1) if sd > 0 else _DEFAULT_BLOCKS
    )
    minutes = None if blocks is None else blocks * levels * (trial_s + overhead_s) / 60
    return Pilot(float(np.sqrt(between)), lrv, trial_s, sd, blocks, minutes)
