"""The suite on trial, by simulation and on this machine's own servers: false alarms between what is alike, known changes found.

    python benchmarks/calibrate.py --simulate          # in minutes, without any server; make calibrate
    python benchmarks/calibrate.py                     # a good hour, in which nothing else should run here
    python benchmarks/calibrate.py --sessions 4 --duration 5 --effect 0.1
    python benchmarks/calibrate.py --show              # the page alone, of what is kept

The figures go to data/calibration/, the page is reports/calibration.html. The same again goes on after an interruption.

For real, a *session* is a whole study as a user runs it (its own seed and clusters, its own verdicts) in
which the truth is known: baseline, its A/A control and a third arm called ``same`` do the same work, the
injected arm does so much less of it that it is so much faster. Sessions whose limit is the processor and
sessions whose limit is the disk take turns. Control against baseline, and ``same``
against the mean of both, are orthogonal contrasts: two A/A comparisons in each session.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Any

import click
import pandas as pd
from calibration_page import BASELINE, calibration_folder, publish, sentence
from simulation import power_by_blocks, simulate, simulate_looks, situations

from benchlib import __version__
from benchlib.errors import BenchlibError, InputError
from benchlib.host.facts import load_average
from benchlib.plan.model import Study
from benchlib.report.site import pages_and_others, reports_root, write_site
from benchlib.stats.sequential import ALPHA, EXTENSION, plan_looks
from benchlib.study.experiment import Experiment
from benchlib.study.runs import Runner, plan_study
from benchlib.study.store import StudyFolder

Tell = Callable[[str], None]

LOADS = {"processor": ("calibrated", 250_000, 1), "disk": ("calibrated-commits", 50, 5)}
"""By what is the limit: the workload; the steps of the baseline's transaction, long enough for its round trip to be
below a hundredth; and how many times ``effect`` is injected, since a disk's flushes wander more than a processor."""
_EXTENDED = (5, 7, 9, 11)
"""Blocks of a study that is extended three times, as long as it is open."""
_QUIET_LOAD = 0.3
_TRIAL_COLUMNS = ["load", "session", "block", "position", "level", "seed", "started_s", "tps", "latency_average_ms",
                  "latency_stddev_ms", "transactions", "error"]  # fmt: skip
_VERDICT_COLUMNS = [
    "level",
    "percent_change",
    "ci_low",
    "ci_high",
    "p_value",
    "p_adjusted",
    "verdict",
    "mde_percent",
]


@click.command()
@click.option("--simulate", "simulated", is_flag=True, help="by simulation, without any server")
@click.option("--show", is_flag=True, help="make the page of what is kept, and nothing else")
@click.option(
    "--sessions",
    type=click.IntRange(1),
    help="real studies (20), or simulated ones in each situation (100000)",
)
@click.option("--blocks", type=click.IntRange(3, 99), help="of each real study (5)")
@click.option("--duration", "duration_s", type=click.IntRange(1, 3600), help="seconds of each real trial (2)")
@click.option("--effect", type=click.FloatRange(0.005, 1), help="the injected change, a fraction (0.05)")
@click.option(
    "--seed", type=click.IntRange(0, 2**31), default=1, show_default=True, help="where chance begins"
)
def main(simulated: bool, show: bool, seed: int, **given: Any) -> None:
    """Calibrate, keep the figures and make the page."""
    given = {name: value for name, value in given.items() if value is not None}
    tell = partial(click.echo, err=True)
    try:
        if simulated and given.keys() - {"sessions"}:
            raise click.UsageError("of real studies' options --simulate takes only --sessions and --seed")
        if simulated:
            calibrate_by_simulation(tell, **given, seed=seed)
        elif not show:
            if (busy := load_average()) > _QUIET_LOAD:
                tell(f"other work is running here (load {busy:.1f}): its noise may hide the change")
            print(sentence(calibrate_here(Options(**given, seed=seed), tell)))
        reports_root().mkdir(parents=True, exist_ok=True)
        publish(reports_root())
        write_site(*pages_and_others())
    except BenchlibError as reason:
        raise click.ClickException(str(reason)) from None
    print(f"page: {reports_root() / 'calibration.html'}")


