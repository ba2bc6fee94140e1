"""A test bench without servers: it writes what pgbench 18 would have written, and fails when told to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchlib.plan.design import Trial
from benchlib.plan.model import Measurement, Plan
from benchlib.study.records import Counters, Samples
from benchlib.study.store import StudyFolder, checksum

Tps = Mapping[str, float] | Callable[[Trial], float]
WAL_PER_TRANSACTION = 512


def pgbench_output(
    *, tps: float, clients: int = 4, threads: int = 2, duration_s: int = 3, seed: int = 1
) -> tuple[str, str]:
    """stdout and stderr of a pgbench 18 run of that speed; every figure fits the others."""
    transactions = round(tps * duration_s)
    rate = transactions / duration_s
    latency = 1000 * clients / rate
    stdout = f"""\
pgbench (18.4)
transaction type: <builtin: TPC-B (sort of)>
scaling factor: 1
query mode: simple
number of clients: {clients}
number of threads: {threads}
maximum number of tries: 1
duration: {duration_s} s
number of transactions actually processed: {transactions}
number of failed transactions: 0 (0.000%)
latency average = {latency:.3f} ms
latency stddev = {latency / 2:.3f} ms
initial connection time = 4.567 ms
tps = {rate:.6f} (without initial connection time)
"""
    progress = "".join(
        f"progress: {second}.0 s, {rate:.1f} tps, lat {latency:.3f} ms stddev {latency / 2:.3f}, 0 failed\n"
        for second in range(1, duration_s + 1)
    )
    return stdout, f"pgbench: setting random seed to {seed}\n{progress}"


def counters(transactions: int, *, checkpoints: int = 1) -> dict[str, object]:
    """The server's counters before and after, as PostgreSQL 17 and later have them."""
    start = (1 << 32) - 4096  # so that the position passes from 0/… to 1/…
    end = start + WAL_PER_TRANSACTION * transactions

    def snapshot(position: int, timed: int) -> dict[str, object]:
        return {
            "lsn": f"{position >> 32:X}/{position & 0xFFFFFFFF:X}",
            "at": 1_700_000_000.0,
            "bgwriter": {"buffers_alloc": 13, "buffers_clean": 0},
            "checkpointer": {"num_timed": timed, "num_requested": 4},
        }

    return {"before": snapshot(start, 2), "after": snapshot(end, 2 + checkpoints)}


