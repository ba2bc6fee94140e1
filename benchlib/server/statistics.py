"""A server's statistics: counters, plans, wait events and flush rates.

A view that the version lacks, or that the role may not read, is null.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg

from benchlib.errors import ServerError, StudyError
from benchlib.host.sampler import FILES, Files, Sample
from benchlib.host.shell import Shell, ticks
from benchlib.load.parse import parse_text
from benchlib.plan.model import SampleQuery
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
"""Arguments of ``pg_stat_reset_shared``."""

BESIDE = "benchlib beside"
"""The application name of background load."""

IN_PLACE = "benchlib load"
"""The application name of a load on a database in use."""

END_LOAD = read_sql("end_load")
_WAITS = read_sql("waits").format(beside=BESIDE, load=IN_PLACE)
_REFUSED = (psycopg.ProgrammingError, psycopg.NotSupportedError, psycopg.errors.ObjectNotInPrerequisiteState)
"""Errors of a view that the role may not read; the last: a WAL position on a standby."""
_READ = "SELECT name, pg_read_file('/proc/' || name, 0, 1000000, true) FROM unnest(%s::text[]) AS name"


def snapshot(server: Server) -> dict[str, Any]:
    """Return the current counters by view.

    On a database in use they count its own traffic, so all but the sizes are null.
    """
    if server.in_place:
        sizes = {name: _visible(server, _VIEWS[name][1]) for name in ("block_size", "database_bytes")}
        return {**dict.fromkeys(_VIEWS), **sizes}
    major = server.major
    _await_handover(server, major)
    return {name: _visible(server, sql) if major >= first else None for name, (first, sql) in _VIEWS.items()}


def growth(server: Server) -> float | None:
    """Return the largest ratio of rows now to rows at the last ANALYZE."""
    ratio = None if server.in_place else _visible(server, read_sql("growth").format(ours=OURS))
    return None if ratio is None else float(ratio)


def _await_handover(server: Server, major: int) -> None:
    # the counts of ended sessions appear late, before version 15 by up to 0.5 s
    now = server.value("SELECT clock_timestamp()")
    for _ in ticks(5.0):
        if not server.query(_WAITS, as_load=True) and (
            major >= 15 or server.value("SELECT pg_stat_get_snapshot_timestamp()") >= now
        ):
            return


def end_load(server: Server, name: str) -> bool:
    """End the load's sessions of this name; return whether all ended."""
    return any(not server.query(END_LOAD.format(name=name), as_load=True) for _ in ticks(60.0))


def _visible(server: Server, sql: str) -> Any:
    """Return a value; None if refused."""
    try:
        return server.value(sql)
    except ServerError as reason:
        if isinstance(reason.__cause__, _REFUSED):
            return None
        raise


def reset(server: Server) -> None:
    """Set the counters of an embedded cluster to zero."""
    major = server.major
    shared = [f"SELECT pg_stat_reset_shared('{name}')" for name in _SHARED if major >= _VIEWS[name][0]]
    server.execute("SELECT pg_stat_reset()", *shared)


@contextlib.contextmanager
def waits(server: Server) -> Iterator[Callable[[], dict[str, list[list[Any]]]]]:
    """Yield a function that counts the load's ``sessions`` by wait event (null: CPU)."""
    with _connected(server, as_load=True) as ask:
        yield lambda: {"sessions": [list(row) for row in ask(_WAITS)]}


