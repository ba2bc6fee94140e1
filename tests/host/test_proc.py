"""What the kernel counts: on this machine beside other tools, and in a made-up /proc for what it has not."""

import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from benchlib.host.proc import TICKS_PER_S, cpu_ticks, host_counters, network_interfaces

needs_linux = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="no /proc here")

# takes CPU time itself and by two children, one after the other, of which each ends; then tells how much
BURNER = """
import os, sys, time

def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

for _ in range(2):
    if (child := os.fork()) == 0:
        burn(0.15)
        os._exit(0)
    os.waitpid(child, 0)
burn(0.1)
taken = os.times()
print(sum(taken[:4]), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def burner() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", BURNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


@needs_linux
def test_children_that_have_ended_count(burner: subprocess.Popen[str]) -> None:
    seen = [0]
    while burner.stdout and not seen[-1] >= 0.39 * TICKS_PER_S:
        seen.append(cpu_ticks([burner.pid], [])[0][str(burner.pid)])
        time.sleep(0.01)
    assert burner.stdout
    told_s = float(burner.stdout.readline())
    servers, tools = cpu_ticks([burner.pid], [])
    assert servers[str(burner.pid)] / TICKS_PER_S == pytest.approx(told_s, abs=0.03)
    assert told_s >= 0.4
    # each process is counted in whole ticks, so the moment of its end may take one away
    assert all(later >= earlier - 1 for earlier, later in pairwise(seen))
    assert tools == {}


@needs_linux
def test_a_load_tool_is_found_by_name_among_our_children(tmp_path: Path) -> None:
    tool = tmp_path / "pgbench"
    tool.symlink_to("/bin/sh")
    with subprocess.Popen([tool, "-c", "read x"], stdin=subprocess.PIPE) as process:
        servers, tools = cpu_ticks([], ["pgbench", "sysbench"])
        process.communicate(b"\n")
    assert servers == {}
    assert list(tools) == [str(process.pid)]
    assert cpu_ticks([], ["pgbench"]) == ({}, {})


@needs_linux
def test_a_server_that_is_not_there_is_left_out() -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    assert cpu_ticks([gone.pid], []) == ({}, {})


@needs_linux
def test_the_host_of_now() -> None:
    interfaces = network_interfaces()
    counters = host_counters([], interfaces)
    assert len(counters["cpu"]) == 8
    assert counters["context_switches"] > 0
    assert counters["dirty_kib"] >= 0
    assert set(counters["network"]) == set(interfaces)
    assert all(len(moved) == 2 for moved in counters["network"].values())


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_what_a_host_lacks_is_none(tmp_path: Path) -> None:
    counters = host_counters(["sda"], ["eth0"], root=tmp_path)
    assert counters == {
        "cpu": None,
        "context_switches": None,
        "dirty_kib": None,
        "writeback_kib": None,
        "pressure": {"cpu": {}, "io": {}, "memory": {}},
        "devices": {"sda": None},
        "network": {"eth0": None},
    }
    assert network_interfaces(root=tmp_path) == []
    assert cpu_ticks([1], ["pgbench"], root=tmp_path) == ({}, {})


def test_another_hosts_files(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/stat": "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5 0 0\nctxt 4711\n",
            "proc/meminfo": "MemTotal:       24684092 kB\nDirty:               64 kB\nWriteback:             0 kB\n",
            "proc/net/dev": "Inter-| Receive | Transmit\n face |bytes\n  eth0: 100 1 0 0 0 0 0 0 200 2 0 0 0 0 0 0\n",
            "proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=12\n",
            "sys/class/block/sda/stat": "   1    2   3    4   5   6   7   8    0   10   11\n",
            "sys/class/net/eth0/device/vendor": "",
            "sys/class/net/br0/address": "",
            "proc/17/stat": "17 (a (b) c) S 1 17 17 0 -1 4194560 4261 42445 0 0 5 6 70 80 20 0 1 0 26 17 49\n",
            "proc/18/stat": "18 (postgres) S 17 17 17 0 -1 4194560 4261 42445 0 0 1 1 0 0 20 0 1 0 26 17 49\n",
        },
    )
    counters = host_counters(["sda"], network_interfaces(root=tmp_path), root=tmp_path)
    assert counters["cpu"] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert counters["context_switches"] == 4711
    assert (counters["dirty_kib"], counters["writeback_kib"]) == (64, 0)
    assert counters["network"] == {"eth0": [100, 200]}
    assert counters["pressure"]["cpu"] == {"some": 12}
    assert counters["devices"]["sda"] == [1, 2, 3, 4, 5, 6, 7, 8, 0, 10, 11]
    assert cpu_ticks([17], [], root=tmp_path)[0] == {"17": 5 + 6 + 70 + 80 + 1 + 1}


def test_without_hardware_every_interface_but_loopback_counts(tmp_path: Path) -> None:
    write(tmp_path, {f"sys/class/net/{name}/address": "" for name in ("lo", "eth0")})
    assert network_interfaces(root=tmp_path) == ["eth0"]
