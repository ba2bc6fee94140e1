"""One running PostgreSQL of our own: made, configured, started, asked, stopped.

The server listens on a Unix socket in a private folder and on nothing else, so any
number stand side by side without ports; where load comes from elsewhere or replicas are, at one address too. It runs
as a child of this process; the guardian process ends it when this process dies.
"""

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Self

import psycopg
from psycopg.sql import SQL, Identifier, Literal

from benchlib.errors import PreflightError, ServerError, os_errors_as
from benchlib.host import files
from benchlib.host.shell import Process, Shell, admit_servers, error_lines, server_user, ticks
from benchlib.load.tool import Connection
from benchlib.plan.level import SettingValue
from benchlib.plan.settings import conf_text
from benchlib.server.copying import copy_tree
from benchlib.server.installations import Installation, runnable_by
from benchlib.server.server import Server, Session, asking, open_session

SUPERUSER = "postgres"
PORT = 5432
START_LIMIT_S = 60.0
STOP_LIMIT_S = 60.0


@dataclass(frozen=True)
class Door:
    """How a server is reached over the network: at one address, by these clients alone, with a password."""

    address: str
    port: int
    clients: tuple[str, ...]
    password: str = field(repr=False)

    @classmethod
    def at(cls, address: str, clients: Sequence[str]) -> Self:
        """A door at a free port of an address, with a password that nobody has seen.

        Raises:
            ServerError: the address is none of this host's.

        """
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with os_errors_as(ServerError, f"nothing can listen at {address}"), socket.socket(family) as free:
            free.bind((address, 0))
            return cls(address, free.getsockname()[1], tuple(clients), secrets.token_urlsafe(24))


class Cluster(Server):
    """A data directory with its server. ``folder`` holds everything: data, socket, log.

    Short paths matter: a Unix socket's path must stay under 104 bytes (macOS) or 108.
    ``groups`` are the folders of control groups that the server runs in from its next start on.
    """

    settings_file = "benchlib.conf"

    def __init__(
        self, shell: Shell, installation: Installation, folder: Path, groups: Sequence[Path] = ()
    ) -> None:
        super().__init__()
        self.shell = shell
        self.groups = groups
        self.installation = installation
        self.folder = folder
        self.data = folder / "data"
        self.placed, self.placed_wal = self.data, self.data / "pg_wal"
        self.sockets = folder / "s"
        self.log = folder / "server.log"
        self.door: Door | None = None
        self._process: Process | None = None

    @property
    def running(self) -> bool:
        """Whether the server process is there; its processor time is left for whoever waits for it."""
        if self._process is None or self._process.returncode is not None:
            return False
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    @property
    def pid(self) -> int | None:
        """The process id of the postmaster; None where none has been started."""
        return self._process.pid if self._process else None

    @property
    def port(self) -> int:
        """The port, which is also in the socket's name."""
        return self.door.port if self.door else PORT

    @property
    def connection(self) -> Connection:
        """How the load tool reaches it."""
        return Connection(host=str(self.sockets), port=self.port, user=SUPERUSER, dbname=self.database)

    def open_door(self, door: Door) -> None:
        """Listen at an address too, from the next start on; :meth:`admit` sets the password once it runs."""
        self.door = door
        lines = ["local all all trust", "local replication all trust"]
        lines += [f"host all,replication {SUPERUSER} {ip_network(one)} scram-sha-256" for one in door.clients]
        self.write("pg_hba.conf", "\n".join([*lines, ""]))

    def admit(self) -> None:
        """Set the door's password. The server hears only what it keeps of it, so that its log has none."""
        if self.door:
            with asking(), self.connect(self.maintenance) as connection:
                secret, user = self.door.password.encode(), SUPERUSER.encode()
                kept = connection.pgconn.encrypt_password(secret, user, b"scram-sha-256").decode()
                names = Identifier(SUPERUSER), Literal(kept)
                connection.execute("SET synchronous_commit = local")  # no replica is there to wait for
                connection.execute(SQL("ALTER ROLE {} PASSWORD {}").format(*names))

    def make_folders(self) -> None:
        """Make its folder, and the one of its socket."""
        for folder in (self.folder, self.sockets):
            self.shell.make_directory(folder)

    def create(self, initdb_options: Sequence[str] = ()) -> None:
        """Make an empty cluster.

        ``trust`` is safe here: the socket's folder is open to its owner alone.

        Raises:
            ServerError: initdb failed; the message has its reason.

        """
        self.make_folders()
        self.shell.run(
            [
                self.installation.program("initdb"), "--pgdata", self.data, "--username", SUPERUSER,
                "--auth", "trust", "--encoding", "UTF8", "--no-locale", "--no-sync", *initdb_options,
            ],
            timeout_s=300,
        ).insist(ServerError, "initdb failed")  # fmt: skip
        self.write("postgresql.conf", f"include_if_exists '{self.settings_file}'\n", append=True)

    def clone(self, folder: Path, *, data: Path | None = None, wal: Path | None = None) -> "Cluster":
        """A copy of this stopped cluster in another folder, by the fastest way that the file system has.

        ``data`` and ``wal`` are empty folders elsewhere that its data and its WAL go into. The folder
        then holds links to them, so that the server's command line names the folder all the same.

        Raises:
            ServerError: the copy failed.

        """
        copy = Cluster(self.shell, self.installation, folder)
        copy.make_folders()
        if data:
            copy.place(data / "data")
        copy_tree(self.shell, self.data, copy.placed)
        if wal:
            copy_tree(self.shell, self.data / "pg_wal", wal / "pg_wal")
            self.shell.remove(copy.data / "pg_wal")
            self.shell.link(copy.data / "pg_wal", wal / "pg_wal")
            copy.placed_wal = wal / "pg_wal"
        return copy

    def place(self, data: Path) -> None:
        """Have the data elsewhere: a link leads there.

        Where that is, is remembered and never read from the link again, which the servers' user may exchange.
        """
        self.shell.link(self.data, data)
        self.placed, self.placed_wal = data, data / "pg_wal"

    def configure(self, settings: Mapping[str, SettingValue]) -> None:
        """Write the settings into the cluster's own file; they hold from the next start on."""
        self.want(settings)
        # the default since 15; a chart marks checkpoints
        self.write(self.settings_file, conf_text({"log_checkpoints": True, **settings}))

    def write(self, name: str, text: str, *, append: bool = False) -> None:
        """Write a file of the data directory, or append to it, as the user who runs the server."""
        self.shell.write(self.data / name, text, append=append)

    def start(self, limit_s: float = START_LIMIT_S) -> None:
        """Start the server and wait until it answers.

        Raises:
            ServerError: it ended, or did not answer in time; the message has its last error.
            SettingError: it ran, but not with the settings that were asked for, and was stopped.

        """
        label, program = self.installation.label, self.installation.program("postgres")
        offset = self.log_size()
        address = self.door.address if self.door else ""
        argv: list[str | Path] = [
            program, "-D", self.data, "-h", address, "-k", self.sockets, "-p", str(self.port)
        ]  # fmt: skip
        self._process = self.shell.start(argv, log=self.log, groups=self.groups)
        try:
            for _ in ticks(limit_s):
                if not self.running:
                    raise ServerError(f"{label} did not start: {failure_reason(self.log_text(offset))}")
                with contextlib.suppress(psycopg.OperationalError), self.connect("postgres"):
                    break
            else:
                raise ServerError(f"{label} did not answer within {limit_s:.0f} s of its start")
            self.check_settings("postgres")
        except BaseException:
            self.stop(immediately=True)
            raise

    def stop(self, *, immediately: bool = False) -> None:
        """Stop the server: a fast shutdown, or at once; SIGKILL is the last resort."""
        if self._process is None:
            return
        steps = [(signal.SIGINT, STOP_LIMIT_S), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0)]
        for sig, patience in steps[immediately:]:
            self._process.send_signal(sig)  # to one that has ended it sends nothing
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
                break
        self._process = None

    def connect(self, dbname: str | None = None) -> Session:
        """A connection of the superuser; see :func:`superuser_session`."""
        return superuser_session(str(self.sockets), self.port, dbname or self.database)

    def log_text(self, offset: int = 0) -> str:
        """What the server has logged, from a byte offset on."""
        return log_text(self.shell, self.log, offset)

    def log_size(self) -> int:
        """The length of the server's log in bytes."""
        with contextlib.suppress(OSError, PreflightError):
            descriptor = files.opened(self.log, owner=self.shell.uid)
            try:
                return os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
        return 0


