"""What a study in place costs the other sessions of a busy server: their latency with and without it.

A server of its own has the traffic of others: pgbench at a fixed rate. Each round has three windows, in random
order: without a study, without once more (the A/A), and with trials in place one after another. Compared are the
median and the 95th percentile of a window's transactions: one stall of the host's disk decides a window's mean.
The figures go to data/benchmarks/in_place.csv.

    python benchmarks/in_place.py --rounds 20 --seconds 20 --rate 400
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pandas as pd
from scipy import stats

from benchlib.host.shell import Shell, server_user
from benchlib.plan.design import Trial
from benchlib.plan.level import Level
from benchlib.plan.model import Factor, Load, Plan, Study
from benchlib.plan.workload import Workload
from benchlib.server.cluster import SUPERUSER, Cluster
from benchlib.server.installations import find_installation, find_pgbench, runnable_by
from benchlib.study.bench import Bench, open_bench

WINDOWS = ("without", "without again", "with")
SCALE = 10
SHARE = 0.05
"""The default rate in place, of the others' calls."""
_LATENCY_US = 2
"""The column of pgbench's log."""
READS = "\\set a random(1, 100000 * :scale)\nSELECT abalance FROM pgbench_accounts WHERE aid = :a;"


@click.command()
@click.option("--rounds", default=20, show_default=True)
@click.option("--seconds", default=20, show_default=True, help="of each window")
@click.option("--rate", default=400, show_default=True, help="transactions per second of the others")
@click.option("--clients", default=4, show_default=True, help="of the others")
@click.option(
    "--out", default=Path("data/benchmarks/in_place.csv"), show_default=True, type=click.Path(path_type=Path)
)
def main(rounds: int, seconds: int, rate: int, clients: int, out: Path) -> None:
    """Measure, print the ratios with their 95 % intervals, and save every window."""
    rows: list[dict[str, object]] = []
    with _server() as (cluster, shell):
        connection = [f"--host={cluster.sockets}", f"--username={SUPERUSER}"]
        pgbench = runnable_by(shell, find_pgbench(), cluster.folder.parent).program("pgbench")
        shell.run([pgbench, "--initialize", "--quiet", f"--scale={SCALE}", *connection, "postgres"])
        options = [f"--rate={rate}", f"--client={clients}", f"--time={seconds}", "--no-vacuum"]
        others: list[str | Path] = [pgbench, *connection, *options]
        target = {"server": f"postgresql://{SUPERUSER}@/postgres?host={cluster.sockets}", "in_place": True}
        study = Study(name="in-place", title="In place", plan=_plan(target, SHARE * rate), trials=())
        with open_bench(study, lambda _: None) as bench:
            trials = 0
            for number in range(1, rounds + 1):
                for window in random.sample(WINDOWS, len(WINDOWS)):
                    log = cluster.folder / f"{number}-{window}"
                    process = shell.start([*others, "--log", f"--log-prefix={log}", "postgres"], log=log)
                    before = trials
                    while process.poll() is None:
                        if window == "with":
                            trials += 1
                            _trial(bench, trials)
                        else:
                            with contextlib.suppress(TimeoutError):
                                process.wait(timeout=seconds + 30)
                    (transactions,) = log.parent.glob(f"{log.name}.*")
                    ms = pd.read_csv(transactions, sep=" ", header=None)[_LATENCY_US] / 1000
                    transactions.unlink()
                    p50, p95 = ms.quantile([0.5, 0.95])
                    counts = {"transactions": len(ms), "trials": trials - before}
                    rows.append({"round": number, "window": window, "p50_ms": p50, "p95_ms": p95, **counts})
                print(f"round {number} of {rounds}", flush=True)
    table = pd.DataFrame(rows)
    table.to_csv(out, index=False, float_format="%.4f")
    for figure in ("p50_ms", "p95_ms"):
        logs = np.log(table.pivot(index="round", columns="window", values=figure))
        for window in WINDOWS[1:]:
            ratio = logs[window] - logs["without"]
            low, high = stats.t.interval(0.95, len(ratio) - 1, ratio.mean(), stats.sem(ratio))
            print(
                f"{window}: {figure} of the others {_percent(ratio.mean())} [{_percent(low)}, {_percent(high)}]"
            )


def _percent(log_ratio: float) -> str:
    return f"{100 * np.expm1(log_ratio):+.1f} %"


def _plan(target: dict[str, object], rate: float) -> Plan:
    level = Level.model_validate({"target": target})
    return Plan(
        factor=Factor(question="?", baseline="a", levels={"a": level, "b": level.changed(settings={"jit": "off"})}),
        workload=Workload.model_validate({"name": "reads", "title": "Reads", "scripts": [{"sql": READS}]}),
        load=Load(clients=2, threads=1, duration_s=2, warmup_s=0, rate=rate), scale=SCALE, seed=1,
    )  # fmt: skip


def _trial(bench: Bench, number: int) -> None:
    """Run a trial of the levels in turn."""
    with tempfile.TemporaryDirectory() as folder:
        measured = bench.measure(Trial(number, 1, "ab"[number % 2], number), Path(folder))
    if measured.error:
        raise click.ClickException(measured.error)


@contextlib.contextmanager
def _server() -> Iterator[tuple[Cluster, Shell]]:
    """Yield a running server that no study has made."""
    shell, folder = Shell(server_user()), Path(tempfile.mkdtemp(prefix="bl", dir="/var/tmp"))
    folder.chmod(0o755)
    cluster = Cluster(shell, runnable_by(shell, find_installation(None), folder), folder / "c")
    try:
        cluster.create(())
        cluster.configure({"synchronous_commit": "off"})  # else the host's disk decides
        cluster.start()
        yield cluster, shell
    finally:
        cluster.stop(immediately=True)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
