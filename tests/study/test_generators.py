"""What several generators leave of one load, put together."""

import contextlib
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fakes import pgbench_output
from hosts import ending

from benchlib.errors import HostBusyError, LoadError, ServerError
from benchlib.load.latency import SCHEMA, read_latency
from benchlib.load.pgbench import Pgbench
from benchlib.load.tool import Connection, Job
from benchlib.load.workloads import load_workload
from benchlib.plan.model import Generator, Load
from benchlib.study.at_host import UnwantedError
from benchlib.study.generators import Generated, drive, put_together
from benchlib.study.store import TRANSACTION_LOG

STDOUT, STDERR = pgbench_output(tps=500)


def log(latencies_us: np.ndarray, began_s: float) -> bytes:
    """A log as it is kept: two clients, a transaction each 100 µs."""
    n = len(latencies_us)
    columns = {
        "time_us": [int(began_s * 1e6) + 100 * i for i in range(n)],
        "latency_us": latencies_us,
        "client": [i % 2 for i in range(n)],
        "transaction": list(range(n)),
        "script": [0] * n,
        "status": ["ok"] * n,
    }
    arrays = [pa.array(columns[f.name], f.type) if f.name in columns else pa.nulls(n, f.type) for f in SCHEMA]
    buffer = io.BytesIO()
    pq.write_table(pa.table(arrays, schema=SCHEMA.with_metadata({b"benchlib": b'{"torn": 0}'})), buffer)
    return buffer.getvalue()


def generated(host: str, late_s: float = 0.0, leaves: Any = (), **changes: Any) -> Generated:
    """What a generator leaves that began so late and did, or left, something else."""
    did = {
        "host": host, "load_argv": ("pgbench", "--log"), "load_wall_s": 3.0, "load_cpu_s": 0.3, "began_s": 1_700_000_000 + late_s,
        "ended_s": 1_700_000_003 + late_s, "clock_offset_s": 0.0, "clock_error_s": 1e-4, "round_trip_s": 2e-4,
    }  # fmt: skip
    left = {"stdout": STDOUT, "stderr": STDERR, "returncode": 0, "log": None}
    return Generated(Generator(**did | changes), **left | dict(leaves))


def together(folder: Path, *parts: Generated, **load: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    notes: dict[str, Any] = {"warnings": []}
    return put_together(parts, Pgbench(Path("pgbench")), Load(duration_s=3, **load), folder, notes), notes


def test_each_generators_output_is_kept_and_their_times_are_added(tmp_path):
    report, notes = together(tmp_path, generated("gen1"), generated("gen2"))
    assert report["transactions"] == 3000
    assert (notes["load_cpu_s"], notes["load_returncode"], notes["warnings"]) == (0.6, 0, [])
    left = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert left == {f"stdout.gen{n}": STDOUT for n in (1, 2)} | {f"stderr.gen{n}": STDERR for n in (1, 2)}


def test_quantiles_are_exactly_those_of_all_transactions_and_times_are_the_servers(tmp_path):
    random = np.random.default_rng(3)
    one, other = random.integers(100, 9000, 2001), random.integers(5000, 90_000, 501)
    parts = [
        generated("gen1", leaves={"log": log(one, 1_700_000_000)}),
        generated("gen2", leaves={"log": log(other, 1_600_000_000)}, clock_offset_s=100_000_000.0),
    ]
    together(tmp_path, *parts, transaction_log=True)
    quantiles, both = read_latency(tmp_path / TRANSACTION_LOG).quantiles_ms, np.concatenate([one, other])
    for name, share in {"p50": 0.5, "p99": 0.99, "p999": 0.999}.items():
        assert quantiles[name] == pytest.approx(np.quantile(both, share) / 1000)
    kept = pq.read_table(tmp_path / TRANSACTION_LOG)
    assert {time // 1_000_000 for time in kept["time_us"].to_pylist()} == {1_700_000_000}, "the server's"
    assert {*kept["client"].to_pylist()} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"late_s": 0.3}, "the generators measured only 82 % of the time together"),
        # the time in which sessions connect is not measured
        ({"leaves": {"stdout": STDOUT.replace("time = 4.567 ms", "time = 200.000 ms")}}, "the generators measured only 93 %"),
        ({"leaves": {"returncode": 1}}, "the generator gen2: pgbench ended with status 1"),
    ],
    ids=["late", "slow to connect", "failed"],
)  # fmt: skip
def test_what_was_not_measured_together_is_no_trial(tmp_path, changes, message):
    with ending((LoadError, message)):
        together(tmp_path, generated("gen1"), generated("gen2", **changes))


def test_a_reader_is_told_of_a_doubtful_clock_and_which_generator_was_the_bottleneck(tmp_path):
    parts = generated("gen1", clock_error_s=0.05), generated("gen2", load_cpu_s=5.7)
    clock, bottleneck = together(tmp_path, *parts)[1]["warnings"]
    assert "gen1 is known to 50 ms" in clock
    assert "gen2 used 95 %" in bottleneck


