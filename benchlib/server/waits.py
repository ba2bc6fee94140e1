"""What the load's sessions are waiting for, as the server tells it at a moment."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from benchlib.server.server import Server, asking

# Of the sessions of others the server shows no state to an ordinary role. Parallel workers are part of
# the load, our own connections are not. Source: documentation, "pg_stat_activity" (these columns: 10 to 18).
LOAD = """
    datname = current_database() AND usename = current_user AND application_name <> 'benchlib'
    AND backend_type IN ('client backend', 'parallel worker') AND state IS NOT NULL
"""
"""A condition that holds for the rows of ``pg_stat_activity`` that belong to the load."""

_WAITS = f"SELECT wait_event_type, wait_event, count(*) FROM pg_stat_activity WHERE {LOAD} GROUP BY 1, 2"


class Waits:
    """Asks a server over one connection, which is made at once: the load may take all others.

    Raises:
        ServerError: it cannot be reached, or has no connection left.

    """

    def __init__(self, server: Server) -> None:
        with asking():
            self._connection = server.connect()

    def sample(self) -> dict[str, list[list[Any]]]:
        """Of the load's ``sessions`` now, by wait event type and wait event, how many; both null while on the CPU.

        Raises:
            ServerError: the server is gone.

        """
        with asking():
            return {"sessions": [list(row) for row in self._connection.execute(_WAITS, prepare=True)]}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._connection.close()
