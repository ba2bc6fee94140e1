"""The test bench: the clusters of a study on this machine, and one trial on one of them.

*Standing* keeps one warmed cluster per level and loads one at a time, so neighbouring
trials share the host's mood; every few blocks all are built anew and change places, so
that no level keeps the luck of its files' layout. *Fresh* builds a cluster for each
trial. Both start from a loaded template that is copied.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchlib.design import Trial
from benchlib.errors import BenchlibError, InvariantError, PreflightError, ServerError, StudyError, TrialError
from benchlib.guardian import Run, guarded_run, scratch_root
from benchlib.level import Level
from benchlib.levers import host, pgbench, statistics
from benchlib.levers.cluster import SUPERUSER, Cluster
from benchlib.levers.pgbench import MIB_PER_SCALE
from benchlib.levers.postgres import Installation, find_installation, find_pgbench, runnable_by
from benchlib.levers.server import DATABASE
from benchlib.model import Load, Measurement, Plan, Script
from benchlib.shell import Shell, server_user
from benchlib.store import TRANSACTION_LOG

_WAL_MIB = 1200
_LOG_LIMIT = 200_000
_FAST_LOADING = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "max_wal_size": "4GB",
}


@dataclass
class Bench:
    """Runs the trials of one plan. Get one from :func:`open_bench`."""

    plan: Plan
    run: Run
    shell: Shell
    tell: Callable[[str], None] = lambda words: None
    _empty: dict[tuple[Path, tuple[str, ...]], Cluster] = field(default_factory=dict)
    _templates: dict[tuple[Path, tuple[str, ...]], Cluster] = field(default_factory=dict)
    _standing: dict[str, Cluster] = field(default_factory=dict)
    _period: int | None = None
    _made: int = 0
    _reachable: dict[Path, Installation] = field(default_factory=dict)

    @property
    def workspace(self) -> Path:
        """The run's folder, which goes when the run goes."""
        return self.run.folder

    # --- building -----------------------------------------------------------------

    def prepare(self, block: int) -> None:
        """Have the clusters for a block as the arrangement wants them.

        Raises:
            StudyError: a level's server cannot be built at all; in the server's own words.

        """
        self.run.check_guarded()
        period = (block - 1) // self.plan.rebuild_every
        if self.plan.arrangement == "fresh" or period == self._period:
            return
        self._tear_down()
        names = list(self.plan.factor.levels)
        shift = period % len(names)
        for name in names[shift:] + names[:shift]:
            self._stand(name)
        self._period = period

    def _stand(self, name: str) -> Cluster:
        self.tell(f"building the cluster of “{name}”")
        try:
            cluster = self._build(name)
            self._settle(cluster)
            self._warm(cluster, self.plan.level_load(name), seed=1)
        except BenchlibError as reason:
            raise StudyError(f"the cluster of level “{name}” cannot be built: {reason}") from reason
        self._standing[name] = cluster
        return cluster

    def _build(self, name: str) -> Cluster:
        level = self.plan.level(name)
        self._made += 1
        cluster = self._template(level).clone(self.run.folder / f"c{self._made:03d}")
        try:
            cluster.configure(level.settings)
            cluster.start()
        except BaseException:
            self._discard(cluster)
            raise
        return cluster

    def _initialised(self, level: Level) -> Cluster:
        """The cluster that becomes a level's template, as initdb left it until it is loaded."""
        installation = self._installation(level)
        key = (installation.bindir, level.initdb)
        if key not in self._empty:
            cluster = Cluster(self.shell, installation, self.run.folder / f"t{len(self._empty)}")
            cluster.create(level.initdb)
            self._empty[key] = cluster
        return self._empty[key]

    def _template(self, level: Level) -> Cluster:
        """The loaded, stopped cluster that a level's clusters are copies of."""
        template = self._initialised(level)
        key = (template.installation.bindir, level.initdb)
        if key not in self._templates:
            self.tell(f"loading the data set into {template.installation.label}")
            template.configure(_FAST_LOADING)
            template.start()
            try:
                template.execute(f"CREATE DATABASE {DATABASE}", dbname="postgres")
                if self.plan.workload.pgbench_tables:
                    argv = pgbench.init_argv(self._pgbench(), _connection(template), self.plan.scale)
                    pgbench.initialise(self.shell, argv)
                if self.plan.workload.load_sql:
                    template.execute(self.plan.workload.load_sql)
                template.execute("VACUUM (FREEZE, ANALYZE)", "CHECKPOINT")
            finally:
                template.stop()
            self._templates[key] = template
        return self._templates[key]

    def _installation(self, level: Level) -> Installation:
        return self._reach(find_installation(level.postgres))

    def _pgbench(self) -> Path:
        return self._reach(find_pgbench()).program("pgbench")

    def _reach(self, installation: Installation) -> Installation:
        if installation.bindir not in self._reachable:
            self._reachable[installation.bindir] = runnable_by(self.shell, installation, self.run.folder)
        return self._reachable[installation.bindir]

    def _tear_down(self) -> None:
        for cluster in self._standing.values():
            self._discard(cluster)
        self._standing.clear()
        self._period = None

    def _discard(self, cluster: Cluster) -> None:
        cluster.stop(immediately=True)
        shutil.rmtree(cluster.folder, ignore_errors=True)

    def close(self) -> None:
        """Stop every server."""
        self._tear_down()
        for template in self._templates.values():
            template.stop(immediately=True)

    def check_settings(self) -> None:
        """Ask each level's server whether it would take its settings, before anything is loaded.

        Raises:
            PreflightError: it would not; in the server's own words.

        """
        for name in self.plan.factor.levels:
            level = self.plan.level(name)
            try:
                probe = self._initialised(level)
            except TrialError as reason:
                raise PreflightError(f"level “{name}”: {reason}") from reason
            probe.configure(level.settings)
            if words := probe.refusal():
                raise PreflightError(f"level “{name}”: the server refuses its settings: {words}")

    # --- one trial ----------------------------------------------------------------

    def measure(self, trial: Trial, folder: Path) -> Measurement:
        """Run one trial; its raw files go to ``folder``. What ends it early is in the measurement."""
        started = time.time()
        notes = _Notes()
        error: BenchlibError | None = None
        cluster: Cluster | None = None
        log_offset = 0
        try:
            with self._cluster_for(trial) as cluster:
                log_offset = cluster.log_size()
                try:
                    self._measure(trial, cluster, folder, notes)
                finally:
                    log = cluster.log_text(log_offset)
                    (folder / "server.log").write_text(log[-_LOG_LIMIT:])
        except StudyError:
            raise
        except BenchlibError as reason:
            error = reason
            if cluster is not None and self._standing.get(trial.level) is cluster:
                # nobody knows what state it is in: the level's next trial gets a new one
                self._discard(self._standing.pop(trial.level))
        return Measurement(
            trial=trial,
            started_s=started,
            finished_s=time.time(),
            load_argv=tuple(notes.argv),
            load_returncode=notes.returncode,
            load_wall_s=notes.wall_s,
            load_cpu_s=notes.cpu_s,
            server_version=notes.server_version,
            settings=notes.settings,
            error=str(error) if error else None,
            error_kind=type(error).__name__ if error else None,
        )

    @contextlib.contextmanager
    def _cluster_for(self, trial: Trial) -> Iterator[Cluster]:
        if self.plan.arrangement == "standing":
            yield self._standing.get(trial.level) or self._stand(trial.level)
            return
        cluster = self._build(trial.level)
        try:
            self._settle(cluster)
            yield cluster
        finally:
            self._discard(cluster)

    def _measure(self, trial: Trial, cluster: Cluster, folder: Path, notes: _Notes) -> None:
        load = self.plan.level_load(trial.level)
        notes.settings = cluster.check_settings(DATABASE)
        notes.server_version = cluster.version()
        cluster.execute("CHECKPOINT")
        statistics.reset(cluster)
        self._warm(cluster, load, seed=trial.seed)
        count_before = self._count(cluster)
        before = statistics.snapshot(cluster)

        logs = self._log_folder() if load.transaction_log else None
        argv = pgbench.run_argv(self._pgbench(), _connection(cluster), load, self._scripts(folder), seed=trial.seed,
                                scale=self._scale_option(), log_prefix=logs and logs / "log")  # fmt: skip
        notes.argv = ["pgbench", *argv[1:]]
        done = pgbench.drive(
            self.shell, argv, stdout=folder / "stdout", stderr=folder / "stderr", limit_s=_time_limit(load)
        )
        notes.returncode, notes.wall_s, notes.cpu_s = done.returncode, done.wall_s, done.cpu_s
        if logs:
            _pack(logs, folder / TRANSACTION_LOG)

        if not cluster.running:
            raise ServerError(
                "the server ended during the trial: "
                + (cluster.log_text().strip().splitlines() or ["it said nothing"])[-1]
            )
        after = statistics.snapshot(cluster)
        (folder / "statistics.json").write_text(json.dumps({"before": before, "after": after}, indent=1))
        stdout, stderr = (
            (folder / name).read_bytes().decode(errors="replace") for name in ("stdout", "stderr")
        )
        report = pgbench.summary(stdout, stderr, done.returncode, notes.argv)
        self._check_invariant(cluster, count_before, report["transactions"])
        if self.plan.arrangement == "standing":
            self._settle(cluster)

    def _log_folder(self) -> Path:
        """An empty folder that the load tool may write its log to."""
        folder = self.run.folder / "log"
        shutil.rmtree(folder, ignore_errors=True)
        return self.shell.make_directory(folder)

    def _warm(self, cluster: Cluster, load: Load, *, seed: int) -> None:
        if load.warmup_s == 0:
            return
        folder = self.run.folder / "warm-up"
        folder.mkdir(exist_ok=True)
        argv = pgbench.run_argv(self._pgbench(), _connection(cluster), load, self._scripts(folder), seed=seed,
                                duration_s=load.warmup_s, scale=self._scale_option())  # fmt: skip
        done = pgbench.drive(
            self.shell, argv, stdout=folder / "stdout", stderr=folder / "stderr", limit_s=_time_limit(load)
        )
        stdout, stderr = ((folder / name).read_text(errors="replace") for name in ("stdout", "stderr"))
        pgbench.summary(stdout, stderr, done.returncode, argv)

    def _scripts(self, folder: Path) -> list[tuple[Script, Path | None]]:
        """The workload's scripts, those that are SQL written to files that the load tool can read."""
        pairs: list[tuple[Script, Path | None]] = []
        for number, script in enumerate(self.plan.workload.scripts, 1):
            path = None
            if script.sql is not None:
                path = self.run.folder / f"script-{number}.sql"
                if not path.exists():
                    path.write_text(script.sql)
                    self.shell.own(path)
            pairs.append((script, path))
        return pairs

    def _scale_option(self) -> int | None:
        """pgbench reads the scale from its own tables for built-in scripts; others must be told."""
        own = any(script.sql is not None for script in self.plan.workload.scripts)
        return self.plan.scale if own and self.plan.workload.pgbench_tables else None

    def _settle(self, cluster: Cluster) -> None:
        """Bring a cluster to the known state: emptied and vacuumed tables, nothing dirty."""
        work = self.plan.workload
        statements = [f"TRUNCATE {', '.join(work.truncate)}"] if work.truncate else []
        statements += [f"VACUUM (ANALYZE) {table}" for table in (*work.vacuum, *work.truncate)]
        cluster.execute(*statements, "CHECKPOINT")

    def _count(self, cluster: Cluster) -> int | None:
        query = self.plan.workload.invariant.count
        return int(next(iter(cluster.query(query)[0].values()))) if query else None

    def _check_invariant(self, cluster: Cluster, before: int | None, transactions: int) -> None:
        invariant = self.plan.workload.invariant
        after = self._count(cluster)
        if (
            before is not None
            and after is not None
            and after - before != transactions * invariant.per_transaction
        ):
            raise InvariantError(
                f"pgbench acknowledged {transactions} transactions, the database holds "
                f"{after - before} new rows (wanted {transactions * invariant.per_transaction})"
            )
        if invariant.violations:
            wrong = int(next(iter(cluster.query(invariant.violations)[0].values())))
            if wrong:
                raise InvariantError(f"{wrong} rows contradict what the workload wrote")


