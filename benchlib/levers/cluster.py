"""One running PostgreSQL of our own: made, configured, started, asked, stopped.

The server listens on a Unix socket in a private folder and on nothing else, so any
number stand side by side without ports. It runs as a child of this process; the
guardian process ends it when this process dies.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from benchlib.errors import ServerError, SettingError
from benchlib.level import SettingValue
from benchlib.levers.postgres import Installation
from benchlib.settings import ServerSetting, conf_text, differences
from benchlib.shell import Process, Shell, ticks

SUPERUSER = "postgres"
DATABASE = "bench"
START_LIMIT_S = 60.0
STOP_LIMIT_S = 60.0


class Cluster:
    """A data directory with its server. ``folder`` holds everything: data, socket, log.

    Short paths matter: a Unix socket's path must stay under 104 bytes (macOS) or 108.
    """

    def __init__(self, shell: Shell, installation: Installation, folder: Path) -> None:
        self.shell = shell
        self.installation = installation
        self.folder = folder
        self.data = folder / "data"
        self.sockets = folder / "s"
        self.log = folder / "server.log"
        self._process: Process | None = None
        self._settings: dict[str, SettingValue] = {}

    @property
    def running(self) -> bool:
        """Whether the server process is there."""
        return self._process is not None and self._process.poll() is None

    def create(self, initdb_options: Sequence[str] = ()) -> None:
        """Make an empty cluster.

        ``trust`` is safe here: the socket's folder is open to its owner alone.

        Raises:
            ServerError: initdb failed; its own words are in the message.

        """
        self.shell.make_directory(self.folder)
        self.shell.make_directory(self.sockets)
        done = self.shell.run(
            [
                self.installation.program("initdb"), "--pgdata", self.data, "--username", SUPERUSER,
                "--auth", "trust", "--encoding", "UTF8", "--no-locale", "--no-sync", *initdb_options,
            ],
            timeout_s=300,
        )  # fmt: skip
        if done.returncode != 0:
            raise ServerError(f"initdb failed: {_last_words(done.stderr)}")

    def clone(self, folder: Path) -> Cluster:
        """A copy of this stopped cluster in another folder, by reflink where the file system can."""
        copy = Cluster(self.shell, self.installation, folder)
        self.shell.make_directory(folder)
        self.shell.make_directory(copy.sockets)
        done = self.shell.run(["cp", *_COPY_OPTIONS, self.data, copy.data], timeout_s=3600)
        if done.returncode != 0:
            raise ServerError(f"copying the loaded data set failed: {_last_words(done.stderr)}")
        return copy

    def configure(self, settings: Mapping[str, SettingValue]) -> None:
        """Write the settings into the cluster's own file; they hold from the next start on."""
        self._settings = dict(settings)
        ours: dict[str, SettingValue] = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.sockets),
            "port": 5432,
        }
        conf = self.data / "benchlib.conf"
        conf.write_text(conf_text({**settings, **ours}))
        self.shell.own(conf)
        main = self.data / "postgresql.conf"
        include = "include 'benchlib.conf'\n"
        if include not in main.read_text():
            with main.open("a") as file:
                file.write(include)

    def refusal(self) -> str | None:
        """Why the server would not take its configured settings, in its own words; None if it would."""
        done = self.shell.run(
            [self.installation.program("postgres"), "-D", self.data, "-C", "port"], timeout_s=60
        )
        return None if done.returncode == 0 else _last_words(done.stderr)

    def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            ServerError: it ended, or did not answer in time; its last words are in the message.
            SettingError: it ran, but not with the settings that were asked for, and was stopped.

        """
        program = self.installation.program("postgres")
        self._process = self.shell.start([program, "-D", self.data], log=self.log)
        for _ in ticks(START_LIMIT_S):
            if self._process.poll() is not None:
                words = _last_words(self.log_text())
                self._process = None
                raise ServerError(f"{self.installation.label} did not start: {words}")
            with contextlib.suppress(psycopg.OperationalError), self.connect("postgres"):
                break
        else:
            self.stop(immediately=True)
            raise ServerError(
                f"{self.installation.label} did not answer within {START_LIMIT_S:.0f} s of its start"
            )
        try:
            self.check_settings()
        except BaseException:
            self.stop(immediately=True)
            raise

    def check_settings(self, dbname: str = "postgres") -> dict[str, str]:
        """The settings that were asked for as the server shows them: its own reading, with units.

        They are those of a session in ``dbname``, since a database may have settings of its own.

        Raises:
            SettingError: one of them did not take.

        """
        found = {s.name.lower(): s for s in self.settings(dbname)}
        if wrong := differences(self._settings, found):
            raise SettingError("a setting did not take: " + "; ".join(wrong))
        return {name: found[name.lower()].shown() for name in self._settings}

    def settings(self, dbname: str = "postgres") -> list[ServerSetting]:
        """Every parameter as the running server shows it to a session in a database."""
        rows = self.query("SELECT name, setting, unit, vartype FROM pg_settings ORDER BY name", dbname=dbname)
        return [ServerSetting(r["name"], r["setting"], r["unit"], r["vartype"]) for r in rows]

    def stop(self, *, immediately: bool = False) -> None:
        """Stop the server: a fast shutdown, or at once; SIGKILL is the last resort."""
        if self._process is None:
            return
        steps = [(signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0)]
        if not immediately:
            steps.insert(0, (signal.SIGINT, STOP_LIMIT_S))
        for sig, patience in steps:
            if self._process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.send_signal(sig)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
                break
        self._process = None

    def connect(self, dbname: str = DATABASE) -> psycopg.Connection[Any]:
        """A connection in autocommit mode, as the superuser, whatever the caller's ``PG*`` variables say."""
        with _no_connection_variables():
            return psycopg.connect(
                host=str(self.sockets), port=5432, user=SUPERUSER, dbname=dbname, autocommit=True, connect_timeout=10,
                application_name="benchlib",
            )  # fmt: skip

    def query(self, sql: str, dbname: str = DATABASE) -> list[dict[str, Any]]:
        """The rows of one query, as dictionaries.

        Raises:
            ServerError: the server refused it or went away; its own words are in the message.

        """
        try:
            with self.connect(dbname) as connection, connection.cursor(row_factory=dict_row) as cursor:
                cursor.execute(sql)
                return cursor.fetchall() if cursor.description else []
        except psycopg.Error as reason:
            raise ServerError(f"the server refused or went away: {_reason(reason)}") from reason

    def execute(self, *statements: str, dbname: str = DATABASE) -> None:
        """Run statements one by one, each committed by itself.

        Raises:
            ServerError: as :meth:`query`.

        """
        try:
            with self.connect(dbname) as connection:
                for statement in statements:
                    connection.execute(statement)
        except psycopg.Error as reason:
            raise ServerError(f"the server refused or went away: {_reason(reason)}") from reason

    def version(self) -> str:
        """The server's version as it tells it itself (``18.4``)."""
        return str(self.query("SHOW server_version", dbname="postgres")[0]["server_version"])

    def log_text(self, offset: int = 0) -> str:
        """What the server has logged, from a byte offset on."""
        try:
            with self.log.open("rb") as file:
                file.seek(offset)
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def log_size(self) -> int:
        """The length of the server's log in bytes."""
        return self.log.stat().st_size if self.log.exists() else 0


