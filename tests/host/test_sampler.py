"""The sampler beside iostat and vmstat, and around real loads of several versions."""

import contextlib
import gzip
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import psycopg
import pytest

from benchlib.errors import PreflightError
from benchlib.host.counters import differences, io_differences
from benchlib.host.devices import block_devices
from benchlib.host.proc import TICKS_PER_S
from benchlib.host.sampler import TELEMETRY, Sampler
from benchlib.host.telemetry import summary, telemetry
from benchlib.load import pgbench
from benchlib.plan.model import Load, Script
from benchlib.server import statistics
from benchlib.server.checkpoints import checkpoints
from benchlib.server.cluster import Cluster
from benchlib.server.installations import default_installation, runnable_by
from benchlib.server.server import Server

pytestmark = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="no /proc here")

ENVIRONMENT = {**os.environ, "LC_ALL": "C", "S_TIME_FORMAT": "ISO"}


def no_servers() -> list[int]:
    return []


@contextlib.contextmanager
def traffic(folder: Path) -> Iterator[None]:
    """Writes that are synced, and reads past the page cache, in a steady stream."""
    over = threading.Event()

    def run() -> None:
        page = b"x" * 65536
        with (folder / "traffic").open("w+b", buffering=0) as file:
            while not over.is_set():
                os.pwrite(file.fileno(), page, 0)
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                os.pread(file.fileno(), 4096, 0)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


VERSIONS = [*(pytest.param(version, marks=pytest.mark.slow) for version in ("11", "13", "15")), "16", "18"]

TIMING = {"io_timing": 10, "wal_io_timing": 14}
"""What a server times if asked to, and since which version."""

Figures = dict[str, float]
DEVICE = {
    "r_iops": ("r/s", 1), "w_iops": ("w/s", 1), "f_iops": ("f/s", 1), "d_iops": ("d/s", 1),
    "r_mib_s": ("rkB/s", 1024), "w_mib_s": ("wkB/s", 1024), "d_mib_s": ("dkB/s", 1024),
    "r_await_ms": ("r_await", 1), "w_await_ms": ("w_await", 1), "f_await_ms": ("f_await", 1),
    "aqu_sz": ("aqu-sz", 1), "util_percent": ("util", 1),
}  # fmt: skip
HOST = {
    "cpu_user_percent": "us", "cpu_system_percent": "sy", "cpu_idle_percent": "id",
    "cpu_iowait_percent": "wa", "cpu_steal_percent": "st", "context_switches_per_s": "cs",
}  # fmt: skip


def same_as(
    argv: list[str],
    devices: list[str],
    told: Callable[[str], Figures],
    ours: Callable[[dict[str, Any]], Figures],
) -> bool:
    """Whether what a tool tells of one second is what was read.

    Nobody knows just when the tool reads, so we read every 20 ms, and some second must be the tool's. A burst
    of somebody else's that begins or ends there needs another try.
    """
    for _ in range(6):
        sampler = Sampler(servers=no_servers, devices=devices, interval_s=0.02)
        with sampler:
            printed = subprocess.run(argv, capture_output=True, text=True, check=True, env=ENVIRONMENT)
        theirs = told(printed.stdout)
        for a, b in product(sampler.raw["readings"], repeat=2):
            if abs(b["at_s"] - a["at_s"] - 1) < 0.02:
                found = ours({**sampler.raw, "readings": [a, b]})
                if all(found[name] == approximately(name, value) for name, value in theirs.items()):
                    return True
    return False


def approximately(name: str, value: float) -> Any:
    """Within 5 %, and what rounding and 20 ms at either end may do to a small figure."""
    return pytest.approx(value, rel=0.05, abs=1.5 if name.endswith(("iops", "percent", "_per_s")) else 0.05)


@pytest.mark.skipif(not shutil.which("iostat"), reason="iostat (sysstat) is not there")
def test_devices_as_iostat_sees_them(scratch: Path) -> None:
    devices = block_devices(scratch)[:1]
    if not devices:
        pytest.skip("the scratch folder is on no block device")
    seen: list[Figures] = []

    def told(printed: str) -> Figures:
        disk = json.loads(printed)["sysstat"]["hosts"][0]["statistics"][0]["disk"][0]
        seen.append(
            {name: disk[theirs] / scale for name, (theirs, scale) in DEVICE.items() if theirs in disk}
        )
        return seen[-1]

    def ours(raw: dict[str, Any]) -> Figures:
        # where there was no request, iostat shows a waiting time of 0
        return dict(telemetry(raw).mean_devices.fillna(0.0).iloc[0].items())

    with traffic(scratch):
        assert same_as(["iostat", "-xdy", "-o", "JSON", *devices, "1", "1"], devices, told, ours)
    assert seen[-1]["w_iops"] > 50


