"""One replica: a server of our own that follows a primary of our own."""

from __future__ import annotations

from pathlib import Path

from psycopg.conninfo import make_conninfo

from benchlib.errors import ServerError
from benchlib.host.ours import open_plain
from benchlib.plan.level import SettingValue
from benchlib.plan.settings import conf_text
from benchlib.server.cluster import PORT, SUPERUSER, Cluster, failure_reason
from benchlib.server.server import error_lines


class Replica(Cluster):
    """A server that follows a primary. Its name is how the primary knows it."""

    def __init__(self, primary: Cluster, number: int) -> None:
        super().__init__(
            primary.shell, primary.installation, primary.folder / f"r{number}", groups=primary.groups
        )
        self.primary = primary
        self.name = f"replica{number}"

    def copy_primary(self, basebackup: Path) -> None:
        """Make the data directory, by pg_basebackup through the replica's own replication slot.

        Raises:
            ServerError: it failed; the message has its reason.

        """
        self.shell.make_directory(self.folder)
        self.shell.make_directory(self.sockets)
        disk = self.primary.data.resolve().parent
        if disk != self.primary.folder.resolve():
            # the primary's data lies elsewhere: so do the replica's, since one disk is compared
            self.data.symlink_to(self.shell.make_directory(disk / self.folder.name))
        self.primary.query(
            "SELECT pg_create_physical_replication_slot(%s, true)", self.primary.maintenance, [self.name]
        )
        done = self.shell.run(
            [
                basebackup, "--pgdata", self.data, "--wal-method=stream", f"--slot={self.name}", "--checkpoint=fast",
                f"--host={self.primary.sockets}", f"--port={PORT}", f"--username={SUPERUSER}", "--no-password",
            ],
            timeout_s=3600,
        )  # fmt: skip
        if done.returncode != 0:
            raise ServerError(f"pg_basebackup failed for {self.name}: {failure_reason(done.stderr)}")

    def follow(self) -> None:
        """Configure the copy as a replica with the primary's settings and start it.

        Raises:
            ServerError, SettingError: as :meth:`Cluster.start`.

        """
        source: dict[str, SettingValue] = {
            "primary_conninfo": make_conninfo(
                host=str(self.primary.sockets), port=PORT, user=SUPERUSER, application_name=self.name
            ),
            "primary_slot_name": self.name,
        }
        settings = {k: v for k, v in self.primary.wanted.items() if k != "synchronous_standby_names"}
        settings["hot_standby"] = True  # or nobody could ask it for its rows
        if self.installation.major >= 12:
            signal, text = self.data / "standby.signal", ""
            settings |= source
        else:
            signal = self.data / "recovery.conf"
            text = conf_text({"standby_mode": True, "recovery_target_timeline": "latest", **source})
        with open(signal, "w", opener=open_plain) as file:
            file.write(text)
        self.shell.own(signal)
        self.configure(settings)
        self.start()

    def loss(self) -> str:
        """That the replica is lost, and what it last said of it, in a few words."""
        lines = self.log_text().splitlines()
        # to refuse a connection while it starts is no fault
        errors = error_lines([line for line in lines if "the database system is" not in line])
        loss = f"{self.name} {'does not stream' if self.running else 'ended'}"
        return f"{loss} ({errors[-1]})" if errors else loss
