"""A PostgreSQL server that can be asked, whether it is ours or somebody else's."""

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from benchlib.errors import BenchlibError, ServerError, SettingError
from benchlib.host.shell import error_lines
from benchlib.plan.level import SettingValue
from benchlib.plan.settings import shown

Session = psycopg.Connection[Any]
"""A connection to a server."""

DATABASE = "bench"
"""The database that the load runs in, on a server of our own."""


_CONNECTING = threading.RLock()


def open_session(conninfo: str = "", *, ours: bool, **parameters: Any) -> Session:
    """A connection in autocommit mode, to a server of ``ours`` whatever the caller's ``PG*`` variables say.

    Raises:
        psycopg.Error: the server is not there, or refuses.

    """
    # libpq reads the environment, which belongs to all threads: one connects at a time
    with _CONNECTING:
        place = {} if ours else _place_of(conninfo)
        held = {name: os.environ.pop(name) for name in [*os.environ] if ours and name.startswith("PG")}
        try:
            parameters = {
                "connect_timeout": 10, "application_name": "benchlib", "client_encoding": "UTF8", **place, **parameters,
            }  # fmt: skip
            return psycopg.connect(conninfo, autocommit=True, **parameters)
        finally:
            os.environ.update(held)


def _place_of(conninfo: str) -> dict[str, str]:
    """Where a connection service is, as libpq finds it: psycopg itself would take that from ``PGHOST``."""
    if not (service := conninfo_to_dict(conninfo).get("service")):
        return {}
    held = os.environ.get("PGSERVICE")
    os.environ["PGSERVICE"] = str(service)
    try:
        defaults = psycopg.pq.Conninfo.get_defaults()
    except MemoryError:  # there is no such service, as the server's own message says
        return {}
    finally:
        del os.environ["PGSERVICE"]
        if held is not None:
            os.environ["PGSERVICE"] = held
    found = {option.keyword.decode(): option.val for option in defaults}
    return {name: val.decode() for name in ("host", "hostaddr", "port") if (val := found.get(name))}


def read_sql(name: str) -> str:
    """The text of a query in the folder ``sql``, where a person can read and run it too."""
    return (Path(__file__).parent / "sql" / f"{name}.sql").read_text()


def fetch(
    connection: Session, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()
) -> list[dict[str, Any]]:
    """The rows of one query, as dictionaries; none of a statement that gives none.

    Raises:
        psycopg.Error: the server refuses, or has gone.

    """
    with connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute(sql, parameters or None)
        return cursor.fetchall() if cursor.description else []


