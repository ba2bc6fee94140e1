"""pgbench: driving a server, and loading pgbench's own tables as a measurement of its own.

Source of the options: PostgreSQL documentation, "pgbench". The newest pgbench drives
every server, so its spelling of options is the one used.
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
"""Parts of the loading time, and pgbench's own names for each: making the rows, vacuum, primary keys."""


class Pgbench(LoadTool):
    """pgbench's scripts, built in or given, on its tables or others."""

    name: ClassVar = "pgbench"
    kind: ClassVar = "pgbench_summary"

    def conditions(self, load: Load, workload: Workload, scale: int) -> dict[str, Any]:
        """The scale too, which of other tables than its own pgbench does not know."""
        return {
            "clients": load.clients,
            "threads": min(max(load.threads, len(load.generators)), load.clients),  # each generator has one
            "duration_s": load.duration_s,
            "query_mode": load.protocol,
            **({"scale": scale} if workload.pgbench_tables else {}),
        }

    def fill_argv(self, connection: Connection, workload: Workload, scale: int) -> list[str]:
        """The command line that makes pgbench's tables, for a workload on them."""
        return _init_argv(self.program, connection, workload, scale) if workload.pgbench_tables else []

    def argv(self, job: Job) -> list[str]:
        """Run the job's scripts, with a reading of the progress each second."""
        load, workload = job.load, job.workload
        # pgbench reads the scale from its own tables for built-in scripts; others must be told, if their data has one
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
            # pgbench takes what follows the last @ for a weight, also inside a path
            weight = f"@{script.weight}" if len(job.scripts) > 1 or "@" in str(path) else ""
            argv.append(f"--builtin={script.builtin}{weight}" if script.builtin else f"--file={path}{weight}")
        return [*argv, job.connection.dbname]


class PgbenchInit(LoadTool):
    """``pgbench --initialize``: each run drops and makes pgbench's tables anew, so none has to go before."""

    name: ClassVar = "pgbench --initialize"
    kind: ClassVar = "pgbench_init"
    warms: ClassVar = False

    def refusal(self, load: Load) -> str | None:
        """A quantile of latencies, and several who load the same tables."""
        if len(load.generators) > 1:
            return "one host loads the tables: name one in 'from'"
        why = "loading has no transactions, whose latencies the metric needs"
        return why if load.transaction_log else None

    def conditions(self, load: Load, workload: Workload, scale: int) -> dict[str, Any]:
        """The scale: there are no clients."""
        return {"scale": scale}

    def argv(self, job: Job) -> list[str]:
        """Make the tables of the workload."""
        return _init_argv(self.program, job.connection, job.workload, job.scale)

    def limit_s(self, load: Load) -> float:
        """The same as of filling."""
        return FILL_LIMIT_S

    def translated(self, parsed: dict[str, Any]) -> dict[str, Any]:
        """How long loading took, in all and in its parts, and its speed in rows per second."""
        rows, phases = parsed["rows"], parsed["phases_s"]
        seconds = phases["total"]
        parts = {
            part: next((phases[name] for name in names if name in phases), None)
            for part, names in LOADING.items()
        }
        return {"init_s": seconds, "speed": rows / seconds if rows and seconds else None, **parts}


def _init_argv(program: Path, connection: Connection, workload: Workload, scale: int) -> list[str]:
    """The command line that makes pgbench's tables: ``scale`` × 100,000 accounts, about 15 MB each."""
    fillfactor = workload.fillfactor if workload.fillfactor != 100 else None
    options = {"--scale": scale, "--fillfactor": fillfactor, "--quiet": True}
    return [str(program), "--initialize", *_options(connection, options), connection.dbname]


def _options(connection: Connection, values: Mapping[str, Any]) -> list[str]:
    """Long options: a flag for True, nothing for None and False, ``--name=value`` for the rest.

    They begin with where to connect to, the database's name aside: it comes last.
    """
    place = {"--host": connection.host, "--port": connection.port, "--username": connection.user}
    argv = []
    for name, value in {**place, **values}.items():
        if value is True:
            argv.append(name)
        elif value is not None and value is not False:
            argv.append(f"{name}={value:.15g}" if isinstance(value, float) else f"{name}={value}")
    return argv
