"""Distributed load: several hosts run the load tool against one server.

All start at one barrier, an advisory lock of the server. One failure stops all.
"""

import contextlib
import io
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchlib.errors import BenchlibError, LoadError
from benchlib.host import files
from benchlib.host.shell import Shell, ticks
from benchlib.levers.lever import Site
from benchlib.load.latency import client_logs, keep_log
from benchlib.load.shared import measured_from, merged, overlap, split
from benchlib.load.tool import Job, LoadTool
from benchlib.load.tools import load_tool
from benchlib.plan.model import Generator, Load
from benchlib.server.cluster import NetworkAccess
from benchlib.server.server import asking
from benchlib.server.templates import workshop
from benchlib.study.calls import CLOCK, UnwantedError, answer, clock_offset, failure
from benchlib.study.environment import Check, Environment, written
from benchlib.study.fleet import Hosts
from benchlib.study.remote_replicas import RemoteReplica
from benchlib.study.store import TRANSACTION_LOG

OVERLAP = 0.95
"""Share of the time in which all generators must measure together."""
CLOCK_ERROR = 0.01
"""Clock error, as a share of the trial, that causes a warning."""
BUSY = 0.9
"""CPU share of its threads above which a generator is the bottleneck."""
_READY_LIMIT_S = 120.0
_HANDED_LIMIT_S = 600.0
"""Time limit for converting and sending transaction logs."""
_ENDED = "SELECT pg_try_advisory_lock(%s)"
_WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"
During = contextlib.AbstractContextManager[object]


@dataclass(frozen=True)
class Generated:
    """The result of one generator that ended well, with its Parquet log."""

    did: Generator
    stdout: str
    stderr: str
    log: bytes | None


def generate(run_name: str, host: str, job: Job, barrier: int, client: Shell) -> Generated:
    """Run a share of a load on this host; ``client.environment`` is secret.

    Raises:
        BenchlibError: the host is busy, or the server or tool fails.

    """
    os.environ.update(client.environment)  # this process has no other task
    with workshop(f"load for a server of {run_name}", job.scale, environment=client.environment) as templates, asking(), psycopg.connect(
        dbname=job.connection.dbname, autocommit=True, application_name="benchlib",
        connect_timeout=10, keepalives_idle=10, tcp_user_timeout=30_000,
    ) as connection:  # fmt: skip

        def clock() -> float:
            return float(connection.execute(CLOCK).fetchall()[0][0])

        templates.abroad = connection.pgconn.ssl_in_use  # then pgbench must encrypt too
        run, shell = templates.run, templates.shell
        tool = load_tool(job.workload.tool, templates.pgbench())
        logs = shell.make_directory(run.folder / "log") if job.load.transaction_log else None
        scripts = written(job.workload, run.folder, shell)
        argv = tool.argv(replace(job, scripts=scripts, log_prefix=logs and logs / "log"))
        before = clock_offset(clock)
        connection.execute("SELECT pg_advisory_lock_shared(%s)", [barrier])
        began = time.time()
        done = shell.run(argv, timeout_s=tool.limit_s(job.load))
        if done.returncode:  # raises, which stops all generators
            tool.report(done.stdout, done.stderr, done.returncode, argv)
        ended = time.time()
        connection.execute("SELECT pg_advisory_unlock_shared(%s)", [barrier])  # signals the end
        # the better of two measurements; they differ if the clock was set meanwhile
        after = clock_offset(clock)
        round_trip, offset = min(before, after)
        argv = [Path(argv[0]).name, *argv[1:]]
        log = run.folder / TRANSACTION_LOG
        if logs:
            keep_log(client_logs(logs), log, argv, shell.uid)
        did = Generator(
            host=host, load_argv=tuple(argv), load_wall_s=done.wall_s, load_cpu_s=done.cpu_s,
            began_s=began + offset, ended_s=ended + offset, clock_offset_s=offset, round_trip_s=round_trip,
            clock_error_s=max(round_trip / 2, abs(before[1] - after[1])),
        )  # fmt: skip
        return Generated(did, done.stdout, done.stderr, log.read_bytes() if logs else None)


def reach(hosts: Hosts, load: Load, site: Site) -> None:
    """Make a stopped server listen to other hosts (PreflightError without addresses)."""
    if names := (*load.generators, *(site.level.part("replication").get("on") or ())):
        site.follower = partial(RemoteReplica, hosts)
        site.cluster.listen(NetworkAccess.at(hosts.reached_at(hosts.here), [*map(hosts.reached_at, names)]))


