"""Changes to a server that is not ours, and how each is undone.

Each is noted in the run's :mod:`benchlib.host.journal` before it is made. A note holds where the
server is and never a password: whoever undoes it connects as the run did, with what libpq finds
in the service file, ``.pgpass`` or the environment. To undo one twice, or one that was never
made, does nothing and is no error. What does not bear our mark is somebody else's and stays.
"""

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any, Literal, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from pydantic import Field

from benchlib.errors import StudyError
from benchlib.host.journal import Change
from benchlib.host.shell import connection_variables, ticks
from benchlib.server.server import Session, reason_of

_RELOAD_LIMIT_S = 15.0


def connect_to(server: str, **parameters: Any) -> Session:
    """A connection in autocommit mode to a connection service or URI; what is found there may be overruled.

    Raises:
        psycopg.Error: it cannot be reached, or refuses.

    """
    conninfo = server if "://" in server else make_conninfo(service=server)
    with connection_variables(kept=True):
        return psycopg.connect(
            conninfo, autocommit=True, **{"connect_timeout": 10, "application_name": "benchlib", **parameters}
        )


def alter(connection: Session, whose: sql.Composable, name: str, value: str | None) -> None:
    """Set a parameter for new sessions of ``DATABASE ours``, say, or with None take it out; of ``SYSTEM`` it holds after a reload.

    Raises:
        psycopg.Error: the server refuses.

    """
    parameter = sql.Identifier(*name.split("."))
    if value is None:
        connection.execute(sql.SQL("ALTER {} RESET {}").format(whose, parameter))
    else:
        connection.execute(sql.SQL("ALTER {} SET {} = {}").format(whose, parameter, sql.Literal(value)))


def reload(connection: Session) -> None:
    """Have the server read its files again, and wait until this session has seen it do so.

    Raises:
        psycopg.Error: the server refuses.
        StudyError: it did not within a time limit.

    """
    loaded = "SELECT pg_conf_load_time()"
    before = _one(connection, loaded)
    connection.execute("SELECT pg_reload_conf()")
    for _ in ticks(_RELOAD_LIMIT_S, 0.02):
        if _one(connection, loaded) != before:
            return
    raise StudyError(
        f"the server has not read its configuration within {_RELOAD_LIMIT_S:.0f} s: its log says why"
    )


class Altered(Change):
    """A server parameter with another value: by ``ALTER SYSTEM``, or for our role in a ``database`` of others.

    ``former`` is None where it had none in the same way.
    """

    kind: Literal["altered"] = "altered"
    server: str
    name: str
    former: str | None
    value: str
    database: str | None = None

    @property
    def _whose(self) -> sql.Composable:
        if self.database is None:
            return sql.SQL("SYSTEM")
        return sql.SQL("ROLE CURRENT_USER IN DATABASE {}").format(sql.Identifier(self.database))

    def __str__(self) -> str:
        before = "not there" if self.former is None else self.former
        whose = self._whose.as_string(None)
        return f"ALTER {whose} {self.name} = {self.value} on “{self.server}”, before {before}"

    def make(self, connection: Session) -> None:
        """Set it: new sessions of ours have it, or once the server is told to :func:`reload` everybody.

        Raises:
            psycopg.Error: the server refuses.

        """
        alter(connection, self._whose, self.name, self.value)

    def undo(self) -> None:
        """Write the former value, or take the parameter out, and have it hold.

        Raises:
            StudyError: the server cannot be reached, or refuses.

        """
        with _undoing(self) as connection:
            alter(connection, self._whose, self.name, self.former)
            if self.database is None:
                reload(connection)


class Created(Change):
    """A database of ours, or a schema of ours in the database that the server's name leads to.

    Its comment is our ``mark``, which no other run has.
    """

    kind: Literal["created"] = "created"
    server: str
    what: Literal["database", "schema"]
    name: str
    mark: Annotated[str, Field(pattern="^benchlib [0-9a-f]{8,}$")]

    def __str__(self) -> str:
        return f"{self.what} {self.name} on “{self.server}”"

    def make(self, connection: Session) -> None:
        """Create and mark it.

        Raises:
            psycopg.Error: the server refuses, or there is one of that name.

        """
        if self.what == "database":
            # template1 may hold what the site wants in its own databases, and be in use
            self._execute(connection, "CREATE DATABASE {name} TEMPLATE template0")
            self._execute(connection, "COMMENT ON DATABASE {name} IS {mark}")
        else:
            with connection.transaction():
                self._execute(connection, "CREATE SCHEMA {name}")
                self._execute(connection, "COMMENT ON SCHEMA {name} IS {mark}")

    def undo(self) -> None:
        """Drop it, with who is still connected to the database.

        Raises:
            StudyError: the server cannot be reached, or refuses.

        """
        with _undoing(self) as connection:
            if self.what == "schema":
                comment = "SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = %s"
                if _one(connection, comment, self.name) == self.mark:
                    connection.execute("SET lock_timeout = '30s'")
                    self._execute(connection, "DROP SCHEMA {name} CASCADE")
                return
            # a crash may come between the database and its comment: then its name must do, which has the mark
            comment = "SELECT coalesce(shobj_description(oid, 'pg_database'), %s) FROM pg_database WHERE datname = %s"
            named_by_mark = self.name.endswith(self.mark.removeprefix("benchlib "))
            if not named_by_mark or _one(connection, comment, self.mark, self.name) != self.mark:
                return
            if connection.info.server_version >= 130_000:
                self._execute(connection, "DROP DATABASE {name} WITH (FORCE)")
            else:
                ours = "FROM pg_stat_activity WHERE datname = %s AND usename = current_user"
                connection.execute(f"SELECT pg_terminate_backend(pid) {ours}", [self.name])
                self._execute(connection, "DROP DATABASE {name}")

    def _execute(self, connection: Session, statement: LiteralString) -> None:
        names = {"name": sql.Identifier(self.name), "mark": sql.Literal(self.mark)}
        connection.execute(sql.SQL(statement).format(**names))


def _one(connection: Session, query: LiteralString, *parameters: str) -> Any:
    """The first column of the first row; None if there is none."""
    row = connection.execute(query, parameters or None).fetchone()
    return row[0] if row else None


@contextlib.contextmanager
def _undoing(change: Altered | Created) -> Iterator[Session]:
    try:
        with connect_to(change.server) as connection:
            yield connection
    except psycopg.Error as reason:
        raise StudyError(
            f"{change}: cannot be undone ({reason_of(reason)}): run 'benchlib recover' where the server can be "
            "reached and its password is in .pgpass, the service file or PGPASSWORD"
        ) from reason
