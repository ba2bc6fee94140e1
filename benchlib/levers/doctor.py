"""What this machine can run."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchlib.host import facts
from benchlib.host.guardian import scratch_root
from benchlib.host.lock import held_by
from benchlib.host.shell import server_user, which
from benchlib.levers import LEVERS
from benchlib.levers.lever import refusal
from benchlib.server.installations import find_installation, find_pgbench, installations


def examine(data: Path) -> dict[str, Any]:
    """Return facts and findings by section, in JSON types."""
    scratch, pgbench = scratch_root(), {True: "with pgbench", False: "no pgbench"}
    machine = facts.facts(scratch)
    return {
        "installations": [
            {"version": one.version, "builder": one.builder, "pgbench": pgbench[one.has_pgbench]}
            for one in installations()
        ],
        "defaults": {
            "server": _label(lambda: find_installation().label),
            "load_tool": _label(lambda: f"pgbench of {find_pgbench().label}"),
            "servers_run_as": _label(lambda: server_user() or f"user {os.geteuid()}"),
            "scratch_folder": str(scratch),
            "data_folder": str(data),
        },
        "privileges": {
            "root": os.geteuid() == 0,
            "can_write_scratch": os.access(facts.existing(scratch), os.W_OK),
        },
        "levers": _levers(scratch),
        "runs": {"under_way": held_by() or "none"},
        "machine": machine,
        "clock": {"resolution_ns": facts.timer_resolution_ns(), "source": machine["clock_source"]},
        "cpu_governor": {"governor": machine["governor"] or None},
        "free": {
            "scratch_mib": facts.free_mib(scratch),
            "data_mib": facts.free_mib(data),
            "memory_available_mib": facts.available_memory_mib(),
        },
        "remarks": [{"remark": remark} for remark in _remarks(machine)],
    }


def _levers(scratch: Path) -> list[dict[str, Any]]:
    rows = [
        {
            "lever": part.name,
            "works": "does not work" if part.why_not else "works",
            "why": part.why_not or part.note,
        }
        for lever in LEVERS
        for part in lever.survey(scratch)
    ]
    missing = None if which("sysbench") else "install the package sysbench"
    return [*rows, {"lever": "sysbench", "works": "not found" if missing else "found", "why": missing}]


def _remarks(machine: dict[str, Any]) -> list[str]:
    governor, load_average = machine["governor"], facts.load_average()
    remarks = {
        "a virtual machine may share its disk and CPUs with others: compare blocks, not single runs":
            machine["virtual"],
        f"the CPU governor is '{governor}': clock speed follows the load":
            governor not in (None, "performance"),
        "the scratch directory is in memory, so commits are too fast: set BENCHLIB_SCRATCH to a disk":
            machine["file_system"].get("type") in ("tmpfs", "ramfs"),
        f"other processes are running (load average {load_average:.1f})":
            load_average > 0.5 * facts.processors(),
    }  # fmt: skip
    return [remark for remark, holds in remarks.items() if holds]


def _label(find: Callable[[], str]) -> str:
    return refusal(find) or find()
