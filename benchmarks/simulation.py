"""The statistics on trial: simulated studies in which the truth is known.

A simulated trial is the mean of ``seconds`` autocorrelated readings, plus a deviation of the run, a drift of
the host and, in contaminated situations, a hit by something else on the machine. The mean of a stationary
Gaussian series is itself Gaussian with a known variance, so it is drawn directly and without approximation.
The order inside a block is random, as in a real design.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import stdtrit
from scipy.stats import f

from benchlib.stats.block_model import fit_complete
from benchlib.stats.dunnett import complete_loading, family_cut
from benchlib.stats.sequential import ALPHA
from benchlib.stats.verdicts import GRAVE, POOLED_FROM

MARGIN = 0.03
EFFECT = 0.05
"""The true change, a fraction, for figures of power."""
SIGMA_D = 0.0355
"""Deviation of a difference inside a block (log units), for figures of power."""
ORACLE_BLOCKS = 4.155
"""Blocks for 80 % power with a known variance: (z_.975 + z_.8)^2 SIGMA_D^2 / log(1 + EFFECT)^2."""
_SECOND_CV = 0.08


@dataclass(frozen=True)
class Situation:
    """What is simulated; ``run_sd``, ``drift`` and ``ramp`` are fractions of the tps.

    ``drift`` is over the whole study, ``ramp`` per hour, ``contamination`` the share of trials that are hit.
    ``levels`` counts all arms, ``controls`` those of them that repeat the baseline. The last ``noisy`` levels stray
    ``ratio`` times as much as the others. ``stalls`` is the share of trials that a stall of ten deviations hits,
    ``tails`` the degrees of freedom of Student's noise; 0 is normal noise.
    Clusters stay for ``period`` blocks and deviate by ``luck`` times a trial's deviation as long as they stay.
    """

    rho: float = 0.0
    run_sd: float = 0.02
    drift: float = 0.0
    ramp: float = 0.0
    contamination: float = 0.0
    blocks: int = 5
    levels: int = 4
    controls: int = 0
    seconds: int = 60
    noisy: int = 0
    ratio: float = 1.0
    stalls: float = 0.0
    tails: int = 0
    luck: float = 0.0
    period: int = 1

    @property
    def noise_sd(self) -> float:
        """Deviation of a trial's mean (log units) without drift and contamination."""
        lags = np.arange(1, self.seconds)
        factor = 1 + 2 * float(((1 - lags / self.seconds) * self.rho**lags).sum())
        return float(np.hypot(self.run_sd, _SECOND_CV * np.sqrt(factor / self.seconds)))