class Server:
    """Asks a server; how it is connected to is the business of the two classes below.

    ``database`` is the one that the load runs in, ``settings_file`` the file that :meth:`check_settings` wants
    the settings to come from.
    """

    database: str = DATABASE
    maintenance: str = "postgres"
    settings_file: str

    def __init__(self) -> None:
        self.wanted: Mapping[str, SettingValue] = {}
        self._accepted: dict[str, str] = {}

    def connect(self, dbname: str | None = None) -> Session:
        """A connection in autocommit mode, by default to the database that the load runs in.

        Raises:
            psycopg.Error: the server is not there, or refuses.

        """
        raise NotImplementedError

    def query(
        self, sql: str, dbname: str | None = None, parameters: Sequence[Any] = ()
    ) -> list[dict[str, Any]]:
        """The rows of one query, as dictionaries.

        Raises:
            ServerError: the server refused it or went away; the message has its reason.

        """
        with asking(), self.connect(dbname) as connection:
            return fetch(connection, sql, parameters)

    def value(self, sql: str, dbname: str | None = None) -> Any:
        """The first column of a query's first row.

        Raises:
            ServerError: as :meth:`query`, or the query gave no row.

        """
        rows = self.query(sql, dbname)
        if not rows:
            raise ServerError(f"the server gave no row for: {sql}")
        return next(iter(rows[0].values()))

    def execute(self, *statements: str, dbname: str | None = None) -> None:
        """Run statements one by one, each committed by itself.

        Raises:
            ServerError: as :meth:`query`.

        """
        with asking(), self.connect(dbname) as connection:
            for statement in statements:
                connection.execute(statement)

    def vacuum(self, options: str) -> None:
        """Vacuum all tables of the load's, with these options.

        Raises:
            ServerError: as :meth:`query`.

        """
        self.execute(f"VACUUM ({options})")

    @property
    def major(self) -> int:
        """The major version that the server itself tells: 18."""
        return int(self.value("SHOW server_version_num", self.maintenance)) // 10_000

    def checkpoint(self) -> None:
        """Have the server write all that is dirty.

        Raises:
            ServerError: as :meth:`query`.

        """
        self.execute("CHECKPOINT")

    def version(self) -> str:
        """The server's version as it tells it itself (``18.4``)."""
        return str(self.value("SHOW server_version", self.maintenance))

    def parameters(self) -> dict[str, dict[str, Any]]:
        """What the sessions of the load run with, by name: ``setting``, ``unit``, ``boot_val`` and ``source``.

        ``boot_val`` is what PostgreSQL itself would run with; ``source`` is ``default`` where nobody has set it. What
        the session itself has set is left out, and of texts that may name a host, a folder or a user
        it says ``set``, without a ``boot_val``; those at their default are absent.
        Source: the documentation's "pg_settings".

        Raises:
            ServerError: as :meth:`query`.

        """
        return {row.pop("name"): row for row in self.query(read_sql("parameters"))}

    def durability(self) -> dict[str, str]:
        """The settings that decide whether, and how, a commit of the load is flushed, as its sessions have them.

        Raises:
            ServerError: as :meth:`query`.

        """
        names = ["fsync", "synchronous_commit", "wal_sync_method"]
        rows = self.query("SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", parameters=[names])
        return {row["name"]: row["setting"] for row in rows}

    def want(self, settings: Mapping[str, SettingValue]) -> None:
        """Say which settings :meth:`check_settings` is to expect from now on."""
        self.wanted = dict(settings)
        self._accepted = {}

    def check_settings(self, dbname: str | None = None) -> dict[str, str]:
        """The settings that were asked for as the server shows them: its own reading, with units.

        They are those of a session in ``dbname``, since a database may have settings of its own. A setting took if the
        server has it from our file and has not changed it since the first check. One that the server itself
        overrode (``override``) had a value such as ``wal_buffers = -1`` that asks it to choose.

        Raises:
            SettingError: one of them did not take, or waits for a restart.

        """
        names = [name.lower() for name in self.wanted]
        rows = self.query(read_sql("in_force"), dbname or self.maintenance, [names])
        settings = {row["name"]: row for row in rows}
        in_force, faults = {}, []
        for name, value in self.wanted.items():
            row = settings.get(name.lower())
            if row is None:
                faults.append(f"{name}: the server has no such parameter")
                continue
            in_force[name] = shown(row["setting"], row["unit"])
            accepted = self._accepted.setdefault(name, in_force[name]) if self._set_by_us(row) else None
            if row["pending_restart"]:
                faults.append(f"{name}: waits for a restart of the server")
            elif accepted != in_force[name] and row["source"] != "override":
                origin = row["file"] or row["source"]
                faults.append(f"{name}: asked for {value}, the server runs with {in_force[name]} ({origin})")
        if faults:
            raise SettingError("a setting did not take: " + "; ".join(faults))
        return in_force

    def _set_by_us(self, row: Mapping[str, Any]) -> bool:
        """Whether a parameter has its value from where we set it; the file is not told to every role."""
        return bool(row["source"] == "configuration file") and row["file"] in (None, self.settings_file)


@contextlib.contextmanager
def asking(
    failed: str = "the server refused or went away", error: type[BenchlibError] = ServerError
) -> Iterator[None]:
    """Turn what the server refuses meanwhile, or that it is gone, into an error of one line."""
    try:
        yield
    except psycopg.Error as reason:
        raise error(f"{failed}: {reason_of(reason)}") from reason


def reason_of(error: psycopg.Error) -> str:
    """What the server or libpq said of a statement or a connection, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = error.diag.message_primary or (error_lines(lines) or lines or [type(error).__name__])[0]
    return reason.removeprefix("connection failed: ").removeprefix("connection is bad: ")
