"""The server's own counters, before and after a trial, as the server gives them.

Each view exists from some version on; what a version lacks, or what we may not see on a server
that is not ours, is null. Later instruments sample over time; these two snapshots are the part
that every trial has.
"""

from __future__ import annotations

from typing import Any

import psycopg

from benchlib.errors import ServerError
from benchlib.levers.server import Server

_VIEWS = {
    "database": (
        10,
        "SELECT to_jsonb(s) AS row FROM pg_stat_database AS s WHERE datname = current_database()",
    ),
    "bgwriter": (10, "SELECT to_jsonb(s) AS row FROM pg_stat_bgwriter AS s"),
    "wal": (14, "SELECT to_jsonb(s) AS row FROM pg_stat_wal AS s"),
    "checkpointer": (17, "SELECT to_jsonb(s) AS row FROM pg_stat_checkpointer AS s"),
}


def snapshot(server: Server) -> dict[str, Any]:
    """The counters of now: ``lsn``, ``at`` (seconds since the epoch) and a row of each view.

    Raises:
        ServerError: the server is gone.

    """
    major = server.major
    rows: dict[str, Any] = {
        "lsn": _visible(server, "SELECT pg_current_wal_insert_lsn()::text"),
        "at": server.value("SELECT extract(epoch FROM clock_timestamp())::float8"),
    }
    for name, (since, sql) in _VIEWS.items():
        rows[name] = _visible(server, sql) if major >= since else None
    return rows


def _visible(server: Server, sql: str) -> Any:
    """The value of a query; None where the server is there and refuses it, as managed ones do."""
    try:
        return server.value(sql)
    except ServerError as reason:
        if isinstance(reason.__cause__, psycopg.ProgrammingError | psycopg.NotSupportedError):
            return None
        raise


def reset(server: Server) -> None:
    """Set the counters to zero, on a server of our own: others watch theirs.

    Raises:
        ServerError: the server is gone.

    """
    server.execute("SELECT pg_stat_reset()", "SELECT pg_stat_reset_shared('bgwriter')")
