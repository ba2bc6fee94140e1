"""What data take on disk: the other half of measuring how they are loaded."""

from __future__ import annotations

from typing import Any

from benchlib.server.server import Server

_SIZES = """
SELECT c.relname AS name, pg_table_size(c.oid) AS table_bytes, pg_indexes_size(c.oid) AS index_bytes
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'm') AND n.nspname = current_schema() ORDER BY c.relname
"""


def sizes(server: Server) -> dict[str, Any]:
    """The size of the database that the load runs in and of its tables, in bytes: what the server itself counts.

    Keys ``database_bytes`` and ``tables``, rows of ``name``, ``table_bytes`` and ``index_bytes``.

    Raises:
        ServerError: the server refused or went away.

    """
    whole = server.value("SELECT pg_database_size(current_database())")
    return {"database_bytes": whole, "tables": server.query(_SIZES)}
