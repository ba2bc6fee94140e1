"""What the trials of one level run on: a cluster of ours with its replicas, or a server that is not ours."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from benchlib.errors import ServerError
from benchlib.host.guardian import Run
from benchlib.host.journal import Chapter
from benchlib.host.sampler import Reader, Sampler
from benchlib.host.shared_memory import remove_left_below
from benchlib.host.shell import Shell
from benchlib.levers import LEVERS, server_settings
from benchlib.levers.lever import Site
from benchlib.levers.target import target_of
from benchlib.plan.level import Level
from benchlib.plan.workload import Workload
from benchlib.server import statistics
from benchlib.server.cluster import Cluster
from benchlib.server.remote import Remote
from benchlib.server.statistics import Waits
from benchlib.server.templates import Templates, load
from benchlib.study.records import ReplicaReadings


@dataclass
class Stand:
    """A server that is up and loaded; ``client`` runs the load tool, ``chapter`` takes away what was made for it."""

    level: Level
    workload: Workload
    client: Shell
    chapter: Chapter
    remarks: list[str] = field(default_factory=list)

    @property
    def server(self) -> Cluster | Remote:
        """What is measured."""
        raise NotImplementedError

    def under(self, run: Run) -> contextlib.AbstractContextManager[dict[str, str]]:
        """The host and the server as the level wants them, while it lasts; the tunables in force."""
        raise NotImplementedError

    def sampler(self, waits_hz: float) -> Sampler:
        """What samples the host, and the sessions of the load, while it is entered."""
        raise NotImplementedError

    def _waits(self, hz: float) -> list[Reader]:
        return [Reader("waits", "wait events", 1 / hz, lambda: Waits(self.server))] if hz else []

    def settle(self) -> None:
        """Bring the server to the known state: emptied and vacuumed tables, nothing dirty."""
        work = self.workload
        # nobody watches replicas meanwhile: the checkpoint does, for all of it
        statements = ["SET synchronous_commit = local"]
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

    @property
    def wal_folder(self) -> Path | None:
        """The folder that the WAL lies in, where it is ours."""
        return None

    def reset_statistics(self) -> None:
        """Have the server count from here on, where its counters are ours."""

    def logged(self, path: Path, limit: int) -> contextlib.AbstractContextManager[None]:
        """Keep what the server logs meanwhile, the last ``limit`` characters, where its log is ours."""
        return contextlib.nullcontext()

    def watched(
        self, warnings: list[str], keep: Path | None = None
    ) -> contextlib.AbstractContextManager[Callable[[], None] | None]:
        """Watch the replicas while a load runs; their lag goes to the folder ``keep``, what befalls them to ``warnings``."""
        return contextlib.nullcontext()

    def check_promises(self, warnings: list[str], keep: Path) -> None:
        """Hold the replicas to what they promised of the load that has just ended; what they hold goes to ``keep``.

        Raises:
            InvariantError: a row that was acknowledged is not where it was promised.
            ServerError: a replica does not catch up.

        """

    def check_running(self) -> None:
        """Make sure that the server has not ended, and that what was set for it held.

        Raises:
            ServerError: it has; with its last words.
            SettingError: somebody took a cap away.

        """

    @property
    def usable(self) -> bool:
        """Whether another trial can be run here: all replicas are still there."""
        return True

    def discard(self) -> None:
        """Stop what is ours and take away what was made for it."""
        self.chapter.undo()


@dataclass
class OwnStand(Stand):
    """A cluster of ours, with what its levers have made around it."""

    site: Site = field(kw_only=True)

    @classmethod
    def build(cls, level: Level, workload: Workload, folder: Path, templates: Templates, run: Run) -> Self:
        """The stand of a level, in ``folder`` and wherever its storage lies, up and loaded."""
        template, chapter = templates.loaded(level, workload), run.journal.chapter()
        shell = templates.shell
        site = Site(
            level, folder.name, run.folder, shell, chapter, lambda name: templates.program(name, level),
            Cluster(shell, template.installation, folder),
        )  # fmt: skip
        stand = cls(level, workload, shell, chapter, site.remarks, site=site)
        try:
            for lever in LEVERS:
                lever.before_files(site)
            site.cluster = template.clone(folder, **site.places, groups=site.groups)
            os.sync()  # the server's checkpoints know nothing of what was copied
            for lever in LEVERS:
                lever.before_start(site)
            site.cluster.configure(server_settings(level))
            with stand.under(run):  # huge pages, for one, are decided when the server starts
                site.cluster.start()
                for lever in LEVERS:
                    lever.after_start(site)
        except BaseException:
            stand.discard()
            raise
        return stand

    @property
    def server(self) -> Cluster:
        """The cluster."""
        return self.site.cluster

    @contextlib.contextmanager
    def under(self, run: Run) -> Iterator[dict[str, str]]:
        """What holds only while trials run is set, and undone in the end."""
        with run.journal.chapter() as chapter:
            in_force: dict[str, str] = {}
            for lever in LEVERS:
                in_force |= lever.before_trial(self.site, chapter)
            yield in_force

    def sampler(self, waits_hz: float) -> Sampler:
        """Of all processes of the server and its replicas, and the devices below them."""
        servers = [self.server, *self.site.replicas.members]

        def postmasters() -> list[int]:
            return [pid for server in servers if (pid := server.pid)]

        return Sampler(servers=postmasters, devices=self.site.devices, readers=self._waits(waits_hz))

    def checkpoint(self) -> None:
        """On the primary, then on each replica."""
        super().checkpoint()
        self.site.replicas.settle()

    @property
    def wal_folder(self) -> Path:
        """Wherever the link in the data directory leads."""
        return (self.server.data / "pg_wal").resolve().parent

    def reset_statistics(self) -> None:
        """All of them: nobody else counts on them."""
        statistics.reset(self.server)

    @contextlib.contextmanager
    def logged(self, path: Path, limit: int) -> Iterator[None]:
        """The part of the cluster's log that is new."""
        offset = self.server.log_size()
        try:
            yield
        finally:
            path.write_text(self.server.log_text(offset)[-limit:])

    @contextlib.contextmanager
    def watched(self, warnings: list[str], keep: Path | None = None) -> Iterator[Callable[[], None] | None]:
        """By one more session."""
        if not self.site.replicas.members:
            yield None
            return
        with self.site.replicas.watch() as watch:
            try:
                yield watch
            finally:
                warnings += watch.warnings
                if keep:
                    ReplicaReadings(lag=watch.lag).write(keep)

    def check_promises(self, warnings: list[str], keep: Path) -> None:
        """By a commit of our own, and by counting the rows everywhere."""
        if self.site.replicas.members:
            verified = self.site.replicas.verify(self.workload.invariant.count)
            warnings += verified.warnings
            readings = ReplicaReadings.from_bytes((keep / ReplicaReadings.FILE).read_bytes())
            readings.model_copy(update={"verified": asdict(verified)}).write(keep)

    def check_running(self) -> None:
        """What the levers look at, and its process."""
        for check in self.site.checks:
            check()
        if not self.server.running:
            lines = self.server.log_text().strip().splitlines() or ["it said nothing"]
            raise ServerError(f"the server ended during the trial: {lines[-1]}")

    @property
    def usable(self) -> bool:
        """While all replicas stream."""
        return self.site.replicas.check() is None

    def discard(self) -> None:
        """The servers at once, then what was made around them, then their files."""
        self.site.replicas.stop()
        self.server.stop(immediately=True)
        remove_left_below(self.server.data.resolve().parent)  # by a server that was killed
        super().discard()
        shutil.rmtree(self.server.folder, ignore_errors=True)