@pytest.mark.skipif(not shutil.which("vmstat"), reason="vmstat (procps) is not there")
def test_the_host_as_vmstat_sees_it() -> None:
    def told(printed: str) -> Figures:
        names, values = (line.split() for line in printed.splitlines()[-2:])
        seen = dict(zip(names, map(float, values), strict=True))
        return {name: seen[theirs] for name, theirs in HOST.items()}

    assert same_as(
        ["vmstat", "-y", "1", "1"], [], told, lambda raw: {n: v or 0.0 for n, v in summary(raw).items()}
    )


@dataclass
class Trial:
    """A load of two seconds on a running cluster, and all that was seen of it."""

    cluster: Cluster
    sampler: Sampler
    report: dict[str, Any]
    before: dict[str, Any]
    after: dict[str, Any]
    tool_cpu_s: float
    pid: int


@pytest.fixture
def trial_of(new_cluster: Callable[[str], Cluster], scratch: Path, tmp_path: Path) -> Callable[..., Trial]:
    """Runs a trial on a cluster of a version; the settings and the load may be given."""

    def run(version: str, settings: dict[str, Any] | None = None, **changes: Any) -> Trial:
        try:
            cluster = new_cluster(version)
        except PreflightError as reason:
            pytest.skip(f"PostgreSQL {version} has not been fetched: {reason}")
        cluster.configure({"autovacuum": False, "log_checkpoints": True, **(settings or {})})
        cluster.start()
        cluster.execute(f"CREATE DATABASE {cluster.database}", dbname="postgres")
        program = runnable_by(cluster.shell, default_installation(), scratch).program("pgbench")
        pgbench.initialise(cluster.shell, pgbench.init_argv(program, cluster.connection, 1, steps="dtgp"))
        plan = Load(**{"clients": 4, "threads": 1, "duration_s": 2, **changes})
        argv = pgbench.run_argv(program, cluster.connection, plan, [(Script(builtin="tpcb-like"), None)])
        cluster.checkpoint()
        statistics.reset(cluster)
        before = statistics.snapshot(cluster)
        devices = block_devices(cluster.data)
        with Sampler(servers=lambda: [cluster.pid or 0], devices=devices, server=cluster) as sampler:
            out, err = tmp_path / "stdout", tmp_path / "stderr"
            done = cluster.shell.run(argv, stdout=out, stderr=err, timeout_s=60)
            cluster.checkpoint()
        report = pgbench.summary(out.read_text(), err.read_text(), done.returncode, argv)
        return Trial(
            cluster, sampler, report, before, statistics.snapshot(cluster), done.cpu_s, cluster.pid or 0
        )

    return run


@pytest.mark.pg
@pytest.mark.parametrize("version", VERSIONS)
def test_a_trial(version: str, trial_of: Callable[..., Trial], tmp_path: Path) -> None:
    major = int(version)
    timed = version != "16"
    trial = trial_of(version, {f"track_{what}": timed for what, since in TIMING.items() if major >= since})
    raw, n = trial.sampler.raw, trial.report["transactions"]
    assert trial.sampler.warnings == []

    seen = telemetry(raw)
    assert seen.host["at_s"].is_monotonic_increasing
    assert (seen.host["server_cores"] > 0).all()
    assert seen.host["tool_cores"].iloc[0] > 0
    figures = {name: np.nan if v is None else v for name, v in told(trial).items()}
    shares = [figures[f"cpu_{name}_percent"] for name in ("user", "system", "iowait", "steal", "idle")]
    assert sum(shares) == pytest.approx(100)
    assert 0 < figures["server_cores"] < (os.cpu_count() or 1) * 1.05
    assert figures["server_cpu_ms_per_transaction"] > 0.1
    assert figures["tool_cpu_ms_per_transaction"] > 0.01
    assert figures["context_switches_per_transaction"] > 1
    if raw["readings"][0]["devices"]:
        assert figures["written_kib_per_transaction"] > 1

    assert 10 <= len(raw["waits"]) <= 10 * raw["readings"][-1]["at_s"]
    assert seen.waits.groupby("at_s")["n"].sum().max() == 4
    assert seen.mean_waits["sessions"].sum() <= 4 + 1e-9
    assert set(seen.waits["wait_event"]) & {"WALWrite", "WALSync", "WalSync", "transactionid", "ClientRead"}

    counted = differences(trial.before, trial.after)
    lacking = {name for name, value in counted.items() if value is None}
    if major < 14:
        assert lacking == {name for name in counted if name.startswith("wal_")} - {"wal_bytes"}
    else:
        assert lacking == (
            set() if timed else {"block_read_ms", "block_write_ms", "wal_write_ms", "wal_sync_ms"}
        )
    figures = {name: np.nan if v is None else v for name, v in counted.items()}
    assert figures["commits"] == pytest.approx(n, abs=60)  # our own few statements, and those of the sampler
    assert figures["rollbacks"] == 0
    assert figures["wal_bytes"] > 300 * n
    assert figures["checkpoints_requested"] == 1
    assert figures["buffers_by_checkpointer"] > 10
    assert figures["blocks_hit"] > 10 * n
    if major >= 14:
        assert 0 < figures["wal_syncs"] <= 1.1 * n + 10
        assert not timed or figures["wal_sync_ms"] > 0
        assert figures["wal_records"] > 5 * n
    rows = io_differences(trial.before, trial.after)
    assert bool(rows) == (major >= 16)
    if rows:
        frame = pd.DataFrame(rows).set_index(["backend_type", "object", "context"])
        assert frame.loc[("checkpointer", "relation", "normal"), "write_bytes"] > 10 * 8192
        assert frame.loc[("client backend", "relation", "normal"), "hits"] > 10 * n
        assert frame["write_ms"].isna().all() == (not timed)

    logged = checkpoints(trial.cluster.log_text(), raw["started"]["epoch_s"])
    during = logged[logged["start_s"] > 0]
    assert during["kind"].tolist() == ["requested"]
    # the log counts buffers of the SLRUs too, before 17
    assert during["buffers"].iloc[0] == pytest.approx(figures["buffers_by_checkpointer"], abs=20)
    assert during["end_s"].iloc[0] <= raw["readings"][-1]["at_s"] + 0.01

    trial.sampler.keep(tmp_path)
    assert json.loads(gzip.decompress((tmp_path / TELEMETRY).read_bytes())) == raw


