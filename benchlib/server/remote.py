"""An external server, connected to through libpq.

Passwords never appear in arguments, files or messages.
"""

import contextlib
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import psycopg

from benchlib.errors import HostBusyError, PreflightError, ServerError, SettingError
from benchlib.host.journal import Scope
from benchlib.host.shell import Shell, ticks
from benchlib.load.tool import Connection
from benchlib.plan.level import SettingValue
from benchlib.plan.settings import spelled
from benchlib.plan.words import HOST_GRANTS
from benchlib.server import rights, statistics
from benchlib.server.brakes import Brakes, braking
from benchlib.server.changes import Altered, Created, connect_to, reload
from benchlib.server.installations import find_pgbench
from benchlib.server.rights import Target
from benchlib.server.server import LOCAL, Server, Session, asking, fetch, read_sql, reason_of, refuse_pooler

_OLDEST = 10
_RUNS = 0x62656E63
"""The first key of a run's advisory lock, "benc"."""
_OTHER_RUNS = read_sql("other_runs").format(runs=_RUNS)
_HINTS = {
    "password": "; passwords come from the service file, PGPASSWORD or .pgpass",
    "definition of service": "; services are defined in ~/.pg_service.conf or the file in PGSERVICEFILE",
}
_NO_CHECKPOINT = (
    "no CHECKPOINT, so trials start with dirty buffers (version 15 on: GRANT pg_checkpoint TO the role)"
)
_READS = "reads the database that is there, in read-only transactions; creates nothing"
_OMITTED_PARAMETERS = ("service", "servicefile", "connect_timeout", "application_name")
_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl", "sslcrldir")
_INHERITED_VARIABLES = ("HOME", "KRB5CCNAME", "KRB5_CONFIG")
_CALLS_S = 2.0


