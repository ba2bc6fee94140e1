"""Queries on a PostgreSQL server, embedded or external."""

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from benchlib.errors import BenchlibError, PreflightError, ServerError, SettingError
from benchlib.host.shell import error_lines
from benchlib.plan.level import SettingValue
from benchlib.plan.settings import shown

Session = psycopg.Connection[Any]
"""A connection to a server."""

LOCAL = "SET synchronous_commit = local"
"""No replica is waited for."""
DATABASE = "bench"
"""The load's database in an embedded cluster."""


_CONNECTING = threading.RLock()
_CONNECTION_DEFAULTS = {"connect_timeout": 10, "application_name": "benchlib", "client_encoding": "UTF8"}


def open_session(conninfo: str = "", *, ours: bool, **parameters: Any) -> Session:
    """Connect in autocommit mode; ``ours``: without the caller's ``PG*`` variables."""
    # libpq reads the environment, which all threads share: one connects at a time
    with _CONNECTING:
        ignored = [name for name in os.environ if name.startswith("PG")] if ours else []
        if conninfo_to_dict(conninfo).get("service"):
            # psycopg, unlike libpq, prefers them to the service's
            ignored += [name for name in ("PGHOST", "PGHOSTADDR", "PGPORT") if name in os.environ]
        removed = {name: os.environ.pop(name) for name in ignored}
        try:
            return psycopg.connect(conninfo, autocommit=True, **{**_CONNECTION_DEFAULTS, **parameters})
        finally:
            os.environ.update(removed)


def refuse_pooler(session: Session) -> None:
    """Raise PreflightError if a pooler is in between: what is set would stay with sessions of others."""
    row, info = session.execute("SELECT pg_backend_pid()").fetchone(), session.info
    if row and row[0] == info.backend_pid:
        return
    # a proxy that hides the process has a session for each client, and passes its options on
    with (
        contextlib.suppress(psycopg.Error),
        psycopg.connect(
            info.dsn, password=info.password, options="-c benchlib.direct=on", autocommit=True
        ) as other,
    ):
        if other.execute("SELECT current_setting('benchlib.direct', true)").fetchone() == ("on",):
            return
    raise PreflightError(
        "a connection pooler is in between, whose sessions others share: name the server itself"
    )


def read_sql(name: str) -> str:
    """Return a query of the directory ``sql``."""
    return (Path(__file__).parent / "sql" / f"{name}.sql").read_text()


def fetch(
    connection: Session, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()
) -> list[dict[str, Any]]:
    """Return a query's rows."""
    with connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute(sql, parameters or None)
        return cursor.fetchall() if cursor.description else []


class Server:
    """A server that can be queried.

    Methods raise ServerError if the server refuses or is gone. ``settings_file``: the file that :meth:`check_settings`
    expects; ``in_place``: others use the database, so it is only read.
    """

    database: str = DATABASE
    maintenance: str = "postgres"
    settings_file: str
    in_place: bool = False

    def __init__(self) -> None:
        self.wanted: Mapping[str, SettingValue] = {}
        self._accepted: dict[str, str] = {}

    def connect(self, dbname: str | None = None, *, as_load: bool = False) -> Session:
        """Connect in autocommit mode, by default to the load's database.

        ``as_load``: as the role that runs the load. Statements of a workload may call code of a dump, which must not
        run with more rights.
        """
        raise NotImplementedError

    def query(
        self, sql: str, dbname: str | None = None, parameters: Sequence[Any] = (), *, as_load: bool = False
    ) -> list[dict[str, Any]]:
        """Return a query's rows."""
        with asking(), self.connect(dbname, as_load=as_load) as connection:
            return fetch(connection, sql, parameters)

    def value(self, sql: str, dbname: str | None = None, *, as_load: bool = False) -> Any:
        """Return a query's first value; ServerError if there is none."""
        rows = self.query(sql, dbname, as_load=as_load)
        if not rows:
            raise ServerError(f"the server returned no row for: {sql}")
        return next(iter(rows[0].values()))

    def execute(self, *statements: str, dbname: str | None = None, as_load: bool = False) -> None:
        """Run statements, each in its own transaction."""
        with asking(), self.connect(dbname, as_load=as_load) as connection:
            for statement in statements:
                connection.execute(statement)

    def vacuum(self, options: str) -> None:
        """Vacuum all tables of the load."""
        self.execute(LOCAL, f"VACUUM ({options})")

    @property
    def major(self) -> int:
        """The server's major version."""
        return int(self.value("SHOW server_version_num", self.maintenance)) // 10_000

    def checkpoint(self) -> None:
        """Run CHECKPOINT."""
        self.execute("CHECKPOINT")

    def version(self) -> str:
        """Return the server's version (``18.4``)."""
        return str(self.value("SHOW server_version", self.maintenance))

    def parameters(self) -> dict[str, dict[str, Any]]:
        """Return the load's parameters: ``setting``, ``unit``, ``boot_val``, ``source``.

        Text that may name a host, directory or user is ``set``.
        """
        return {row.pop("name"): row for row in self.query(read_sql("parameters"))}

    def durability(self) -> dict[str, str]:
        """Return the settings that decide how a commit is flushed."""
        names = ["fsync", "synchronous_commit", "wal_sync_method"]
        rows = self.query("SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", parameters=[names])
        return {row["name"]: row["setting"] for row in rows}

    def want(self, settings: Mapping[str, SettingValue]) -> None:
        """Set the values that :meth:`check_settings` expects."""
        self.wanted = dict(settings)
        self._accepted = {}

    def check_settings(self, dbname: str | None = None) -> dict[str, str]:
        """Return the wanted settings in force, with units.

        Each must come from our file, unchanged since the first check, or be the server's choice.

        Raises:
            SettingError: a setting is not in force, or waits for a restart.

        """
        names = [name.lower() for name in self.wanted]
        rows = self.query(read_sql("in_force"), dbname or self.maintenance, [names])
        by_name = {row["name"]: row for row in rows}
        in_force, faults = {}, []
        for name, value in self.wanted.items():
            row = by_name.get(name.lower())
            if row is None:
                faults.append(f"{name}: the server has no such parameter")
                continue
            in_force[name] = shown(row["setting"], row["unit"])
            accepted = self._accepted.setdefault(name, in_force[name]) if self._set_by_us(row) else None
            if row["pending_restart"]:
                faults.append(f"{name}: waits for a restart of the server")
            elif accepted != in_force[name] and row["source"] != "override":
                origin = row["file"] or row["source"]
                faults.append(f"{name}: requested {value}, the server runs with {in_force[name]} ({origin})")
        if faults:
            raise SettingError("a setting is not in force: " + "; ".join(faults))
        return in_force

    def _set_by_us(self, row: Mapping[str, Any]) -> bool:
        # some roles cannot see the file
        return bool(row["source"] == "configuration file") and row["file"] in (None, self.settings_file)


@contextlib.contextmanager
def asking(
    failed: str = "the server refused or went away", error: type[BenchlibError] = ServerError
) -> Iterator[None]:
    """Convert psycopg errors to an ``error`` of one line."""
    try:
        yield
    except psycopg.Error as reason:
        raise error(f"{failed}: {reason_of(reason)}") from reason


def reason_of(error: psycopg.Error) -> str:
    """Return an error's message in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = error.diag.message_primary or (error_lines(lines) or lines or [type(error).__name__])[0]
    return reason.removeprefix("connection failed: ").removeprefix("connection is bad: ")