def calibrate_by_simulation(tell: Tell, *, sessions: int = 100_000, seed: int = 1) -> None:
    """Simulate every situation, power and early stopping, and keep the figures; takes minutes.

    ``sessions`` are simulated per situation: at 100,000 the standard error of a 5 % rate is 0.07 points.

    Raises InputError for a number of sessions from which no rate can be told, or that takes days.
    """
    if not 1_000 <= sessions <= 10_000_000:
        raise InputError(f"sessions: want 1000 to 10000000 simulated ones, not {sessions}")
    rows, first, everything = [], 1000 * seed, list(situations())
    for number, situation in enumerate(everything):
        tell(f"simulating {sessions:,} sessions in each situation: {number} of {len(everything)}")
        rows.append(simulate(situation, sessions=sessions, seed=first + number))
    tell("simulating power and early stopping")
    designs = ((2, 0), (3, 1), (4, 1), (6, 1), (12, 1))
    power = pd.concat(power_by_blocks(*design, sessions=sessions, seed=first + 901) for design in designs)
    extended = {look: ALPHA * EXTENSION**n for n, look in enumerate(_EXTENDED)}
    looks = [
        {"kind": kind} | simulate_looks(plan, *design, ratio=ratio, sessions=sessions, seed=first + 902)
        for design in designs
        for kind, plan in {"planned": plan_looks(*design), "extended": extended}.items()
        for ratio in (1.0, 10.0)
    ]
    totals = {
        "sessions": sessions,
        "seed": seed,
        "benchlib": __version__,
        "power": power.to_dict("records"),
        "looks": looks,
    }
    folder = calibration_folder()
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(folder / "simulated.csv", index=False, float_format="%.6g")
    (folder / "simulated.json").write_text(json.dumps(totals, indent=1) + "\n")


@dataclass(frozen=True)
class Options:
    """How a real calibration runs: ``duration_s`` in seconds, ``effect`` a fraction of the tps (five times that where the disk is the limit)."""

    sessions: int = 20
    blocks: int = 5
    duration_s: int = 2
    effect: float = 0.05
    seed: int = 1

    @property
    def name(self) -> str:
        """The folder of its sessions: the same options go on where they stopped, others begin anew."""
        return f"{100 * self.effect:g}pct-{self.blocks}x{self.duration_s}s-seed{self.seed}"


def calibrate_here(options: Options, tell: Tell) -> dict[str, Any]:
    """Run the sessions that are missing; keep the trials, and the verdicts with what made them (returned).

    Raises:
        BenchlibError: as :meth:`benchlib.study.runs.Runner.run`; what was measured is kept.

    """
    root = calibration_folder() / options.name
    trials, verdicts = [], []
    for session, limit in product(range(1, options.sessions + 1), LOADS):
        study = _study(options, limit, session)
        experiment = Experiment(StudyFolder(study.name, root / study.name), study)
        place = f"session {session} of {options.sessions}, {limit}"
        Runner(experiment, retry_failed=True).run(partial(_tell, tell, place))
        trials.append(experiment.trials.assign(load=limit, session=session))
        analysis = experiment.analysis
        rows = analysis.table[_VERDICT_COLUMNS].iloc[1:]
        verdicts.append(rows.assign(load=limit, session=session, residual_sd=analysis.residual_sd))
    everything, origin = pd.concat(trials), experiment.study.provenance
    kept = {
        "options": asdict(options),
        "work": {limit: _work(options, limit) for limit in LOADS},
        "server": f"PostgreSQL {everything['server_version'].dropna().iloc[-1]}",
        "host": {k: v for k, v in origin["host"].items() if k not in ("identity", "file_system")},
        "created": origin["created"],
        "benchlib": __version__,
        # pandas writes null for what is not finite
        "verdicts": json.loads(pd.concat(verdicts).to_json(orient="records", double_precision=10)),
    }
    folder = calibration_folder()
    everything[_TRIAL_COLUMNS].to_csv(folder / "trials.csv", index=False, float_format="%.10g")
    (folder / "summary.json").write_text(json.dumps(kept, indent=1, allow_nan=False) + "\n")
    return kept


def _tell(tell: Tell, place: str, progress: object) -> None:
    tell(f"{place} · {progress}")


def _work(options: Options, limit: str) -> dict[str, int]:
    """The steps of the arms' transactions: of those that are alike, and of the injected one."""
    _, steps, times = LOADS[limit]
    return {"baseline": steps, "injected": round(steps / (1 + times * options.effect))}


def _study(options: Options, limit: str, session: int) -> Study:
    work = _work(options, limit)
    steps = {BASELINE: work["baseline"], "same": work["baseline"], "injected": work["injected"]}
    sizes = {"clients": 1, "threads": 1, "duration_s": options.duration_s, "warmup_s": 1}
    values = {
        "factor": "calibration",
        "question": "Does the suite see what is there, and only that?",
        "study": f"{limit}-{session:03d}",
        "levels": {level: {"load": {"variables": {"scale": count}}} for level, count in steps.items()},
        "workload": LOADS[limit][0],
        "profile": "own",
        "profiles": {"own": sizes},
        "controls": 1,
        "blocks": options.blocks,
        "seed": 1000 * options.seed + 2 * session + list(LOADS).index(limit),
    }
    return plan_study(values).model_copy(update={"notebook": None, "parameters": {}})


if __name__ == "__main__":
    main()
