"""An embedded PostgreSQL cluster, on a Unix socket or a network address."""

import contextlib
import io
import os
import re
import secrets
import signal
import socket
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Any, BinaryIO, Self

import psycopg
from psycopg.sql import SQL, Identifier, Literal

from benchlib.errors import PreflightError, ServerError, TrialError, os_errors_as
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
_CUT_OFF = ("unshare", "--map-current-user", "--net", "--")
"""Starts a program without a network (Linux, where users may have namespaces)."""
STOP_LIMIT_S = 60.0


@dataclass(frozen=True)
class NetworkAccess:
    """The network access to a cluster."""

    address: str
    port: int
    clients: tuple[str, ...]
    password: str = field(repr=False)

    @classmethod
    def at(cls, address: str, clients: Sequence[str]) -> Self:
        """Return access at a free port, with a random password.

        Raises:
            ServerError: the address does not belong to this host.

        """
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with os_errors_as(ServerError, f"cannot listen at {address}"), socket.socket(family) as free:
            free.bind((address, 0))
            return cls(address, free.getsockname()[1], tuple(clients), secrets.token_urlsafe(24))


class Cluster(Server):
    """A data directory with its server. ``folder`` holds data, socket and log."""

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
        self.network: NetworkAccess | None = None
        self.role = SUPERUSER
        self._process: Process | None = None

    @property
    def running(self) -> bool:
        """Whether the server process exists; does not reap it, which keeps its CPU time."""
        if self._process is None or self._process.returncode is not None:
            return False
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    @property
    def pid(self) -> int | None:
        """The postmaster's process id."""
        return self._process.pid if self._process else None

    @property
    def port(self) -> int:
        """The port."""
        return self.network.port if self.network else PORT

    @property
    def connection(self) -> Connection:
        """The load tool's connection."""
        return Connection(host=str(self.sockets), port=self.port, user=self.role, dbname=self.database)

    def listen(self, access: NetworkAccess) -> None:
        """Listen at an address from the next start on."""
        self.network = access
        lines = ["local all all trust", "local replication all trust"]
        lines += [
            f"host all,replication {SUPERUSER},{self.role} {ip_network(client)} scram-sha-256"
            for client in access.clients
        ]
        self.write("pg_hba.conf", "\n".join([*lines, ""]))

    def admit(self) -> None:
        """Set the network password; the server receives only its hash."""
        if self.network:
            with asking(), self.connect(self.maintenance) as connection:
                connection.execute("SET synchronous_commit = local")  # no replica is connected yet
                for user in {SUPERUSER, self.role}:
                    secret = self.network.password.encode()
                    verifier = connection.pgconn.encrypt_password(secret, user.encode(), b"scram-sha-256")
                    statement = SQL("ALTER ROLE {} PASSWORD {}")
                    connection.execute(statement.format(Identifier(user), Literal(verifier.decode())))

    def make_folders(self) -> None:
        """Create the directories."""
        for folder in (self.folder, self.sockets):
            self.shell.make_directory(folder)

    def create(self, initdb_options: Sequence[str] = ()) -> None:
        """Create an empty cluster.

        Raises:
            ServerError: initdb failed.

        """
        self.make_folders()
        # trust is safe: only the owner can open the socket
        self.shell.run(
            [
                self.installation.program("initdb"), "--pgdata", self.data, "--username", SUPERUSER,
                "--auth", "trust", "--encoding", "UTF8", "--no-locale", "--no-sync", *initdb_options,
            ],
            timeout_s=300,
        ).insist(ServerError, "initdb failed")  # fmt: skip
        self.write("postgresql.conf", f"include_if_exists '{self.settings_file}'\n", append=True)

    def clone(self, folder: Path, *, data: Path | None = None, wal: Path | None = None) -> "Cluster":
        """Copy this stopped cluster, with links to ``data`` and ``wal`` if given.

        Raises:
            ServerError: the copy failed.

        """
        copy = Cluster(self.shell, self.installation, folder)
        copy.role = self.role
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
        """Link the data directory to another one.

        The link is never read again: the servers' user may exchange it.
        """
        self.shell.link(self.data, data)
        self.placed, self.placed_wal = data, data / "pg_wal"

    def configure(self, settings: Mapping[str, SettingValue]) -> None:
        """Write the settings for the next start."""
        self.want(settings)
        # the default since 15; charts mark checkpoints
        self.write(self.settings_file, conf_text({"log_checkpoints": True, **settings}))

    def write(self, name: str, text: str, *, append: bool = False) -> None:
        """Write a file of the data directory."""
        self.shell.write(self.data / name, text, append=append)

    def start(self, limit_s: float = START_LIMIT_S, *, cut_off: bool = False) -> None:
        """Start the server and wait for it; ``cut_off``: without a network, where possible.

        Raises:
            ServerError: it ended or did not answer in time.
            SettingError: a setting did not take effect; the server is stopped.

        """
        label, program = self.installation.label, self.installation.program("postgres")
        offset = self.log_size()
        address = self.network.address if self.network else ""
        argv: list[str | Path] = [
            *(_CUT_OFF if cut_off and self.can_be_cut_off() else ()),
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

    def can_be_cut_off(self) -> bool:
        """Return whether servers can run without a network."""
        with contextlib.suppress(TrialError):
            return self.shell.run([*_CUT_OFF, "true"], timeout_s=30).returncode == 0
        return False

    def stop(self, *, immediately: bool = False) -> None:
        """Stop the server, at last by SIGKILL."""
        if (process := self._process) is None:
            return
        steps = [(signal.SIGINT, STOP_LIMIT_S), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0)]
        for sig, limit_s in steps[immediately:]:
            process.send_signal(sig)  # no effect on an ended process
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(limit_s)
                self._process = None
                return
        raise ServerError(f"process {process.pid} of {self.installation.label} does not end by SIGKILL")

    @property
    def reached_at(self) -> tuple[str, str | None]:
        """The host, or the sockets' directory, and the password."""
        return str(self.sockets), None

    def connect(self, dbname: str | None = None, *, as_load: bool = False) -> Session:
        """Connect as the load's role, or as superuser, who finds nothing by name that a dump has created."""
        host, password = self.reached_at
        user = self.role if as_load else SUPERUSER
        path = {"options": "-c search_path=pg_catalog"} if user != self.role else {}
        return open_cluster(host, self.port, dbname or self.database, password, user=user, **path)

    def log_text(self, offset: int = 0) -> str:
        """Return the log from a byte offset on."""
        return log_text(self.shell, self.log, offset)

    def log_end(self, offset: int, limit: int) -> str:
        """Return the end of the log from an offset on; see :func:`shortened`."""
        with _opened_log(self.shell, self.log) as file:
            file.seek(offset)
            return shortened((line.decode(errors="replace") for line in file), limit)

    def log_size(self) -> int:
        """Return the log's length in bytes."""
        with _opened_log(self.shell, self.log) as file:
            return file.seek(0, os.SEEK_END)