@dataclass
class TargetStand(Stand):
    """A place of our own on a server that is not ours, whose log, counters and host are its owner's."""

    remote: Remote = field(kw_only=True)

    @classmethod
    def build(cls, level: Level, workload: Workload, name: str, templates: Templates, run: Run) -> Self:
        """The stand of a level, in a database or schema named after the run and ``name``, loaded."""
        target = target_of(level)
        assert target is not None
        chapter = run.journal.chapter()
        try:
            remote = Remote.open(target, f"{run.folder.name}-{name}", chapter)
            client = remote.shell()
            load(remote, remote.connection, workload, templates.scale, client, templates.pgbench())
        except BaseException:
            chapter.undo()
            raise
        return cls(level, workload, client, chapter, remote=remote)

    @property
    def server(self) -> Remote:
        """The place on it."""
        return self.remote

    @contextlib.contextmanager
    def under(self, run: Run) -> Iterator[dict[str, str]]:
        """Its settings, which levels share; no tunable is ours to set."""
        with run.journal.chapter() as chapter:
            self.remote.configure(self.level.settings, chapter)
            yield {}

    def sampler(self, waits_hz: float) -> Sampler:
        """Of the sessions, and of this host only the load tool."""
        return Sampler(servers=list, devices=(), readers=self._waits(waits_hz))


def build(level: Level, workload: Workload, folder: Path, templates: Templates, run: Run) -> Stand:
    """The stand of a level, wherever its server is: of ours in ``folder``, up and loaded.

    Raises:
        BenchlibError: it cannot be had; nothing of it is left.

    """
    if level.target:
        return TargetStand.build(level, workload, folder.name, templates, run)
    return OwnStand.build(level, workload, folder, templates, run)