class FakeTask:
    """A task that waits, fails, or is over; ``later`` is its status once it has been looked at."""

    def __init__(self, status: str = "finished", gives: object = None, later: str = "") -> None:
        self.status, self.gives, self.later = status, gives, later
        self.cancelled = False

    def done(self) -> bool:
        return self.status == "finished"

    def exception(self) -> object:
        return self.gives

    def result(self) -> object:
        if isinstance(self.gives, Exception):
            raise self.gives
        return self.gives

    def cancel(self) -> None:
        self.cancelled = True


class FakeHolder(contextlib.AbstractContextManager["FakeHolder"]):
    """The connection that holds the barrier; all that were submitted wait for it."""

    def __init__(self, waiting: int) -> None:
        self.waiting, self.asked = waiting, list[str]()

    def execute(self, query: str, parameters: Any) -> SimpleNamespace:
        self.asked.append(query.split("(")[0])
        return SimpleNamespace(fetchall=lambda: [(self.waiting,)])

    def __exit__(self, *reason: object) -> None:
        self.asked.append("close")


class Driven:
    """Generators that drive a server that is none: what each was ``given``, what is left, and what the holder was ``asked``."""

    def __init__(self, tasks: dict[str, FakeTask], folder: Path, refuses: Exception | None = None) -> None:
        self.tasks, self.refuses, self.given = tasks, refuses, dict[str, tuple[Load, int]]()
        holder, sampler = FakeHolder(len(tasks)), contextlib.ExitStack()
        self.asked = holder.asked
        sampler.callback(self.asked.append, "sampled")
        run, server = SimpleNamespace(folder=folder), SimpleNamespace(connect=lambda: holder)
        stand: Any = SimpleNamespace(run=run, way=dict, server=server)
        load = Load(duration_s=3, clients=3, threads=2, generators=tuple(tasks))
        job = Job(Connection(), load_workload("tpcb-like"), load, scale=1, seed=7)
        late = any(task.later == "late" for task in tasks.values())
        self.results = drive(self, stand, job, self.watch, sampler, 0 if late else 9)  # type: ignore[arg-type]

    def address(self, name: str) -> str:
        return f"{name}:1"

    def submit(self, name: str, address: str, call: Any) -> FakeTask:
        job = call.args[1][2]
        self.given[name] = job.load, job.seed
        return self.tasks[name]

    def watch(self) -> None:
        if self.refuses:
            raise self.refuses
        for task in self.tasks.values():
            task.status = task.later or task.status


def test_generators_share_a_load_and_begin_when_all_wait_at_the_barrier(tmp_path):
    done = Driven({"gen1": FakeTask(gives="one"), "gen2": FakeTask(gives="two")}, tmp_path)
    assert done.results == ["one", "two"]
    assert [load.clients for load, _ in done.given.values()] == [2, 1]
    assert len({seed for _, seed in done.given.values()}) == 2
    assert done.asked[0] == "SELECT pg_advisory_lock"
    # nothing is sampled of their coming, nor of what they hand over
    ends = ["SELECT pg_advisory_unlock", "SELECT pg_try_advisory_lock", "sampled", "close"]
    assert done.asked[-4:] == ends


@pytest.mark.parametrize(
    ("task", "refuses", "kind", "message"),
    [
        (FakeTask("error", LoadError("no pgbench")), None, LoadError, "the generator gen2 failed, .*: no pgbench"),
        (FakeTask("pending", LoadError("disk full"), "error"), None, LoadError, "the generator gen2 failed, .*: disk full"),
        (FakeTask("pending", later="late"), None, LoadError, "gen2 did not end within 0 s"),
        (FakeTask("pending"), ServerError("the server is gone"), ServerError, "the server is gone"),
        # its block waits for a busy host, and runs again where a worker is gone
        (FakeTask("error", HostBusyError("another run")), None, HostBusyError, "gen2: another run"),
        (FakeTask("error", UnwantedError("closing")), None, UnwantedError, "gen2: closing"),
        (FakeTask("error", RuntimeError("killed")), None, UnwantedError, r"gen2: its worker is gone \(RuntimeError\)"),
        (FakeTask("lost"), None, UnwantedError, "gen2: its worker is gone"),
        (FakeTask("finished", RuntimeError("no valid worker")), None, UnwantedError, r"a generator is gone \(RuntimeError\)"),
    ],
    ids=["failed", "fails meanwhile", "late", "no server", "busy", "unwanted", "killed", "lost", "gone with its results"],
)  # fmt: skip
def test_one_that_fails_ends_the_load_at_all(tmp_path, task, refuses, kind, message):
    tasks = {"gen1": FakeTask(), "gen2": task}
    with ending((kind, message)):
        Driven(tasks, tmp_path, refuses)
    assert all(each.cancelled for each in tasks.values())