def told(trial: Trial) -> dict[str, float | None]:
    return summary(trial.sampler.raw, transactions=trial.report["transactions"], tool_cpu_s=trial.tool_cpu_s)


@pytest.mark.pg
def test_sessions_that_come_and_go_are_not_lost(trial_of: Callable[..., Trial]) -> None:
    """The server's CPU time is that of the operating system's own sum, when all of it has ended."""
    trial = trial_of("18", clients=2, connect_per_transaction=True)
    sampled_s = (told(trial)["server_cores"] or 0) * trial.sampler.raw["readings"][-1]["at_s"]
    before = os.times()
    trial.cluster.stop()
    after = os.times()
    whole_s = sum(after[2:4]) - sum(before[2:4])  # of the server since its start
    started_s = trial.sampler.raw["readings"][0]["server_ticks"][str(trial.pid)] / TICKS_PER_S
    assert sampled_s > 0.3
    assert started_s + sampled_s == pytest.approx(whole_s, abs=0.3)


@pytest.mark.pg
def test_a_server_that_vanishes_is_said(new_cluster: Callable[[str], Cluster]) -> None:
    cluster = new_cluster("18")
    cluster.configure({})
    cluster.start()
    cluster.execute(f"CREATE DATABASE {cluster.database}", dbname="postgres")
    pid = cluster.pid or 0
    with Sampler(servers=lambda: [pid], server=cluster, interval_s=0.1, waits_hz=50) as sampler:
        time.sleep(0.3)
        cluster.stop(immediately=True)
        time.sleep(0.3)
    (warning,) = sampler.warnings
    assert warning.startswith("wait events were not sampled to the end: the server")
    assert telemetry(sampler.raw).host["server_cores"].isna().any()
    assert summary(sampler.raw)["server_cores"] is None


class Full(Server):
    """A server that has no connection left."""

    def connect(self, dbname: str | None = None) -> psycopg.Connection[Any]:
        raise psycopg.OperationalError("FATAL:  sorry, too many clients already")


def test_no_connection_left_costs_the_waits_alone() -> None:
    with Sampler(servers=no_servers, server=Full()) as sampler:
        pass
    assert sampler.warnings == [
        "wait events were not sampled: the server refused or went away: FATAL:  sorry, too many clients already"
    ]
    assert sampler.raw["waits"] is None
    assert len(sampler.raw["readings"]) == 2


def test_waits_that_nobody_wants_are_not_asked_for() -> None:
    with Sampler(servers=no_servers, server=Full(), waits_hz=0) as sampler:
        pass
    assert sampler.warnings == []
    assert telemetry(sampler.raw).waits.empty


def test_it_is_light() -> None:
    """Readings a second cost a few milliseconds, most of it for looking through the host's processes."""
    begun = time.process_time()
    with Sampler(servers=lambda: [os.getpid()], devices=["sda", "vda"], interval_s=0.05) as sampler:
        time.sleep(1)
    taken_s = time.process_time() - begun
    per_reading_ms = 1000 * taken_s / len(sampler.raw["readings"])
    assert per_reading_ms < 5 + 0.1 * len(psutil.pids())
