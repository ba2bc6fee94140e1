"""The load tools: pgbench, loading pgbench's tables as a measurement of its own, and sysbench.

A workload names its tool. What differs between them is here; running one, with its output
kept verbatim, is the same for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchlib.errors import LoadError, PreflightError
from benchlib.host.shell import Shell
from benchlib.load import pgbench, sysbench
from benchlib.load.parse import parse_text
from benchlib.load.pgbench import Connection
from benchlib.plan.model import Load
from benchlib.plan.workload import Script, Tool, Workload

_KINDS: dict[Tool, str] = {
    "pgbench": "pgbench_summary",
    "pgbench-init": "pgbench_init",
    "sysbench": "sysbench",
}
_ABSENT = {
    **dict.fromkeys(
        ("transactions", "tps", "latency_average_ms", "latency_stddev_ms", "failed_transactions")
    ),
    **dict.fromkeys(("retried_transactions", "clients", "threads", "init_s")),
}
LOADING = {
    "init_rows_s": ("client_side_generate", "server_side_generate"),
    "init_vacuum_s": ("vacuum",),
    "init_keys_s": ("primary_keys",),
}
"""Parts of the loading time, and pgbench's own names for each: making the rows, vacuum, primary keys."""


@dataclass(frozen=True)
class Job:
    """One run of a load tool. ``scripts`` are the workload's, each with the file it was written to."""

    connection: Connection
    workload: Workload
    load: Load
    scale: int
    seed: int
    scripts: Sequence[tuple[Script, Path | None]] = ()
    duration_s: int | None = None
    log_prefix: Path | None = None


class LoadTool(Protocol):
    """What fills and drives a server."""

    @property
    def warms(self) -> bool:
        """Whether a shorter run goes before as a warm-up."""

    def fill(self, shell: Shell, connection: Connection, workload: Workload, scale: int) -> None:
        """Load the tables that the tool itself brings; LoadError if it fails."""

    def argv(self, job: Job) -> list[str]:
        """The command line of a job."""

    def limit_s(self, load: Load) -> float:
        """After how long a run is taken to hang: generous, but an end."""

    def report(self, stdout: str, stderr: str, returncode: int, argv: Sequence[str]) -> dict[str, Any]:
        """What a finished run reported, as :func:`read` gives it; LoadError or ParseError if it cannot be trusted."""


def load_tool(name: Tool, program: Path) -> LoadTool:
    """The tool of a workload; ``program`` is the pgbench that drives every server.

    Raises:
        PreflightError: it is not installed.

    """
    if name == "sysbench":
        return _Sysbench(sysbench.find_sysbench())
    return _Pgbench(program) if name == "pgbench" else _Loading(program)


def check(workload: Workload, load: Load) -> None:
    """Make sure that a workload's tool is here and can do what the load asks for.

    Raises:
        PreflightError: it is not, or it cannot; in words.

    """
    why = None
    if workload.tool == "sysbench":
        sysbench.find_sysbench()
        why = sysbench.why_not(load)
    elif workload.tool == "pgbench-init" and load.transaction_log:
        why = "loading has no transactions, whose latencies the metric needs"
    if why:
        raise PreflightError(f"workload '{workload.name}': {why}")


def read(tool: Tool, text: str, argv: Sequence[str] | None = None) -> dict[str, Any]:
    """What a tool printed, in pgbench's words, whichever it was; what it does not tell is None.

    Beside the tool's own keys (see :mod:`benchlib.load.parse`) there are always ``complete``, ``errors`` (lines),
    ``transactions``, ``failed_transactions``, ``retried_transactions``, ``tps``, ``speed``, ``latency_average_ms``,
    ``latency_stddev_ms``, ``clients``, ``threads``, ``init_s``, and the lists ``progress``, ``scripts`` and ``statements``;
    of loading also its parts, :data:`LOADING`.

    Raises:
        ParseError: the text cannot be trusted.

    """
    return _in_common(tool, parse_text(text, kind=_KINDS[tool], argv=list(argv) if argv else None))


