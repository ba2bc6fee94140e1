"""The sampler beside iostat, around a real load, and with readers that fail."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from benchlib.errors import PreflightError, ServerError
from benchlib.host.facts import block_devices
from benchlib.host.sampler import Files, Sampler, host_counters, kernel_files, network_bytes, server_ticks
from benchlib.host.shell import ticks
from benchlib.host.telemetry import sessions, telemetry, transaction_costs
from benchlib.load.pgbench import Pgbench
from benchlib.load.tool import Job
from benchlib.load.workloads import load_workload
from benchlib.plan.model import Load
from benchlib.server.checkpoints import checkpoints
from benchlib.server.cluster import Cluster
from benchlib.server.installations import Installation
from benchlib.server.statistics import waits

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def no_servers() -> list[int]:
    return []


# --- what the kernel counts ------------------------------------------------------------


def test_another_hosts_files_and_what_it_lacks(kernel_root: Path) -> None:
    nothing = host_counters(kernel_files(), ["sda"])
    assert (nothing["cpu"], nothing["dirty_kib"], nothing["devices"]) == (None, None, {"sda": None})
    assert host_counters({})["devices"] == {}
    files = {
        "proc/stat": "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5 0 0\nctxt 4711\n",
        "proc/meminfo": "MemTotal:       24684092 kB\nDirty:               64 kB\nWriteback:             0 kB\n",
        "proc/pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=12\n",
        "proc/diskstats": "   8  0 sda 1 2 3 4 5 6 7 8 0 10 11\n   8  1 sda1 1 1 1 1 1 1 1 1 0 1 1\n"
        " 253  0 dm-0 1 1 1 1 1 1 1 1 0 1 1\n 259  0 nvme0n1 1 1 1 1 1 1 1 1 0 1 1\n",
    }
    for name, text in files.items():
        (kernel_root / name).parent.mkdir(parents=True, exist_ok=True)
        (kernel_root / name).write_text(text)
    assert list(host_counters(kernel_files())["devices"]) == ["sda", "nvme0n1"], "all disks"
    assert host_counters(kernel_files(), ["sda"]) == {
        "cpu": [1, 2, 3, 4, 5, 6, 7, 8],
        "context_switches": 4711,
        "dirty_kib": 64,
        "pressure": {"io": {"some": 12}},
        "devices": {"sda": [1, 2, 3, 4, 5, 6, 7, 8, 0, 10, 11]},
    }


def test_flushes_are_told_of_whole_disks_alone(kernel_root: Path) -> None:
    row = " ".join(map(str, range(1, 18)))
    disks = [f" 8 {n} {name} {row}" for n, name in enumerate(("sda", "sda1", "dm-0"))]
    (kernel_root / "proc").mkdir(exist_ok=True)
    (kernel_root / "proc/diskstats").write_text("\n".join(disks))
    (kernel_root / "sys/class/block/sda1").mkdir(parents=True)
    (kernel_root / "sys/class/block/sda1/partition").write_text("1")
    (kernel_root / "sys/class/block/dm-0/slaves/sda1").mkdir(parents=True)
    told = host_counters(kernel_files(), ["sda", "sda1", "dm-0"])["devices"]
    assert {name: len(counts or ()) for name, counts in told.items()} == {"sda": 17, "sda1": 15, "dm-0": 15}


def test_the_network_counts_what_a_host_sends_to_itself_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = {
        "lo": SimpleNamespace(bytes_sent=100, bytes_recv=100),
        "eth0": SimpleNamespace(bytes_sent=20, bytes_recv=1000),
    }
    monkeypatch.setattr(psutil, "net_io_counters", lambda **_: counted)
    assert network_bytes() == 100 + 20 + 1000
    counted.clear()
    assert network_bytes() is None


# takes CPU time itself and by two children, of which one ends; then tells how much the two that can know took
BURNER = """
import os, sys, time

def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

if os.fork() == 0:
    burn(0.15)
    os._exit(0)
os.wait()
if os.fork() == 0:
    print(sum(os.times()[:4]), flush=True)
    time.sleep(99)
