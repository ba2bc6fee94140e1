"""The plans that a server makes for a workload's statements, kept to tell why a level is faster."""

from __future__ import annotations

from typing import Any

import psycopg

from benchlib.errors import ServerError
from benchlib.plan.workload import Workload, at_scale
from benchlib.server.server import Server, reason_of


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
    try:
        with server.connect() as connection, connection.transaction(force_rollback=True):
            if workload.explain_after:
                connection.execute(at_scale(workload.explain_after, scale))
            for statement in (at_scale(sql, scale) for sql in workload.explain):
                # prepared, so that the server refuses a second statement behind the first
                plan = connection.execute(f"EXPLAIN ({options}) {statement}", prepare=True).fetchone()
                rows.append({"statement": statement, "plan": plan and plan[0][0]})
    except psycopg.Error as reason:
        raise ServerError(f"a plan cannot be had: {reason_of(reason)}") from reason
    return rows
