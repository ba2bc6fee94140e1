"""The server's own counters, before and after a trial, as the server gives them.

Each view exists from some version on; what a version lacks is null. Later instruments
sample over time; these two snapshots are the part that every trial has.
"""

from __future__ import annotations

from typing import Any

from benchlib.levers.cluster import Cluster
from benchlib.levers.server import DATABASE

_VIEWS = {
    "database": (10, f"SELECT to_jsonb(s) AS row FROM pg_stat_database AS s WHERE datname = '{DATABASE}'"),
    "bgwriter": (10, "SELECT to_jsonb(s) AS row FROM pg_stat_bgwriter AS s"),
    "wal": (14, "SELECT to_jsonb(s) AS row FROM pg_stat_wal AS s"),
    "checkpointer": (17, "SELECT to_jsonb(s) AS row FROM pg_stat_checkpointer AS s"),
}
_POSITION = (
    "SELECT pg_current_wal_insert_lsn()::text AS lsn, extract(epoch FROM clock_timestamp())::float8 AS at"
)


def snapshot(cluster: Cluster) -> dict[str, Any]:
    """The counters of now: ``lsn``, ``at`` (seconds since the epoch) and a row of each view.

    Raises:
        ServerError: the server is gone.

    """
    major = cluster.installation.major
    position = cluster.query(_POSITION)[0]
    rows: dict[str, Any] = {"lsn": position["lsn"], "at": position["at"]}
    for name, (since, sql) in _VIEWS.items():
        found = cluster.query(sql) if major >= since else []
        rows[name] = found[0]["row"] if found else None
    return rows


def reset(cluster: Cluster) -> None:
    """Set the counters to zero.

    Raises:
        ServerError: the server is gone.

    """
    cluster.execute("SELECT pg_stat_reset()", "SELECT pg_stat_reset_shared('bgwriter')")
