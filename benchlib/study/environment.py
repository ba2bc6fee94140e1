"""The environment of one level: a cluster with its replicas, or an external server."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from benchlib.errors import LoadError, ServerError
from benchlib.host import files
from benchlib.host.facts import counted_once
from benchlib.host.guardian import Run
from benchlib.host.journal import Scope
from benchlib.host.sampler import Sampler
from benchlib.host.shell import Process, Shell, stop
from benchlib.host.sweep import remove_shared_memory
from benchlib.levers import LEVERS, server_settings
from benchlib.levers.cpu import cpu_of
from benchlib.levers.lever import Site
from benchlib.levers.replicas import Replicas, Watch
from benchlib.levers.storage import storage_of
from benchlib.levers.target import target_of
from benchlib.load.parse.text import Text, faults
from benchlib.load.tool import ending
from benchlib.plan.level import Level
from benchlib.plan.model import SampleQuery
from benchlib.plan.workload import Invariant, Script, Workload
from benchlib.server.cluster import Cluster
from benchlib.server.remote import Remote
from benchlib.server.schema import SchemaCost, change_schema
from benchlib.server.server import LOCAL
from benchlib.server.statistics import BESIDE, end_load, kernel_files, sampled, waits
from benchlib.server.templates import Templates
from benchlib.study.records import ReplicaReadings
from benchlib.study.remote_replicas import RemoteReplica

_IN_PLACE_HZ = 1.0
"""Most samples of wait events per second on a server in use."""
_ONLY_READS = {"invariant": Invariant(), "vacuum": (), "truncate": (), "explain_after": ""}
"""Changes of a workload that runs on a database in use."""

Reach = Callable[[Site], None]
Check = Callable[[], None]
"""Raises if something that the load needs is gone; called a few times per second."""


@dataclass
class Environment:
    """A running, loaded server with everything around it.

    - ``client``: runs the load tool
    - ``scope``: undoing it removes everything
    - ``site``: what the levers made; None for an external server
    - ``cost``: of the level's ``sql``
    - ``initial_growth``: :func:`benchlib.server.statistics.growth` before the first trial
    """

    level: Level
    workload: Workload
    run: Run
    client: Shell
    scope: Scope
    server: Cluster | Remote
    site: Site | None = None
    cost: SchemaCost | None = None
    initial_growth: float | None = None

    @property
    def replicas(self) -> Replicas | None:
        """The cluster's replicas."""
        return self.site.replicas if self.site and self.site.replicas.members else None

    @contextlib.contextmanager
    def apply_settings(self) -> Iterator[dict[str, str]]:
        """Apply the level's settings until exit; yield the tunables in force."""
        with self.run.journal.scope() as scope:
            in_force: dict[str, str] = {}
            if isinstance(self.server, Remote):
                self.server.configure(self.level.settings, scope)
                self.client = self.server.shell()
            elif self.site:
                for lever in LEVERS:
                    in_force |= lever.before_trial(self.site, scope)
            yield in_force

    def sampler(self, waits_hz: float, samples: Mapping[str, SampleQuery] = MappingProxyType({})) -> Sampler:
        """Return a sampler of host, sessions and the plan's queries."""
        own = partial(sampled, self.server, samples) if samples else None
        sampler, site = partial(Sampler, waits=partial(waits, self.server), samples=own), self.site
        if not site:
            waits_hz = min(waits_hz, _IN_PLACE_HZ) if self.server.in_place else waits_hz
            return sampler(servers=list, waits_hz=waits_hz, files=partial(kernel_files, self.server))
        servers, poolers = [site.cluster, *site.replicas.members], [process.pid for process in site.processes]
        return sampler(
            servers=lambda: [pid for server in servers if (pid := server.pid)],
            poolers=poolers,
            devices=counted_once(site.devices),
            waits_hz=waits_hz,
        )

    def settle(self) -> None:
        """Reset the server to a known state."""
        if self.server.in_place:
            return
        work = self.workload
        # no watch on replicas here: the checkpoint waits for them
        truncate = [f"TRUNCATE {', '.join(work.truncate)}"] if work.truncate else []
        vacuum = [f"VACUUM (ANALYZE) {table}" for table in (*work.vacuum, *work.truncate) if table]
        with self.uncapped():
            self.server.execute(LOCAL, *truncate, *vacuum, as_load=True)
            if "" in work.vacuum:
                self.server.vacuum("ANALYZE")
            self.checkpoint()

    def exceeds_memory(self, scale: int) -> bool:
        """Return whether the data exceed the memory cap, page cache included."""
        cap = storage_of(self.level).memory
        return bool(self.site and cap and self.workload.data_mib(scale) << 20 > cap)

    @contextlib.contextmanager
    def uncapped(self) -> Iterator[None]:
        """Lift the I/O caps for unmeasured work."""
        with contextlib.ExitStack() as lifted:
            for lift in self.site.lifts if self.site else ():
                lifted.enter_context(lift())
            yield

    def checkpoint(self) -> None:
        """Run a checkpoint; ServerError if a replica stays behind."""
        self.server.checkpoint()
        if self.replicas:
            self.replicas.settle()

    def before_load(self, in_force: dict[str, str]) -> None:
        """Prepare the cluster right before the load; add to ``in_force``."""
        if self.site and self.site.before_load:
            with self.uncapped():  # else its stop exceeds the time limit
                self.checkpoint()
                for prepare in self.site.before_load:
                    in_force |= prepare()

    @contextlib.contextmanager
    def logged(self, path: Path, limit: int) -> Iterator[None]:
        """Save the log of this time: ``limit`` characters and all checkpoints."""
        offset = self.site.cluster.log_size() if self.site else 0
        try:
            yield
        finally:
            if self.site:
                files.write(path, self.site.cluster.log_end(offset, limit))

    @contextlib.contextmanager
    def watched(self, warnings: list[str], keep: Path | None = None) -> Iterator[Check]:
        """Watch replicas (lag in ``keep``), or the brakes of a database in use."""
        if isinstance(self.server, Remote) and self.server.in_place:
            with self.server.braked() as check:
                yield check
            return
        if not self.replicas:
            yield lambda: None
            return
        before = {one: one.reading() for one in self.replicas.members if isinstance(one, RemoteReplica)}
        with Watch(self.replicas) as watch:
            try:
                yield watch
            finally:
                warnings += watch.warnings
                if keep:
                    samples = {one.name: one.sampled(first) for one, first in before.items()}
                    ReplicaReadings(lag=watch.lag, elsewhere=samples).write(keep)

    @contextlib.contextmanager
    def background_load(self, commands: list[list[str]], output: Path) -> Iterator[Check]:
        """Run background clients until exit; yield a check for regular calls.

        Raises:
            LoadError: a process ended early, or lost a client.
            ServerError: a session does not end.

        """
        # distinguishes their sessions from the load's
        environment = {**self.client.environment, "PGAPPNAME": BESIDE}
        client = replace(self.client, environment=environment, cores=cpu_of(self.level).background or "")
        what, processes = "background pgbench", list[Process]()

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
            with contextlib.suppress(ServerError):  # the server is gone: its next caller raises
                ended = not processes or end_load(self.server, BESIDE)
        if not ended:
            raise ServerError("a session of the background load does not end")

    def check_promises(self, warnings: list[str], keep: Path) -> None:
        """Check the committed rows on replicas; save the result in ``keep``.

        Raises:
            InvariantError: an acknowledged row is missing.
            ServerError: a replica does not catch up.

        """
        if self.replicas:
            verified = self.replicas.verify(self.workload.invariant.count)
            warnings += verified.warnings
            readings = ReplicaReadings.from_bytes((keep / ReplicaReadings.FILE).read_bytes())
            readings.model_copy(update={"verified": asdict(verified)}).write(keep)

    def client_environment(self) -> dict[str, str]:
        """Return libpq's variables for other hosts, with the password."""
        if isinstance(self.server, Remote):
            return dict(self.client.environment)
        access = self.server.network
        assert access is not None
        address = {"PGHOST": access.address, "PGPORT": str(access.port)}
        return {**address, "PGUSER": self.server.role, "PGPASSWORD": access.password}

    def check_running(self) -> None:
        """Check the cluster (else ServerError) and its caps (else SettingError)."""
        if self.site:
            for check in self.site.checks:
                check()
            if not self.site.cluster.running:
                lines = self.site.cluster.log_text().strip().splitlines() or ["its log is empty"]
                raise ServerError(f"the server ended during the trial: {lines[-1]}")

    @property
    def usable(self) -> bool:
        """Whether all replicas still stream."""
        return not self.replicas or self.replicas.check() is None

    def close(self) -> None:
        """Stop all servers, undo the changes, and remove the files."""
        if self.site:
            for process in self.site.processes:
                stop(process)
            self.site.replicas.stop()
            self.site.cluster.stop(immediately=True)
            for server in (self.site.cluster, *self.site.replicas.members):
                remove_shared_memory(server.placed.parent)  # left by a killed server
        self.scope.undo()
        if self.site:
            self.site.shell.remove(self.site.cluster.folder)


