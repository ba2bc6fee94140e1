"""What a server tells of a trial: its counters before and after, its plans, what sessions wait for meanwhile, and how
often its disk can flush a write, which bounds the rate of durable commits.

Each view exists from some version on; what a version lacks, or what we may not see on a server
that is not ours, is null. What happened between two snapshots: :mod:`benchlib.server.counters`.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg

from benchlib.errors import ServerError
from benchlib.host.sampler import FILES, Files
from benchlib.host.shell import Shell, ticks
from benchlib.load.parse import parse_text
from benchlib.plan.workload import Workload, at_scale
from benchlib.server.changes import OURS
from benchlib.server.rights import RIGHTS
from benchlib.server.server import Server, asking, read_sql

_VIEWS = {
    "lsn": (10, "SELECT pg_current_wal_insert_lsn()::text"),
    "database": (10, "SELECT to_jsonb(s) FROM pg_stat_database AS s WHERE datname = current_database()"),
    "bgwriter": (10, "SELECT to_jsonb(s) FROM pg_stat_bgwriter AS s"),
    "wal": (14, "SELECT to_jsonb(s) FROM pg_stat_wal AS s"),
    "io": (16, "SELECT jsonb_agg(to_jsonb(s)) FROM pg_stat_io AS s"),
    "checkpointer": (17, "SELECT to_jsonb(s) FROM pg_stat_checkpointer AS s"),
    "block_size": (10, "SELECT current_setting('block_size')::int"),
    "database_bytes": (10, read_sql("database_bytes").format(ours=OURS)),
    "tables": (10, read_sql("tables").format(ours=OURS)),
}
_SHARED = ("bgwriter", "wal", "io", "checkpointer")
"""What ``pg_stat_reset_shared`` resets, as far as a version has it."""

BESIDE = "benchlib beside"
"""The application name of what runs beside the load."""

_WAITS = read_sql("waits").format(beside=BESIDE)
_REFUSED = (psycopg.ProgrammingError, psycopg.NotSupportedError, psycopg.errors.ObjectNotInPrerequisiteState)
"""What a view that we may not see raises; and, the last, a position in the WAL on a server that only follows."""
_READ = "SELECT name, pg_read_file('/proc/' || name, 0, 1000000, true) FROM unnest(%s::text[]) AS name"


def snapshot(server: Server) -> dict[str, Any]:
    """The counters of now: ``lsn``, and a row, or the rows, of each view.

    Raises:
        ServerError: the server is gone.

    """
    major = server.major
    _await_handover(server, major)
    return {name: _visible(server, sql) if major >= since else None for name, (since, sql) in _VIEWS.items()}


def growth(server: Server) -> float | None:
    """The rows of the table that has grown most, times those that ANALYZE last saw; null where there are none, or it is refused.

    Raises:
        ServerError: the server is gone.

    """
    times = _visible(server, read_sql("growth").format(ours=OURS))
    return None if times is None else float(times)


def _await_handover(server: Server, major: int) -> None:
    """Wait for the counts of a load that has ended: a session hands its own over when it ends, soon after the load tool.

    Before version 15 a process of its own collects them, and what it shows is up to half a second old.
    Who shares a server with others may see sessions that never end, and goes on after a while.
    """
    now = server.value("SELECT clock_timestamp()")
    for _ in ticks(5.0):
        if not server.query(_WAITS) and (
            major >= 15 or server.value("SELECT pg_stat_get_snapshot_timestamp()") >= now
        ):
            return


def end_beside(server: Server) -> bool:
    """End the sessions beside the load, whose last statements would outlive their clients; whether all have ended.

    Raises:
        ServerError: the server is gone.

    """
    ended = read_sql("end_beside").format(beside=BESIDE)
    return any(not server.query(ended) for _ in ticks(60.0))


def _visible(server: Server, sql: str) -> Any:
    """The value of a query; None where the server is there and refuses it, as managed ones do."""
    try:
        return server.value(sql)
    except ServerError as reason:
        if isinstance(reason.__cause__, _REFUSED):
            return None
        raise


def reset(server: Server) -> None:
    """Set the counters to zero, on a server of our own.

    Raises:
        ServerError: the server is gone.

    """
    major = server.major
    shared = [f"SELECT pg_stat_reset_shared('{name}')" for name in _SHARED if major >= _VIEWS[name][0]]
    server.execute("SELECT pg_stat_reset()", *shared)


@contextlib.contextmanager
def waits(server: Server) -> Iterator[Callable[[], dict[str, list[list[Any]]]]]:
    """What tells of the load's ``sessions`` now, by wait event type and wait event, how many; both null while on the CPU.

    Raises:
        ServerError: as :func:`_connected`.

    """
    with _connected(server) as ask:
        yield lambda: {"sessions": [list(row) for row in ask(_WAITS)]}


@contextlib.contextmanager
def kernel_files(server: Server) -> Iterator[Callable[[], Files]]:
    """What has the server read :data:`benchlib.host.sampler.FILES` of its host.

    Raises:
        ServerError: as :func:`_connected`, or the server does not read them for us.

    """
    with _connected(server, server.maintenance) as ask:
        if not server.query(RIGHTS, server.maintenance)[0]["may_read_files"]:
            raise ServerError("our role may not read files of the server's host")
        readable = []
        for name in FILES:
            with contextlib.suppress(ServerError):  # some kernels have the file and refuse to read it
                ask(_READ, [name])
                readable.append(name)
        yield lambda: dict(ask(_READ, readable))


@contextlib.contextmanager
def _connected(server: Server, dbname: str | None = None) -> Iterator[Callable[..., list[Any]]]:
    """What gives the rows of a query, over one connection that is made at once: the load may take all others.

    Raises:
        ServerError: the server cannot be reached or has no connection left; from what is given, that it is gone, or refuses.

    """
    with asking():
        connection = server.connect(dbname)

    def ask(query: str, *parameters: object) -> list[Any]:
        with asking():
            return connection.execute(query, parameters or None).fetchall()

    with contextlib.closing(connection):
        yield ask


def explained(server: Server, workload: Workload, scale: int) -> list[dict[str, Any]]:
    """Run what the workload has to ``explain``, one row each: ``statement`` and ``plan``, the server's own JSON.

    All runs in one transaction that is rolled back: no data change, though an explained update leaves
    dead rows for the next vacuum, and the statistics count what was read. Times are milliseconds.

    Raises:
        ServerError: the server refused a statement or went away; the message has its reason.

    """
    if not workload.explain:
        return []
    # which settings made a plan what it is, servers tell since 12
    options = "ANALYZE, BUFFERS, FORMAT JSON" + (", SETTINGS" if server.major >= 12 else "")
    rows = []
    with (
        asking("a plan cannot be had"),
        server.connect() as connection,
        connection.transaction(force_rollback=True),
    ):
        if workload.explain_after:
            connection.execute(at_scale(workload.explain_after, scale))
        for statement in (at_scale(sql, scale) for sql in workload.explain):
            # prepared, so that the server refuses a second statement behind the first
            plan = connection.execute(f"EXPLAIN ({options}) {statement}", prepare=True).fetchone()
            rows.append({"statement": statement, "plan": plan and plan[0][0]})
    return rows


def fsync_rates(shell: Shell, program: Path, folder: Path) -> dict[str, Any]:
    """What each way of flushing reaches in a folder of the shell's user; see ``pg_test_fsync`` in :mod:`benchlib.load.parse`.

    It takes about 18 s, and writes and removes a file of 16 MiB.
    Source: PostgreSQL documentation, "pg_test_fsync".

    Raises:
        ServerError: it could not write there.
        ParseError: it did not print what it should.

    """
    file = folder / "pg_test_fsync.out"
    try:
        done = shell.run([program, f"--filename={file}", "--secs-per-test=1"], timeout_s=110)
    finally:
        shell.remove(file)
    done.insist(ServerError, "pg_test_fsync failed")
    return parse_text(done.stdout, kind="pg_test_fsync")
