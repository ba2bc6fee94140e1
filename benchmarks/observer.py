"""What watching a load costs: one load, in which the sampler is switched on and off, by the suite's own verdict.

    python benchmarks/observer.py --blocks 200 --duration 2

One server and one long load. In each block ``unobserved``, its A/A control and ``observed`` take their turns in random
order; only under ``observed`` the sampler of telemetry and waits runs, as it does in every study. Turns of one load
are seconds apart and share the server, its files and its caches: what makes trials of a study differ, and would hide a
price of one percent, is out. The turns are kept as a table that
``benchlib analyze FILE --baseline unobserved --control control --margin 0.02`` gives the same verdict on.
The price shows most where the processors are the limit, so the load is reads from memory.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from contextlib import closing, nullcontext
from pathlib import Path

import click
import pandas as pd

import benchlib
from benchlib.load.pgbench import Pgbench
from benchlib.load.tool import Job
from benchlib.load.workloads import load_workload
from benchlib.plan.design import randomised_blocks
from benchlib.plan.level import Level
from benchlib.plan.model import Load
from benchlib.server.templates import workshop
from benchlib.study.environment import Environment, build

OFF, TWIN, ON = "unobserved", "control", "observed"
MARGIN = 0.02
SETTLING_S = 3
"""What a load needs to come to speed, and the sampler to join one: left out at the begin."""


def watched_load(
    environment: Environment, program: Path, load: Load, blocks: int, turn_s: int, seed: int
) -> pd.DataFrame:
    """Run the load, switching the sampler; a row for each turn with the mean of its whole seconds' tps."""
    scripts = [(script, None) for script in environment.workload.scripts]
    tool = Pgbench(program)
    argv = tool.argv(Job(environment.server.connection, environment.workload, load, 10, seed, scripts))
    argv.insert(1, "--progress-timestamp")
    turns = []
    with tempfile.TemporaryDirectory() as folder:
        stdout, stderr = Path(folder) / "stdout", Path(folder) / "stderr"
        runner = threading.Thread(target=environment.client.run, args=[argv], kwargs={"stdout": stdout, "stderr": stderr})  # fmt: skip
        runner.start()
        time.sleep(SETTLING_S)
        for trial in randomised_blocks([OFF, TWIN, ON], blocks, seed):
            with environment.sampler(load.waits_hz) if trial.level == ON else nullcontext():
                started = time.time()
                time.sleep(turn_s + 1)  # one second of each belongs to two turns
                turns.append((trial.block, trial.position, trial.level, started, time.time()))
        runner.join()
        report = tool.report(stdout.read_text(), stderr.read_text(), 0, argv)
    readings = pd.DataFrame(report["progress"])
    rows = []
    for block, position, level, begun, ended in turns:
        inside = readings["epoch_s"].sub(1).ge(begun) & readings["epoch_s"].le(ended)
        rows.append((block, position, level, begun, readings.loc[inside, "tps"].mean(), inside.sum()))
    return pd.DataFrame(rows, columns=["block", "position", "level", "started_s", "tps", "seconds"])


@click.command(help=__doc__)
@click.option("--blocks", default=200, show_default=True)
@click.option("--duration", "turn_s", default=2, show_default=True, help="seconds of a turn")
@click.option("--clients", default=4, show_default=True)
@click.option("--workload", default="select-only", show_default=True, help="of built-in scripts")
@click.option("--seed", default=1, show_default=True)
@click.option("--out", default=Path("data/benchmarks/observer.csv"), show_default=True, type=click.Path(path_type=Path))  # fmt: skip
def main(blocks: int, turn_s: int, clients: int, workload: str, seed: int, out: Path) -> None:
    """Run the load, keep its turns, and tell the verdict."""
    seconds = SETTLING_S + blocks * 3 * (turn_s + 1) + 5
    load = Load(clients=clients, threads=2, duration_s=seconds)
    with workshop("the observer's price", 10, lambda words: click.echo(words, err=True)) as templates:
        folder = templates.run.folder / "c1"
        with closing(build(Level(), load_workload(workload), folder, templates)) as environment:
            turns = watched_load(environment, templates.pgbench(), load, blocks, turn_s, seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    turns.to_csv(out, index=False, float_format="%.6f")
    analysis = benchlib.analyze(turns, baseline=OFF, controls=[TWIN], margin=MARGIN)
    click.echo(analysis.table.to_string(index=False))
    verdict = str(analysis.table.set_index("level").loc[ON, "verdict"])
    good = verdict == "equivalent"
    click.echo(f"watching costs nothing beyond ±{100 * MARGIN:g} %: {'yes' if good else f'no ({verdict})'}")
    sys.exit(not good)


if __name__ == "__main__":
    main()
