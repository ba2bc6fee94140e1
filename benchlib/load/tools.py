"""Which program is a workload's load tool: pgbench, pgbench's loading of its tables, or sysbench."""

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
    """The tool of that name; ``pgbench`` is the one that drives every server.

    Raises:
        PreflightError: it is not installed.

    """
    return _TOOLS[name](find_sysbench() if name == "sysbench" else pgbench)


def _reader(name: Tool) -> LoadTool:
    """The tool of that name for all but running it: its program need not be here."""
    return _TOOLS[name](Path(name))


def check(workload: Workload, load: Load) -> None:
    """Make sure that a workload's tool is here and can do what the load asks for.

    Raises:
        PreflightError: it is not, or it cannot; the message says what.

    """
    if workload.tool == "sysbench":
        find_sysbench()
    if refusal := _reader(workload.tool).refusal(load):
        raise PreflightError(f"workload '{workload.name}': {refusal}")


def read(tool: Tool, output: str, argv: Sequence[str] | None = None) -> dict[str, Any]:
    """What a tool of that name printed; see :meth:`benchlib.load.tool.LoadTool.read`."""
    return _reader(tool).read(output, argv)


def misfit(
    plan: Plan, trial: Trial, argv: Sequence[str], report: Mapping[str, Any] | None = None
) -> str | None:
    """How a trial's command line, and the report if there is one, differ from what the plan asks for; None if not at all.

    Connections and files are left alone, and what only one of the two tells: versions of benchlib differ in that.
    """
    level = trial.level
    load, workload = plan.level_load(level), plan.level_workload(level)
    tool = _reader(workload.tool)
    conditions = tool.conditions(load, workload, plan.scale) | {"seed": trial.seed}
    for name, value in conditions.items():
        if report and report[name] not in (None, value):
            return f"the report's {name} is {report[name]}, the plan says {value}"
    asked = tool.argv(Job(Connection(), workload, load, plan.scale, trial.seed))
    given = dict(map(_option, argv))
    for name, value in map(_option, asked):
        if not name.startswith("--pgsql-") and given.get(name, value) != value:
            return f"the load was given {name}={given[name]}, the plan says {value}"
    return None


def _option(word: str) -> tuple[str, str]:
    """An option's name and value; of a variable's definition the variable belongs to the name."""
    define = "--define=" if word.startswith("--define=") else ""
    name, _, value = word.removeprefix(define).partition("=")
    return define + name, value
