"""One replica: a server of our own that follows a primary of our own, over a longer way if need be."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from psycopg.conninfo import make_conninfo

from benchlib.errors import ServerError
from benchlib.host.shell import Shell, error_lines, ticks
from benchlib.plan.level import SettingValue
from benchlib.plan.settings import conf_text
from benchlib.server import relay
from benchlib.server.cluster import SUPERUSER, Cluster, failure_reason, log_text


@dataclass(frozen=True)
class Source:
    """What a replica follows: where its primary is reached, by an address or the folder of its socket, and that's settings.

    What they say to each other arrives ``delay_ms`` later, each way.
    """

    host: str
    port: int
    settings: Mapping[str, SettingValue]
    delay_ms: float | None = None


class Relay:
    """A process of the servers' user through which a replica, or who lies in its folder, reaches its source, each way later.

    It begins as ourselves, since that user need not have access to our Python. ``sockets`` is the folder to connect to.

    Raises:
        ServerError: it did not start; the message has its reason.

    """

    def __init__(self, replica: Cluster, source: Source) -> None:
        self.sockets = replica.shell.make_directory(replica.folder / "d")
        name = f".s.PGSQL.{source.port}"
        near, log, user = self.sockets / name, replica.folder / "relay.log", replica.shell.user or ""
        far = f"{source.host}/{name}" if source.host.startswith("/") else f"{source.host}:{source.port}"
        self._process = Shell().start(
            [sys.executable, "-I", "-S", relay.__file__, near, far, str(source.delay_ms), user], log=log
        )
        for _ in ticks(30.0):
            if near.exists():
                return
            if self._process.poll() is not None:
                break
        self.stop()
        raise ServerError(
            f"the relay between the servers did not start: {failure_reason(log_text(replica.shell, log))}"
        )

    def stop(self) -> None:
        """End it at once: it holds nothing of its own."""
        self._process.kill()
        self._process.wait()


class Replica(Cluster):
    """A server that follows a source, in a folder of its own inside that of the cluster ``beside``, and in its control groups.

    Its name is how the primary knows it. ``places`` may have empty folders for its ``data`` and its ``wal``; what has none
    lies in its own folder. ``before_start`` is called when its files are there.
    """

    def __init__(self, beside: Cluster, number: int, source: Source, basebackup: Path) -> None:
        super().__init__(beside.shell, beside.installation, beside.folder / f"r{number}", beside.groups)
        self.name = f"replica{number}"
        self.places: Mapping[str, Path] = {}
        self.before_start: Callable[[], None] = lambda: None
        self._source, self._basebackup = source, basebackup
        self._relay: Relay | None = None

    def follow(self) -> None:
        """Copy the primary, and stream from it.

        Raises:
            ServerError, SettingError: as :meth:`copy` and :meth:`stream`.

        """
        self.copy()
        self.stream()

    def copy(self) -> None:
        """Make the data directory, by pg_basebackup through the replication slot of the replica's name.

        Raises:
            ServerError: it failed; the message has its reason.

        """
        self.make_folders()
        if "data" in self.places:
            self.place(self.shell.make_directory(self.places["data"] / "data"))
        self.shell.run(
            [
                self._basebackup, "--pgdata", self.data, "--wal-method=stream", f"--slot={self.name}", "--checkpoint=fast",
                f"--host={self._source.host}", f"--port={self._source.port}", f"--username={SUPERUSER}", "--no-password",
                *([f"--waldir={self.places['wal'] / 'pg_wal'}"] if "wal" in self.places else []),
            ],
            timeout_s=3600,
        ).insist(ServerError, f"pg_basebackup failed for {self.name}")  # fmt: skip

    def stream(self) -> None:
        """Configure the copy as a replica with the primary's settings and start it.

        Raises:
            ServerError, SettingError: as :meth:`Cluster.start`, or the relay does not start.

        """
        self.before_start()
        if self._source.delay_ms:
            self._relay = Relay(self, self._source)
        way = make_conninfo(
            host=self.upstream, port=self._source.port, user=SUPERUSER, application_name=self.name
        )
        source: dict[str, SettingValue] = {"primary_conninfo": way, "primary_slot_name": self.name}
        settings = {k: v for k, v in self._source.settings.items() if k != "synchronous_standby_names"}
        settings["hot_standby"] = True  # or nobody could ask it for its rows
        if self.installation.major >= 12:
            self.write("standby.signal", "")
            settings |= source
        else:
            source |= {"standby_mode": True, "recovery_target_timeline": "latest"}
            self.write("recovery.conf", conf_text(source))
        self.configure(settings)
        self.start()

    @property
    def upstream(self) -> str:
        """Where the WAL comes from, as libpq's ``host``: the source, or the relay before it."""
        return str(self._relay.sockets) if self._relay else self._source.host

    def loss(self) -> str:
        """That the replica is lost, and what it last said of it, in a few words."""
        lines = self.log_text().splitlines()
        # to refuse a connection while it starts is no fault
        errors = error_lines([line for line in lines if "the database system is" not in line])
        loss = f"{self.name} {'does not stream' if self.running else 'ended'}"
        return f"{loss} ({errors[-1]})" if errors else loss

    def stop(self, *, immediately: bool = False) -> None:
        """Stop the server as any other, and the relay."""
        super().stop(immediately=immediately)
        if self._relay:
            self._relay.stop()
