"""What the trials of one level run on: a cluster of ours with its replicas, or a server that is not ours."""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from benchlib.errors import LoadError, ServerError
from benchlib.host import files
from benchlib.host.facts import counted_once
from benchlib.host.guardian import Run
from benchlib.host.journal import Chapter
from benchlib.host.sampler import Sampler
from benchlib.host.shell import Process, Shell, stop
from benchlib.host.sweep import remove_shared_memory
from benchlib.levers import LEVERS, server_settings
from benchlib.levers.lever import Site
from benchlib.levers.replicas import Replicas, Watch
from benchlib.levers.storage import storage_of
from benchlib.levers.target import target_of
from benchlib.load.parse.text import Text, faults
from benchlib.load.tool import ending
from benchlib.plan.level import Level
from benchlib.plan.workload import Script, Workload
from benchlib.server.checkpoints import shortened
from benchlib.server.cluster import SUPERUSER, Cluster
from benchlib.server.remote import Remote
from benchlib.server.statistics import BESIDE, end_beside, kernel_files, waits
from benchlib.server.templates import Templates, load
from benchlib.study.records import ReplicaReadings
from benchlib.study.remote_replicas import ReplicaElsewhere

Reach = Callable[[Site], None]
Check = Callable[[], None]
"""Raises where something that is needed by a load under way is no more: to be called a few times a second."""


@dataclass
class Stand:
    """A server that is up and loaded, and what was made for it.

    ``client`` runs the load tool; undoing the ``chapter`` of the ``run``'s journal takes away what was made. ``site`` is
    what the levers made around a cluster of ours. It is None for a server that is not ours, whose log, counters and host
    are its owner's. ``grown`` is :func:`benchlib.server.statistics.growth` before the first trial.
    """

    level: Level
    workload: Workload
    run: Run
    client: Shell
    chapter: Chapter
    server: Cluster | Remote
    site: Site | None = None
    grown: float | None = None

    @property
    def replicas(self) -> Replicas | None:
        """The replicas of a cluster of ours; None if there are none."""
        return self.site.replicas if self.site and self.site.replicas.members else None

    @contextlib.contextmanager
    def under(self) -> Iterator[dict[str, str]]:
        """The host and the server as the level wants them, until it is left; the tunables in force."""
        with self.run.journal.chapter() as chapter:
            in_force: dict[str, str] = {}
            if isinstance(self.server, Remote):
                self.server.configure(self.level.settings, chapter)
                self.client = self.server.shell()
            elif self.site:
                for lever in LEVERS:
                    in_force |= lever.before_trial(self.site, chapter)
            yield in_force

    def sampler(self, waits_hz: float) -> Sampler:
        """What samples the servers' host and processes, and the sessions of the load, while it is entered."""
        servers = [self.site.cluster, *self.site.replicas.members] if self.site else []

        def postmasters() -> list[int]:
            return [pid for server in servers if (pid := server.pid)]

        devices = counted_once(self.site.devices) if self.site else ()
        poolers = [process.pid for process in self.site.processes] if self.site else []
        asked, files = partial(waits, self.server), None if self.site else partial(kernel_files, self.server)
        return Sampler(
            servers=postmasters, poolers=poolers, devices=devices, waits=asked, waits_hz=waits_hz, files=files
        )

    def settle(self) -> None:
        """Bring the server to the known state: emptied and vacuumed tables, nothing dirty."""
        work = self.workload
        # nobody watches replicas meanwhile: the checkpoint does, for all of it
        statements = ["SET synchronous_commit = local"]
        statements += [f"TRUNCATE {', '.join(work.truncate)}"] if work.truncate else []
        statements += [f"VACUUM (ANALYZE) {table}" for table in (*work.vacuum, *work.truncate) if table]
        with self.uncapped():
            self.server.execute(*statements)
            if "" in work.vacuum:
                self.server.vacuum("ANALYZE")
            self.checkpoint()

    def exceeds_memory(self, scale: int) -> bool:
        """Whether the data are more than the memory that a server of ours may have, the page cache included."""
        cap = storage_of(self.level).memory
        return bool(self.site and cap and self.workload.data_mib(scale) << 20 > cap)

    @contextlib.contextmanager
    def uncapped(self) -> Iterator[None]:
        """Let what is not measured read and write as fast as the devices can; the caps are back when it is left."""
        with contextlib.ExitStack() as lifted:
            for lift in self.site.lifts if self.site else ():
                lifted.enter_context(lift())
            yield

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
        """Keep what a server of ours logs meanwhile, the last ``limit`` characters, and what it says of checkpoints before them."""
        offset = self.site.cluster.log_size() if self.site else 0
        try:
            yield
        finally:
            if self.site:
                files.write(path, shortened(self.site.cluster.log_text(offset), limit))

    @contextlib.contextmanager
    def watched(self, warnings: list[str], keep: Path | None = None) -> Iterator[Check]:
        """Watch the replicas while a load runs; their lag goes to the folder ``keep``, what befalls them to ``warnings``."""
        if not self.replicas:
            yield lambda: None
            return
        elsewhere = [one for one in self.replicas.members if isinstance(one, ReplicaElsewhere)]
        began_s = time.time()
        with Watch(self.replicas) as watch:
            try:
                yield watch
            finally:
                warnings += watch.warnings
                if keep:
                    sampled = {one.name: one.sampled(began_s) for one in elsewhere}
                    ReplicaReadings(lag=watch.lag, elsewhere=sampled).write(keep)

    @contextlib.contextmanager
    def beside(self, commands: list[list[str]], output: Path) -> Iterator[Check]:
        """Run the command lines of clients whose transactions do not count; what they print goes together to a file.

        When it is left no session of theirs is left. What it gives raises if one of them has ended: it is to be called a few times a second.

        Raises:
            LoadError: one has ended by itself, or has lost a client.
            ServerError: the server has, or a session of theirs goes on.

        """
        # a name by which their sessions are told from the load's
        client = replace(self.client, environment={**self.client.environment, "PGAPPNAME": BESIDE})
        what, processes = "pgbench beside the load", list[Process]()

        def check() -> None:
            for process in processes:
                if (status := process.poll()) is not None:
                    self.check_running()
                    raise LoadError(ending(what, status, output.read_text(errors="replace")))

        ended = True
        try:
            processes.extend(client.start(command, log=output) for command in commands)
            yield check
            check()
            if lost := faults(Text(output.read_text(errors="replace")).lines if commands else ()):
                raise LoadError(f"{what}: {lost[0]}")
        finally:
            for process in processes:
                stop(process)
            with contextlib.suppress(ServerError):  # it is gone: whoever asks it next says so
                ended = not processes or end_beside(self.server)
        if not ended:
            raise ServerError("a session beside the load does not end")

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
        place = {"PGHOST": door.address, "PGPORT": str(door.port)}
        return {**place, "PGUSER": SUPERUSER, "PGPASSWORD": door.password}

    def check_running(self) -> None:
        """Make sure that a server of ours has not ended, and that what was set for it held.

        Raises:
            ServerError: it has; with its last words.
            SettingError: somebody took a cap away.

        """
        if self.site:
            for check in self.site.checks:
                check()
            if not self.site.cluster.running:
                lines = self.site.cluster.log_text().strip().splitlines() or ["it said nothing"]
                raise ServerError(f"the server ended during the trial: {lines[-1]}")

    @property
    def usable(self) -> bool:
        """Whether another trial can be run here: all replicas still stream."""
        return not self.replicas or self.replicas.check() is None

    def close(self) -> None:
        """Stop the servers that are ours at once, then take away what was made around them, then their files."""
        if self.site:
            for process in self.site.processes:
                stop(process)
            self.site.replicas.stop()
            self.site.cluster.stop(immediately=True)
            for server in (self.site.cluster, *self.site.replicas.members):
                remove_shared_memory(server.placed.parent)  # by one that was killed
        self.chapter.undo()
        if self.site:
            self.site.shell.remove(self.site.cluster.folder)


