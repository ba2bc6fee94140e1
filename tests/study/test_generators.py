"""What several generators leave of one load, put together."""

import contextlib
import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fakes import pgbench_output

from benchlib.errors import HostBusyError, LoadError, ServerError
from benchlib.load.latency import SCHEMA, read_latency
from benchlib.load.pgbench import Pgbench
from benchlib.load.tool import Connection, Job
from benchlib.load.workloads import load_workload
from benchlib.plan.model import Generator, Load
from benchlib.study.at_host import UnwantedError, ended
from benchlib.study.generators import Generated, _raise_failure, _results, drive, put_together
from benchlib.study.store import TRANSACTION_LOG

TOOL = Pgbench(Path("pgbench"))


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
    schema = SCHEMA.with_metadata({b"benchlib": b'{"torn": 0}'})
    pq.write_table(pa.table(arrays, schema=schema), buffer)
    return buffer.getvalue()


def generated(host: str, *, offset_s: float = 0.0, late_s: float = 0.0, **changes: Any) -> Generated:
    did = {
        "host": host, "load_argv": ("pgbench", "--log"), "load_wall_s": 3.0, "load_cpu_s": 0.3, "began_s": 1_700_000_000 + late_s,
        "ended_s": 1_700_000_003 + late_s, "clock_offset_s": offset_s, "clock_error_s": 1e-4, "round_trip_s": 2e-4,
    }  # fmt: skip
    stdout, stderr = pgbench_output(tps=500)
    leaves = {"stdout": stdout, "stderr": stderr, "returncode": 0, "log": None}
    return Generated(**{"did": Generator(**{**did, **changes.pop("did", {})}), **leaves, **changes})


def together(folder: Path, *parts: Generated, **load: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    notes: dict[str, Any] = {"warnings": []}
    return put_together(parts, TOOL, Load(duration_s=3, **load), folder, notes), notes


def test_each_generators_output_is_kept_and_their_times_are_added(tmp_path: Path) -> None:
    report, notes = together(tmp_path, generated("gen1"), generated("gen2"))
    assert report["transactions"] == 3000
    assert (notes["load_cpu_s"], notes["load_returncode"], notes["warnings"]) == (0.6, 0, [])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "stderr.gen1",
        "stderr.gen2",
        "stdout.gen1",
        "stdout.gen2",
    ]


