"""pgbench.

Source: PostgreSQL documentation, "pgbench".
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from benchlib.load.tool import FILL_LIMIT_S, Connection, Job, LoadTool
from benchlib.plan.model import Load
from benchlib.plan.workload import Workload

LOADING = {
    "init_rows_s": ("client_side_generate", "server_side_generate"),
    "init_vacuum_s": ("vacuum",),
    "init_keys_s": ("primary_keys",),
}
"""Parts of the loading time, each with pgbench's names for it."""


class Pgbench(LoadTool):
    """pgbench with any scripts and tables."""

    name: ClassVar = "pgbench"
    kind: ClassVar = "pgbench_summary"

    def conditions(self, load: Load, workload: Workload, scale: int) -> dict[str, Any]:
        """Return the load, with the scale of pgbench's tables."""
        return {
            "clients": load.clients,
            "threads": min(max(load.threads, len(load.generators)), load.clients),  # each generator has one
            "duration_s": load.duration_s,
            "query_mode": load.protocol,
            **({"scale": scale} if workload.pgbench_tables else {}),
        }

    def fill_argv(self, connection: Connection, workload: Workload, scale: int) -> list[str]:
        """Return the command for pgbench's tables, if needed."""
        return _init_argv(self.program, connection, workload, scale) if workload.pgbench_tables else []

    def argv(self, job: Job) -> list[str]:
        """Return the command, with progress each second."""
        load, workload = job.load, job.workload
        # for built-in scripts pgbench reads the scale from its tables; other scripts need the option
        own_scripts = any(
            script.sql is not None
            and (workload.pgbench_tables or (workload.load_sql and ":scale" in script.sql))
            for script in workload.scripts
        )
        options = {
            "--client": load.clients,
            "--jobs": min(load.threads, load.clients),
            "--protocol": load.protocol,
            "--time": load.duration_s,
            "--no-vacuum": True,
            "--progress": 1,
            "--rate": load.rate,
            "--latency-limit": load.latency_limit_ms,
            "--max-tries": load.max_tries,
            "--connect": load.connect_per_transaction,
            "--report-per-command": load.report_per_command,
            "--random-seed": job.seed,
            "--scale": job.scale if own_scripts else None,
            "--log": job.log_prefix is not None,
            "--log-prefix": job.log_prefix,
        }
        argv = [str(self.program), *_options(job.connection, options)]
        argv += [f"--define={name}={value}" for name, value in load.variables.items()]
        for script, path in job.scripts:
            # pgbench reads a weight after the last @, also inside a path
            weight = f"@{script.weight}" if len(job.scripts) > 1 or "@" in str(path) else ""
            argv.append(f"--builtin={script.builtin}{weight}" if script.builtin else f"--file={path}{weight}")
        return [*argv, job.connection.dbname]


class PgbenchInit(LoadTool):
    """``pgbench --initialize``, without warm-up."""

    name: ClassVar = "pgbench --initialize"
    kind: ClassVar = "pgbench_init"
    warms: ClassVar = False

    def refusal(self, load: Load) -> str | None:
        """Refuse latencies and several generators."""
        if load.transaction_log:
            return "loading has no transactions, but the metric needs their latencies"
        return "only one host can load the tables: name one in 'from'" if load.generators[1:] else None

    def conditions(self, load: Load, workload: Workload, scale: int) -> dict[str, Any]:
        """Return the scale."""
        return {"scale": scale}

    def argv(self, job: Job) -> list[str]:
        """Return the command."""
        return _init_argv(self.program, job.connection, job.workload, job.scale)

    def limit_s(self, load: Load) -> float:
        """Return the limit for filling."""
        return FILL_LIMIT_S

    def translated(self, parsed: dict[str, Any]) -> dict[str, Any]:
        """Return loading times and rows per second."""
        rows, phases = parsed["rows"], parsed["phases_s"]
        seconds = phases["total"]
        parts = {
            part: next((phases[name] for name in names if name in phases), None)
            for part, names in LOADING.items()
        }
        return {"init_s": seconds, "speed": rows / seconds if rows and seconds else None, **parts}


def _init_argv(program: Path, connection: Connection, workload: Workload, scale: int) -> list[str]:
    """Return the command; a scale is about 15 MB."""
    fillfactor = workload.fillfactor if workload.fillfactor != 100 else None
    options = {"--scale": scale, "--fillfactor": fillfactor, "--quiet": True}
    return [str(program), "--initialize", *_options(connection, options), connection.dbname]


def _options(connection: Connection, values: Mapping[str, Any]) -> list[str]:
    """Return long options; None and False are left out."""
    options = {"--host": connection.host, "--port": connection.port, "--username": connection.user, **values}
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    texts = {
        name: f"{value:.15g}" if isinstance(value, float) else f"{value}" for name, value in given.items()
    }
    return [name if given[name] is True else f"{name}={text}" for name, text in texts.items()]
