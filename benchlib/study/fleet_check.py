"""What each host of a fleet can do, and what does not fit, before anything runs there."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

import benchlib
from benchlib.errors import BenchlibError
from benchlib.host import facts
from benchlib.host.guardian import scratch_root
from benchlib.levers.doctor import examine
from benchlib.plan.fleet import FleetHost
from benchlib.study.fleet import Hosts

_QUESTIONS = 20
_PAYLOAD = 4 << 20
_MOST_PEERS = 8
_MIN_FREE_MIB = 4096


def about() -> dict[str, Any]:
    """What this host is, in plain JSON types."""
    findings = examine(scratch_root())
    return {
        "benchlib": library(),
        "server": findings["defaults"]["server"],
        "load tool": findings["defaults"]["load_tool"],
        "servers run as": findings["defaults"]["servers_run_as"],
        "levers that do not work": [
            row["lever"] for row in findings["levers"] if row["works"] == "does not work"
        ],
        "free_mib": findings["free"]["scratch_mib"],
        "memory_mib": findings["free"]["memory_available_mib"],
        "processors": facts.processors(),
        "load": facts.load_average(),
        "run under way": findings["runs"]["under_way"],
        "identity": facts.identity(),
        "addresses": [one.address for each in psutil.net_if_addrs().values() for one in each],
    }


def library() -> str:
    """The library's version, with a short name for its code: hosts with another one would measure otherwise."""
    root = Path(benchlib.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return f"{benchlib.__version__} ({digest.hexdigest()[:8]})"


def check(hosts: Hosts) -> tuple[dict[str, dict[str, str]], list[str]]:
    """What each host says, as words by heading, and a line for each thing that does not fit.

    Round trips and throughput are those of the cluster's own connections, with their encryption. How far a clock is off this
    one's comes from the fastest of twenty questions, and may be wrong by half of its round trip.
    """
    answers = hosts.ask(hosts.all(), about)
    misfits = [f"{host}: {answer}" for host, answer in answers.items() if isinstance(answer, BenchlibError)]
    known = {host: answer for host, answer in answers.items() if not isinstance(answer, BenchlibError)}
    addresses, rows = hosts.addresses(), dict[str, dict[str, str]]()
    for host, answer in known.items():
        peers = {name: addresses[name] for name in known if name != host}
        rows[host] = {
            **{
                name: answer[name]
                for name in ("benchlib", "server", "load tool", "servers run as", "run under way")
            },
            "machine": f"{answer['processors']} processors, {answer['memory_mib']:,} MiB of memory available, "
            f"{answer['free_mib']:,} MiB of disk free, load {answer['load']:.1f}",
            "levers that do not work": ", ".join(answer["levers that do not work"]) or "none",
            "clock": _clock(hosts, addresses[host]),
            **_network(hosts, addresses[host], dict(list(peers.items())[:_MOST_PEERS])),
        }
        misfits += [f"{host}: {misfit}" for misfit in _misfits(hosts, host, answer, known)]
    return rows, misfits


def _misfits(
    hosts: Hosts, host: str, answer: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """What of a host does not fit, the driver's library and the first server being the measure."""
    here, (first, measure) = library(), next(iter(known.items()))
    address = hosts.fleet.hosts.get(host, FleetHost()).address
    twins = [name for name in known if name < host and known[name]["identity"] == answer["identity"]]
    cases = {
        f"runs benchlib {answer['benchlib']}, the driver {here}": answer["benchlib"] != here,
        f"its server is {answer['server']}, that of {first} {measure['server']}": answer["server"] != measure["server"],
        f"its load tool is {answer['load tool']}, that of {first} {measure['load tool']}":
            answer["load tool"] != measure["load tool"],
        f"a run is under way: {answer['run under way']}": answer["run under way"] != "none",
        f"only {answer['free_mib']:,} MiB of disk are free": answer["free_mib"] < _MIN_FREE_MIB,
        f"{address} is none of its own addresses": address is not None and address not in answer["addresses"],
        f"is the same machine as {', '.join(twins)}: they would measure each other": bool(twins),
    }  # fmt: skip
    return [misfit for misfit, holds in cases.items() if holds]


def _clock(hosts: Hosts, address: str) -> str:
    fastest, offset = min(_question(hosts, address) for _ in range(_QUESTIONS))
    return f"{1000 * offset:+.1f} ms from the driver's, give or take {500 * fastest:.1f} ms"


def _question(hosts: Hosts, address: str) -> tuple[float, float]:
    before = time.time()
    there = hosts.run_inside(address, time.time)
    after = time.time()
    return after - before, there - (before + after) / 2


def _network(hosts: Hosts, address: str, peers: Mapping[str, str]) -> dict[str, str]:
    readings = hosts.run_inside(address, _reach, peers=peers)
    return {
        f"to {name}": f"round trip {1000 * seconds:.2f} ms, {rate / 1e6:,.0f} MB/s"
        for name, (seconds, rate) in readings.items()
    }


async def _reach(dask_worker: Any, peers: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    """The fastest round trip to each of some workers in seconds, and bytes a second each way."""
    readings = {}
    for name, address in peers.items():
        peer = dask_worker.rpc(address)
        trips = []
        for payload in [b""] * _QUESTIONS + [bytes(_PAYLOAD)] * 2:
            before = time.perf_counter()
            await peer.echo(data=payload)
            trips.append(time.perf_counter() - before)
        readings[name] = min(trips[:_QUESTIONS]), 2 * _PAYLOAD / min(trips[_QUESTIONS:])
    return readings
