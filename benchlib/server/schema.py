"""The statements of a level, and what they cost."""

import re
import secrets
import tempfile
import time
from dataclasses import dataclass, replace

from benchlib.errors import LoadError
from benchlib.host.shell import Shell
from benchlib.server.cluster import Cluster
from benchlib.server.datasets import psql
from benchlib.server.remote import Remote

LIMIT_S = 3600
"""The longest time for one statement, in seconds."""
_LOCK_LIMIT_S = 30
_SHOWN = 200
_OUTSIDE = "DISCARD ALL"
"""A statement that fails in a transaction."""
_SIZE = """
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace
WHERE relkind IN ('r', 'm') AND nspname !~ '^(pg_|information_schema$)'"""
_WAL = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"


@dataclass(frozen=True)
class SchemaCost:
    """The cost of a schema change; ``wal_bytes``: of all sessions."""

    seconds: float
    size_bytes: int
    wal_bytes: int


def change_schema(server: Cluster | Remote, shell: Shell, sql: str) -> SchemaCost:
    """Run statements, each in its own transaction, and ``ANALYZE``.

    Raises:
        LoadError: a statement failed, waited too long, or none changed anything.
        ServerError: the server is gone.

    """
    own_schema = isinstance(server, Remote) and server.target.own_schema
    size = f"{_SIZE} AND nspname = current_schema()" if own_schema else _SIZE
    before, started = (int(server.value(size)), int(server.value(_WAL))), time.monotonic()
    options = f"-c statement_timeout={LIMIT_S}s -c lock_timeout={_LOCK_LIMIT_S}s"
    environment = {
        **shell.environment,
        "PGOPTIONS": f"{shell.environment.get('PGOPTIONS', '')} {options}".strip(),
    }
    with tempfile.TemporaryFile() as script:
        script.write(f"\\restrict {secrets.token_hex(16)}\n{sql}\n{_OUTSIDE};\n".encode())
        script.seek(0)
        done = psql(server, replace(shell, environment=environment), script)
    if done.returncode:
        found = re.search(r"^STATEMENT: (.*)", done.stderr, re.MULTILINE | re.DOTALL)
        statement = " ".join(found[1].split()) if found else ""
        if statement == f"{_OUTSIDE};":
            raise LoadError("the level's sql begins a transaction that it does not commit")
        raise LoadError(f"the level's sql fails: {done.complaint}; statement: {statement[:_SHOWN]}")
    seconds = time.monotonic() - started
    cost = SchemaCost(seconds, int(server.value(size)) - before[0], int(server.value(_WAL)) - before[1])
    if cost.wal_bytes == 0:
        raise LoadError("the level's sql changes nothing in the database: leave it out, or fix it")
    server.vacuum("ANALYZE")
    server.checkpoint()
    return cost
