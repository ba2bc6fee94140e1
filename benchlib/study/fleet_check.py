"""A check of a fleet's hosts before a run."""

import hashlib
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil

import benchlib
from benchlib.host import facts
from benchlib.host.guardian import scratch_root
from benchlib.levers.doctor import examine
from benchlib.plan.fleet import FleetHost
from benchlib.study.calls import clock_offset
from benchlib.study.fleet import Hosts

_COLUMNS = ("benchlib", "server", "installed", "load_tool", "rights", "servers_run_as", "under_way")
_MIN_FREE_MIB = 4096
_RUNS = {".py", ".sql", ".toml", ".ini"}
"""Files of the library that a trial depends on."""


def about() -> dict[str, Any]:
    """Return facts about this host, in JSON types."""
    findings = examine(scratch_root())
    interfaces = psutil.net_if_addrs().values()
    return {
        **findings["defaults"],
        **findings["free"],
        **findings["runs"],
        "installed": ", ".join(dict.fromkeys(row["version"] for row in findings["installations"])) or "none",
        "rights": "root's" if findings["privileges"]["root"] else "an ordinary user's",
        "benchlib": library(),
        "failing": [row["lever"] for row in findings["levers"] if row["works"] == "does not work"],
        "processors": facts.processors(),
        "load": facts.load_average(),
        "identity": facts.identity(),
        "addresses": [one.address for addresses in interfaces for one in addresses],
    }


def library() -> str:
    """Return benchlib's version with a hash of its code."""
    root = Path(benchlib.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*.*") if path.suffix in _RUNS):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return f"{benchlib.__version__} ({digest.hexdigest()[:8]})"


def check(hosts: Hosts) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Return hosts' facts and misfits; half the round trip bounds a clock's error."""
    known, misfits = hosts.ask(hosts.all(), about)
    addresses, rows = hosts.addresses(), dict[str, dict[str, str]]()
    for host, answer in known.items():
        if host not in addresses:
            misfits.append(f"{host}: its worker is gone")
            continue
        trip_s, ahead_s = clock_offset(partial(hosts.run_inside, addresses[host], time.time))
        rows[host] = {
            **{name.replace("_", " "): answer[name] for name in _COLUMNS},
            "machine": f"{answer['processors']} processors, {answer['memory_available_mib']:,} MiB of memory available, "
            f"{answer['scratch_mib']:,} MiB of disk free, load {answer['load']:.1f}",
            "levers that do not work": ", ".join(answer["failing"]) or "none",
            "clock": f"{1000 * ahead_s:+.1f} ms from the driver's, round trip {1000 * trip_s:.1f} ms",
        }
        misfits += [f"{host}: {misfit}" for misfit in _misfits(hosts, host, known)]
    return rows, misfits


def _misfits(hosts: Hosts, host: str, known: dict[str, dict[str, Any]]) -> list[str]:
    answer, here, (first, reference) = known[host], library(), next(iter(known.items()))
    address = hosts.fleet.hosts.get(host, FleetHost()).address
    same = ", ".join(name for name in known if name < host and known[name]["identity"] == answer["identity"])
    cases = [
        (answer["benchlib"] != here, f"runs benchlib {answer['benchlib']}, the driver {here}"),
        *(
            (answer[key] != reference[key], f"its {words} is {answer[key]}, that of {first} {reference[key]}")
            for key, words in (("server", "server"), ("load_tool", "load tool"))
        ),
        (answer["under_way"] != "none", f"a run is under way: {answer['under_way']}"),
        (answer["scratch_mib"] < _MIN_FREE_MIB, f"only {answer['scratch_mib']:,} MiB of disk are free"),
        (address not in (None, *answer["addresses"]), f"{address} is not an address of this host"),
        (same, f"is the same machine as {same}; they would disturb each other"),
    ]
    return [misfit for holds, misfit in cases if holds]
