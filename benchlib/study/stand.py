"""What the trials of one level run on: a cluster of ours with its replicas, or a server that is not ours."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchlib.errors import ServerError
from benchlib.host.guardian import Run
from benchlib.host.journal import Chapter
from benchlib.host.sampler import Sampler
from benchlib.host.shared_memory import remove_left_below
from benchlib.host.shell import Shell
from benchlib.levers import LEVERS, server_settings
from benchlib.levers.lever import Site
from benchlib.levers.replicas import Replicas
from benchlib.levers.target import target_of
from benchlib.plan.level import Level
from benchlib.plan.workload import Workload
from benchlib.server.cluster import SUPERUSER, Cluster, Door
from benchlib.server.remote import Remote
from benchlib.server.statistics import waits
from benchlib.server.templates import Templates, load
from benchlib.study.records import ReplicaReadings


@dataclass
class Stand:
    """A server that is up and loaded, and what was made for it.

    ``client`` runs the load tool; undoing the ``chapter`` takes away what was made. ``site`` is what the levers made around a
    cluster of ours. It is None for a server that is not ours, whose log, counters and host are its owner's.
    """

    level: Level
    workload: Workload
    client: Shell
    chapter: Chapter
    server: Cluster | Remote
    site: Site | None = None

    @property
    def replicas(self) -> Replicas | None:
        """The replicas of a cluster of ours; None if there are none."""
        return self.site.replicas if self.site and self.site.replicas.members else None

    @contextlib.contextmanager
    def under(self, run: Run) -> Iterator[dict[str, str]]:
        """The host and the server as the level wants them, until it is left; the tunables in force."""
        with run.journal.chapter() as chapter:
            in_force: dict[str, str] = {}
            if isinstance(self.server, Remote):
                self.server.configure(self.level.settings, chapter)
            elif self.site:
                for lever in LEVERS:
                    in_force |= lever.before_trial(self.site, chapter)
            yield in_force

    def sampler(self, waits_hz: float) -> Sampler:
        """What samples the processes and devices of our servers, and the sessions of the load, while it is entered."""
        servers = [self.site.cluster, *self.site.replicas.members] if self.site else []

        def postmasters() -> list[int]:
            return [pid for server in servers if (pid := server.pid)]

        devices = self.site.devices if self.site else ()
        return Sampler(
            servers=postmasters, devices=devices, waits=lambda: waits(self.server), waits_hz=waits_hz
        )

    def settle(self) -> None:
        """Bring the server to the known state: emptied and vacuumed tables, nothing dirty."""
        work = self.workload
        # nobody watches replicas meanwhile: the checkpoint does, for all of it
        statements = ["SET synchronous_commit = local"]
        statements += [f"TRUNCATE {', '.join(work.truncate)}"] if work.truncate else []
        statements += [f"VACUUM (ANALYZE) {table}" for table in (*work.vacuum, *work.truncate)]
        with contextlib.ExitStack() as lifted:
            for lift in self.site.lifts if self.site else ():
                lifted.enter_context(lift())
            self.server.execute(*statements)
            self.checkpoint()

    def checkpoint(self) -> None:
        """Have nothing dirty on the server, and nothing missing on its replicas.

        Raises:
            ServerError: a server is gone, or a replica does not catch up.

        """
        self.server.checkpoint()
        if self.replicas:
            self.replicas.settle()

    @contextlib.contextmanager
    def logged(self, path: Path, limit: int) -> Iterator[None]:
        """Keep what a server of ours logs meanwhile, the last ``limit`` characters."""
        offset = self.site.cluster.log_size() if self.site else 0
        try:
            yield
        finally:
            if self.site:
                path.write_text(self.site.cluster.log_text(offset)[-limit:])

    @contextlib.contextmanager
    def watched(self, warnings: list[str], keep: Path | None = None) -> Iterator[Callable[[], None] | None]:
        """Watch the replicas while a load runs; their lag goes to the folder ``keep``, what befalls them to ``warnings``."""
        if not self.replicas:
            yield None
            return
        with self.replicas.watch() as watch:
            try:
                yield watch
            finally:
                warnings += watch.warnings
                if keep:
                    ReplicaReadings(lag=watch.lag).write(keep)

    def check_promises(self, warnings: list[str], keep: Path) -> None:
        """Hold the replicas to what they promised of the load that has just ended; what they hold goes to ``keep``.

        Raises:
            InvariantError: a row that was acknowledged is not where it was promised.
            ServerError: a replica does not catch up.

        """
        if self.replicas:
            verified = self.replicas.verify(self.workload.invariant.count)
            warnings += verified.warnings
            readings = ReplicaReadings.from_bytes((keep / ReplicaReadings.FILE).read_bytes())
            readings.model_copy(update={"verified": asdict(verified)}).write(keep)

    def way(self) -> dict[str, str]:
        """How libpq reaches the server from another host, as environment variables; with a password, so never shown."""
        if isinstance(self.server, Remote):
            return dict(self.client.environment)
        door = self.server.door
        assert door is not None
        return {
            "PGHOST": door.address,
            "PGPORT": str(door.port),
            "PGUSER": SUPERUSER,
            "PGPASSWORD": door.password,
        }

    def check_running(self) -> None:
        """Make sure that a server of ours has not ended, and that what was set for it held.

        Raises:
            ServerError: it has; with its last words.
            SettingError: somebody took a cap away.

        """
        if self.site:
            for check in self.site.checks:
                check()
            if not self.server.running:
                lines = self.site.cluster.log_text().strip().splitlines() or ["it said nothing"]
                raise ServerError(f"the server ended during the trial: {lines[-1]}")

    @property
    def usable(self) -> bool:
        """Whether another trial can be run here: all replicas still stream."""
        return not self.replicas or self.replicas.check() is None

    def discard(self) -> None:
        """Stop the servers that are ours at once, then take away what was made around them, then their files."""
        if self.site:
            self.site.replicas.stop()
            self.site.cluster.stop(immediately=True)
            for server in (self.site.cluster, *self.site.replicas.members):
                remove_left_below(server.data.resolve().parent)  # by one that was killed
        self.chapter.undo()
        if self.site:
            shutil.rmtree(self.site.cluster.folder, ignore_errors=True)


def build(
    level: Level, workload: Workload, folder: Path, templates: Templates, run: Run, door: Door | None = None
) -> Stand:
    """The stand of a level, up and loaded: a cluster of ours in ``folder`` and wherever its storage lies, or a place
    on the server that the level names, in a database or schema named after the run and the folder. A cluster of ours
    is reached from elsewhere by its ``door``.

    Raises:
        BenchlibError: it cannot be had; nothing of it is left.

    """
    target = target_of(level)
    if target is None:
        return _build_own(level, workload, folder, templates, run, door)
    chapter = run.journal.chapter()
    try:
        remote = Remote.open(target, f"{run.folder.name}-{folder.name}", chapter)
        client = remote.shell()
        load(remote, remote.connection, workload, templates.scale, client, templates.pgbench())
    except BaseException:
        chapter.undo()
        raise
    return Stand(level, workload, client, chapter, remote)


def _build_own(
    level: Level, workload: Workload, folder: Path, templates: Templates, run: Run, door: Door | None
) -> Stand:
    template, chapter = templates.loaded(level, workload), run.journal.chapter()
    shell = templates.shell
    cluster = Cluster(shell, template.installation, folder)
    site = Site(
        level, folder.name, run.folder, shell, chapter, lambda name: templates.program(name, level), cluster
    )
    stand = Stand(level, workload, shell, chapter, cluster, site)
    try:
        for lever in LEVERS:
            lever.before_files(site)
        stand.server = site.cluster = template.clone(folder, **site.places)
        os.sync()  # the server's checkpoints know nothing of what was copied
        for lever in LEVERS:
            lever.before_start(site)
        site.cluster.configure(server_settings(level))
        if door:
            site.cluster.open_door(door)
        with stand.under(run):  # huge pages, for one, are decided when the server starts
            site.cluster.start()
            site.cluster.admit()
            for lever in LEVERS:
                lever.after_start(site)
    except BaseException:
        stand.discard()
        raise
    return stand