def _in_common(tool: Tool, found: dict[str, Any]) -> dict[str, Any]:
    report = {**_ABSENT, "progress": [], "scripts": [], "statements": [], **found}
    report["speed"] = report["tps"]
    if tool == "pgbench-init":
        rows, seconds = found["rows"], found["phases_s"]["total"]
        report |= {"init_s": seconds, "speed": rows / seconds if rows and seconds else None}
        phases = found["phases_s"]
        for name, told in LOADING.items():
            report[name] = next((phases[phase] for phase in told if phase in phases), None)
    if tool == "sysbench":
        report |= {
            "errors": found["error_lines"],
            "clients": found["threads"],
            # it runs again what met a deadlock or a conflict; any other error ends it
            "retried_transactions": found["errors"],
            "failed_transactions": 0,
        }
    return report


@dataclass(frozen=True)
class _Pgbench:
    program: Path
    warms: bool = True

    def fill(self, shell: Shell, connection: Connection, workload: Workload, scale: int) -> None:
        if workload.pgbench_tables:
            pgbench.initialise(shell, _init_argv(self.program, connection, workload, scale))

    def argv(self, job: Job) -> list[str]:
        # pgbench reads the scale from its own tables for built-in scripts; others must be told
        own = any(script.sql is not None for script in job.workload.scripts)
        return pgbench.run_argv(
            self.program,
            job.connection,
            job.load,
            job.scripts,
            seed=job.seed,
            duration_s=job.duration_s,
            scale=job.scale if own and job.workload.pgbench_tables else None,
            log_prefix=job.log_prefix,
        )

    def limit_s(self, load: Load) -> float:
        return load.duration_s + 60 + 0.5 * load.clients

    def report(self, stdout: str, stderr: str, returncode: int, argv: Sequence[str]) -> dict[str, Any]:
        return _in_common("pgbench", pgbench.summary(stdout, stderr, returncode, argv))


@dataclass(frozen=True)
class _Loading:
    """Each run drops and makes pgbench's tables anew, so none has to go before."""

    program: Path
    warms: bool = False

    def fill(self, shell: Shell, connection: Connection, workload: Workload, scale: int) -> None:
        pass

    def argv(self, job: Job) -> list[str]:
        return _init_argv(self.program, job.connection, job.workload, job.scale)

    def limit_s(self, load: Load) -> float:
        return pgbench.INIT_LIMIT_S

    def report(self, stdout: str, stderr: str, returncode: int, argv: Sequence[str]) -> dict[str, Any]:
        report = read("pgbench-init", f"{stdout}\n{stderr}", argv) if returncode == 0 else {"complete": False}
        if not report["complete"]:
            raise LoadError(f"loading the data failed: {pgbench.reason(stderr)}")
        return report


@dataclass(frozen=True)
class _Sysbench:
    program: Path
    warms: bool = True

    def fill(self, shell: Shell, connection: Connection, workload: Workload, scale: int) -> None:
        assert workload.sysbench is not None
        argv = sysbench.prepare_argv(self.program, connection, workload.sysbench, scale)
        done = shell.run(argv, timeout_s=pgbench.INIT_LIMIT_S)
        if done.returncode != 0:
            raise LoadError(f"loading the data failed: {sysbench.reason(done.stdout, done.stderr)}")

    def argv(self, job: Job) -> list[str]:
        assert job.workload.sysbench is not None
        return sysbench.run_argv(
            self.program,
            job.connection,
            job.workload.sysbench,
            job.load,
            job.scale,
            seed=job.seed,
            duration_s=job.duration_s,
        )

    def limit_s(self, load: Load) -> float:
        # each client prepares four statements for each table before it begins
        return load.duration_s + 120 + 2 * load.clients

    def report(self, stdout: str, stderr: str, returncode: int, argv: Sequence[str]) -> dict[str, Any]:
        return _in_common("sysbench", sysbench.summary(stdout, stderr, returncode))


def _init_argv(program: Path, connection: Connection, workload: Workload, scale: int) -> list[str]:
    full = workload.fillfactor if workload.fillfactor != 100 else None
    return pgbench.init_argv(program, connection, scale, fillfactor=full)
