"""Which program is a workload's load tool: pgbench, pgbench's loading of its tables, or sysbench."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchlib.errors import PreflightError
from benchlib.load.pgbench import Pgbench, PgbenchInit
from benchlib.load.sysbench import Sysbench, find_sysbench
from benchlib.load.tool import LoadTool
from benchlib.plan.model import Load
from benchlib.plan.workload import Tool, Workload

_TOOLS: dict[Tool, type[LoadTool]] = {"pgbench": Pgbench, "pgbench-init": PgbenchInit, "sysbench": Sysbench}


def load_tool(name: Tool, pgbench: Path) -> LoadTool:
    """The tool of that name; ``pgbench`` is the one that drives every server.

    Raises:
        PreflightError: it is not installed.

    """
    return _TOOLS[name](find_sysbench() if name == "sysbench" else pgbench)


def check(workload: Workload, load: Load) -> None:
    """Make sure that a workload's tool is here and can do what the load asks for.

    Raises:
        PreflightError: it is not, or it cannot; the message says what.

    """
    if workload.tool == "sysbench":
        find_sysbench()
    if refusal := _TOOLS[workload.tool].refusal(load):
        raise PreflightError(f"workload '{workload.name}': {refusal}")


def read(tool: Tool, output: str, argv: Sequence[str] | None = None) -> dict[str, Any]:
    """What a tool of that name printed; see :meth:`benchlib.load.tool.LoadTool.read`."""
    return _TOOLS[tool].read(output, argv)
