"""The suite on trial: what it promises, by simulation and on this machine's own servers.

For real, a *session* is a whole study as a user runs it (own seed, own clusters, the suite's usual
way of rebuilding them, its own verdicts), in which the truth is known: baseline, its A/A control and
a third arm called ``same`` do the same work, the injected arm does so much less of it that it is
``effect`` faster. Control against baseline, and ``same`` against the mean of both, are orthogonal
contrasts: two A/A comparisons in each session. How much work makes the effect is measured first.
What is kept, under ``data/calibration/``, is all that :mod:`benchlib.report.calibration` shows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binomtest, t

from benchlib import __version__
from benchlib.errors import InputError, StudyError
from benchlib.plan.model import Study
from benchlib.stats.calibration import Cell, blocks_to_power, calibrate, calibrate_sequential, protocol_cells
from benchlib.study.experiment import Experiment
from benchlib.study.runs import Runner, plan_study
from benchlib.study.store import StudyFolder, data_root

Tell = Callable[[str], None]

BASELINE, TWINS = "baseline", ("control", "same")
ALPHA = 0.05

_STEPS = (5_000, 10_000, 20_000, 40_000)
_FIT_BLOCKS = 5
_TRANSACTION_S = 0.001  # long beside a round trip, yet thousands of them in a trial
_CHUNK = 18
_TRIAL_COLUMNS = ["session", "block", "position", "level", "seed", "started_s", "tps", "latency_average_ms",
                  "latency_stddev_ms", "transactions", "error"]  # fmt: skip
_VERDICT_COLUMNS = ["level", "percent_change", "ci_low", "ci_high", "p_value", "p_adjusted", "verdict"]


def calibration_folder() -> Path:
    """Where what is kept of both calibrations lies."""
    return data_root() / "calibration"


# --- by simulation ------------------------------------------------------------------


def control_cells() -> Iterator[Cell]:
    """Situations with an A/A arm, as the suite's own studies have it; ``protocol_cells`` has none."""
    for rho, blocks, levels in product((0.0, 0.95), (3, 5, 9), (3, 4, 6)):
        yield Cell(rho=rho, blocks=blocks, levels=levels, controls=1)


def simulate(tell: Tell, *, sessions: int = 100_000, seed: int = 1) -> None:
    """Put the statistics on trial in every situation and keep the figures; minutes.

    ``sessions`` are simulated per situation: at 100,000 the standard error of a 5 % rate is 0.07 points.

    Raises InputError for fewer than 1,000 sessions or a negative seed.
    """
    if not 1_000 <= sessions <= 10_000_000 or seed < 0:
        raise InputError("want 1000 to 10000000 simulated sessions, and a seed from 0 up")
    cells, parts, started = [*protocol_cells(), *control_cells()], [], time.monotonic()
    for first in range(0, len(cells), _CHUNK):
        tell(f"simulating {sessions:,} sessions in each situation: {first} of {len(cells)}")
        # every piece has a stream of its own
        parts.append(
            calibrate(cells[first : first + _CHUNK], sessions=sessions, seed=1000 * seed + first, alpha=ALPHA)
        )
    tell("simulating early stopping and power")
    power = [
        blocks_to_power(levels, controls, sessions=sessions, seed=1000 * seed + 901).assign(
            levels=levels, controls=controls
        )
        for levels, controls in ((2, 0), (4, 0), (4, 1), (6, 0))
    ]
    sequential = calibrate_sequential(sessions=sessions, seed=1000 * seed + 902)
    rest = {
        "sessions": sessions,
        "seed": seed,
        "seconds": round(time.monotonic() - started),
        "benchlib": __version__,
        "power": pd.concat(power).to_dict("records"),
        "sequential": sequential.to_dict("records"),
    }
    folder = calibration_folder()
    folder.mkdir(parents=True, exist_ok=True)
    pd.concat(parts).to_csv(folder / "simulated.csv", index=False, float_format="%.6g")
    (folder / "simulated.json").write_text(json.dumps(rest, indent=1) + "\n")


# --- on real servers ----------------------------------------------------------------


