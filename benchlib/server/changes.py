"""Changes to a server that is not ours, and how each is undone.

Each is noted in the run's :mod:`benchlib.host.journal` before it is made. A note holds where the
server is and never a password: whoever undoes it connects as the run did, with what libpq finds
in the service file, ``.pgpass`` or the environment. To undo one twice, or one that was never
made, does nothing and is no error.
"""

from typing import Annotated, Any, Literal, LiteralString

from psycopg import errors, sql
from psycopg.conninfo import make_conninfo
from pydantic import Field

from benchlib.errors import StudyError
from benchlib.host.journal import Change
from benchlib.host.shell import ticks
from benchlib.server.server import Session, asking, open_session, read_sql

_RELOAD_LIMIT_S = 15.0

OURS = "_[0-9a-f]{12}$"
"""How the name of every database and schema ends that we make."""

_STATEMENTS: dict[str, tuple[LiteralString, LiteralString]] = {
    # template1 may hold what the site wants in its own databases, and be in use
    "database": ("CREATE DATABASE {} TEMPLATE template0", "DROP DATABASE IF EXISTS {}"),
    "schema": ("CREATE SCHEMA {}", "DROP SCHEMA IF EXISTS {} CASCADE"),
}
_RESISTS = (
    "it cannot be undone, so run 'benchlib recover' where the server can be reached and its password is in .pgpass, "
    "the service file or PGPASSWORD"
)
_IN_AUTO_CONF = read_sql("in_auto_conf")
_END_SESSIONS = {what: read_sql(f"end_sessions_of_{what}") for what in _STATEMENTS}
"""Both are read here, while the files are there: it may be long until a change is undone."""


def connect_to(server: str, **parameters: Any) -> Session:
    """A connection in autocommit mode to a connection service or URI; what is found there may be overruled.

    Raises:
        psycopg.Error: it cannot be reached, or refuses.

    """
    conninfo = server if "://" in server else make_conninfo(service=server)
    return open_session(conninfo, ours=False, **parameters)


def alter(connection: Session, whose: sql.Composable, name: str, value: str | None) -> None:
    """Set a parameter for new sessions of ``DATABASE ours``, say, or with None take it out; of ``SYSTEM`` it holds after a reload.

    Raises:
        psycopg.Error: the server refuses.

    """
    parameter = sql.Identifier(*name.split("."))
    change = sql.SQL("RESET {}" if value is None else "SET {} = {}").format(parameter, sql.Literal(value))
    connection.execute(sql.SQL("ALTER {} {}").format(whose, change))


def in_auto_conf(connection: Session, view: str, name: str) -> str | None:
    """What ``ALTER SYSTEM`` has set of a parameter, as ``pg_file_settings`` or ``pg_settings`` tells it; None for nothing.

    Raises:
        psycopg.Error: the server refuses to be asked.

    """
    row = connection.execute(_IN_AUTO_CONF.format(view=view), [name.lower()]).fetchone()
    return row[0] if row else None


def reload(connection: Session) -> None:
    """Have the server read its files again, and wait until this session has seen it do so.

    Raises:
        psycopg.Error: the server refuses.
        StudyError: it did not within a time limit.

    """
    loaded = "SELECT pg_conf_load_time()"
    before = connection.execute(loaded).fetchall()
    connection.execute("SELECT pg_reload_conf()")
    for _ in ticks(_RELOAD_LIMIT_S, 0.02):
        if connection.execute(loaded).fetchall() != before:
            return
    raise StudyError(
        f"the server has not read its configuration within {_RELOAD_LIMIT_S:.0f} s: its log says why"
    )


class Altered(Change):
    """A server parameter with another value, by ``ALTER SYSTEM``. ``former`` is None where it had none in the same way."""

    server: str
    name: str
    former: str | None
    value: str

    def __str__(self) -> str:
        before = "not there" if self.former is None else self.former
        return f"ALTER SYSTEM {self.name} = {self.value} on “{self.server}”, before {before}"

    def make(self, connection: Session) -> None:
        """Set it: it holds once the server is told to :func:`reload`.

        Raises:
            psycopg.Error: the server refuses.

        """
        alter(connection, sql.SQL("SYSTEM"), self.name, self.value)

    def undo(self) -> None:
        """Write the former value, or take the parameter out, and have it hold; what its owner has set meanwhile stays.

        Raises:
            StudyError: the server cannot be reached, or refuses.

        """
        with asking(_RESISTS, StudyError), connect_to(self.server) as connection:
            if not self._is_anothers(connection):
                alter(connection, sql.SQL("SYSTEM"), self.name, self.former)
                reload(connection)

    def _is_anothers(self, connection: Session) -> bool:
        """Whether the file holds neither our value nor the former; no where we may not read it."""
        try:
            held = in_auto_conf(connection, "pg_file_settings", self.name)
        except errors.InsufficientPrivilege:
            return False
        # a list's text has quotes around it there
        return (held and held.strip('"')) not in (self.former and self.former.strip('"'), self.value)


class Created(Change):
    """A database of ours, or a schema of ours in the database that the server's name leads to.

    Nobody else's is named so: the name ends with a number that was drawn for it.
    """

    server: str
    what: Literal["database", "schema"]
    name: Annotated[str, Field(pattern=OURS)]

    def __str__(self) -> str:
        return f"{self.what} {self.name} on “{self.server}”"

    def make(self, connection: Session) -> None:
        """Create it.

        Raises:
            psycopg.Error: the server refuses, or there is one of that name.

        """
        connection.execute(sql.SQL(_STATEMENTS[self.what][0]).format(sql.Identifier(self.name)))

    def undo(self) -> None:
        """Drop it, with who is still connected to the database, or as our role has a lock in the schema.

        Raises:
            StudyError: the server cannot be reached, or refuses.

        """
        with asking(_RESISTS, StudyError), connect_to(self.server) as connection:
            for _ in ticks(30.0, 0.1):
                if not connection.execute(_END_SESSIONS[self.what], {"name": self.name}).fetchall():
                    break
            connection.execute("SET lock_timeout = '30s'")
            connection.execute(sql.SQL(_STATEMENTS[self.what][1]).format(sql.Identifier(self.name)))
