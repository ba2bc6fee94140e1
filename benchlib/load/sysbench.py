"""sysbench 1.0 for PostgreSQL.

Source: ``sysbench --help``, ``sysbench oltp_write_only help``.
"""

from pathlib import Path
from typing import Any, ClassVar

from benchlib.errors import PreflightError
from benchlib.host.shell import which
from benchlib.load.tool import Connection, Job, LoadTool
from benchlib.plan.model import Load
from benchlib.plan.workload import Workload

_SUPPORTED = {"clients", "threads", "protocol", "duration_s", "warmup_s", "rate", "waits_hz", "fsync_test"}
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
    """A test of sysbench."""

    name: ClassVar = "sysbench"
    kind: ClassVar = "sysbench"

    def refusal(self, load: Load) -> str | None:
        """Return the features that only pgbench has."""
        changed = load.model_dump(exclude_defaults=True).keys() - _SUPPORTED
        refused = [name for name in Load.model_fields if name in changed]
        refused += ["protocol 'extended'"] * (load.protocol == "extended")
        refused += ["a fractional rate"] * (isinstance(load.rate, float) and not load.rate.is_integer())
        return f"sysbench cannot do {', '.join(refused)}" if refused else None

    def fill_argv(self, connection: Connection, workload: Workload, scale: int) -> list[str]:
        """Return the command that fills the tables."""
        assert workload.sysbench is not None
        options = {"threads": min(4, workload.sysbench.tables)}
        return [*self._argv(connection, workload, scale, options), "prepare"]

    def argv(self, job: Job) -> list[str]:
        """Return the command, with progress each second."""
        load = job.load
        options = {
            "threads": load.clients,
            "time": load.duration_s,
            "events": 0,
            "rate": int(load.rate or 0),
            "db-ps-mode": "auto" if load.protocol == "prepared" else "disable",
            "rand-seed": job.seed,
            "report-interval": 1,
        }
        return [*self._argv(job.connection, job.workload, job.scale, options), "run"]

    def translated(self, parsed: dict[str, Any]) -> dict[str, Any]:
        """Return threads as clients, errors as retries."""
        return {
            "errors": parsed["error_lines"],
            "clients": parsed["threads"],
            # it retries after a deadlock or conflict; other errors end it
            "retried_transactions": parsed["errors"],
            "failed_transactions": 0,
        }

    def _argv(
        self, connection: Connection, workload: Workload, scale: int, more: dict[str, Any]
    ) -> list[str]:
        test = workload.sysbench
        assert test is not None
        options = {
            "db-driver": "pgsql",
            "pgsql-host": connection.host or "",
            "pgsql-port": connection.port or "",
            "pgsql-user": connection.user or "",
            "pgsql-db": connection.dbname,
            "tables": test.tables,
            "table-size": test.rows_per_scale * scale,
            "rand-type": "uniform",  # as with 0.5; the default of 1.0 prefers few rows
            **more,
        }
        return [str(self.program), test.test, *(f"--{name}={value}" for name, value in options.items())]