@dataclass(frozen=True)
class Options:
    """How a real calibration runs: ``duration_s`` in seconds, ``effect`` a fraction of the tps."""

    sessions: int = 20
    blocks: int = 5
    duration_s: int = 2
    effect: float = 0.05
    seed: int = 1

    def __post_init__(self) -> None:
        for name, low, high in (("sessions", 1, 999), ("blocks", 3, 99), ("duration_s", 1, 3600), ("effect", 0.005, 1), ("seed", 0, 2**31)):  # fmt: skip
            if not low <= getattr(self, name) <= high:
                raise InputError(
                    f"{name.removesuffix('_s')}: want {low:g} to {high:g}, not {getattr(self, name):g}"
                )

    @property
    def name(self) -> str:
        """The folder of its sessions: the same options go on where they stopped, others begin anew."""
        return f"{100 * self.effect:g}pct-{self.blocks}x{self.duration_s}s-seed{self.seed}"

    @property
    def injected(self) -> str:
        """The name of the arm that is faster, such as ``+5 %``."""
        return f"+{100 * self.effect:g} %"


@dataclass(frozen=True)
class Work:
    """Microseconds of a transaction, fixed and per step; the baseline's steps and the injected arm's."""

    fixed_us: float
    step_us: float
    baseline: int
    injected: int


def fit_work(trials: pd.DataFrame, effect: float) -> Work:
    """Return the work that makes ``effect``, from trials with columns ``steps`` and ``tps``.

    A line through the shortest time per transaction at each number of steps (what else runs on the
    machine only adds to it: Python's documentation of ``timeit``), relative errors equal. The effect
    hardly depends on the line: a constant part of 5 ± 1 % of the time makes +5 % one of 5.00 ± 0.05 %.

    Raises StudyError where the times are no rising line.
    """
    good = trials.dropna(subset=["tps"])
    times = 1e6 / good["tps"].groupby(good["steps"]).max()
    steps, us = times.index.to_numpy(dtype=float), times.to_numpy(dtype=float)
    if len(us) < 2 or not np.isfinite(us).all():
        raise StudyError(
            "too few of the trials that measure the work succeeded: another --seed measures anew"
        )
    step_us, fixed_us = (float(v) for v in np.polyfit(steps, us, 1, w=1 / us))
    baseline = round((1e6 * _TRANSACTION_S - fixed_us) / step_us) if step_us > 0 else 0
    injected = (
        round(((fixed_us + step_us * baseline) / (1 + effect) - fixed_us) / step_us) if baseline > 0 else 0
    )
    if not 0 < injected < baseline:
        raise StudyError(
            f"a transaction takes {fixed_us:.3g} µs and {step_us:.3g} µs per step: no work makes the effect; "
            "another --seed measures anew, best on a quiet machine"
        )
    return Work(fixed_us, step_us, baseline, injected)


def calibrate_here(options: Options, tell: Tell, *, scratch: Path | None = None) -> dict[str, Any]:
    """Run the sessions that are missing and keep what they found; the summary, as ``summary.json`` has it.

    Raises:
        BenchlibError: as :meth:`benchlib.study.runs.Runner.run`; what was measured is kept.

    """
    root = calibration_folder() / options.name

    def run(study: Study, where: str, *, retry: bool = True) -> Experiment:
        experiment = Experiment(StudyFolder(study.name, root / study.name), study)
        runner = Runner(experiment, retry_failed=retry, scratch=scratch)
        runner.run(lambda progress: tell(f"{where} · {progress}"))
        return experiment

    # measured once: the sessions' plans follow from it
    measured = run(_fit_study(options), "how much work makes the effect", retry=False).trials
    work = fit_work(measured.assign(steps=measured["level"].str.removesuffix(" steps").astype(int)), options.effect)  # fmt: skip
    trials, verdicts = [], []
    for session in range(1, options.sessions + 1):
        experiment = run(_session_study(options, work, session), f"session {session} of {options.sessions}")
        trials.append(experiment.trials.assign(session=session))
        analysis = experiment.analysis
        told = analysis.table[_VERDICT_COLUMNS].iloc[1:]
        verdicts.append(told.assign(session=session, residual_sd=analysis.residual_sd))
    frame, found = pd.concat(trials)[_TRIAL_COLUMNS], pd.concat(verdicts)
    origin = experiment.study.provenance
    kept = {
        "options": asdict(options),
        "work": asdict(work),
        **summarise(found),
        "minutes": round((frame["started_s"].max() - measured["started_s"].min()) / 60, 1),
        "server": f"PostgreSQL {experiment.trials['server_version'].dropna().iloc[0]}",
        "host": {k: v for k, v in origin["host"].items() if k not in ("identity", "file_system")},
        "created": origin["created"],
        "benchlib": __version__,
        "verdicts": [_plain(row) for row in found.to_dict("records")],
    }
    frame.to_csv(calibration_folder() / "trials.csv", index=False, float_format="%.10g")
    (calibration_folder() / "summary.json").write_text(json.dumps(kept, indent=1, allow_nan=False) + "\n")
    return kept


