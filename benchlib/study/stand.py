"""What the trials of one level run on: a cluster of ours with its replicas, or a server that is not ours."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchlib.errors import ServerError
from benchlib.host.devices import block_devices
from benchlib.host.guardian import Run
from benchlib.host.journal import Chapter
from benchlib.host.sampler import Reader, Sampler
from benchlib.host.shared_memory import remove_left_below
from benchlib.host.shell import Shell
from benchlib.levers import control_groups, tunables, volumes
from benchlib.levers.control_groups import Group
from benchlib.levers.replicas import Replicas
from benchlib.load.pgbench import Connection
from benchlib.plan.level import Level, Storage
from benchlib.plan.model import Workload
from benchlib.server.cluster import Cluster
from benchlib.server.remote import Remote
from benchlib.server.server import Server
from benchlib.server.templates import Templates, load
from benchlib.server.waits import Waits
from benchlib.study.records import ReplicaReadings


@dataclass
class Stand:
    """A server that is up and loaded. ``client`` runs the load tool, ``devices`` hold the data and the WAL."""

    level: Level
    workload: Workload
    server: Server
    connection: Connection
    client: Shell
    chapter: Chapter
    devices: tuple[str, ...] = ()
    group: Group | None = None
    replicas: Replicas | None = None
    remarks: list[str] = field(default_factory=list)

    @property
    def cluster(self) -> Cluster | None:
        """The cluster of ours; None where the server is not ours."""
        return self.server if isinstance(self.server, Cluster) else None

    @contextlib.contextmanager
    def under(self, run: Run) -> Iterator[dict[str, str]]:
        """The host and the server as the level wants them, while it lasts; the tunables in force.

        A server that is not ours has its settings only here, because levels share it.
        """
        with run.journal.chapter() as chapter:
            in_force = tunables.apply(self.level.host, self.devices, chapter)
            if isinstance(self.server, Remote):
                self.server.configure(self.level.settings, chapter)
            yield in_force

    def settle(self) -> None:
        """Bring the server to the known state: emptied and vacuumed tables, nothing dirty."""
        work = self.workload
        # nobody watches the replicas meanwhile: the checkpoint does, for all of it
        statements = ["SET synchronous_commit = local"] if self.replicas else []
        statements += [f"TRUNCATE {', '.join(work.truncate)}"] if work.truncate else []
        statements += [f"VACUUM (ANALYZE) {table}" for table in (*work.vacuum, *work.truncate)]
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
        cluster = self.cluster
        offset = cluster.log_size() if cluster else 0
        try:
            yield
        finally:
            if cluster:
                path.write_text(cluster.log_text(offset)[-limit:])

    @contextlib.contextmanager
    def watched(self, warnings: list[str], keep: Path | None = None) -> Iterator[Callable[[], None] | None]:
        """Watch the replicas while a load runs; their lag goes to the trial's folder ``keep``, what befalls them to ``warnings``."""
        if self.replicas is None:
            yield None
            return
        with self.replicas.watch() as watch:
            try:
                yield watch
            finally:
                warnings += watch.warnings
                if keep:
                    ReplicaReadings(lag=watch.rows).write(keep)

    def sampler(self, waits_hz: float) -> Sampler:
        """What samples the host, and the sessions of the load, while it is entered.

        Of a server that is not ours it sees the sessions, and of the host only the load tool.
        """
        ours = [self.cluster, *(self.replicas.members if self.replicas else [])]

        def postmasters() -> list[int]:
            return [pid for cluster in ours if cluster and (pid := cluster.pid)]

        waits = [Reader("waits", "wait events", 1 / waits_hz, lambda: Waits(self.server))] if waits_hz else []
        return Sampler(servers=postmasters, devices=self.devices, readers=waits)

    def check_promises(self, warnings: list[str], keep: Path) -> None:
        """Hold the replicas to what they promised of the load that has just ended; what was found goes to ``keep``.

        Raises:
            InvariantError: a row that was acknowledged is not where it was promised.
            ServerError: a replica does not catch up.

        """
        if self.replicas:
            found = self.replicas.verify(self.workload.invariant.count)
            warnings += found.warnings
            readings = ReplicaReadings.from_bytes((keep / ReplicaReadings.FILE).read_bytes())
            readings.model_copy(update={"verified": asdict(found)}).write(keep)

    @property
    def usable(self) -> bool:
        """Whether another trial can be run here: all replicas are still there."""
        return self.replicas is None or self.replicas.check() is None

    def check_running(self) -> None:
        """Make sure that a server of ours has not ended, and that its caps held.

        Raises:
            ServerError: it has; with its last words.
            SettingError: somebody took a cap away.

        """
        if self.group and (killed := self.group.killed()):
            raise ServerError(
                f"the kernel killed {killed} process(es) of the server: its memory cap is too low for its settings"
            )
        if (cluster := self.cluster) and not cluster.running:
            words = cluster.log_text().strip().splitlines() or ["it said nothing"]
            raise ServerError(f"the server ended during the trial: {words[-1]}")
        if self.group:
            self.group.check()

    def discard(self) -> None:
        """Stop what is ours and take away what was made for it."""
        if self.replicas:
            self.replicas.stop()
        if cluster := self.cluster:
            cluster.stop(immediately=True)
            remove_left_below(cluster.data.resolve().parent)  # by a server that was killed
        self.chapter.undo()
        if cluster:
            shutil.rmtree(cluster.folder, ignore_errors=True)