def log_text(shell: Shell, log: Path, offset: int = 0) -> str:
    """Return a log; empty if not a file of the user."""
    with _opened_log(shell, log) as file:
        file.seek(offset)
        return file.read().decode(errors="replace")


def shortened(lines: Iterable[str], limit: int) -> str:
    """Return a log's last lines, of about ``limit`` characters, after its earlier checkpoint lines."""
    early, last, size = list[str](), deque[str](), 0
    for whole in lines:
        line = whole[-limit:]
        last.append(line)
        size += len(line)
        while size - len(last[0]) >= limit:
            size -= len(last[0])
            early += [gone] if "checkpoint" in (gone := last.popleft()) else []
    return "".join([*early, *last])


def _opened_log(shell: Shell, log: Path) -> BinaryIO:
    try:
        return os.fdopen(files.opened(log, owner=shell.uid), "rb")
    except (OSError, PreflightError):
        return io.BytesIO()


def refusal(installation: Installation, settings: Mapping[str, SettingValue]) -> str | None:
    """Return the server's error for invalid settings, or None."""
    shell = Shell(server_user())
    with tempfile.TemporaryDirectory(prefix="benchlib-", dir="/var/tmp") as name:
        admit_servers(Path(name))
        program = runnable_by(shell, installation, Path(name)).program("postgres")
        folder = shell.make_directory(Path(name) / "data")
        shell.write(folder / "postgresql.conf", conf_text(settings))
        done = shell.run([program, "-C", "port", "-D", folder], timeout_s=60)
    return None if done.returncode == 0 else failure_reason(done.stderr)


def open_cluster(
    host: str, port: int, dbname: str, password: str | None = None, user: str = SUPERUSER, **more: Any
) -> Session:
    """Connect to a cluster, by default as superuser."""
    return open_session(
        ours=True, host=host, port=port, user=user, password=password, dbname=dbname,
        tcp_user_timeout=30_000, keepalives_idle=10, **more,
    )  # fmt: skip


def log_lines(output: str) -> list[str]:
    """Return a log's lines, without refusals while the server starts."""
    lines = map(str.strip, output.splitlines())
    return [line for line in lines if line and "the database system is" not in line]


def failure_reason(output: str) -> str:
    """Return the line that states a program's error."""
    lines = log_lines(output)
    errors = error_lines(lines)
    if errors and "contains errors" in errors[0]:
        # the lines before it name the faults in the file
        faults = re.findall(r"LOG: *(.*parameter.*?)(?: in file .* line \d+)?$", output, re.MULTILINE)
        errors = ["; ".join(faults)] if faults else errors
    return (errors or lines[-1:] or ["no output"])[0]