def telemetry(*, tps: float, duration_s: int = 3, clients: int = 4, seed: int = 1) -> dict[str, object]:
    """What the sampler keeps of a load of that speed: each commit writes 8 KiB and waits for its flush."""
    random = np.random.default_rng(seed)
    at = [0.0, *(second + 0.002 for second in range(1, duration_s + 1)), duration_s + 0.1]
    done = 0.0
    readings = []
    for before, at_s in pairwise([0.0, *at]):
        done += tps * (at_s - before) * random.uniform(0.8, 1.2)
        writes, cpu = round(done), round(100 * at_s)
        written = [writes, 0, 16 * writes, writes // 2]  # requests, merged, sectors, ms
        fields = [9, 0, 72, 3, *written, 0, round(900 * at_s), writes, 0, 0, 0, 0, writes, writes]
        readings.append(
            {
                "at_s": at_s,
                "cpu": [cpu // 2, 0, cpu // 4, cpu, cpu // 4, 0, 0, 0],
                "context_switches": 6 * writes,
                "dirty_kib": 20_000 + 10 * writes,
                "pressure": {"io": {"some": round(4e5 * at_s)}},
                "devices": {"sda": fields},
                "server_ticks": {"17": round(60 * at_s)},
            }
        )
    flushing = [int(n) for n in random.integers(clients // 2, clients + 1, 10 * duration_s)]
    waits = [
        {"at_s": 0.1 * i + 0.001, "sessions": [["IO", "WALSync", n], [None, None, 1], ["LWLock", "WALWrite", clients - n]]}
        for i, n in enumerate(flushing, 1)
    ]  # fmt: skip
    started = {"epoch_s": 1_700_000_000.0}
    return {"started": started, "interval_s": 1.0, "ticks_per_s": 100, "readings": readings, "waits": waits}


SERVER_LOG = """\
2023-11-14 22:13:18.900 UTC [17] LOG:  checkpoint starting: immediate force wait
2023-11-14 22:13:19.100 UTC [17] LOG:  checkpoint complete: wrote 3 buffers (0.0%), write=0.001 s, sync=0.001 s
2023-11-14 22:13:21.000 UTC [17] LOG:  checkpoint starting: wal
2023-11-14 22:13:22.500 UTC [17] LOG:  checkpoint complete: wrote 99 buffers (0.6%), write=1.401 s, sync=0.001 s
"""
"""What a server says whose load began at 22:13:20: one checkpoint before it, one inside it."""


def seal(folder: StudyFolder) -> None:
    """Have the checksums be those of what is there now: a test has exchanged raw files."""
    paths = (folder.path / "trials").glob("*/*")
    sums = {path.relative_to(folder.path).as_posix(): frozenset([checksum(path)]) for path in paths}
    folder.list_checksums(sums)


@dataclass(eq=False)
class FakeBench:
    """What the loop asks of :class:`benchlib.study.bench.Bench`, at a speed per level or per trial.

    ``failing`` are levels, or numbers of calls (from 1), with the words of a measurement's error;
    ``unready`` are levels that do not come to a load, with the reason; ``raising`` are numbers of calls with the exception that comes out of ``measure``; without ``instruments`` nothing
    is sampled. ``blocks``, ``measured``, ``opened`` and ``closed`` are what happened.
    """

    plan: Plan
    workspace: Path
    tps: Tps | None = None
    _: KW_ONLY
    failing: Mapping[str | int, str] | None = None
    error_kind: str = "ServerError"
    unready: Mapping[str, str] | None = None
    raising: Mapping[int, BaseException] | None = None
    instruments: bool = False
    measured: list[str] = field(default_factory=list, init=False)
    blocks: list[int] = field(default_factory=list, init=False)
    opened: int = field(default=0, init=False)
    closed: int = field(default=0, init=False)

    @contextlib.contextmanager
    def open(self, tell: Callable[[str], None]) -> Iterator[FakeBench]:
        self.opened += 1
        tell("building clusters")
        try:
            yield self
        finally:
            self.closed += 1

    def measure(self, trial: Trial, folder: Path) -> Measurement:
        self.measured.append(trial.id)
        if trial.block not in self.blocks:
            self.blocks.append(trial.block)
        call = len(self.measured)
        load, tps = self.plan.level_load(trial.level), 1000.0
        if self.tps:
            tps = self.tps(trial) if callable(self.tps) else self.tps[trial.level]
        shape = {"clients": load.clients, "duration_s": load.duration_s, "seed": trial.seed}
        stdout, stderr = pgbench_output(tps=tps, threads=min(load.threads, load.clients), **shape)
        failing, unready = self.failing or {}, (self.unready or {}).get(trial.level)
        if error := unready or failing.get(call) or failing.get(trial.level):
            stdout, stderr = "", f"{stderr}pgbench: error: {error}\n"
        (folder / "stdout").write_text(stdout)
        (folder / "stderr").write_text(stderr)
        if self.raising and call in self.raising:
            raise self.raising[call]
        if not error:
            Counters.model_validate(counters(round(tps * load.duration_s))).write(folder)
        if self.instruments and not error:
            Samples.model_validate(telemetry(tps=tps, **shape)).write(folder)
            (folder / "server.log").write_text(SERVER_LOG)
        started = 1_700_000_000.0 + 20 * call
        return Measurement(
            trial=trial,
            started_s=started,
            finished_s=started + load.duration_s + 1,
            load_argv=("pgbench", f"--client={load.clients}", f"--time={load.duration_s}", "bench"),
            load_returncode=None if unready else 1 if error else 0,
            load_wall_s=load.duration_s + 0.1,
            load_cpu_s=0.25,
            server_version=None if error else "18.4",
            error=error,
            error_kind=self.error_kind if error else None,
        )


def speeds(seed: int, noise: float = 0.003, **percent: float) -> Callable[[Trial], float]:
    """Speeds around 1,000 tps, by so much more at the levels that are named; noise as a fraction."""
    random = np.random.default_rng(seed)
    return lambda trial: 10 * (100 + percent.get(trial.level, 0)) * float(np.exp(random.normal(0, noise)))


class Outcome(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line of an error."""
        assert self.out == ""
        assert self.err.count("\n") == 1, self.err
        assert self.err.startswith("benchlib: ")
        return self.err.strip()
