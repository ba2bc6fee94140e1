"""One replica: a server of our own that follows a primary of our own, over a longer way if need be."""

import sys
from collections.abc import Mapping
from pathlib import Path

from psycopg.conninfo import make_conninfo

from benchlib.errors import ServerError
from benchlib.host.ours import open_plain
from benchlib.host.shell import Shell, ticks
from benchlib.plan.level import SettingValue
from benchlib.plan.settings import conf_text
from benchlib.server import relay
from benchlib.server.cluster import SUPERUSER, Cluster, failure_reason
from benchlib.server.server import error_lines


class Relay:
    """A process of the servers' user through which replicas reach their primary, each way later by ``delay_ms``.

    It begins as ourselves, since that user need not have access to our Python. ``sockets`` is the folder that the
    replicas connect to.

    Raises:
        ServerError: it did not start; the message has its reason.

    """

    def __init__(self, primary: Cluster, delay_ms: float) -> None:
        self.sockets = primary.shell.make_directory(primary.folder / "d")
        name = f".s.PGSQL.{primary.port}"
        near, log, user = self.sockets / name, primary.folder / "relay.log", primary.shell.user or ""
        argv: list[str | Path] = [
            sys.executable, "-I", "-S", relay.__file__, near, primary.sockets / name, str(delay_ms), user
        ]  # fmt: skip
        self._process = Shell().start(argv, log=log)
        for _ in ticks(30.0):
            if near.exists():
                return
            if self._process.poll() is not None:
                break
        self.stop()
        with open(log, opener=open_plain) as file:
            raise ServerError(f"the relay between the servers did not start: {failure_reason(file.read())}")

    def stop(self) -> None:
        """End it at once: it holds nothing of its own."""
        self._process.kill()
        self._process.wait()


class Replica(Cluster):
    """A server that follows a primary. Its name is how the primary knows it.

    ``places`` may have empty folders for its ``data`` and its ``wal``; what has none lies in the
    replica's own folder. Without them it shares the primary's disk and control groups.
    """

    def __init__(self, primary: Cluster, number: int) -> None:
        folder = primary.folder / f"r{number}"
        super().__init__(primary.shell, primary.installation, folder, groups=primary.groups)
        self.primary = primary
        self.name = f"replica{number}"
        self.places: Mapping[str, Path] | None = None

    def copy_primary(self, basebackup: Path) -> None:
        """Make the data directory, by pg_basebackup through the replica's own replication slot.

        Raises:
            ServerError: it failed; the message has its reason.

        """
        self.shell.make_directory(self.folder)
        self.shell.make_directory(self.sockets)
        disk, places = self.primary.data.resolve().parent, self.places or {}
        if "data" in places:
            self.data.symlink_to(self.shell.make_directory(places["data"] / "data"))
        elif self.places is None and disk != self.primary.folder.resolve():
            # the primary's data lies elsewhere: so do the replica's, since one disk is compared
            self.data.symlink_to(self.shell.make_directory(disk / self.folder.name))
        slot = "SELECT pg_create_physical_replication_slot(%s, true)"
        self.primary.query(slot, self.primary.maintenance, [self.name])
        done = self.shell.run(
            [
                basebackup, "--pgdata", self.data, "--wal-method=stream", f"--slot={self.name}", "--checkpoint=fast",
                f"--host={self.primary.sockets}", f"--port={self.primary.port}", f"--username={SUPERUSER}", "--no-password",
                *([f"--waldir={places['wal'] / 'pg_wal'}"] if "wal" in places else []),
            ],
            timeout_s=3600,
        )  # fmt: skip
        if done.returncode != 0:
            raise ServerError(f"pg_basebackup failed for {self.name}: {failure_reason(done.stderr)}")

    def follow(self, sockets: Path) -> None:
        """Configure the copy as a replica with the primary's settings and start it.

        ``sockets`` is the folder where it reaches the primary: the primary's own, or a relay's.

        Raises:
            ServerError, SettingError: as :meth:`Cluster.start`.

        """
        primary, name = self.primary, self.name
        way = make_conninfo(host=str(sockets), port=primary.port, user=SUPERUSER, application_name=name)
        source: dict[str, SettingValue] = {"primary_conninfo": way, "primary_slot_name": name}
        settings = {k: v for k, v in primary.wanted.items() if k != "synchronous_standby_names"}
        settings["hot_standby"] = True  # or nobody could ask it for its rows
        if self.installation.major >= 12:
            self.write("standby.signal", "")
            settings |= source
        else:
            source |= {"standby_mode": True, "recovery_target_timeline": "latest"}
            self.write("recovery.conf", conf_text(source))
        self.configure(settings)
        self.start()

    def loss(self) -> str:
        """That the replica is lost, and what it last said of it, in a few words."""
        lines = self.log_text().splitlines()
        # to refuse a connection while it starts is no fault
        errors = error_lines([line for line in lines if "the database system is" not in line])
        loss = f"{self.name} {'does not stream' if self.running else 'ended'}"
        return f"{loss} ({errors[-1]})" if errors else loss