@dataclass
class _Notes:
    """What becomes known of a trial while it runs; kept even if it fails half-way."""

    argv: list[str] = field(default_factory=list)
    returncode: int | None = None
    wall_s: float | None = None
    cpu_s: float | None = None
    server_version: str | None = None
    settings: dict[str, str] = field(default_factory=dict)


def _connection(cluster: Cluster) -> pgbench.Connection:
    return pgbench.Connection(host=str(cluster.sockets), port=5432, user=SUPERUSER, dbname=DATABASE)


def _pack(logs: Path, target: Path) -> None:
    """Keep the log files of all threads, one after the other, compressed."""
    with gzip.open(target, "wb", compresslevel=3) as packed:
        for part in sorted(logs.iterdir()):
            with part.open("rb") as file:
                shutil.copyfileobj(file, packed)


def _time_limit(load: Load) -> float:
    """Generous, but an end: a load that hangs must not hang the study."""
    return load.duration_s + 60 + 0.5 * load.clients


@contextlib.contextmanager
def open_bench(
    plan: Plan, name: str, *, scratch: Path | None = None, tell: Callable[[str], None] | None = None
) -> Iterator[Bench]:
    """A bench for a plan, guarded until it is left: then no server and no file of it remains.

    Raises:
        PreflightError: this machine cannot run the plan.

    """
    scratch = scratch or scratch_root()
    preflight(plan, scratch)
    shell = Shell(server_user())
    with guarded_run(scratch, f"study “{name}”") as run:
        bench = Bench(plan, run, shell, tell or (lambda words: None))
        try:
            bench.check_settings()
            yield bench
        finally:
            bench.close()


