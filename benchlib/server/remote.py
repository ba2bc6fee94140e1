"""A server that is not ours: reached as libpq reaches it, with a database or schema of our own on it.

Passwords stay where they came from: libpq finds them in ``.pgpass``, the service file or the
environment, and the load tool gets its connection by environment variables, so that no
argument list, file or message has one.
"""

import contextlib
import os
import secrets
import statistics
import timeit
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

import psycopg
from psycopg.sql import SQL, Identifier

from benchlib.errors import HostBusyError, PreflightError, ServerError, SettingError
from benchlib.host.journal import Chapter
from benchlib.host.shell import Shell, ticks
from benchlib.load.tool import Connection
from benchlib.plan.level import SettingValue
from benchlib.plan.settings import spelled
from benchlib.plan.words import HOST_GRANTS
from benchlib.server import rights
from benchlib.server.changes import Altered, Created, alter, connect_to, reload
from benchlib.server.installations import find_pgbench
from benchlib.server.rights import Target
from benchlib.server.server import Server, Session, asking, fetch, read_sql, reason_of

_OLDEST = 10
_RUNS = 0x62656E63
"""The first number of the locks by which runs are known, "benc"."""
_OTHER_RUNS = read_sql("other_runs").format(runs=_RUNS)
_HINTS = {
    "password": "; passwords come from the service file, PGPASSWORD or .pgpass",
    "definition of service": "; services stand in ~/.pg_service.conf, or in the file that PGSERVICEFILE names",
}
_NO_CHECKPOINT = (
    "no CHECKPOINT, so a trial starts with what is dirty (from 15 on: GRANT pg_checkpoint TO our_role)"
)
_NOT_FOR_THE_LOAD = ("service", "servicefile", "connect_timeout", "application_name")
_KEPT_VARIABLES = ("HOME", "KRB5CCNAME", "KRB5_CONFIG")


