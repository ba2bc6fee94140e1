"""sysbench 1.0 for PostgreSQL; libpq adds passwords from the environment.

Source: ``sysbench --help``, ``sysbench oltp_write_only help``.
"""

from pathlib import Path
from typing import Any, ClassVar

from benchlib.errors import PreflightError
from benchlib.host.shell import which
from benchlib.load.tool import Connection, Job, LoadTool
from benchlib.plan.model import Load
from benchlib.plan.workload import Workload

_UNDERSTOOD = {"clients", "threads", "protocol", "duration_s", "warmup_s", "rate", "waits_hz", "fsync_test"}
"""Fields of a load that sysbench supports or may ignore."""


def find_sysbench() -> Path:
    """Return the path of sysbench.

    Raises:
        PreflightError: not installed.

    """
    if program := which("sysbench"):
        return program
    raise PreflightError("no sysbench found on the PATH: install the package sysbench (version 1.0)")


class Sysbench(LoadTool):
    """One of sysbench's tests, with a thread per client."""

    name: ClassVar = "sysbench"
    kind: ClassVar = "sysbench"

    def refusal(self, load: Load) -> str | None:
        """Return the requested features that only pgbench has."""
        refused = [
            name
            for name, field in Load.model_fields.items()
            if name not in _UNDERSTOOD and getattr(load, name) != field.default
        ]
        refused += ["protocol 'extended'"] * (load.protocol == "extended")
        refused += ["a fractional rate"] * (isinstance(load.rate, float) and not load.rate.is_integer())
        return f"sysbench cannot do {', '.join(refused)}" if refused else None

    def fill_argv(self, connection: Connection, workload: Workload, scale: int) -> list[str]:
        """Return the command that fills the tables, several in parallel."""
        assert workload.sysbench is not None
        threads = min(4, workload.sysbench.tables)
        return [*self._options(connection, workload, scale), f"--threads={threads}", "prepare"]

    def argv(self, job: Job) -> list[str]:
        """Return the command that runs the test, with progress each second."""
        load = job.load
        return [
            *self._options(job.connection, job.workload, job.scale),
            f"--threads={load.clients}",
            f"--time={load.duration_s}",
            "--events=0",
            f"--rate={int(load.rate or 0)}",
            f"--db-ps-mode={'auto' if load.protocol == 'prepared' else 'disable'}",
            f"--rand-seed={job.seed}",
            "--report-interval=1",
            "run",
        ]

    def translated(self, parsed: dict[str, Any]) -> dict[str, Any]:
        """Return clients (threads) and retries (ignored errors)."""
        return {
            "errors": parsed["error_lines"],
            "clients": parsed["threads"],
            # it retries after a deadlock or conflict; other errors end it
            "retried_transactions": parsed["errors"],
            "failed_transactions": 0,
        }

    def _options(self, connection: Connection, workload: Workload, scale: int) -> list[str]:
        test = workload.sysbench
        assert test is not None
        return [
            str(self.program),
            test.test,
            "--db-driver=pgsql",
            f"--pgsql-host={connection.host or ''}",
            f"--pgsql-port={connection.port or ''}",
            f"--pgsql-user={connection.user or ''}",
            f"--pgsql-db={connection.dbname}",
            f"--tables={test.tables}",
            f"--table-size={test.rows_per_scale * scale}",
            "--rand-type=uniform",  # as with 0.5; the default of 1.0 prefers few rows
        ]