def log_text(shell: Shell, log: Path, offset: int = 0) -> str:
    """Return what a process of a shell's user has logged, from a byte on; empty where there is no log, or no plain file."""
    try:
        descriptor = files.opened(log, owner=shell.uid)
    except (OSError, PreflightError):
        return ""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(offset)
        return file.read().decode(errors="replace")


def refusal(installation: Installation, settings: Mapping[str, SettingValue]) -> str | None:
    """Why a server of an installation would not take these settings, in its own words; None if it would.

    It reads them and is not started, which takes no cluster.
    """
    shell = Shell(server_user())
    with tempfile.TemporaryDirectory(prefix="benchlib-", dir="/var/tmp") as name:
        admit_servers(Path(name))
        program = runnable_by(shell, installation, Path(name)).program("postgres")
        folder = shell.make_directory(Path(name) / "data")
        shell.write(folder / "postgresql.conf", conf_text(settings))
        done = shell.run([program, "-C", "port", "-D", folder], timeout_s=60)
    return None if done.returncode == 0 else failure_reason(done.stderr)


def superuser_session(host: str, port: int, dbname: str, password: str | None = None) -> Session:
    """A connection to a server of ours as its superuser; see :func:`.server.open_session`."""
    return open_session(
        ours=True, host=host, port=port, user=SUPERUSER, password=password, dbname=dbname,
        tcp_user_timeout=30_000, keepalives_idle=10,
    )  # fmt: skip


_IN_FILE = re.compile(r' in file ".*" line \d+')


def failure_reason(output: str) -> str:
    """The line of a program's output that says why it failed."""
    # to refuse a connection while it starts is no failure
    lines = [
        line.strip() for line in output.splitlines() if line.strip() and "the database system is" not in line
    ]
    errors = error_lines(lines)
    if errors and "contains errors" in errors[0]:
        # what is wrong in a configuration file stands in the lines before
        faults = [_IN_FILE.sub("", line.strip()) for line in re.findall(r"LOG: *(.*parameter.*)", output)]
        errors = ["; ".join(faults)] if faults else errors
    return (errors or lines[-1:] or ["no output"])[0]
