"""Selects a workload's load tool."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchlib.errors import PreflightError
from benchlib.load.pgbench import Pgbench, PgbenchInit
from benchlib.load.sysbench import Sysbench, find_sysbench
from benchlib.load.tool import Connection, Job, LoadTool
from benchlib.plan.design import Trial
from benchlib.plan.model import Load, Plan
from benchlib.plan.workload import Tool, Workload

_TOOLS: dict[Tool, type[LoadTool]] = {"pgbench": Pgbench, "pgbench-init": PgbenchInit, "sysbench": Sysbench}


def load_tool(name: Tool, pgbench: Path) -> LoadTool:
    """Return a tool; ``pgbench`` is the same for all servers."""
    return _TOOLS[name](find_sysbench() if name == "sysbench" else pgbench)


def check(workload: Workload, load: Load) -> None:
    """Check that a workload's tool supports the load.

    Raises:
        PreflightError: not installed or not supported.
    """
    if refusal := load_tool(workload.tool, Path("pgbench")).refusal(load):
        raise PreflightError(f"workload '{workload.name}': {refusal}")


def read(tool: Tool, output: str, argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Parse a tool's output."""
    return _TOOLS[tool](Path(tool)).read(output, argv)


def misfit(
    plan: Plan, trial: Trial, argv: Sequence[str], report: Mapping[str, Any] | None = None
) -> str | None:
    """Return how a command line or report contradicts the plan."""
    level = trial.level
    load, workload = plan.level_load(level), plan.level_workload(level)
    tool = _TOOLS[workload.tool](Path(workload.tool))
    conditions = tool.conditions(load, workload, plan.scale) | {"seed": trial.seed}
    for name, value in conditions.items():
        if report and report[name] not in (None, value):
            return f"the report's {name} is {report[name]}, the plan says {value}"
    planned = tool.argv(Job(Connection(), workload, load, plan.scale, trial.seed))
    given = dict(map(_option, argv))
    for name, value in map(_option, planned):
        if not name.startswith("--pgsql-") and given.get(name, value) != value:
            return f"the load was given {name}={given[name]}, the plan says {value}"
    return None


def _option(word: str) -> tuple[str, str]:
    define = "--define=" if word.startswith("--define=") else ""
    name, _, value = word.removeprefix(define).partition("=")
    return define + name, value