def build(
    level: Level, workload: Workload, folder: Path, templates: Templates, reach: Reach | None = None
) -> Stand:
    """The stand of a level, up and loaded: a cluster of ours in ``folder`` and wherever its storage lies, or a place
    on the server that the level names. ``reach`` has a cluster of ours be reached from other hosts, before it starts.

    Raises:
        BenchlibError: it cannot be had; nothing of it is left.

    """
    run = templates.run
    chapter = run.journal.chapter()
    if target := target_of(level):
        try:
            remote = Remote.open(target, chapter)
            client = remote.shell()
            load(remote, workload, templates.scale, client, templates.pgbench())
        except BaseException:
            chapter.undo()
            raise
        return Stand(level, workload, run, client, chapter, remote)
    template, shell = templates.loaded(level, workload), templates.shell
    cluster = Cluster(shell, template.installation, folder)
    program = partial(templates.program, level=level)
    site = Site(level, folder.name, run.folder, shell, chapter, program, cluster)
    stand = Stand(level, workload, run, shell, chapter, cluster, site)
    try:
        for lever in LEVERS:
            lever.before_files(site)
        stand.server = site.cluster = template.clone(folder, **site.places)
        os.sync()  # the server's checkpoints know nothing of what was copied
        for lever in LEVERS:
            lever.before_start(site)
        site.cluster.configure(server_settings(level))
        if reach:
            reach(site)
        with stand.under():  # huge pages, for one, are decided when the server starts
            site.cluster.start()
            site.cluster.admit()
            for lever in LEVERS:
                lever.after_start(site)
    except BaseException:
        stand.close()
        raise
    return stand


def written(workload: Workload, folder: Path, shell: Shell) -> list[tuple[Script, Path | None]]:
    """The workload's scripts, those that are SQL written to files in ``folder`` that the load tool can read."""
    pairs: list[tuple[Script, Path | None]] = []
    for number, script in enumerate(workload.scripts, 1):
        path = None
        if script.sql is not None:
            # workloads of one name may have other scripts
            digest = hashlib.sha256(script.sql.encode()).hexdigest()[:8]
            path = folder / f"{workload.name}-{number}-{digest}.sql"
            if not path.exists():
                files.write(path, script.sql, mode=0o600)
                shell.own(path)
        pairs.append((script, path))
    return pairs
