"""What the kernel counts, a sampler around a real load, and one with readers that fail."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import needs
import psutil
import pytest
from clusters import eventually

from benchlib.errors import ServerError
from benchlib.host.facts import block_devices
from benchlib.host.sampler import Sampler, host_counters, kernel_files, network_bytes, server_ticks
from benchlib.host.telemetry import sessions, transaction_costs
from benchlib.server.installations import find_installation
from benchlib.server.statistics import waits

# --- what the kernel counts ------------------------------------------------------------


def test_another_hosts_files_and_what_it_lacks(kernel):
    nothing = host_counters(kernel_files(), ["sda"])
    assert (nothing["cpu"], nothing["dirty_kib"], nothing["devices"]) == (None, None, {"sda": None})
    assert host_counters({})["devices"] == {}
    kernel("proc/stat", "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5 0 0\nctxt 4711\n")
    kernel("proc/meminfo", "MemTotal:  24684092 kB\nDirty:      64 kB\nWriteback:       0 kB\n")
    kernel("proc/pressure/io", "some avg10=0.00 avg60=0.00 avg300=0.00 total=12\n")
    names = ("sda", "sda1", "dm-0", "nvme0n1")
    kernel("proc/diskstats", "\n".join(f" 8 0 {name} 1 2 3 4 5 6 7 8 0 10 11" for name in names))
    assert list(host_counters(kernel_files())["devices"]) == ["sda", "nvme0n1"], "all disks"
    assert host_counters(kernel_files(), ["sda"]) == {
        "cpu": [1, 2, 3, 4, 5, 6, 7, 8],
        "context_switches": 4711,
        "dirty_kib": 64,
        "pressure": {"io": {"some": 12}},
        "devices": {"sda": [1, 2, 3, 4, 5, 6, 7, 8, 0, 10, 11]},
    }


def test_flushes_are_told_of_whole_disks_alone(kernel):
    row = " ".join(map(str, range(1, 18)))
    kernel("proc/diskstats", "\n".join(f" 8 0 {name} {row}" for name in ("sda", "sda1", "dm-0")))
    kernel("sys/class/block/sda1/partition", "1")
    kernel("sys/class/block/dm-0/slaves/sda1", "")
    told = host_counters(kernel_files(), ["sda", "sda1", "dm-0"])["devices"]
    assert {name: len(counts or ()) for name, counts in told.items()} == {"sda": 17, "sda1": 15, "dm-0": 15}


def test_the_network_counts_what_a_host_sends_to_itself_once(monkeypatch):
    moved = {"lo": (100, 100), "eth0": (20, 1000)}
    counted = {name: SimpleNamespace(bytes_sent=s, bytes_recv=r) for name, (s, r) in moved.items()}
    monkeypatch.setattr(psutil, "net_io_counters", lambda **_: counted)
    assert network_bytes() == 100 + 20 + 1000
    counted.clear()
    assert network_bytes() is None


# takes CPU time by itself and by two children, of which one ends; the two that can know tell how much
BURNER = """
import os, time
def burn():
    while time.process_time() < 0.15: pass
if not os.fork():
    os._exit(burn() or 0)