_COPY_OPTIONS = ("-a", "--reflink=auto") if Path("/proc").exists() else ("-a",)


@contextlib.contextmanager
def _no_connection_variables() -> Iterator[None]:
    """The environment without ``PGHOSTADDR``, ``PGSERVICE`` and the like: libpq reads them itself."""
    held = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("PG")}
    try:
        yield
    finally:
        os.environ.update(held)


def _reason(error: psycopg.Error) -> str:
    """What the server said of a statement or a connection, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return error.diag.message_primary or (_marked(lines) or lines or ["it said nothing"])[0]


def _last_words(text: str) -> str:
    """The line of a program's output that says why it failed."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marked = _marked(lines)
    if marked and "contains errors" in marked[0]:
        # what is wrong in a configuration file stands in the lines before
        told = [line for line in lines if "LOG:" in line and _IN_FILE.search(line)] or [
            line for line in lines if "LOG:" in line and "parameter" in line
        ]
        marked = [_IN_FILE.sub("", line[line.index("LOG:") + 4 :]).strip() for line in told] or marked
    return (marked or lines[-1:] or ["it said nothing"])[0]


_IN_FILE = re.compile(r' in file ".*" line \d+')


def _marked(lines: Sequence[str]) -> list[str]:
    """The lines that tell an error, from their mark on, the gravest first."""
    return [
        line[line.index(mark) :]
        for mark in ("FATAL:", "PANIC:", "ERROR:", "error:")
        for line in lines
        if mark in line
    ]