burn(0.1)
print(sum(os.times()[:4]), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="no /proc here")
def test_processes_that_have_ended_count() -> None:
    argv = [sys.executable, "-S", "-c", BURNER]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as burner:
        assert burner.stdout
        taken_s = sum(float(burner.stdout.readline()) for _ in range(2))
        sampled = server_ticks([burner.pid])
        for child in Path(f"/proc/{burner.pid}/task/{burner.pid}/children").read_text().split():
            os.kill(int(child), 9)
        burner.kill()
    assert sampled[str(burner.pid)] / TICKS_PER_S == pytest.approx(taken_s, abs=0.1)
    assert server_ticks([burner.pid]) == {}


# --- waits ---------------------------------------------------------------------------


def test_waits_that_cannot_be_asked_for_cost_their_own_samples_alone() -> None:
    closed, left = threading.Event(), [1, 0]

    @contextlib.contextmanager
    def failing() -> Iterator[Callable[[], dict[str, Any]]]:
        def sample() -> dict[str, Any]:
            if not left:
                raise ServerError("the server went away")
            return {"sessions": [[None, None, left.pop(0)]]}

        yield sample
        closed.set()

    @contextlib.contextmanager
    def refusing() -> Iterator[Callable[[], dict[str, Any]]]:
        raise ServerError("too many clients already")
        yield

    with Sampler(servers=no_servers, waits=failing, waits_hz=100) as sampler:
        assert closed.wait(30)
    assert sampler.warnings == ["wait events were not sampled to the end: the server went away"]
    assert [row["sessions"][0][2] for row in sampler.raw["waits"]] == [1, 0]
    assert sampler.raw["waits"][1]["at_s"] >= sampler.raw["waits"][0]["at_s"]
    with Sampler(servers=no_servers, waits=refusing) as sampler:
        pass
    assert sampler.warnings == ["wait events were not sampled: too many clients already"]
    assert sampler.raw["waits"] is None
    assert len(sampler.raw["readings"]) >= 2
    assert sessions(sampler.raw) == {}


def test_another_host_that_is_lost_costs_what_follows_and_one_that_is_closed_is_left_alone() -> None:
    left = [3, 2, 1, 0]

    @contextlib.contextmanager
    def failing() -> Iterator[Callable[[], Files]]:
        def read() -> Files:
            if not left.pop(0):
                raise ServerError("the server went away")
            return {"stat": f"ctxt {left[0]}\n", "diskstats": " 8 0 sda 1 2 3 4 5 6 7 8 9\n"}

        yield read

    @contextlib.contextmanager
    def closed() -> Iterator[Callable[[], Files]]:
        raise ServerError("our role may not")
        yield

    with Sampler(servers=no_servers, files=failing, interval_s=0.01) as sampler:
        assert any(sampler.warnings for _ in ticks(30))
    assert sampler.warnings == ["the host's counters were not sampled to the end: the server went away"]
    assert [reading["context_switches"] for reading in sampler.raw["readings"]] == [2, 1, 0]
    assert sampler.raw["of_target"] is True
    with Sampler(servers=no_servers, files=closed) as sampler:
        pass
    assert sampler.warnings == []
    assert "of_target" not in sampler.raw


# --- real ones ------------------------------------------------------------------------------


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


IOSTAT = {
    "r_iops": ("r/s", 1), "w_iops": ("w/s", 1), "f_iops": ("f/s", 1), "r_mib_s": ("rkB/s", 1024),
    "w_mib_s": ("wkB/s", 1024), "r_await_ms": ("r_await", 1), "w_await_ms": ("w_await", 1), "aqu_sz": ("aqu-sz", 1),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("iostat"), reason="iostat (sysstat) is not there")
