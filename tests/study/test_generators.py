"""Merged results of several load generators."""

import contextlib
import io
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

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
from benchlib.study.calls import UnwantedError
from benchlib.study.generators import Generated, drive, merge_results
from benchlib.study.store import TRANSACTION_LOG

STDOUT, STDERR = pgbench_output(tps=500)


def log(latencies_us: np.ndarray, began_s: float) -> bytes:
    """A log as it is kept: two clients, a transaction each 100 µs."""
    n = len(latencies_us)
    columns = {
        "time_us": [int(began_s * 1e6) + 100 * i for i in range(n)], "latency_us": latencies_us,
        "client": [i % 2 for i in range(n)], "transaction": range(n), "script": [0] * n, "status": ["ok"] * n,
    }  # fmt: skip
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
    left = {"stdout": STDOUT, "stderr": STDERR, "log": None}
    return Generated(Generator(**did | changes), **left | dict(leaves))


def together(folder: Path, *parts: Generated, **load: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    notes: dict[str, Any] = {"warnings": []}
    return merge_results(parts, Pgbench(Path("pgbench")), Load(duration_s=3, **load), folder, notes), notes


def test_raw_output_of_each_generator_is_saved_and_cpu_times_are_added(tmp_path):
    report, notes = together(tmp_path, generated("gen1"), generated("gen2"))
    assert report["transactions"] == 3000
    assert (notes["load_cpu_s"], notes["load_returncode"], notes["warnings"]) == (0.6, 0, [])
    left = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert left == {f"stdout.gen{n}": STDOUT for n in (1, 2)} | {f"stderr.gen{n}": STDERR for n in (1, 2)}


def test_quantiles_are_of_all_transactions_in_the_servers_time(tmp_path):
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
        ({"leaves": {"stdout": ""}}, "the generator gen2: "),
    ],
    ids=["late", "slow to connect", "without a report"],
)  # fmt: skip
def test_generators_that_did_not_measure_together_fail_the_trial(tmp_path, changes, message):
    with ending((LoadError, message)):
        together(tmp_path, generated("gen1"), generated("gen2", **changes))


def test_an_inaccurate_clock_and_a_saturated_generator_are_warnings(tmp_path):
    parts = generated("gen1", clock_error_s=0.05), generated("gen2", load_cpu_s=5.7)
    clock, bottleneck = together(tmp_path, *parts)[1]["warnings"]
    assert "gen1 is accurate to 50 ms" in clock
    assert "gen2 used 95 %" in bottleneck


def task(status="finished", gives=None):
    """A task of that status, and its result or reason."""
    result = Mock(side_effect=[gives])  # an exception is raised
    return Mock(status=status, done=lambda: status == "finished", exception=lambda: gives, result=result)


def driven(folder, tasks, watch=lambda: None, limit_s=9.0):
    """What generators leave that drive a server which is none, what each was given, and what the server and the sampler were asked."""
    given, server, sampler = {}, MagicMock(), contextlib.ExitStack()
    server.__enter__.return_value = server
    server.execute.return_value.fetchall.return_value = [(len(tasks),)]  # all wait at the barrier
    sampler.callback(server.sampled)

    def submit(name, address, call):
        given[name] = call.args[1][2]
        return tasks[name]

    environment = Mock(way=dict, **{"run.folder": folder, "server.connect.return_value": server})
    load = Load(duration_s=3, clients=3, threads=2, generators=tuple(tasks))
    job = Job(Connection(), load_workload("tpcb-like"), load, scale=1, seed=7)
    results = drive(Mock(submit=submit), environment, job, watch, sampler, limit_s)
    asked = [call.args[0].split("(")[0] for call in server.mock_calls if call[0] == "execute"]
    return results, given, asked, [call[0] for call in server.mock_calls]


def test_generators_share_a_load_and_begin_when_all_wait_at_the_barrier(tmp_path):
    results, given, asked, calls = driven(tmp_path, {"gen1": task(gives="one"), "gen2": task(gives="two")})
    assert results == ["one", "two"]
    assert [job.load.clients for job in given.values()] == [2, 1]
    assert len({job.seed for job in given.values()}) == 2
    assert asked[0] == "SELECT pg_advisory_lock"
    assert asked[-2:] == ["SELECT pg_advisory_unlock", "SELECT pg_try_advisory_lock"]
    # nothing is sampled of what they hand over
    assert calls[-4:] == ["execute", "execute().fetchall", "sampled", "__exit__"]


@pytest.mark.parametrize(
    ("other", "options", "kind", "message"),
    [
        (task("error", LoadError("no pgbench")), {}, LoadError, "the generator gen2 failed, .*: no pgbench"),
        (task("pending"), {"limit_s": 0.0}, LoadError, "gen2 did not end within 0 s"),
        (task("pending"), {"watch": Mock(side_effect=ServerError("it is gone"))}, ServerError, "it is gone"),
        # the block waits for a busy host, and runs again if a worker is gone
        (task("error", HostBusyError("another run")), {}, HostBusyError, "gen2: another run"),
        (task("error", RuntimeError("killed")), {}, UnwantedError, r"gen2: its worker is gone \(RuntimeError\)"),
        (task(gives=RuntimeError("no worker")), {}, UnwantedError, r"a generator is gone \(RuntimeError\)"),
    ],
    ids=["failed", "late", "no server", "busy", "killed", "gone with its results"],
)  # fmt: skip
def test_a_failure_stops_all_generators(tmp_path, other, options, kind, message):
    tasks = {"gen1": task(), "gen2": other}
    with ending((kind, message)):
        driven(tmp_path, tasks, **options)
    assert all(each.cancel.called for each in tasks.values())