def build(
    level: Level, workload: Workload, folder: Path, templates: Templates, reach: Reach | None = None
) -> Environment:
    """Return a level's loaded server.

    ``reach`` opens a cluster to other hosts before it starts.

    Raises:
        BenchlibError: it cannot be built; everything was removed.

    """
    run = templates.run
    scope = run.journal.scope()
    if target := target_of(level):
        try:
            remote, cost = Remote.open(target, scope, workload.template), None
            client = remote.shell()
            if target.in_place:
                workload = workload.changed(**_ONLY_READS)
            else:
                templates.load(remote, workload, client)
                cost = change_schema(remote, client, level.sql) if level.sql else None
        except BaseException:
            scope.undo()
            raise
        return Environment(level, workload, run, client, scope, remote, cost=cost)
    template, shell = templates.loaded(level, workload), templates.shell
    cluster = Cluster(shell, template.installation, folder)
    program = partial(templates.program, level=level)
    site = Site(level, folder.name, run.folder, shell, scope, program, cluster)
    cost = templates.costs.get(template.folder)
    client = replace(shell, cores=cpu_of(level).load or "")
    environment = Environment(level, workload, run, client, scope, cluster, site, cost)
    try:
        for lever in LEVERS:
            lever.before_files(site)
        environment.server = site.cluster = template.clone(folder, **site.places)
        os.sync()  # checkpoints do not write the copied files
        for lever in LEVERS:
            lever.before_start(site)
        site.cluster.configure(server_settings(level))
        if reach:
            reach(site)
        with environment.apply_settings():  # such as huge pages, which the start decides
            site.cluster.start()
            site.cluster.admit()
            for lever in LEVERS:
                lever.after_start(site)
    except BaseException:
        environment.close()
        raise
    return environment


def written(workload: Workload, folder: Path, shell: Shell) -> list[tuple[Script, Path | None]]:
    """Return scripts with their paths; SQL is written to files."""

    def path_of(number: int, sql: str) -> Path:
        # workloads with equal names may differ
        path = folder / f"{workload.name}-{number}-{hashlib.sha256(sql.encode()).hexdigest()[:8]}.sql"
        if not path.exists():
            files.write(path, sql, mode=0o600)
            shell.own(path)
        return path

    scripts = enumerate(workload.scripts, 1)
    return [(one, None if one.sql is None else path_of(number, one.sql)) for number, one in scripts]
