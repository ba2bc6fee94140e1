"""Changes to an external server, recorded first in :mod:`benchlib.host.journal`."""

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
"""The pattern at the end of the names of benchlib's databases and schemas."""

_STATEMENTS: dict[str, tuple[LiteralString, LiteralString]] = {
    "database": ("CREATE DATABASE {name} TEMPLATE {template}", "DROP DATABASE IF EXISTS {name}"),
    "schema": ("CREATE SCHEMA {name}", "DROP SCHEMA IF EXISTS {name} CASCADE"),
}
_RESISTS = (
    "the change cannot be undone; run 'benchlib recover' where the server can be reached and its password is in "
    ".pgpass, the service file or PGPASSWORD"
)
_IN_AUTO_CONF = read_sql("in_auto_conf")
_END_SESSIONS = {what: read_sql(f"end_sessions_of_{what}") for what in _STATEMENTS}
"""Read at import: the files may be gone when a change is undone."""


def connect_to(server: str, **parameters: Any) -> Session:
    """Connect to a service or URI; ``parameters`` take precedence."""
    conninfo = server if "://" in server else make_conninfo(service=server)
    return open_session(conninfo, ours=False, **parameters)


def in_auto_conf(connection: Session, view: str, name: str) -> str | None:
    """Return a parameter's value set by ``ALTER SYSTEM``, or None.

    ``view``: pg_file_settings or pg_settings.
    """
    row = connection.execute(_IN_AUTO_CONF.format(view=view), [name.lower()]).fetchone()
    return row[0] if row else None


def reload(connection: Session) -> None:
    """Reload the configuration and wait until this session sees it.

    Raises:
        StudyError: the time limit passed.

    """
    loaded = "SELECT pg_conf_load_time()"
    before = connection.execute(loaded).fetchall()
    connection.execute("SELECT pg_reload_conf()")
    for _ in ticks(_RELOAD_LIMIT_S, 0.02):
        if connection.execute(loaded).fetchall() != before:
            return
    raise StudyError(f"the server did not reload its settings in {_RELOAD_LIMIT_S:.0f} s: see its log")


class Altered(Change):
    """A parameter set by ``ALTER SYSTEM``, in force after :func:`reload`."""

    server: str
    name: str
    former: str | None
    value: str

    def __str__(self) -> str:
        before = "not set" if self.former is None else self.former
        return f"ALTER SYSTEM {self.name} = {self.value} on “{self.server}” (before: {before})"

    def make(self, connection: Session) -> None:
        """Set the value."""
        self._set(connection, self.value)

    def undo(self) -> None:
        """Restore the former value and reload, unless the owner has changed it since."""
        with asking(_RESISTS, StudyError), connect_to(self.server) as connection:
            if not self._owner_changed_it(connection):
                self._set(connection, self.former)
                reload(connection)

    def _set(self, connection: Session, value: str | None) -> None:
        statement = "ALTER SYSTEM RESET {}" if value is None else "ALTER SYSTEM SET {} = {}"
        parameter = sql.Identifier(*self.name.split("."))
        connection.execute(sql.SQL(statement).format(parameter, sql.Literal(value)))

    def _owner_changed_it(self, connection: Session) -> bool:
        try:
            current = in_auto_conf(connection, "pg_file_settings", self.name)
        except errors.InsufficientPrivilege:
            return False
        # the file has a list in quotes
        return (current and current.strip('"')) not in (self.former and self.former.strip('"'), self.value)


class Created(Change):
    """A database or schema of benchlib.

    ``template``: the database to copy; template1 may hold the owner's objects, or be in use.
    """

    server: str
    what: Literal["database", "schema"]
    name: Annotated[str, Field(pattern=OURS)]
    template: str = "template0"

    def __str__(self) -> str:
        return f"{self.what} {self.name} on “{self.server}”"

    def make(self, connection: Session) -> None:
        """Create it."""
        self._execute(connection, 0)

    def undo(self) -> None:
        """Drop it after ending its sessions."""
        with asking(_RESISTS, StudyError), connect_to(self.server) as connection:
            for _ in ticks(30.0, 0.1):
                if not connection.execute(_END_SESSIONS[self.what], {"name": self.name}).fetchall():
                    break
            connection.execute("SET lock_timeout = '30s'")
            self._execute(connection, 1)

    def _execute(self, connection: Session, which: Literal[0, 1]) -> None:
        names = {"name": sql.Identifier(self.name), "template": sql.Identifier(self.template)}
        connection.execute(sql.SQL(_STATEMENTS[self.what][which]).format(**names))