def drive(
    hosts: Hosts, environment: Environment, job: Job, watch: Check, during: During, limit_s: float
) -> list[Generated]:
    """Run a job on its generators; ``during`` covers only their common time.

    Raises:
        LoadError: one failed or exceeded ``limit_s``.
        StudyError: a worker is missing or gone.

    """
    shares = split(job.load, job.seed)
    addresses = {name: hosts.address(name) for name in shares}
    barrier = secrets.randbelow(2**31)  # a lock number for this load
    tasks, client = dict[str, Any](), Shell(None, environment.client_environment())
    with asking(), environment.server.connect() as holder:
        holder.execute("SELECT pg_advisory_lock(%s)", [barrier])

        def value(sql: LiteralString) -> Any:
            return holder.execute(sql, [barrier]).fetchall()[0][0]

        try:
            for name, (load, seed) in shares.items():
                share = replace(job, load=load, seed=seed)
                given = (environment.run.folder.name, name, share, barrier, client)
                tasks[name] = hosts.submit(name, addresses[name], partial(answer, generate, given))
            _await(tasks, "begin", watch, _READY_LIMIT_S, lambda: value(_WAITING) == len(tasks))
            with during:
                # grants the shared locks of all generators; each releases its own at its end
                holder.execute("SELECT pg_advisory_unlock(%s)", [barrier])
                _await(tasks, "end", watch, limit_s, lambda: value(_ENDED))
            _await(tasks, "end", watch, _HANDED_LIMIT_S, lambda: all(task.done() for task in tasks.values()))
            try:
                return [task.result() for task in tasks.values()]
            except Exception as reason:  # Dask raises many types
                raise UnwantedError(f"a generator is gone ({type(reason).__name__})") from reason
        finally:
            for task in tasks.values():
                task.cancel()


def _await(
    tasks: Mapping[str, Any], what: str, watch: Check, limit_s: float, over: Callable[[], bool]
) -> None:
    """Wait until ``over()``, else raise LoadError."""

    def check() -> None:
        for name, task in tasks.items():
            if reason := failure(name, task):
                raise LoadError(f"the generator {name} failed, so all were stopped: {reason}")

    for _ in ticks(limit_s, 0.2):
        check()
        watch()
        if over():
            return check()
    late = ", ".join(name for name, task in tasks.items() if not task.done())
    raise LoadError(f"{late or 'the generators'} did not {what} within {limit_s:.0f} s, so all were stopped")


def merge_results(
    generated: Sequence[Generated], tool: LoadTool, load: Load, folder: Path, notes: dict[str, Any]
) -> dict[str, Any]:
    """Merge all reports; save raw output in ``folder`` and timing in ``notes``.

    Raises:
        LoadError: one failed, or did not measure with the others.

    """
    reports = []
    for result in generated:
        files.write(folder / f"stdout.{result.did.host}", result.stdout)
        files.write(folder / f"stderr.{result.did.host}", result.stderr)
        try:
            reports.append(tool.report(result.stdout, result.stderr, 0, result.did.load_argv))
        except BenchlibError as reason:
            raise LoadError(f"the generator {result.did.host}: {reason}") from reason
    did = [result.did for result in generated]
    notes |= {
        "generators": tuple(did),
        "load_returncode": 0,
        "load_wall_s": max(one.load_wall_s for one in did),
        "load_cpu_s": sum(one.load_cpu_s for one in did),
    }
    begins = measured_from([one.began_s for one in did], reports)
    shared = overlap([(begin, one.ended_s) for begin, one in zip(begins, did, strict=True)])
    if shared < OVERLAP:
        raise LoadError(f"the generators measured only {100 * shared:.0f} % of the time together")
    warn = notes["warnings"].append
    for one, report in zip(did, reports, strict=True):
        if one.clock_error_s > CLOCK_ERROR * load.duration_s:
            warn(f"the clock of {one.host} is accurate to {1000 * one.clock_error_s:.0f} ms only")
        if report["threads"] and (share := one.load_cpu_s / (one.load_wall_s * report["threads"])) > BUSY:
            warn(f"the generator {one.host} used {100 * share:.0f} % of its threads: it was the bottleneck")
    if load.transaction_log:
        _keep_logs(generated, folder / TRANSACTION_LOG)
    return merged(reports, begins)


def _keep_logs(generated: Sequence[Generated], target: Path) -> None:
    """Merge logs: one clock, distinct client numbers."""
    tables, clients = [], 0
    for result in generated:
        table = pq.read_table(io.BytesIO(result.log or b""))
        for name, offset in (("time_us", round(1_000_000 * result.did.clock_offset_s)), ("client", clients)):
            index = table.schema.get_field_index(name)
            table = table.set_column(index, table.schema.field(name), pc.add(table[name], offset))
        clients = max(clients, (pc.max(table["client"]).as_py() or 0) + 1)
        tables.append(table)
    pq.write_table(pa.concat_tables(tables), target, compression="zstd")