def test_devices_as_iostat_sees_them(scratch: Path) -> None:
    """Nobody knows just when iostat reads, so we read every 20 ms, and some second must be its second.

    A burst of somebody else's that begins or ends there needs another try.
    """
    if not (devices := block_devices(scratch)[:1]):
        pytest.skip("the scratch folder is on no block device")
    argv = ["iostat", "-xdy", "-o", "JSON", *devices, "1", "1"]
    environment = {**os.environ, "LC_ALL": "C", "S_TIME_FORMAT": "ISO"}
    with traffic(scratch):
        for _ in range(20):
            with Sampler(servers=no_servers, devices=devices, interval_s=0.02) as sampler:
                shown = subprocess.run(argv, capture_output=True, text=True, check=True, env=environment)
            disk = json.loads(shown.stdout)["sysstat"]["hosts"][0]["statistics"][0]["disk"][0]
            theirs = {
                name: disk[column] / scale for name, (column, scale) in IOSTAT.items() if column in disk
            }
            for first, last in product(sampler.raw["readings"], repeat=2):
                if abs(last["at_s"] - first["at_s"] - 1) < 0.02:
                    raw = {**sampler.raw, "readings": [first, last]}
                    # where there was no request, iostat shows a waiting time of 0
                    ours = telemetry(raw).fillna(0.0).iloc[0]
                    if all(
                        ours[name]
                        == pytest.approx(value, rel=0.05, abs=1.5 if name.endswith("iops") else 0.05)
                        for name, value in theirs.items()
                    ):
                        return
    pytest.fail(f"no second is like iostat's, the last of which was {theirs}")


@pytest.mark.pg
@pytest.mark.parametrize(
    "version", ["18", *(pytest.param(v, marks=pytest.mark.long) for v in ("11", "15", "16"))]
)
def test_a_trial_and_a_server_that_vanishes(
    version: str,
    new_cluster: Callable[[str], Cluster],
    installed: Callable[[str | None], Installation],
    tmp_path: Path,
) -> None:
    try:
        cluster = new_cluster(version)
    except PreflightError as reason:
        pytest.skip(f"PostgreSQL {version} has not been fetched: {reason}")
    cluster.configure({"autovacuum": False, "log_checkpoints": True, "fsync": True})
    cluster.start()
    cluster.execute(f"CREATE DATABASE {cluster.database}", dbname="postgres")
    pgbench = Pgbench(installed(None).program("pgbench"))
    workload = load_workload("tpcb-like")
    pgbench.fill(cluster.shell, cluster.connection, workload, 1)
    load = Load(clients=4, threads=1, duration_s=2)
    argv = pgbench.argv(Job(cluster.connection, workload, load, 1, 7, [(workload.scripts[0], None)]))
    cluster.checkpoint()
    devices, pid = block_devices(cluster.data), cluster.pid or 0
    with Sampler(servers=lambda: [pid], devices=devices, waits=lambda: waits(cluster)) as sampler:
        out, err = tmp_path / "stdout", tmp_path / "stderr"
        done = cluster.shell.run(argv, stdout=out, stderr=err, timeout_s=600)
        cluster.checkpoint()
    assert sampler.warnings == []
    raw = sampler.raw
    transactions = pgbench.report(out.read_text(), err.read_text(), done.returncode, argv)["transactions"]

    frame, costs = telemetry(raw), transaction_costs(raw, transactions)
    assert frame["at_s"].is_monotonic_increasing
    assert frame["context_switches_per_s"].notna().all()
    assert costs["context_switches_per_transaction"] is not None
    assert not devices or costs["written_kib_per_transaction"] is not None
    assert raw["waits"]
    seen = sessions(raw).values()
    assert max(sum(of.values()) for of in seen) <= 4 + 1e-9
    assert any(seen), "sessions were seen"

    logged = checkpoints(cluster.log_text(), raw["started"]["epoch_s"])
    during = logged[logged["start_s"] > 0]
    assert during["kind"].tolist() == ["requested"]
    assert during["end_s"].iloc[0] <= raw["readings"][-1]["at_s"] + 0.01
    assert json.loads(json.dumps(raw)) == raw
    assert costs["server_cpu_ms_per_transaction"] is not None

    with Sampler(servers=lambda: [pid], waits=lambda: waits(cluster), waits_hz=50) as sampler:
        cluster.stop(immediately=True)
        assert any(sampler.warnings for _ in ticks(60))
    assert sampler.warnings[0].startswith("wait events were not sampled to the end: the server")
    assert transaction_costs(sampler.raw, 1)["server_cpu_ms_per_transaction"] is None
