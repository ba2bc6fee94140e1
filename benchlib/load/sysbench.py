"""sysbench: its command lines for PostgreSQL, and what a finished run reported.

Source of the options: ``sysbench --help`` and ``sysbench oltp_write_only help`` of version 1.0. What is left
empty of the connection, libpq finds in the environment, where passwords are too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchlib.errors import LoadError, PreflightError
from benchlib.host.shell import which
from benchlib.load.parse import parse_text
from benchlib.load.pgbench import Connection
from benchlib.plan.model import Load
from benchlib.plan.workload import Sysbench

_PREPARING_THREADS = 4


def find_sysbench() -> Path:
    """Where sysbench is.

    Raises:
        PreflightError: it is not installed.

    """
    if found := which("sysbench"):
        return found
    raise PreflightError("no sysbench found on the PATH: install the package sysbench (version 1.0)")


def why_not(load: Load) -> str | None:
    """What a load asks for that sysbench cannot do; None where it can do all of it."""
    asked = {
        "a log of its transactions, which the metric needs": load.transaction_log,
        "the protocol 'extended'": load.protocol == "extended",
        "a rate that is no whole number": isinstance(load.rate, float) and not load.rate.is_integer(),
        "a latency limit": load.latency_limit_ms is not None,
        "a number of tries": load.max_tries is not None,
        "a connection for each transaction": load.connect_per_transaction,
        "a report per command": load.report_per_command,
        "variables": bool(load.variables),
    }
    wanting = [words for words, wanted in asked.items() if wanted]
    return f"sysbench has no such thing as {', '.join(wanting)}" if wanting else None


def prepare_argv(program: Path | str, connection: Connection, test: Sysbench, scale: int) -> list[str]:
    """The command line that makes and fills a test's tables, several at a time."""
    threads = min(_PREPARING_THREADS, test.tables)
    return [*_options(program, connection, test, scale), f"--threads={threads}", "prepare"]


def run_argv(
    program: Path | str,
    connection: Connection,
    test: Sysbench,
    load: Load,
    scale: int,
    *,
    seed: int,
    duration_s: int | None = None,
) -> list[str]:
    """The command line of one load, each client in a thread of its own. ``duration_s`` replaces the load's own."""
    return [
        *_options(program, connection, test, scale),
        f"--threads={load.clients}",
        f"--time={load.duration_s if duration_s is None else duration_s}",
        "--events=0",
        f"--rate={int(load.rate or 0)}",
        f"--db-ps-mode={'auto' if load.protocol == 'prepared' else 'disable'}",
        f"--rand-seed={seed}",
        "--report-interval=1",
        "run",
    ]


def _options(program: Path | str, connection: Connection, test: Sysbench, scale: int) -> list[str]:
    return [
        str(program),
        test.test,
        "--db-driver=pgsql",
        f"--pgsql-host={connection.host or ''}",
        f"--pgsql-port={connection.port or ''}",
        f"--pgsql-user={connection.user or ''}",
        f"--pgsql-db={connection.dbname}",
        f"--tables={test.tables}",
        f"--table-size={test.rows_per_scale * scale}",
    ]


def summary(stdout: str, stderr: str, returncode: int) -> dict[str, Any]:
    """What a finished load reported, as data, once it is certain that it can be trusted.

    Raises:
        LoadError: it failed, or did nothing.
        ParseError: the report is not one.

    """
    if returncode != 0:
        raise LoadError(f"sysbench {ending(returncode)}: {reason(stdout, stderr)}")
    report = parse_text(f"{stdout}\n{stderr}", kind="sysbench")
    if not report["complete"]:
        raise LoadError(f"sysbench did not run to its end: {reason(stdout, stderr)}")
    if not report["transactions"]:
        raise LoadError("sysbench finished without a single transaction")
    return report


def ending(returncode: int) -> str:
    """How a process ended, in words: sysbench crashes where its server goes away."""
    return f"ended with status {returncode}" if returncode > 0 else f"was ended by signal {-returncode}"


def reason(stdout: str, stderr: str) -> str:
    """The line that says why; 1.0 prints its errors among its output."""
    lines = [line.strip() for line in f"{stderr}\n{stdout}".splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("FATAL:", "ALERT:", "PANIC:"))]
    return (telling or lines[-1:] or ["it said nothing"])[0]