def build(level: Level, workload: Workload, folder: Path, templates: Templates, run: Run) -> Stand:
    """The stand of a level, in ``folder`` and wherever its storage lies, up and loaded.

    Raises:
        BenchlibError: it cannot be had; nothing of it is left.

    """
    if level.target:
        return _elsewhere(level, workload, folder.name, templates, run)
    shell, chapter = templates.shell, run.journal.chapter()
    template = templates.loaded(level, workload)
    storage = level.storage or Storage()
    cluster = Cluster(shell, template.installation, folder)
    stand = Stand(level, workload, cluster, cluster.connection, shell, chapter)
    try:
        places = {
            name: volumes.provide(place, f"{folder.name}-{name}", run.folder, shell, chapter)
            for name, place in (("data", storage.data), ("wal", storage.wal))
            if place
        }
        on = [places.get("data", run.folder), *places.values()]
        stand.devices = tuple(dict.fromkeys(device for path in on for device in block_devices(path)))
        if storage.caps_io or storage.memory:
            name = f"{run.folder.name}-{folder.name}"
            stand.group = control_groups.make(storage, stand.devices, name, chapter)
        stand.remarks += control_groups.remarks(storage) + tunables.check(level.host, stand.devices)
        groups = stand.group.folders if stand.group else ()
        stand.server = cluster = template.clone(folder, **places, groups=groups)
        os.sync()  # the server's checkpoints know nothing of what was copied
        if storage.memory:
            for path in (cluster.data, *places.values()):
                _evict(path)
        cluster.configure(level.server_settings())
        with stand.under(run):  # huge pages, for one, are decided when the server starts
            cluster.start()
            if level.replication and level.replication.replicas:
                program = templates.program("pg_basebackup", level)
                stand.replicas = Replicas.follow(cluster, level.replication, program)
    except BaseException:
        stand.discard()
        raise
    return stand


def _elsewhere(level: Level, workload: Workload, mark: str, templates: Templates, run: Run) -> Stand:
    assert level.target is not None
    chapter = run.journal.chapter()
    try:
        remote = Remote.open(level.target, f"{run.folder.name}-{mark}", chapter)
        client = remote.shell()
        load(remote, remote.connection, workload, templates.scale, client, templates.pgbench())
    except BaseException:
        chapter.undo()
        raise
    return Stand(level, workload, remote, remote.connection, client, chapter)


def _evict(folder: Path) -> None:
    """Have the page cache forget a folder: what the copying filled is charged to nobody's memory cap."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with (Path(parent) / name).open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