class Remote(Server):
    """Somebody else's server; :meth:`open` gives us a place of our own on it."""

    settings_file = "postgresql.auto.conf"

    def __init__(self, target: Target) -> None:
        """Connect to the target as it is.

        Raises:
            PreflightError: it cannot be reached, or refuses; in one line, with what to look at.

        """
        super().__init__()
        self.target = target
        self._server_wide: set[str] = set()
        with _reaching(target) as connection:
            # .pgpass may have the password for the target's own database only
            self._parameters = {"password": connection.info.password} if connection.info.password else {}
            self.maintenance = self.database = connection.info.dbname
            self._options = connection.info.options
            self._schema = ""

    def preflight(
        self, *, clients: int, settings: Mapping[str, SettingValue], needs_mib: int
    ) -> list[tuple[str, str]]:
        """What the server offers of what a level asks for, as pairs of words, of which the first names its
        connection service. Nothing is changed on it.

        ``clients`` is the most that the load uses at once, ``needs_mib`` what its data takes, in MiB.

        Raises:
            PreflightError: something is missing; one line says what.

        """
        target = self.target
        with _reaching(target) as connection:
            version = connection.info.parameter_status("server_version") or "of an unknown version"
            if connection.info.server_version < _OLDEST * 10_000:
                raise PreflightError(f"the target runs PostgreSQL {version}: {_OLDEST} or later is needed")
            lacks, wide = rights.of_settings(connection, target, settings)
            rights.insist(connection, target, rights.of_place(connection, target) | lacks)
            place = f"a schema {target.own_schema}" if target.own_schema else "a database"
            held = fetch(connection, rights.RIGHTS)[0]
            allowed = [f"{place} of our own", "CHECKPOINT" if held["may_checkpoint"] else _NO_CHECKPOINT]
            allowed += [
                f"{name} for {'everybody there' if name in wide else 'us alone'}" for name in settings
            ]
            program = find_pgbench(abroad=True)
            if connection.pgconn.ssl_in_use and not program.encrypts:
                raise PreflightError(
                    f"the connection to “{target.server}” is encrypted, which {program.label} was built without: "
                    "install a PostgreSQL that has OpenSSL, as Debian's package postgresql"
                )
            encrypted = "encrypted" if connection.pgconn.ssl_in_use else "not encrypted"
            name = "server by URI" if "://" in target.server else f"service {target.server}"
            round_trips_s = timeit.repeat(lambda: connection.execute("SELECT 1"), number=1, repeat=9)
            answers = f"answers in {1000 * statistics.median(round_trips_s):.2g} ms"
            offers = {
                "connections": rights.connections(connection, target, clients),
                "rights": ", ".join(allowed),
                "disk": f"about {needs_mib:,} MiB needed for each such level that stands; see that they are free: no server tells it",
                "host": "sampled by the server" if held["may_read_files"] else f"not sampled: {HOST_GRANTS}",
            }
        about = (name, f"PostgreSQL {version}, {answers}, {encrypted}")
        return [about, *((f"{name}, {what}", words) for what, words in offers.items())]

    @classmethod
    def open(cls, target: Target, chapter: Chapter) -> Self:
        """The server with a database of our own, or a schema; both go with the chapter.

        Raises:
            PreflightError: it cannot be reached, we have no right to it, or it would be beside the tables of others.
            ServerError: what was made cannot be used.

        """
        remote = cls(target)
        # every level has its own, and none is ever there already
        name = f"{target.own_schema or 'benchlib'}_{secrets.token_hex(6)}"
        what: Literal["schema", "database"] = "schema" if target.own_schema else "database"
        created = Created(server=target.server, what=what, name=name)
        with _reaching(target) as connection:
            rights.insist(connection, target, rights.of_place(connection, target))
            chapter.note(created)
            created.make(connection)
        if target.own_schema:
            remote._schema = name
            remote._begin_sessions_with({})
        else:
            remote.database = name
        schema = remote.value("SELECT current_schema()")
        if target.own_schema and schema != name:
            # pgbench would drop and make its tables in the schema of others
            raise PreflightError(
                f"the target “{target.server}” does not heed the connection's options (is a pooler between?): "
                "name the server itself, or leave 'own_schema' out"
            )
        return remote

    def connect(self, dbname: str | None = None) -> Session:
        """A connection in autocommit mode, by default to where the load runs; see :meth:`Server.connect`."""
        return connect_to(self.target.server, dbname=dbname or self.database, **self._parameters)

    def vacuum(self, options: str) -> None:
        """See :meth:`Server.vacuum`; in a schema of ours its own tables: the others are somebody else's."""
        if not self._schema:
            super().vacuum(options)
            return
        for table in self.query(read_sql("our_tables")):
            self.execute(f"VACUUM ({options}) {table['name']}")

    @property
    def connection(self) -> Connection:
        """How the load tool reaches it: all but the database's name is in the environment of :meth:`shell`."""
        return Connection(dbname=self.database)

    def shell(self) -> Shell:
        """What the load tool runs in: as the caller, whose certificates and tickets it needs, connected by its environment.

        ``keepalives`` and the few other parameters that have no variable keep libpq's defaults.

        Raises:
            ServerError: the server has gone.

        """
        with asking(), self.connect() as connection:
            info = connection.info
            # of several hosts the one that answered, with its own port
            place = {"host": info.host, "port": str(info.port), "user": info.user, "dbname": info.dbname}
            given = {**info.get_parameters(), **place, "password": info.password}
            if "hostaddr" in given:
                given["hostaddr"] = info.hostaddr
        environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        for option in psycopg.pq.Conninfo.get_defaults():
            name, value = option.keyword.decode(), given.get(option.keyword.decode())
            if option.envvar and value and name not in _NOT_FOR_THE_LOAD:
                environment[option.envvar.decode()] = value
        return Shell(environment=environment)

    def configure(self, settings: Mapping[str, SettingValue], chapter: Chapter) -> None:
        """Set what a level asks for, and see that it holds: for our database or, from now on, for our sessions and those of
        :meth:`shell`, and where no session may have its own by ``ALTER SYSTEM``, until the chapter is undone.

        Raises:
            SettingError: the server would not take a setting, or it did not take.
            ServerError: the server has gone.

        """
        self.want(settings)
        values = {name: spelled(value) for name, value in settings.items()}
        with asking(), self.connect(self.maintenance) as connection:
            lacks, self._server_wide = rights.of_settings(connection, self.target, settings)
            if lacks:
                raise SettingError(f"the server would not take its settings: {'; '.join(lacks)}")
            for name, value in values.items():
                try:
                    if name.lower() in self._server_wide:
                        former = rights.former_value(connection, name)
                        altered = Altered(server=self.target.server, name=name, former=former, value=value)
                        chapter.note(altered)
                        altered.make(connection)
                    elif not self._schema:
                        alter(connection, SQL("DATABASE {}").format(Identifier(self.database)), name, value)
                except psycopg.errors.DataError as error:
                    raise SettingError(f"the server would not take {name}: {reason_of(error)}") from error
            if self._server_wide:
                reload(connection)
        if self._schema:
            self._begin_sessions_with({k: v for k, v in values.items() if k.lower() not in self._server_wide})
        self.check_settings(self.database)

    def _begin_sessions_with(self, values: Mapping[str, str]) -> None:
        """Have our sessions begin with these, and never in the tables of others, whatever our role's own search_path says."""
        given = {"search_path": self._schema, **values}
        escaped = {name: value.replace("\\", "\\\\").replace(" ", "\\ ") for name, value in given.items()}
        options = (f"-c{name}={value}" for name, value in escaped.items())
        self._parameters["options"] = " ".join(filter(None, [self._options, *options]))

    def _set_by_us(self, row: Mapping[str, Any]) -> bool:
        if row["name"] in self._server_wide:
            return super()._set_by_us(row)
        return bool(row["source"] == ("client" if self._schema else "database"))

    def checkpoint(self) -> None:
        """Have the server write all that is dirty, where we have the right to; :meth:`identity` says whether.

        Raises:
            ServerError: the server has gone.

        """
        try:
            super().checkpoint()
        except ServerError as reason:
            if not isinstance(reason.__cause__, psycopg.errors.InsufficientPrivilege):
                raise

    def identity(self) -> dict[str, Any]:
        """What the server is, for the provenance: no names of hosts or roles.

        Raises:
            ServerError: the server has gone.

        """
        return {
            "version": self.version(),
            "build": self.value("SELECT version()", self.maintenance),
            "checkpoints": self.query(rights.RIGHTS, self.maintenance)[0]["may_checkpoint"],
        }