def situations() -> Iterator[Situation]:
    """Yield the protocol's situations (``statistics.md``, Calibration), then some with an A/A arm."""
    drifts = ((0.0, 0.0), (0.02, 0.0), (0.0, 0.10))
    for rho, run_sd, (drift, ramp), contamination, blocks, levels in product(
        (0.0, 0.8, 0.95), (0.0, 0.02), drifts, (0.0, 0.1), (3, 5, 9), (2, 4, 6)
    ):
        yield Situation(rho, run_sd, drift, ramp, contamination, blocks, levels)
    for rho, blocks, levels in product((0.0, 0.95), (3, 5, 9), (3, 4, 6)):
        yield Situation(rho=rho, blocks=blocks, levels=levels, controls=1)
    for levels, blocks in product((3, 4, 6, 12), (3, 4, 5, 7, 9, 12)):
        for noisy, ratio in product({1, (levels - 2) // 2, levels - 2} - {0}, (3.0, 10.0)):
            yield Situation(blocks=blocks, levels=levels, controls=1, noisy=noisy, ratio=ratio)
        yield Situation(blocks=blocks, levels=levels, controls=1, stalls=0.1)
        yield Situation(blocks=blocks, levels=levels, controls=1, tails=3)
    for levels, blocks, luck in product((4, 6), (6, 8, 10), (0.5, 1.0)):
        yield Situation(blocks=blocks, levels=levels, controls=1, luck=luck)
        yield Situation(blocks=blocks, levels=levels, controls=1, luck=luck, period=2)


def simulate_logs(situation: Situation, sessions: int, rng: np.random.Generator) -> np.ndarray:
    """Return log tps (sessions, blocks, levels) of studies without any effect."""
    shape = (sessions, situation.blocks, situation.levels)
    sd = np.full(situation.levels, situation.noise_sd)
    sd[situation.levels - situation.noisy :] *= situation.ratio
    df = situation.tails
    logs: np.ndarray = sd * (
        rng.standard_t(df, shape) * np.sqrt((df - 2) / df) if df else rng.standard_normal(shape)
    )
    if situation.luck:
        clusters = rng.standard_normal((sessions, -(-situation.blocks // situation.period), situation.levels))
        logs += (
            situation.luck * situation.noise_sd * np.repeat(clusters, situation.period, axis=1)[:, : shape[1]]
        )
    if situation.stalls:
        logs -= 10 * situation.noise_sd * (rng.random(shape) < situation.stalls)
    order = rng.random(shape).argsort(axis=2)
    place = np.arange(situation.blocks)[:, None] * situation.levels + order
    hours = place * situation.seconds / 3600
    logs += np.log1p(situation.drift * place / np.prod(shape[1:]) + situation.ramp * hours)
    if situation.contamination:
        # a neighbour on the host takes 5 to 25 % of the trial's throughput
        hit = rng.random(shape) < situation.contamination
        logs += np.where(hit, np.log1p(-rng.uniform(0.05, 0.25, shape)), 0.0)
    return logs


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


def at_looks(logs: np.ndarray, plan: Mapping[int, float], controls: int) -> list[tuple[Judged, np.ndarray]]:
    """Judge studies at each look, with invalid ones (sessions,)."""
    judged = (judge(logs[:, :look], controls, alpha=alpha) for look, alpha in plan.items())
    return [(fit, control.different[:, 0] & (controls > 0)) for fit, control in judged]


def stops(looks: list[tuple[Judged, np.ndarray]], effects: np.ndarray, margin: float = MARGIN) -> np.ndarray:
    """Return the look (sessions,) at which studies stop, as in ``decide``."""
    settled = [
        (studies.different | studies.equivalent(margin)).all(axis=1) | invalid
        for studies, invalid in ((fit.moved(effects), invalid) for fit, invalid in looks[:-1])
    ]
    return np.asarray(np.argmax([*settled, np.ones(len(looks[0][1]), dtype=bool)], axis=0))


def judge_by_period(
    logs: np.ndarray, controls: int, period: int, family: Sequence[int] | slice = slice(None)
) -> tuple[Judged, Judged]:
    """Judge complete studies (sessions, blocks, levels) as ``analyze`` does: the levels, and the first two arms as twins.

    Clusters stay for ``period`` blocks, of which each study has a multiple. Only the levels of the ``family`` are judged.
    """
    by_block = judge(logs[:, :, family], controls)
    if period == 1:
        return by_block
    sessions, blocks, count = logs.shape
    left = logs - logs.mean(axis=1, keepdims=True)
    left -= left.mean(axis=2, keepdims=True)
    inside = left.reshape(sessions, -1, period, count)
    between = period * (inside.mean(axis=2) ** 2).sum(axis=(1, 2))
    df = (blocks // period - 1) * (count - 1)
    rest = (blocks - 1) * (count - 1) - df
    ratio = between / df / (((left**2).sum(axis=(1, 2)) - between) / rest)
    pooled = (f.sf(ratio, df, rest) > POOLED_FROM)[:, None]
    by_cluster = judge(logs.reshape(sessions, -1, period, count).mean(axis=2)[:, :, family], controls)
    levels, twins = (
        Judged(*(np.where(pooled, *fields) for fields in zip(*pair, strict=True)))
        for pair in zip(by_block, by_cluster, strict=True)
    )
    return levels, twins


def simulate(situation: Situation, *, sessions: int, seed: int) -> dict[str, float]:
    """Return the situation's fields and how often, as fractions, ``analyze`` does what there.

    ``alarms``: the first level without effect is called different by its single p; ``family``: any level is, as the
    verdict has it; ``coverage``: the single interval holds the truth; ``power``: a level of +5 % has its verdict;
    ``equivalent``: with all levels at the margin's edge any is called equivalent; ``invalid``: twins that are
    alike make the study invalid (NaN without a control). ``error`` is the standard error of ``alarms``.
    """
    logs = simulate_logs(situation, sessions, np.random.default_rng(seed))
    fit, twins = judge_by_period(logs, situation.controls, situation.period)
    single = np.abs(fit.estimate) > fit.single * fit.error
    invalid = twins.different[:, 0] & (situation.controls > 0)
    return {
        **asdict(situation),
        "alarms": float(single[:, 0].mean()),
        "family": float(fit.different.any(axis=1).mean()),
        "coverage": float(1 - single.mean()),
        "power": float((fit.moved(np.log1p(EFFECT)).different[:, 0] & ~invalid).mean()),
        "equivalent": float(fit.moved(np.log1p(MARGIN)).equivalent().any(axis=1).mean()),
        "invalid": float(invalid.mean()) if situation.controls else float("nan"),
        "error": float(np.sqrt(ALPHA * (1 - ALPHA) / sessions)),
    }


def simulate_families(situation: Situation, answers: int, *, sessions: int, seed: int) -> dict[str, float]:
    """Return how often studies claim something false in each family, as ``analyze`` judges its levels.

    The last ``answers`` levels are the answers; all others are exploratory. ``different``: any level without an
    effect is called faster or slower; ``equivalent``: any level at the margin's edge is called equivalent.
    """
    logs = simulate_logs(situation, sessions, np.random.default_rng(seed))
    arms, last = 1 + situation.controls, situation.levels - answers
    families = {"answers": [*range(arms), *range(last, situation.levels)], "exploratory": [*range(last)]}
    varied = ("blocks", "controls", "noisy", "ratio", "stalls", "tails", "luck", "period")
    rates = {"answers": answers, "exploratory": last - arms} | {
        name: getattr(situation, name) for name in varied
    }
    for name, levels in families.items():
        fit, _ = judge_by_period(logs, situation.controls, situation.period, levels)
        rates[f"{name}_different"] = float(fit.different.any(axis=1).mean())
        rates[f"{name}_equivalent"] = float(fit.moved(np.log1p(MARGIN)).equivalent().any(axis=1).mean())
    return rates


def power_by_blocks(levels: int, controls: int, *, sessions: int, seed: int) -> pd.DataFrame:
    """Return the power of the verdict for +5 % at 3 to 9 blocks: ``levels, controls, blocks, power, over_oracle``.

    ``over_oracle`` is by how much the blocks to 80 % power exceed the oracle's; it repeats.
    """
    blocks = np.arange(3, 10)
    runs = [
        # runs so long that only the deviation between them is left
        Situation(run_sd=SIGMA_D / np.sqrt(2), seconds=100_000, blocks=n, levels=levels, controls=controls)
        for n in blocks.tolist()
    ]
    power = [simulate(run, sessions=sessions, seed=seed + run.blocks)["power"] for run in runs]
    over_oracle = float(np.interp(0.8, power, blocks)) / ORACLE_BLOCKS
    columns = {"levels": levels, "controls": controls, "blocks": blocks, "power": power}
    return pd.DataFrame(columns).assign(over_oracle=over_oracle)


def simulate_looks(
    plan: Mapping[int, float], levels: int, controls: int, *, sessions: int, seed: int, ratio: float = 1.0
) -> dict[str, float]:
    """Return what a ``plan`` (alpha by look) costs and saves: ``levels, controls, ratio, alarms, power, blocks, invalid``.

    ``alarms``: any level is called different at any look when none is. The others are of studies whose last level is
    +5 %, each stopped as ``decide`` stops it: ``power``: it is then found; ``blocks``: their mean number;
    ``invalid``: the twins, which are alike, differ. Half of the levels stray ``ratio`` times as much as the others.
    """
    rng = np.random.default_rng(seed)
    logs = rng.normal(0.0, SIGMA_D / np.sqrt(2), (sessions, max(plan), levels))
    logs[:, :, levels - (levels - controls) // 2 :] *= ratio
    looks = at_looks(logs, plan, controls)
    effects = np.zeros(levels - 1 - controls)
    effects[-1] = np.log1p(EFFECT)
    stop = stops(looks, effects)
    at_stop = [(fit.moved(effects), *twins, stop == place) for place, (fit, *twins) in enumerate(looks)]
    rates = {
        "alarms": np.any([fit.different.any(axis=1) for fit, _ in looks], axis=0).mean(),
        "power": sum((fit.different[:, -1] & ~invalid & here).sum() for fit, invalid, here in at_stop)
        / sessions,
        "blocks": np.take([*plan], stop).mean(),
        "invalid": sum((invalid & here).sum() for _, invalid, here in at_stop) / sessions,
    }
    return {"levels": levels, "controls": controls, "ratio": ratio} | {
        name: float(rate) for name, rate in rates.items()
    }