class Remote(Server):
    """An external server, with a database or schema of benchlib, or read in place."""

    settings_file = "postgresql.auto.conf"

    def __init__(self, target: Target) -> None:
        """Connect; PreflightError if the server refuses."""
        super().__init__()
        self.target, self.in_place = target, bool(target.in_place)
        self._bounds = dict[str, float]()
        self._server_wide: set[str] = set()
        with _reaching(target) as connection:
            # .pgpass may have the password for this database only
            self._parameters = {"password": connection.info.password} if connection.info.password else {}
            self.maintenance = self.database = connection.info.dbname
            self._options = connection.info.options
        self._forced = {"default_transaction_read_only": "on"} if self.in_place else dict[str, str]()
        self._begin_sessions_with({})

    def preflight(
        self,
        *,
        clients: int,
        settings: Mapping[str, SettingValue],
        needs_mib: int,
        template: str | None = None,
    ) -> list[tuple[str, str]]:
        """Check that the server can run a level; return names and texts.

        Raises:
            PreflightError: a requirement is not met.

        """
        target = self.target
        with _reaching(target) as connection:
            version = connection.info.parameter_status("server_version") or "of an unknown version"
            if connection.info.server_version < _OLDEST * 10_000:
                raise PreflightError(f"“{target.server}” has PostgreSQL {version}, {_OLDEST} is needed")
            server_wide = rights.require(connection, target, settings, template)
            role = fetch(connection, rights.RIGHTS)[0]
            if template and not self.in_place:
                size = "SELECT pg_database_size(%(template)s) >> 20 AS mib"
                needs_mib += fetch(connection, size, {"template": template})[0]["mib"]
            allowed = [f"a new {'schema' if target.own_schema else 'database'}"]
            allowed += ["CHECKPOINT" if role["may_checkpoint"] else _NO_CHECKPOINT]
            allowed += [f"{name} for the whole server" for name in sorted(server_wide)]
            program, over_tls = find_pgbench(abroad=True), connection.pgconn.ssl_in_use
            if over_tls and not program.encrypts:
                raise PreflightError(f"“{target.server}” uses TLS, unlike {program.label}: install another")
            offers = {
                "connections": rights.connections(connection, clients),
                "rights": ", ".join(allowed),
                "brakes": "",
                "disk": f"about {needs_mib:,} MiB needed per level; a server cannot report its free space",
                "host": "sampled by the server" if role["may_read_files"] else f"not sampled: {HOST_GRANTS}",
            }
            if self.in_place:
                bounds = (target.brakes or Brakes()).bounds(connection).items()
                brakes = ", ".join(f"{name} {bound:g}" for name, bound in bounds)
                offers |= {"rights": _READS, "brakes": brakes, "disk": ""}
        name = "server by URI" if "://" in target.server else f"service {target.server}"
        encrypted = "encrypted" if over_tls else "not encrypted"
        about = (name, f"PostgreSQL {version}, {encrypted}")
        return [about, *((f"{name}, {subject}", text) for subject, text in offers.items() if text)]

    @classmethod
    def open(cls, target: Target, scope: Scope, template: str | None = None) -> Self:
        """Return the server with a new database or schema, dropped with the scope.

        Raises:
            PreflightError: it cannot be reached, a right is missing, or other tables are there.
            ServerError: the database or schema cannot be used.

        """
        remote, own = cls(target), target.own_schema
        with _reaching(target) as connection:
            rights.require(connection, target, {}, template)
            if target.in_place:
                remote._bounds = (target.brakes or Brakes()).bounds(connection)
            else:
                created = Created(
                    server=target.server,
                    what="schema" if own else "database",
                    name=f"{own or 'benchlib'}_{secrets.token_hex(6)}",  # a new one for every level
                    template=template or "template0",
                )
                scope.note(created)
                created.make(connection)
                if own:
                    remote._forced = {"search_path": created.name}
                    remote._begin_sessions_with({})
                else:
                    remote.database = created.name
        # else pgbench would drop and create its tables in another schema, or write
        if any(remote.value(f"SHOW {name}") != value for name, value in remote._forced.items()):
            raise PreflightError(f"“{target.server}” ignores connection options: its pooler cannot be used")
        return remote

    def calls_per_s(self) -> float:
        """Return the transactions per second of all databases.

        A session reports them with its next read or write of a table, so others count late or never.
        """
        with asking(), self.connect() as connection:
            first = fetch(connection, read_sql("calls"))[0]
            time.sleep(_CALLS_S)
            last = fetch(connection, read_sql("calls"))[0]
        return float((last["calls"] - first["calls"]) / (last["at_s"] - first["at_s"]))

    @contextlib.contextmanager
    def braked(self) -> Iterator[Callable[[], None]]:
        """Yield the check of :func:`benchlib.server.brakes.braking`; after an error, end the load."""
        with asking():
            connection = self.connect()
        with contextlib.closing(connection):
            try:
                with braking(connection, self._bounds) as check:
                    yield check
            except BaseException:
                with contextlib.suppress(psycopg.Error):  # the load may have taken all other connections
                    connection.execute(statistics.END_LOAD.format(name=statistics.IN_PLACE))
                with contextlib.suppress(ServerError):  # the server is gone
                    statistics.end_load(self, statistics.IN_PLACE)
                raise

    def connect(self, dbname: str | None = None, *, as_load: bool = False) -> Session:
        """Connect to a database; all sessions have the service's role."""
        return connect_to(self.target.server, dbname=dbname or self.database, **self._parameters)

    def vacuum(self, options: str) -> None:
        """Vacuum; in a schema only benchlib's tables."""
        if "search_path" not in self._forced:
            super().vacuum(options)
            return
        for table in self.query(read_sql("schema_tables")):
            self.execute(LOCAL, f"VACUUM ({options}) {table['name']}")

    @property
    def connection(self) -> Connection:
        """The load tool's connection."""
        return Connection(dbname=self.database)

    def shell(self) -> Shell:
        """Return the load tool's shell, with the connection in it."""
        with asking(), self.connect() as connection:
            info = connection.info
            # of several hosts the one that answered
            address = {"host": info.host, "port": str(info.port), "user": info.user, "dbname": info.dbname}
            parameters = {**info.get_parameters(), **address, "password": info.password}
            if "hostaddr" in parameters:
                parameters["hostaddr"] = info.hostaddr
        environment = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
        for option in psycopg.pq.Conninfo.get_defaults():
            name, value = option.keyword.decode(), parameters.get(option.keyword.decode())
            if option.envvar and value and name not in _OMITTED_PARAMETERS:
                if name in _FILES and value != "system":  # its programs work in another folder
                    value = str(Path(value).absolute())
                environment[option.envvar.decode()] = value
        if self.in_place:
            environment["PGAPPNAME"] = statistics.IN_PLACE
        return Shell(environment=environment)

    def configure(self, settings: Mapping[str, SettingValue], scope: Scope) -> None:
        """Apply a level's settings and check that they take effect.

        New sessions begin with them. Others need ``ALTER SYSTEM``, undone with the scope.

        Raises:
            SettingError: a setting was refused or did not take effect.

        """
        self.want({**settings, **({} if self.target.own_schema else self._forced)})
        values = {name: spelled(value) for name, value in settings.items()}
        with asking(), self.connect(self.maintenance) as connection:
            missing, self._server_wide = rights.missing_for_settings(connection, self.target, settings)
            if missing:
                raise SettingError(f"the server refuses the settings: {'; '.join(missing)}")
            for name in [name for name in values if name.lower() in self._server_wide]:
                former = rights.former_value(connection, name)
                altered = Altered(server=self.target.server, name=name, former=former, value=values.pop(name))
                scope.note(altered)
                with asking(f"the server refuses {name}", SettingError):
                    altered.make(connection)
            if self._server_wide:
                reload(connection)
        self._begin_sessions_with(values)
        self.check_settings(self.database)

    def _begin_sessions_with(self, values: Mapping[str, str]) -> None:
        options = [self._options] if self._options else []
        for name, value in {**values, **self._forced}.items():
            escaped = re.sub(r"[\s\\]", r"\\\g<0>", value)
            options.append(f"-c{name}={escaped}")
        self._parameters["options"] = " ".join(options)

    def _set_by_us(self, row: Mapping[str, Any]) -> bool:
        return (
            super()._set_by_us(row) if row["name"] in self._server_wide else bool(row["source"] == "client")
        )

    def checkpoint(self) -> None:
        """Run CHECKPOINT if the role may; never in place."""
        if self.in_place:
            return
        refused = contextlib.suppress(psycopg.errors.InsufficientPrivilege)
        with asking(), self.connect() as connection, refused:
            connection.execute("CHECKPOINT")

    def identity(self) -> dict[str, Any]:
        """Return version and rights, without names of hosts or roles."""
        return {
            "version": self.version(),
            "build": self.value("SELECT version()", self.maintenance),
            "checkpoints": self.query(rights.RIGHTS, self.maintenance)[0]["may_checkpoint"],
        }


