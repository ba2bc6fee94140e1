"""Many studies judged at once, as ``analyze`` judges one; and by how much the estimates of one that stopped early lean."""

from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from benchlib.stats.analysis import Analysis
from benchlib.stats.block_model import fit_complete
from benchlib.stats.concerns import Concern
from benchlib.stats.dunnett import complete_loadings, family_cut
from benchlib.stats.sequential import SequentialPlan
from benchlib.stats.verdicts import GRAVE

ALPHA = 0.05
MARGIN = 0.03
_LIKE_THIS = 4_000


class Judged(NamedTuple):
    """Studies' comparisons (sessions, c) with their standard errors, and the |t| (sessions, 1) from which what is said."""

    estimate: np.ndarray
    error: np.ndarray
    single: np.ndarray
    family: np.ndarray
    tost: np.ndarray

    def moved(self, effects: np.ndarray | float) -> "Judged":
        """Return the same studies with true effects (c,): a shift leaves the noise alone, so no second fit is needed."""
        return self._replace(estimate=self.estimate + effects)

    @property
    def different(self) -> np.ndarray:
        """Whether each comparison is called different, with the family's cut."""
        return np.asarray(np.abs(self.estimate) > self.family * self.error)

    @property
    def equivalent(self) -> np.ndarray:
        """Whether each comparison is shown to lie within the margin."""
        below = np.log1p(MARGIN) - self.estimate >= self.tost * self.error
        return np.asarray(below & (self.estimate - np.log1p(-MARGIN) >= self.tost * self.error))


def judge(logs: np.ndarray, controls: int, *, alpha: float = ALPHA) -> tuple[Judged, Judged]:
    """Judge complete studies (sessions, blocks, levels): the levels, and the first two arms as twins."""
    return _judged(logs, controls, alpha), _judged(logs[:, :, :2], 0, alpha * GRAVE)


def _judged(logs: np.ndarray, controls: int, alpha: float) -> Judged:
    estimate, error, df, shared = fit_complete(logs, controls)
    count = estimate.shape[1]
    family = family_cut(alpha, complete_loadings(count, 1 + controls), df, shared=shared)
    cuts = -stdtrit(df, alpha / 2), family, -stdtrit(df, -np.expm1(np.log1p(-alpha) / count))
    return Judged(estimate, error, *(np.full((len(logs), 1), cut) for cut in cuts))


def at_looks(logs: np.ndarray, plan: SequentialPlan, controls: int) -> list[tuple[Judged, np.ndarray]]:
    """Judge studies at each look, and say which of them (sessions,) are invalid there."""
    looks = []
    for look, alpha in zip(plan.looks, plan.alphas, strict=True):
        fit, twins = judge(logs[:, :look], controls, alpha=alpha)
        looks.append((fit, twins.different[:, 0] & (controls > 0)))
    return looks


def stops(looks: list[tuple[Judged, np.ndarray]], effects: np.ndarray) -> np.ndarray:
    """Return at which look (sessions,) studies with these effects stop, as ``decide`` stops them."""
    settled = [
        (studies.different | studies.equivalent).all(axis=1) | invalid
        for studies, invalid in ((fit.moved(effects), invalid) for fit, invalid in looks[:-1])
    ]
    return np.asarray(np.argmax([*settled, np.ones(len(looks[0][1]), dtype=bool)], axis=0))


def stopped_early(analysis: Analysis, plan: SequentialPlan) -> Concern:
    """Return by how much the estimates of a study that stopped before its last look lean outwards.

    Studies of this design are simulated whose true effects and noise are what was measured; those that stop after as
    many blocks lean by their mean less the truth. They are also quieter than the truth (noise that looks small stops a
    study): both are taken off, and it is simulated again.
    """
    table = analysis.table.set_index("level").loc[analysis.asked]
    measured = np.log1p(table["percent_change"].to_numpy(float) / 100)
    controls, place = len(analysis.controls), plan.looks.index(analysis.blocks)
    shape = (_LIKE_THIS, plan.looks[-1], 1 + controls + len(table))
    noise = np.random.default_rng(1).normal(0.0, analysis.residual_sd, shape)
    effects, scale = measured, 1.0
    for _ in range(2):
        looks = at_looks(scale * noise, plan, controls)
        fit, stopped = looks[place][0], stops(looks, effects) == place
        if not stopped.any():
            break
        lean = fit.moved(effects).estimate[stopped].mean(axis=0) - effects
        scale = float(fit.error.mean() / fit.error[stopped].mean())
        effects = measured - np.clip(lean * np.sign(measured), 0, np.abs(measured)) * np.sign(measured)
    points = table["percent_change"] - 100 * np.expm1(effects)
    leaning = ", ".join(
        f"{name!r} by {value:+.1f} points" for name, value in points.items() if abs(value) >= 0.05
    )
    return Concern(
        "stopped_early",
        f"the study stopped after {analysis.blocks} of {plan.looks[-1]} blocks, and what stops a study early leans "
        f"outwards: in studies simulated like this one about {leaning or '0 points'}",
    )
