"""A PostgreSQL server that can be asked, whether it is ours or somebody else's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg.rows import dict_row

from benchlib.errors import ServerError, SettingError
from benchlib.plan.level import SettingValue
from benchlib.plan.settings import ServerSetting, differences

DATABASE = "bench"
"""The database that the load runs in, on a server of our own."""


class Server:
    """Asks a server; what it is connected with is the business of the kinds of server below.

    ``database`` is the one that the load runs in, ``wanted`` the settings that it is to run with.
    """

    database: str = DATABASE
    maintenance: str = "postgres"
    wanted: Mapping[str, SettingValue]

    @property
    def running(self) -> bool:
        """Whether the server is there, as far as can be told without asking it."""
        return True

    def connect(self, dbname: str | None = None) -> psycopg.Connection[Any]:
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
            ServerError: the server refused it or went away; its own words are in the message.

        """
        try:
            with self.connect(dbname) as connection, connection.cursor(row_factory=dict_row) as cursor:
                cursor.execute(sql, parameters or None)
                return cursor.fetchall() if cursor.description else []
        except psycopg.Error as reason:
            raise ServerError(f"the server refused or went away: {reason_of(reason)}") from reason

    def value(self, sql: str, dbname: str | None = None, parameters: Sequence[Any] = ()) -> Any:
        """The first column of a query's first row.

        Raises:
            ServerError: as :meth:`query`, or the query gave no row.

        """
        rows = self.query(sql, dbname, parameters)
        if not rows:
            raise ServerError(f"the server gave no row for: {sql}")
        return next(iter(rows[0].values()))

    def execute(self, *statements: str, dbname: str | None = None) -> None:
        """Run statements one by one, each committed by itself.

        Raises:
            ServerError: as :meth:`query`.

        """
        try:
            with self.connect(dbname) as connection:
                for statement in statements:
                    connection.execute(statement)
        except psycopg.Error as reason:
            raise ServerError(f"the server refused or went away: {reason_of(reason)}") from reason

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

    def settings(self, dbname: str | None = None) -> list[ServerSetting]:
        """Every parameter as the running server shows it to a session in a database."""
        rows = self.query(
            "SELECT name, setting, unit, vartype FROM pg_settings ORDER BY name", dbname or self.maintenance
        )
        return [ServerSetting(r["name"], r["setting"], r["unit"], r["vartype"]) for r in rows]

    def check_settings(self, dbname: str | None = None) -> dict[str, str]:
        """The settings that were asked for as the server shows them: its own reading, with units.

        They are those of a session in ``dbname``, since a database may have settings of its own.

        Raises:
            SettingError: one of them did not take, or waits for a restart.

        """
        found = {setting.name.lower(): setting for setting in self.settings(dbname)}
        wrong = differences(self.wanted, found)
        pending = self.query("SELECT name FROM pg_settings WHERE pending_restart", self.maintenance)
        wrong += [
            f"{row['name']}: waits for a restart of the server"
            for row in pending
            if row["name"].lower() in self.wanted
        ]
        if wrong:
            raise SettingError("a setting did not take: " + "; ".join(wrong))
        return {name: found[name.lower()].shown() for name in self.wanted}


def reason_of(error: psycopg.Error) -> str:
    """What the server said of a statement or a connection, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return error.diag.message_primary or (marked(lines) or lines or ["it said nothing"])[0]


def marked(lines: Sequence[str]) -> list[str]:
    """The lines that tell an error, from their mark on, the gravest first."""
    return [
        line[line.index(mark) :]
        for mark in ("FATAL:", "PANIC:", "ERROR:", "error:")
        for line in lines
        if mark in line
    ]