@contextlib.contextmanager
def sole_run(server: str, number: int) -> Iterator[None]:
    """Hold an advisory lock, so that two runs cannot change the server's settings.

    Raises:
        HostBusyError: another run holds it.
        PreflightError: the server cannot be reached.

    """
    with _reaching(Target(server=server, in_place=True)) as connection:
        name = "idle_session_timeout"  # version 14 and later
        connection.execute("SELECT set_config(name, '0', false) FROM pg_settings WHERE name = %s", [name])
        connection.execute("SELECT pg_advisory_lock_shared(%s::int, %s::int)", [_RUNS, number])
        for _ in ticks(2.0, 0.2):  # the lock of a killed run disappears soon
            if not connection.execute(_OTHER_RUNS, [number]).fetchall():
                break
        else:
            raise HostBusyError(f"another run is in progress on external server “{server}”: wait for it")
        yield


@contextlib.contextmanager
def _reaching(target: Target) -> Iterator[Session]:
    """Connect, or raise a PreflightError."""
    try:
        with connect_to(target.server) as connection:
            if target.in_place:
                refuse_pooler(connection)
                connection.execute("SET default_transaction_read_only = on")
            yield connection
    except psycopg.Error as error:
        message = reason_of(error)
        hint = next((hint for mark, hint in _HINTS.items() if mark in message), "")
        raise PreflightError(f"cannot use external server “{target.server}”: {message}{hint}") from error
