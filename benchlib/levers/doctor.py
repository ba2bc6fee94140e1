"""What this machine can run, said before anybody starts a study: ``benchlib doctor``."""

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
    """Facts and findings by section, in plain JSON types; what is not known is null.

    ``levers`` has a row for each key of a level, and for each part of one that may work in part:
    whether it works here for this user, and why not, or how far. Nothing is tried that would leave a trace.
    """
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
    """A row for each key of a level, for each part of those that may work in part, and for sysbench."""
    rows = [
        {"lever": of.name, "works": "does not work" if of.why_not else "works", "why": of.why_not or of.note}
        for lever in LEVERS
        for of in lever.survey(scratch)
    ]
    missing = None if which("sysbench") else "install the package sysbench"
    return [*rows, {"lever": "sysbench", "works": "not found" if missing else "found", "why": missing}]


def _remarks(machine: dict[str, Any]) -> list[str]:
    governor, load_average = machine["governor"], facts.load_average()
    remarks = {
        "a virtual machine: neighbours may share its disk and processors; trust blocks, not single runs":
            machine["virtual"],
        f"the CPU governor is '{governor}': clock speed follows the load":
            governor not in (None, "performance"),
        "the scratch folder is in memory: commits cost nothing there; name a disk in BENCHLIB_SCRATCH":
            machine["file_system"].get("type") in ("tmpfs", "ramfs"),
        f"something else is running here (load average {load_average:.1f})":
            load_average > 0.5 * facts.processors(),
    }  # fmt: skip
    return [remark for remark, holds in remarks.items() if holds]


def _label(find: Callable[[], str]) -> str:
    """What is found, or why nothing is."""
    return refusal(find) or find()
