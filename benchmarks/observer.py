"""What watching a trial costs: the same level with and without the sampler, by the suite's own verdict.

    python benchmarks/observer.py --blocks 20 --duration 4

A study in which ``unobserved``, its A/A control and ``observed`` are one level, interleaved in blocks; only for
``observed`` the sampler of telemetry and waits runs, as it does in every study. The trials are kept as a
table that ``benchlib analyze FILE --baseline unobserved --control control --margin 0.02`` gives the same verdict on.
The price shows most where the processors are the limit, so the load is reads from memory.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from benchlib.experiment import shown
from benchlib.level import Level
from benchlib.levers.bench import Bench, open_bench
from benchlib.levers.workloads import load_workload
from benchlib.model import Factor, Load, Plan, Study
from benchlib.store import StudyFolder
from benchlib.study import design, keep_study, run_study

OFF, TWIN, ON = "unobserved", "control", "observed"
MARGIN = 0.02
COLUMNS = ["block", "position", "level", "started_s", "tps", "latency_average_ms", "error"]


def plan_of(workload: str, clients: int, duration_s: int, seed: int) -> Plan:
    """One level thrice."""
    return Plan(
        factor=Factor(
            question="What does watching cost?",
            baseline=OFF,
            controls=(TWIN,),
            levels=dict.fromkeys((OFF, TWIN, ON), Level()),
        ),
        workload=load_workload(workload),
        load=Load(clients=clients, threads=2, duration_s=duration_s, warmup_s=1),
        scale=10,
        seed=seed,
        margin=MARGIN,
    )


@click.command(help=__doc__)
@click.option("--blocks", default=20, show_default=True)
@click.option("--duration", "duration_s", default=4, show_default=True, help="seconds of a trial")
@click.option("--clients", default=4, show_default=True)
@click.option("--workload", default="select-only", show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--out", default=Path("data/benchmarks/observer.csv"), show_default=True, type=click.Path(path_type=Path))  # fmt: skip
def main(blocks: int, duration_s: int, clients: int, workload: str, seed: int, out: Path) -> None:
    """Run the study, keep its trials, and tell the verdict."""
    plan = plan_of(workload, clients, duration_s, seed)

    @contextmanager
    def bench(tell: Callable[[str], None]) -> Iterator[Bench]:
        with open_bench(plan, "observer", tell=tell) as opened:
            opened.unobserved = frozenset({OFF, TWIN})
            yield opened

    with tempfile.TemporaryDirectory() as data:
        folder = StudyFolder("observer", Path(data))
        keep_study(folder, Study(name="observer", title="Observer", plan=plan, trials=design(plan, blocks)))
        run_study(folder, bench, lambda progress: click.echo(progress, err=True))
        experiment = shown(folder)
        out.parent.mkdir(parents=True, exist_ok=True)
        experiment.trials[COLUMNS].to_csv(out, index=False)
        analysis = experiment.analysis
    click.echo(analysis.headline())
    verdict = analysis.table.set_index("level").loc[ON, "verdict"]
    good = verdict == "equivalent"
    click.echo(f"watching costs nothing beyond ±{100 * MARGIN:g} %: {'yes' if good else f'no ({verdict})'}")
    sys.exit(not good)


if __name__ == "__main__":
    main()
