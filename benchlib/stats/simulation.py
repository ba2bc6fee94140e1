"""The statistics on trial: simulated studies in which the truth is known.

A simulated trial is the mean of ``seconds`` autocorrelated readings, plus a deviation of the run, a drift of
the host and, in contaminated situations, a hit by something else on the machine. The mean of a stationary
Gaussian series is itself Gaussian with a known variance, so it is drawn directly and without approximation.
The order inside a block is random, as in a real design.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product

import numpy as np
import pandas as pd
from scipy.stats import t

from benchlib.plan.design import LOOKS
from benchlib.stats.block_model import fit_complete
from benchlib.stats.dunnett import complete_loadings, family_cut
from benchlib.stats.sequential import plan_looks
from benchlib.stats.verdicts import analyze

ALPHA = 0.05
EFFECT = 0.05
"""The true change, a fraction, for figures of power."""
SIGMA_D = 0.0355
"""Deviation of a difference inside a block (log units), for figures of power."""
ORACLE_BLOCKS = 4.155
"""Blocks for 80 % power with a known variance: (z_.975 + z_.8)^2 SIGMA_D^2 / log(1 + EFFECT)^2."""
_SECOND_CV = 0.08
_ANALYSED = 2_000
"""Sessions that go through the whole analysis, a hundredth of a second each."""


@dataclass(frozen=True)
class Situation:
    """What is simulated; ``run_sd``, ``drift`` and ``ramp`` are fractions of the tps.

    ``drift`` is over the whole study, ``ramp`` per hour, ``contamination`` the share of trials that are hit.
    ``levels`` counts all arms, ``controls`` those of them that repeat the baseline. The last ``noisy`` levels stray
    ``ratio`` times as much as the others. ``stalls`` is the share of trials that a stall of ten deviations hits.
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
    for levels, blocks, luck in product((4, 6), (6, 8, 10), (0.5, 1.0)):
        yield Situation(blocks=blocks, levels=levels, controls=1, luck=luck)
        yield Situation(blocks=blocks, levels=levels, controls=1, luck=luck, period=2)


def simulate_logs(situation: Situation, sessions: int, rng: np.random.Generator) -> np.ndarray:
    """Return log tps (sessions, blocks, levels) of studies without any effect."""
    shape = (sessions, situation.blocks, situation.levels)
    sd = np.full(situation.levels, situation.noise_sd)
    sd[situation.levels - situation.noisy :] *= situation.ratio
    logs = sd * rng.standard_normal(shape)
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


def simulate(situation: Situation, *, sessions: int, seed: int) -> dict[str, float]:
    """Return the situation's fields and how often, as fractions, the block model did what there.

    ``alarms``: the first level without effect was called different (unadjusted p); ``family``: any level was
    (Dunnett); ``coverage``: the unadjusted interval held the truth; ``power``: a level of +5 % was found
    (unadjusted p). ``error`` is the standard error of ``alarms``.
    """
    logs = simulate_logs(situation, sessions, np.random.default_rng(seed))
    if situation.period > 1:
        return {**asdict(situation), **_by_analyze(logs[:_ANALYSED], situation)}
    estimate, error, df, shared = fit_complete(logs, situation.controls)
    single = float(t.isf(ALPHA / 2, df))
    lam = complete_loadings(estimate.shape[1], 1 + situation.controls)
    cut = family_cut(ALPHA, lam, df, shared=shared)
    size = np.abs(estimate) / error
    return {
        **asdict(situation),
        "alarms": float((size[:, 0] > single).mean()),
        "family": float((size > cut).any(axis=1).mean()),
        "coverage": float((size <= single).mean()),
        "power": float((_with_effect(estimate, error)[:, 0] > single).mean()),
        "error": float(np.sqrt(ALPHA * (1 - ALPHA) / sessions)),
    }


def _by_analyze(logs: np.ndarray, situation: Situation) -> dict[str, float]:
    """The same rates where clusters stay, which only the analysis itself knows how to judge; of fewer sessions."""
    names = [f"l{number:02d}" for number in range(situation.levels)]
    blocks = np.repeat(np.arange(situation.blocks), situation.levels)
    frame = pd.DataFrame(
        {"block": blocks, "level": names * situation.blocks, "period": blocks // situation.period}
    )
    different, first, covered = [], [], []
    for session in logs:
        trials = frame.assign(tps=np.exp(session.ravel()))
        table = analyze(trials, baseline=names[0], controls=names[1 : situation.controls + 1]).table
        rows = table.iloc[situation.controls + 1 :]
        different.append(((rows["ci_low"] > 0) | (rows["ci_high"] < 0)).any())
        first.append(rows["p_value"].iloc[0] <= ALPHA)
        covered.append((rows["p_value"] > ALPHA).mean())
    rates = {"alarms": first, "family": different, "coverage": covered}
    return {name: float(np.mean(values)) for name, values in rates.items()} | {
        "power": float("nan"),
        "error": float(np.sqrt(ALPHA * (1 - ALPHA) / len(logs))),
    }


def power_by_blocks(levels: int, controls: int, *, sessions: int, seed: int) -> pd.DataFrame:
    """Return the power for +5 % at 3 to 8 blocks: ``levels, controls, blocks, power, over_oracle``.

    ``over_oracle`` is by how much the blocks to 80 % power exceed the oracle's; it repeats.
    """
    blocks = np.arange(3, 9)
    runs = [
        # runs so long that only the deviation between them is left
        Situation(run_sd=SIGMA_D / np.sqrt(2), seconds=100_000, blocks=n, levels=levels, controls=controls)
        for n in blocks.tolist()
    ]
    power = [simulate(run, sessions=sessions, seed=seed + run.blocks)["power"] for run in runs]
    over_oracle = float(np.interp(0.8, power, blocks)) / ORACLE_BLOCKS
    columns = {"levels": levels, "controls": controls, "blocks": blocks, "power": power}
    return pd.DataFrame(columns).assign(over_oracle=over_oracle)


def simulate_stopping(levels: int, controls: int, *, sessions: int, seed: int) -> dict[str, float]:
    """Return what stopping early costs and saves in a design: ``levels, controls, alarms, power, blocks``.

    ``alarms``: any level called different at any look when none is; ``power``: +5 % in the last level found by
    the last look; ``blocks``: the mean number at which it is found, or all.
    """
    plan, rng = plan_looks(levels, controls), np.random.default_rng(seed)
    logs = rng.normal(0.0, SIGMA_D / np.sqrt(2), (sessions, LOOKS[-1], levels))
    alarmed, seen = np.zeros(sessions, dtype=bool), np.zeros(sessions, dtype=bool)
    blocks = np.full(sessions, LOOKS[-1])
    for look, cut in zip(plan.looks, plan.cuts, strict=True):
        estimate, error, *_ = fit_complete(logs[:, :look], controls)
        alarmed |= (np.abs(estimate) / error > cut).any(axis=1)
        now = ~seen & (_with_effect(estimate, error)[:, -1] > cut)
        blocks[now] = look
        seen |= now
    rates = {"alarms": float(alarmed.mean()), "power": float(seen.mean()), "blocks": float(blocks.mean())}
    return {"levels": levels, "controls": controls, **rates}


def _with_effect(estimate: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Return |t| with the effect: a shift leaves the residuals alone, so no second fit is needed."""
    size: np.ndarray = np.abs(estimate + np.log1p(EFFECT)) / error
    return size
