"""A replica of an embedded cluster, perhaps behind a delay."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from psycopg.conninfo import make_conninfo

from benchlib.errors import ServerError
from benchlib.host.shell import Process, Shell, error_lines, stop, ticks
from benchlib.plan.level import SettingValue
from benchlib.server import relay
from benchlib.server.cluster import SUPERUSER, Cluster, failure_reason, log_lines, log_text


@dataclass(frozen=True)
class Source:
    """A replica's primary; ``host``: address or socket directory, ``delay_ms``: in each direction."""

    host: str
    port: int
    settings: Mapping[str, SettingValue]
    delay_ms: float | None = None


class Replica(Cluster):
    """A replica in a subdirectory of a cluster.

    ``places``: empty directories for ``data`` and ``wal``; ``before_start``: called when its files exist.
    """

    def __init__(self, beside: Cluster, number: int, source: Source, basebackup: Path) -> None:
        super().__init__(beside.shell, beside.installation, beside.folder / f"r{number}", beside.groups)
        self.name = f"replica{number}"
        self.places: Mapping[str, Path] = {}
        self.before_start: Callable[[], None] = lambda: None
        self.role = beside.role
        self._source, self._basebackup = source, basebackup
        self._near = self.folder / "d"
        self._relay: Process | None = None

    def follow(self) -> None:
        """Call :meth:`copy`, then :meth:`stream`."""
        self.copy()
        self.stream()

    def copy(self) -> None:
        """Create the data directory with pg_basebackup.

        Raises:
            ServerError: pg_basebackup failed.

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
        """Start the copy as a standby.

        Raises:
            ServerError, SettingError: as :meth:`Cluster.start`, or the proxy failed.

        """
        self.before_start()
        if self._source.delay_ms:
            self._relay = self._delayed()
        conninfo = make_conninfo(
            host=self.upstream, port=self._source.port, user=SUPERUSER, application_name=self.name
        )
        standby: dict[str, SettingValue] = {
            "primary_conninfo": conninfo,
            "primary_slot_name": self.name,
            "hot_standby": True,  # allows queries
        }
        settings = {k: v for k, v in self._source.settings.items() if k != "synchronous_standby_names"}
        self.write("standby.signal", "")
        self.configure(settings | standby)
        self.start()

    def _delayed(self) -> Process:
        """Start the proxy that delays traffic."""
        source, name = self._source, f".s.PGSQL.{self._source.port}"
        near, log = self.shell.make_directory(self._near) / name, self.folder / "relay.log"
        far = f"{source.host}/{name}" if source.host.startswith("/") else f"{source.host}:{source.port}"
        words: list[str | Path] = [near, far, str(source.delay_ms), self.shell.user or ""]
        process = Shell().start([sys.executable, "-I", "-S", relay.__file__, *words], log=log)
        for _ in ticks(30.0):
            if near.exists():
                return process
            if process.poll() is not None:
                break
        stop(process)
        raise ServerError(f"the delay proxy did not start: {failure_reason(log_text(self.shell, log))}")

    @property
    def upstream(self) -> str:
        """The WAL source as libpq's ``host``."""
        return str(self._near) if self._relay else self._source.host

    def loss(self) -> str:
        """Return a message that the replica failed."""
        errors = error_lines(log_lines(self.log_text()))
        loss = f"{self.name} {'does not stream' if self.running else 'ended'}"
        return f"{loss} ({errors[-1]})" if errors else loss

    def stop(self, *, immediately: bool = False) -> None:
        """Stop the server and the proxy."""
        super().stop(immediately=immediately)
        if self._relay:
            stop(self._relay)