def preflight(plan: Plan, scratch: Path | None = None) -> list[tuple[str, str]]:
    """What the plan needs of this machine and what there is, as pairs of words.

    Raises:
        PreflightError: something is missing; nothing has been started.

    """
    scratch = scratch or scratch_root()
    names = list(plan.factor.levels)
    for name in names:
        level = plan.level(name)
        for key in ("replication", "storage", "host", "target"):
            if getattr(level, key) is not None:
                raise PreflightError(f"level “{name}” names '{key}': that lever is not available yet")
    found = {name: find_installation(plan.level(name).postgres) for name in names}
    user = server_user()
    standing = plan.arrangement == "standing"
    templates = len({(i.bindir, plan.level(n).initdb) for n, i in found.items()})
    data_mib = MIB_PER_SCALE * plan.scale + 40 if plan.workload.pgbench_tables else 60
    disk = data_mib * (templates + (len(names) if standing else 1)) + _WAL_MIB
    free = host.free_mib(scratch)
    if disk > free:
        raise PreflightError(
            f"the study needs about {disk:,} MiB under {scratch}, {free:,} are free: "
            "a smaller scale, the arrangement 'fresh', or another BENCHLIB_SCRATCH"
        )
    return [
        ("servers", ", ".join(sorted({i.label for i in found.values()}))),
        ("load tool", f"pgbench of {find_pgbench().label}"),
        ("run as", user or "the user who started the notebook"),
        ("disk", f"about {disk:,} MiB of {free:,} MiB free"),
        (
            "memory",
            f"{host.memory_bytes() // host.MEBIBYTE:,} MiB, {host.available_memory_mib():,} MiB available",
        ),
        ("processors", f"{host.processors()} for servers and load tool together"),
    ]