@contextlib.contextmanager
def sole_run(server: str, number: int) -> Iterator[None]:
    """Be known as the run of this number on somebody's server until it is left: of two at once each would give back what the other has set.

    Raises:
        HostBusyError: another run is under way there.
        PreflightError: it cannot be reached.

    """
    with _reaching(Target(server=server)) as connection:
        name = "idle_session_timeout"  # from 14 on
        connection.execute("SELECT set_config(name, '0', false) FROM pg_settings WHERE name = %s", [name])
        connection.execute("SELECT pg_advisory_lock_shared(%s::int, %s::int)", [_RUNS, number])
        for _ in ticks(2.0, 0.2):  # of one that was killed just now it goes at once
            if not connection.execute(_OTHER_RUNS, [number]).fetchall():
                break
        else:
            raise HostBusyError(f"another run is under way on the target “{server}”: wait for it")
        yield


@contextlib.contextmanager
def _reaching(target: Target) -> Iterator[Session]:
    """A connection to the target as its user names it.

    Raises:
        PreflightError: it cannot be reached, or refuses.

    """
    try:
        with connect_to(target.server) as connection:
            yield connection
    except psycopg.Error as error:
        message = reason_of(error)
        hint = next((hint for mark, hint in _HINTS.items() if mark in message), "")
        raise PreflightError(f"the target “{target.server}” cannot be used: {message}{hint}") from error