os.wait()
os.fork()
burn()
os.write(1, b"%f\\n" % sum(os.times()[:4]))
time.sleep(99)
"""


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="no /proc here")
def test_processes_that_have_ended_count():
    with subprocess.Popen([sys.executable, "-S", "-c", BURNER], stdout=subprocess.PIPE) as burner:
        assert burner.stdout
        taken_s = sum(float(burner.stdout.readline()) for _ in range(2))
        sampled = server_ticks([burner.pid])
        for process in (*psutil.Process(burner.pid).children(), burner):
            process.kill()
    assert sampled[str(burner.pid)] / os.sysconf("SC_CLK_TCK") == pytest.approx(taken_s, abs=0.1)
    assert server_ticks([burner.pid]) == {}


# --- what cannot be asked ----------------------------------------------------------------


def asking(*answers, reason):
    """Opens what gives these answers and then fails; without any it cannot be opened."""

    @contextlib.contextmanager
    def opened():
        left = [*answers]

        def sample():
            if not left:
                raise ServerError(reason)
            return left.pop(0)

        if not answers:
            raise ServerError(reason)
        yield sample

    return opened


def test_waits_that_cannot_be_asked_for_cost_their_own_samples_alone():
    failing = asking({"sessions": 1}, {"sessions": 0}, reason="the server went away")
    with Sampler(servers=list, waits=failing, waits_hz=100) as sampler:
        assert eventually(lambda: bool(sampler.warnings))
    assert sampler.warnings == ["wait events were not sampled to the end: the server went away"]
    assert [row["sessions"] for row in sampler.raw["waits"]] == [1, 0]
    assert sampler.raw["waits"][1]["at_s"] >= sampler.raw["waits"][0]["at_s"]
    with Sampler(servers=list, waits=asking(reason="too many clients already")) as sampler:
        pass
    assert sampler.warnings == ["wait events were not sampled: too many clients already"]
    assert sampler.raw["waits"] is None
    assert len(sampler.raw["readings"]) >= 2
    assert sessions(sampler.raw) == {}


def test_another_host_that_is_lost_costs_what_follows_and_one_that_is_closed_is_left_alone():
    files = [{"stat": f"ctxt {n}\n", "diskstats": " 8 0 sda 1 2 3 4 5 6 7 8 9\n"} for n in (2, 1, 0)]
    failing = asking(*files, reason="the server went away")
    with Sampler(servers=list, files=failing, interval_s=0.01) as sampler:
        assert eventually(lambda: bool(sampler.warnings))
    assert sampler.warnings == ["the host's counters were not sampled to the end: the server went away"]
    assert [reading["context_switches"] for reading in sampler.raw["readings"]] == [2, 1, 0]
    assert sampler.raw["of_target"] is True
    with Sampler(servers=list, files=asking(reason="our role may not")) as sampler:
        pass
    assert sampler.warnings == []
    assert "of_target" not in sampler.raw


# --- a real one --------------------------------------------------------------------------


OTHERS = (pytest.param(version, marks=pytest.mark.long) for version in ("11", "15", "16"))


@pytest.mark.parametrize("version", ["18", *OTHERS])
def test_a_trial_and_a_server_that_vanishes(version, new_cluster):
    needs.possible(find_installation, version)
    cluster = new_cluster(version)
    cluster.configure({"autovacuum": False, "fsync": True})
    cluster.start()
    cluster.execute(f"CREATE DATABASE {cluster.database}", dbname="postgres")
    cluster.checkpoint()
    devices, pid = block_devices(cluster.data), cluster.pid or 0
    with Sampler(servers=lambda: [pid], devices=devices, waits=lambda: waits(cluster)) as sampler:
        load = ("SET application_name TO load", "CREATE TABLE t AS SELECT generate_series(1, 100000)")
        cluster.execute(*load, "SELECT pg_sleep(2)")
        cluster.checkpoint()
    assert sampler.warnings == []
    raw = sampler.raw
    assert json.loads(json.dumps(raw)) == raw
    told = {name for name, cost in transaction_costs(raw, 1000).items() if cost is not None}
    assert told >= {"server_cpu_ms_per_transaction", "context_switches_per_transaction"}
    assert not devices or "written_kib_per_transaction" in told
    assert any("Timeout: PgSleep" in of for of in sessions(raw).values())
    with Sampler(servers=lambda: [pid], waits=lambda: waits(cluster), waits_hz=50) as sampler:
        cluster.stop(immediately=True)
        assert eventually(lambda: bool(sampler.warnings))
    assert sampler.warnings[0].startswith("wait events were not sampled to the end: the server")
    assert transaction_costs(sampler.raw, 1)["server_cpu_ms_per_transaction"] is None