def _study(name: str, steps: Mapping[str, int], options: Options, **sizes: Any) -> Study:
    values = {
        "factor": "calibration",
        "question": "Does the suite see what is there, and only that?",
        "study": name,
        "levels": {level: {"load": {"variables": {"scale": count}}} for level, count in steps.items()},
        "baseline": next(iter(steps)),
        "workload": "calibrated",
        "profile": "own",
        "profiles": {"own": {"clients": 1, "threads": 1, "duration_s": options.duration_s, "warmup_s": 1}},
        **sizes,
    }
    return plan_study(values).model_copy(update={"notebook": None, "parameters": {}})


def _fit_study(options: Options) -> Study:
    steps = {f"{count} steps": count for count in _STEPS}
    return _study("work", steps, options, controls=0, blocks=_FIT_BLOCKS, seed=1000 * options.seed)


def _session_study(options: Options, work: Work, session: int) -> Study:
    steps = {BASELINE: work.baseline, "same": work.baseline, options.injected: work.injected}
    seed = 1000 * options.seed + session
    return _study(f"session-{session:03d}", steps, options, controls=1, blocks=options.blocks, seed=seed)


def _plain(row: Mapping[Any, Any]) -> dict[str, Any]:
    """The row with numbers as JSON has them: none that is not finite, eight digits."""
    cut = {k: float(f"{v:.8g}") if isinstance(v, float) else v for k, v in row.items()}
    return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in cut.items()}


# --- what was found -----------------------------------------------------------------


def summarise(verdicts: pd.DataFrame) -> dict[str, Any]:
    """Count what the sessions' verdicts got right, from rows ``session, level, percent_change, p_value, verdict…``.

    A twin is flagged when its own p is below 0.05; an injected change is found when the suite's
    verdict, with all its adjustments and its A/A arm, says "faster". Intervals of the shares are
    Clopper and Pearson's (fractions); ``changes`` is each level's change over all sessions, percent,
    its interval Student's on the sessions' estimates, so that it holds what clusters add.
    """
    twins = verdicts[verdicts["level"].isin(TWINS) & verdicts["p_value"].notna()]
    injected = verdicts[~verdicts["level"].isin(TWINS)]
    flagged, found = int((twins["p_value"] < ALPHA).sum()), int((injected["verdict"] == "faster").sum())
    changes = {
        str(level): _mean_change(rows["percent_change"])
        for level, rows in verdicts.groupby("level", sort=False)
    }
    return {
        "twins": len(twins),
        "flagged": flagged,
        "flagged_interval": exact_interval(flagged, len(twins)),
        "injected": len(injected),
        "found": found,
        "found_interval": exact_interval(found, len(injected)),
        "invalid": int((injected["verdict"] == "invalid").sum()),
        "changes": changes,
        "sigma_d": float(np.sqrt(2 * (verdicts["residual_sd"] ** 2).mean())),
    }


def exact_interval(count: int, total: int) -> tuple[float, float]:
    """Clopper and Pearson's 95 % interval of a share (``scipy.stats.binomtest``); everything where total is 0."""
    if not total:
        return 0.0, 1.0
    ends = binomtest(count, total).proportion_ci(0.95, method="exact")
    return float(ends.low), float(ends.high)


def _mean_change(percent: pd.Series[float]) -> tuple[float, float | None, float | None]:
    logs = np.log1p(percent.dropna().to_numpy(dtype=float) / 100)
    middle = float(logs.mean())
    if len(logs) < 2:
        return 100 * float(np.expm1(middle)), None, None
    half = float(t.isf(0.025, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs)))
    low, value, high = (100 * float(np.expm1(v)) for v in (middle - half, middle, middle + half))
    return value, low, high