@contextlib.contextmanager
def sampled(server: Server, samples: Mapping[str, SampleQuery]) -> Iterator[Callable[[], Sample]]:
    """Yield a function that runs the plan's sample queries; ``values`` by ``name.column``.

    Raises:
        StudyError: a query fails, or does not return one row of numbers.
        ServerError: the server is gone.

    """
    with asking():
        connection = server.connect(as_load=True)

    def ask(name: str, sql: str) -> dict[str, float | None]:
        with asking(f"sample '{name}'"):
            cursor = connection.execute(sql.encode())
            columns = [one.name for one in cursor.description or ()]
            rows = cursor.fetchall() if columns else []
        if len(rows) != 1 or len({*columns}) < len(columns):
            raise StudyError(
                f"sample '{name}': want one row of columns with different names, got {len(rows)} rows"
            )
        for column, value in zip(columns, rows[0], strict=True):
            if value is not None and not isinstance(value, int | float | Decimal):
                raise StudyError(f"sample '{name}': column {column} is {value!r}, want a number")
        values = zip(columns, rows[0], strict=True)
        return {f"{name}.{column}": None if value is None else float(value) for column, value in values}

    def ask_all() -> Sample:
        values: dict[str, float | None] = {}
        for name, sample in samples.items():
            values |= ask(name, sample.sql)
        return {"values": values}

    with contextlib.closing(connection):
        with asking():
            connection.execute("SET default_transaction_read_only = on")
            connection.execute("SET statement_timeout = '5s'")
        try:
            ask_all()
        except ServerError as reason:
            if isinstance(reason.__cause__, psycopg.OperationalError):
                raise
            raise StudyError(f"{reason}: correct the query in 'samples'") from reason
        yield ask_all


@contextlib.contextmanager
def kernel_files(server: Server) -> Iterator[Callable[[], Files]]:
    """Yield a function that reads :data:`.sampler.FILES` through the server.

    Raises:
        ServerError: the server is gone, or the role may not read files.

    """
    with _connected(server, server.maintenance) as ask:
        if not server.query(RIGHTS, server.maintenance)[0]["may_read_files"]:
            raise ServerError("the role may not read files of the server's host")
        readable = []
        for name in FILES:
            with contextlib.suppress(ServerError):  # some kernels refuse to read a file
                ask(_READ, [name])
                readable.append(name)
        yield lambda: dict(ask(_READ, readable))


@contextlib.contextmanager
def _connected(
    server: Server, dbname: str | None = None, *, as_load: bool = False
) -> Iterator[Callable[..., list[Any]]]:
    with asking():
        connection = server.connect(dbname, as_load=as_load)  # before the load takes all connections

    def ask(query: str, *parameters: object) -> list[Any]:
        with asking():
            return connection.execute(query, parameters or None).fetchall()

    with contextlib.closing(connection):
        yield ask


def explained(server: Server, workload: Workload, scale: int) -> list[dict[str, Any]]:
    """Run the workload's ``explain`` statements; return ``statement`` and ``plan``.

    A rollback undoes them, but leaves dead rows and counts. Times in ms.

    Raises:
        ServerError: the server refused a statement, or is gone.

    """
    if not workload.explain:
        return []
    # plans include changed settings since version 12
    options = "ANALYZE, BUFFERS, FORMAT JSON" + (", SETTINGS" if server.major >= 12 else "")
    rows = []
    with (
        asking("a plan cannot be had"),
        server.connect(as_load=True) as connection,
        connection.transaction(force_rollback=True),
    ):
        if workload.explain_after:
            connection.execute(at_scale(workload.explain_after, scale))
        for statement in (at_scale(sql, scale) for sql in workload.explain):
            # a prepared query cannot hold a second statement
            plan = connection.execute(f"EXPLAIN ({options}) {statement}", prepare=True).fetchone()
            rows.append({"statement": statement, "plan": plan and plan[0][0]})
    return rows


def fsync_rates(shell: Shell, program: Path, folder: Path) -> dict[str, Any]:
    """Return the flush rate of each method in a directory.

    Source: PostgreSQL documentation, "pg_test_fsync".

    Raises:
        ServerError: it cannot write there.
        ParseError: its output has an unknown format.

    """
    file = folder / "pg_test_fsync.out"
    try:
        done = shell.run([program, f"--filename={file}", "--secs-per-test=1"], timeout_s=110)
    finally:
        shell.remove(file)
    done.insist(ServerError, "pg_test_fsync failed")
    return parse_text(done.stdout, kind="pg_test_fsync")