def test_quantiles_are_exactly_those_of_all_transactions_and_times_are_the_servers(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    one, other = random.integers(100, 9000, 2001), random.integers(5000, 90_000, 501)
    parts = [
        generated("gen1", log=log(one, 1_700_000_000)),
        generated("gen2", log=log(other, 1_600_000_000), offset_s=100_000_000.0),
    ]
    together(tmp_path, *parts, transaction_log=True)
    latency = read_latency(tmp_path / TRANSACTION_LOG)
    for name, share in {"p50": 0.5, "p99": 0.99, "p999": 0.999}.items():
        assert latency.quantiles_ms[name] == pytest.approx(
            np.quantile(np.concatenate([one, other]), share) / 1000
        )
    kept = pq.read_table(tmp_path / TRANSACTION_LOG)
    seconds = {time // 1_000_000 for time in kept["time_us"].to_pylist()}
    assert len(seconds) == 1, "all ended in the server's first second"
    assert sorted(set(kept["client"].to_pylist())) == [0, 1, 2, 3]


def test_a_call_that_failed_says_why_and_one_whose_worker_is_gone_has_its_block_run_again() -> None:
    assert ended(SimpleNamespace(status="pending")) is None
    for reason in (LoadError("no pgbench"), HostBusyError("another run")):
        assert ended(task(reason)) is reason
    assert isinstance(ended(SimpleNamespace(status="lost")), UnwantedError)
    _raise_failure({"gen1": SimpleNamespace(status="finished")})
    with pytest.raises(LoadError, match="the generator gen1 failed, so all were stopped: no pgbench"):
        _raise_failure({"gen1": task(LoadError("no pgbench"))})
    for passing in (RuntimeError("killed"), HostBusyError("another run"), UnwantedError("closing")):
        # a busy host may stay so for long: its block waits for it, and no attempt is counted
        kind = HostBusyError if isinstance(passing, HostBusyError) else UnwantedError
        with pytest.raises(kind, match=r"^gen1: "):
            _raise_failure({"gen1": task(passing)})


def task(reason: BaseException) -> SimpleNamespace:
    return SimpleNamespace(status="error", exception=lambda: reason)


class FakeHosts:
    """Hosts whose generators do as they are told; ``given`` is what they were to do, ``cancelled`` who was called off."""

    def __init__(self, **does: SimpleNamespace) -> None:
        self.does, self.cancelled, self.given = does, list[str](), dict[str, tuple[Load, int]]()

    def address(self, name: str) -> str:
        return f"{name}:1"

    def submit(self, name: str, address: str, call: Any) -> SimpleNamespace:
        job = call.args[1][2]
        self.given[name] = job.load, job.seed
        task = self.does[name]
        task.cancel = lambda: self.cancelled.append(name)
        return task


class FakeHolder(contextlib.AbstractContextManager["FakeHolder"]):
    """The connection that holds the barrier; all that were submitted wait for it."""

    def __init__(self, waiting: int) -> None:
        self.waiting, self.asked, self.during = waiting, list[str](), contextlib.ExitStack()
        self.during.callback(lambda: self.asked.append("sampled"))

    def execute(self, query: str, parameters: Any) -> SimpleNamespace:
        self.asked.append(query.split("(")[0])
        return SimpleNamespace(fetchall=lambda: [(self.waiting,)])

    def __exit__(self, *reason: object) -> None:
        self.asked.append("close")


def driven(
    tmp_path: Path, hosts: FakeHosts, watch: Any = lambda: None, limit_s: float = 9.0
) -> tuple[list[Any], FakeHolder]:
    """Have the generators of hosts drive a server that is none."""
    holder = FakeHolder(len(hosts.does))
    stand = SimpleNamespace(
        run=SimpleNamespace(folder=tmp_path), way=dict, server=SimpleNamespace(connect=lambda: holder)
    )
    load = Load(duration_s=3, clients=3, threads=2, generators=tuple(hosts.does))
    job = Job(Connection(), load_workload("tpcb-like"), load, scale=1, seed=7)
    return drive(hosts, stand, job, watch, holder.during, limit_s), holder  # type: ignore[arg-type]


def done(leaves: Any) -> SimpleNamespace:
    return SimpleNamespace(status="finished", done=lambda: True, result=lambda: leaves)


def test_generators_share_a_load_and_begin_when_all_wait_at_the_barrier(tmp_path: Path) -> None:
    hosts = FakeHosts(gen1=done("one"), gen2=done("two"))
    results, holder = driven(tmp_path, hosts)
    assert results == ["one", "two"]
    assert [load.clients for load, _ in hosts.given.values()] == [2, 1]
    assert len({seed for _, seed in hosts.given.values()}) == 2
    assert holder.asked[0] == "SELECT pg_advisory_lock"
    # nothing is sampled of their coming, nor of what they hand over
    ends = ["SELECT pg_advisory_unlock", "SELECT pg_try_advisory_lock", "sampled", "close"]
    assert holder.asked[-4:] == ends


def test_generators_that_do_not_end_are_stopped(tmp_path: Path) -> None:
    hosts = FakeHosts(gen1=SimpleNamespace(status="pending", done=lambda: False))
    with pytest.raises(LoadError, match="gen1 did not end within 0 s, so all were stopped"):
        driven(tmp_path, hosts, limit_s=0.0)
    assert hosts.cancelled == ["gen1"]


def test_a_generator_that_fails_ends_the_load_at_all(tmp_path: Path) -> None:
    running = SimpleNamespace(status="pending", done=lambda: False)
    fails = SimpleNamespace(status="pending", done=lambda: False, exception=lambda: LoadError("disk full"))

    def watch() -> None:  # while they run
        fails.status = "error"

    hosts = FakeHosts(gen1=running, gen2=fails)
    with pytest.raises(LoadError, match="the generator gen2 failed, so all were stopped: disk full"):
        driven(tmp_path, hosts, watch)
    assert hosts.cancelled == ["gen1", "gen2"]


def test_a_server_that_dies_under_a_load_from_elsewhere_ends_it(tmp_path: Path) -> None:
    def watch() -> None:
        raise ServerError("the server is gone")

    hosts = FakeHosts(gen1=SimpleNamespace(status="pending", done=lambda: False))
    with pytest.raises(ServerError, match="the server is gone"):
        driven(tmp_path, hosts, watch)
    assert hosts.cancelled == ["gen1"]


def test_generators_that_did_not_measure_together_are_no_trial(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="measured only 82 % of the time together"):
        together(tmp_path, generated("gen1"), generated("gen2", late_s=0.3))


def test_the_time_in_which_sessions_connect_is_not_measured_together(tmp_path: Path) -> None:
    stdout, stderr = pgbench_output(tps=500)
    assert "initial connection time = " in stdout
    slow = re.sub(r"initial connection time = [\d.]+ ms", "initial connection time = 200.000 ms", stdout)
    with pytest.raises(LoadError, match="measured only 93 % of the time together"):
        together(tmp_path, generated("gen1"), generated("gen2", stdout=slow, stderr=stderr))


def test_a_worker_that_goes_before_it_has_given_takes_the_block_with_it() -> None:
    def gone() -> None:
        raise RuntimeError("no valid worker")

    with pytest.raises(UnwantedError, match=r"a generator is gone \(RuntimeError\)"):
        _results({"gen1": SimpleNamespace(result=gone)})


def test_the_generator_that_failed_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"^the generator gen2: pgbench ended with status 1"):
        together(tmp_path, generated("gen1"), generated("gen2", returncode=1))


def test_a_reader_is_told_of_a_doubtful_clock_and_which_generator_was_the_bottleneck(tmp_path: Path) -> None:
    doubtful, busy = (
        generated("gen1", did={"clock_error_s": 0.05}),
        generated("gen2", did={"load_cpu_s": 5.7}),
    )
    _, notes = together(tmp_path, doubtful, busy)
    assert notes["warnings"] == [
        "the clock of gen1 is known to 50 ms only",
        "the generator gen2 used 95 % of its threads: it was the bottleneck",
    ]
