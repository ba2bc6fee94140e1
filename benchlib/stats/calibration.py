"""The statistics put on trial: simulated studies in which the truth is known.

A session's trial is the mean of ``seconds`` autocorrelated readings, plus a deviation of the run, a
drift of the host and, in contaminated cells, a hit by something else on the machine. The mean of a
stationary Gaussian series is itself Gaussian with a known variance, so it is drawn at once; nothing is
approximated by that. Orders within blocks are random, as the design makes them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product

import numpy as np
import pandas as pd

from benchlib.plan.design import LOOKS
from benchlib.stats.sequential import plan_looks
from benchlib.stats.simulate import analyze_sessions

SIGMA_D = 0.0355  # deviation of a paired difference in the protocol's power figures
EFFECT = 0.05
ORACLE_BLOCKS = 4.155  # (z_.975 + z_.8)^2 SIGMA_D^2 / log(1 + EFFECT)^2: who knows the variance
_SECOND_CV = 0.08


@dataclass(frozen=True)
class Cell:
    """One simulated situation; ``run_sd``, ``drift`` and ``ramp`` are fractions of the tps.

    ``drift`` is over the whole study, ``ramp`` per hour; ``levels`` counts every arm, ``controls`` those
    of them that repeat the baseline.
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

    @property
    def noise_sd(self) -> float:
        """Deviation of a trial's mean (log units) without drift and contamination."""
        n, rho = self.seconds, self.rho
        lags = np.arange(1, n)
        factor = 1 + 2 * float(((1 - lags / n) * rho**lags).sum())
        return float(np.hypot(self.run_sd, _SECOND_CV * np.sqrt(factor / n)))


def protocol_cells() -> Iterator[Cell]:
    """Yield the cells that the protocol lists (``statistics.md``, Calibration)."""
    drifts = ((0.0, 0.0), (0.02, 0.0), (0.0, 0.10))
    for rho, run_sd, (drift, ramp), contamination, blocks, levels in product(
        (0.0, 0.8, 0.95), (0.0, 0.02), drifts, (0.0, 0.1), (3, 5, 9), (2, 4, 6)
    ):
        yield Cell(rho, run_sd, drift, ramp, contamination, blocks, levels)


def simulate_logs(cell: Cell, sessions: int, rng: np.random.Generator) -> np.ndarray:
    """Return log tps (sessions, blocks, levels) of studies without any effect."""
    shape = (sessions, cell.blocks, cell.levels)
    logs = rng.normal(0.0, cell.noise_sd, shape)
    order = rng.random(shape).argsort(axis=2)
    place = np.arange(cell.blocks)[:, None] * cell.levels + order
    hours = place * cell.seconds / 3600
    logs += np.log1p(cell.drift * place / (cell.blocks * cell.levels) + cell.ramp * hours)
    if cell.contamination:
        # a neighbour on the host takes 5 to 25 % of the trial's throughput
        hit = rng.random(shape) < cell.contamination
        logs += np.where(hit, np.log1p(-rng.uniform(0.05, 0.25, shape)), 0.0)
    return logs


def calibrate(
    cells: Sequence[Cell] | None = None, *, sessions: int = 10_000, seed: int = 1, alpha: float = 0.05
) -> pd.DataFrame:
    """Return one row per cell: the cell's fields and, as fractions, what the verdicts did there.

    ``alarms``: how often one level without effect was called different (unadjusted p); ``family``:
    how often any was by the adjusted p; ``coverage``: of the unadjusted interval, ``coverage_family`` of all
    the adjusted ones at once; ``power``: a level of +5 % found by the unadjusted p, ``power_family``
    by the verdict; ``invalid``: by the A/A arm. ``error`` is the standard error of ``alarms``.
    Ten thousand sessions take about a tenth of a second per cell.
    """
    rows = []
    shift = float(np.log1p(EFFECT))
    for index, cell in enumerate(protocol_cells() if cells is None else cells):
        logs = simulate_logs(cell, sessions, np.random.default_rng([seed, index]))
        null = analyze_sessions(logs, controls=cell.controls, alpha=alpha)
        beyond = np.abs(null.estimate) > null.family
        # the shifted session differs from the null one by a constant, so one analysis serves both
        moved = null.estimate[:, 0] + shift
        rows.append(
            {
                **asdict(cell),
                "alarms": float((null.p[:, 0] < alpha).mean()),
                "family": float(beyond.any(axis=1).mean()),
                "coverage": float((np.abs(null.estimate) <= null.single).mean()),
                "coverage_family": float((~beyond).all(axis=1).mean()),
                "power": float((np.abs(moved) > null.single[:, 0]).mean()),
                "power_family": float(((np.abs(moved) > null.family[:, 0]) & ~null.invalid).mean()),
                "invalid": float(null.invalid.mean()),
                "error": float(np.sqrt(alpha * (1 - alpha) / sessions)),
            }
        )
    return pd.DataFrame(rows)


def calibrate_sequential(
    designs: Sequence[tuple[int, int]] = ((2, 0), (3, 1), (4, 1)),
    *,
    sessions: int = 20_000,
    seed: int = 2,
    looks: tuple[int, ...] = LOOKS,
    sigma_d: float = SIGMA_D,
) -> pd.DataFrame:
    """Return, per design (levels, controls), what stopping early costs and saves.

    ``alarms``: any level called different at any look when none is; ``power``: +5 % in the last level
    found by the time it stops; ``blocks``: the mean number then, when only that level is waited for.
    """
    rows = []
    for index, (levels, controls) in enumerate(designs):
        plan = plan_looks(levels, controls, looks=looks)
        rng = np.random.default_rng([seed, index])
        cell = Cell(run_sd=0.0, blocks=looks[-1], levels=levels, controls=controls)
        logs = simulate_logs(replace(cell, seconds=1), sessions, rng) * (sigma_d / np.sqrt(2) / _SECOND_CV)
        alarmed, found = np.zeros(sessions, dtype=bool), np.zeros(sessions, dtype=bool)
        used = np.full(sessions, looks[-1])
        for look, alpha in zip(plan.looks, plan.alphas, strict=True):
            null = analyze_sessions(logs[:, :look], controls=controls, alpha=alpha)
            alarmed |= (np.abs(null.estimate) > null.family).any(axis=1)
            now = ~found & (np.abs(null.estimate[:, -1] + np.log1p(EFFECT)) > null.family[:, -1])
            used[now] = look
            found |= now
        rows.append((levels, controls, alarmed.mean(), found.mean(), used.mean()))
    return pd.DataFrame(rows, columns=["levels", "controls", "alarms", "power", "blocks"])


def blocks_to_power(
    levels: int = 4, controls: int = 0, *, power: float = 0.8, sessions: int = 40_000, seed: int = 3
) -> pd.DataFrame:
    """Return the power for +5 % by blocks (3 to 8), and where it passes ``power`` against the oracle.

    Columns ``blocks, power, needed, over_oracle``; ``needed`` (interpolated) and ``over_oracle`` repeat.
    """
    blocks = np.arange(3, 9)
    cells = [
        Cell(
            run_sd=SIGMA_D / np.sqrt(2), seconds=100_000, blocks=int(count), levels=levels, controls=controls
        )
        for count in blocks
    ]
    found = calibrate(cells, sessions=sessions, seed=seed)["power"].to_numpy()
    needed = float(np.interp(power, found, blocks))
    return pd.DataFrame(
        {"blocks": blocks, "power": found, "needed": needed, "over_oracle": needed / ORACLE_BLOCKS}
    )
