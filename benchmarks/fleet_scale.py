"""What a study on many hosts costs whoever drives it: a fake bench, workers in a few processes, driver and scheduler in this one.

    python benchmarks/fleet_scale.py --workers 200 --blocks 5000

Each block takes a second and leaves what two trials of pgbench leave. Told are the processor time of this process for each block, its
memory after each fifth of the study, whether all is there, how much sooner three hosts are done than one, and how long the analysis of so
many and of a million trials takes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil

os.environ["DASK_LOGGING__DISTRIBUTED"] = "error"
sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests")]

from fakes import FakeBench

import benchlib
from benchlib.load.workloads import load_workload
from benchlib.plan.design import Trial
from benchlib.plan.fleet import Fleet
from benchlib.plan.level import Level
from benchlib.plan.model import Factor, Load, Measurement, Plan, Study
from benchlib.study import worker
from benchlib.study.driver import run_on_fleet
from benchlib.study.experiment import shown
from benchlib.study.fleet import Hosts
from benchlib.study.store import StudyFolder

BLOCK_S = 1.0
LEVELS = ("one", "other")
PROCESSES = 4


class Slow(FakeBench):
    """A bench whose blocks take a second."""

    def measure(self, trial: Trial, folder: Path) -> Measurement:
        """Leave what a trial would."""
        time.sleep(BLOCK_S / len(LEVELS))
        measured: Measurement = super().measure(trial, folder)
        return measured


def open_slow(plan: Plan, tell: Any) -> Any:
    """A bench of its own for each call."""
    return Slow(plan, Path(tempfile.gettempdir())).open(tell)


async def work(address: str, names: list[str]) -> None:
    """Be these hosts: a worker each, which makes its calls itself, until the scheduler is gone."""
    from distributed import Worker

    own = {"nthreads": 1, "dashboard": False, "host": "127.0.0.1", "memory_limit": 0}
    workers = [Worker(address, name=name, **own) for name in names]
    await asyncio.gather(*workers)
    await asyncio.gather(*(worker.finished() for worker in workers))


@contextmanager
def hosts(count: int) -> Iterator[Hosts]:
    """A fleet of so many."""
    from distributed import LocalCluster

    names, started = [f"h{number:03d}" for number in range(count)], list[subprocess.Popen[bytes]]()
    with LocalCluster(
        n_workers=0, processes=False, dashboard_address="127.0.0.1:0", protocol="tcp"
    ) as cluster:
        address = cluster.scheduler_address
        try:
            dealt = [names[n::PROCESSES] for n in range(min(PROCESSES, count))]
            started += [
                subprocess.Popen([sys.executable, __file__, "--be", address, *some]) for some in dealt
            ]
            fleet = Hosts(Fleet(scheduler=address, insecure=True))
            with fleet.connected():
                while len(fleet.addresses()) < count:
                    time.sleep(0.5)
                yield fleet
        finally:
            for process in started:
                process.kill()
                process.wait()


def study(root: Path, name: str, blocks: int) -> StudyFolder:
    """A study of two levels."""
    factor = Factor(question="?", baseline=LEVELS[0], levels={level: Level() for level in LEVELS})
    plan = Plan(factor=factor, workload=load_workload("tpcb-like"), load=Load(duration_s=3), scale=1, seed=1)
    folder = StudyFolder(name, root)
    folder.write(Study(name=name, title="A fleet at scale", plan=plan, trials=plan.design(blocks)))
    return folder


def wall_s(root: Path, count: int, blocks: int) -> float:
    """How long a study of so many blocks takes on so many hosts."""
    folder = study(root, f"{blocks}-on-{count}", blocks)
    with hosts(count) as fleet:
        started = time.monotonic()
        run_on_fleet(folder, fleet, open_bench=partial(open_slow, folder.read().plan))
        return time.monotonic() - started


def large(root: Path, count: int, blocks: int) -> StudyFolder:
    """The large study, with what it costs this process."""
    folder, memory = study(root, "large", blocks), list[float]()
    trials, every, process = blocks * len(LEVELS), blocks * len(LEVELS) // 5, psutil.Process()

    def tell(line: str) -> None:
        kept = int(line.partition(": trial ")[2].partition("/")[0])
        if kept >= every * len(memory):
            memory.append(process.memory_info().rss / (1 << 20))

    with hosts(count) as fleet:
        cpu_s, started = time.process_time(), time.monotonic()
        run_on_fleet(folder, fleet, tell, open_bench=partial(open_slow, folder.read().plan))
        cpu_s, gone_s = time.process_time() - cpu_s, time.monotonic() - started
    kept = folder.kept()
    print(
        f"{count} hosts, {blocks} blocks: {gone_s:.0f} s, {len(kept)} of {trials} trials, each once",
        flush=True,
    )
    print(f"driver and scheduler: {1000 * cpu_s / blocks:.1f} ms a block; ", end="")
    print(f"memory {', '.join(f'{mib:.0f}' for mib in memory)} MiB", flush=True)
    size = sum(path.stat().st_size for path in folder.path.rglob("*") if path.is_file())
    print(
        f"on disk {size / trials / 1024:.1f} KiB a trial in {len(list(folder.path.rglob('*'))) / trials:.0f} files and folders",
        flush=True,
    )
    return folder


def analysis_s(frame: pd.DataFrame) -> float:
    """How long its analysis takes."""
    started = time.monotonic()
    benchlib.analyze(frame, baseline=LEVELS[0])
    return time.monotonic() - started


def drawn(trials: int, count: int) -> pd.DataFrame:
    """So many trials on so many hosts."""
    blocks = np.repeat(np.arange(trials // len(LEVELS)), len(LEVELS))
    tps = 1000 * np.exp(np.random.default_rng(1).normal(0, 0.02, len(blocks)))
    levels = np.tile(LEVELS, trials // len(LEVELS))
    return pd.DataFrame({"block": blocks + 1, "level": levels, "host": blocks % count, "tps": tps})


def main() -> int:
    """Run it, and say what it cost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--blocks", type=int, default=5000)
    parser.add_argument("--be", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        worker._in_process = lambda call, send, *_: call(send)
        address, *names = options.be
        asyncio.run(work(address, names))
        return 0
    with tempfile.TemporaryDirectory(prefix="blscale", dir="/var/tmp") as name:
        root = Path(name)
        alone, three = wall_s(root, 1, 12), wall_s(root, 3, 12)
        print(
            f"12 blocks on 3 hosts take {three / alone:.2f} of what they take on one ({alone:.1f} s)",
            flush=True,
        )
        folder = large(root, options.workers, options.blocks)
        started = time.monotonic()
        frame = shown(folder).trials
        print(f"its {len(frame)} trials: read in {time.monotonic() - started:.1f} s, ", end="", flush=True)
        print(f"analysed in {analysis_s(frame):.1f} s", flush=True)
    million = drawn(1_000_000, 1000)
    print(f"a million trials on 1,000 hosts: analysed in {analysis_s(million):.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
