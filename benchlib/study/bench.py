"""The trials of a study on this machine.

Each trial has a new cluster, so that no level depends on one file layout; ``rebuild_every`` above 1 keeps it
for that many blocks.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchlib.errors import BenchlibError, InvariantError, StudyError
from benchlib.host import files
from benchlib.levers.lever import Site
from benchlib.levers.target import target_of
from benchlib.load.latency import client_logs, keep_log
from benchlib.load.pgbench import Pgbench
from benchlib.load.tool import Connection, Job, LoadTool
from benchlib.load.tools import load_tool
from benchlib.plan.design import Trial
from benchlib.plan.model import Load, Measurement, Plan, Study
from benchlib.plan.workload import Script, Workload
from benchlib.server import statistics
from benchlib.server.remote import sole_run
from benchlib.server.server import Server
from benchlib.server.templates import Templates, workshop
from benchlib.study.calls import PASSING
from benchlib.study.environment import Check, Environment, build, written
from benchlib.study.fleet import Hosts
from benchlib.study.generators import During, drive, merge_results, reach
from benchlib.study.loop import Tell
from benchlib.study.query_plans import explains_queries
from benchlib.study.records import BESIDE, SERVER_LOG, Cost, Counters, Flushes, Parameters, Plans, Samples
from benchlib.study.store import TRANSACTION_LOG

_LOG_LIMIT = 200_000
_WEEK_S = 7 * 86400


@dataclass
class Bench:
    """A runner for the trials of one plan; ``patient`` if it outlives a failed cluster."""

    plan: Plan
    templates: Templates
    hosts: Hosts | None = None
    patient: bool = False
    _environments: dict[str, Environment] = field(default_factory=dict)
    _period: int | None = None
    _built: int = 0
    _fsync: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def workspace(self) -> Path:
        """The run's temporary folder."""
        return self.templates.run.folder

    # --- environments -------------------------------------------------------------

    def _build(self, name: str) -> Environment:
        self.templates.tell(f"building the cluster of “{name}”")
        self._built += 1
        plan, load, folder = self.plan, self.plan.level_load(name), self.workspace / f"c{self._built:03d}"
        try:
            reached = partial(reach, self.hosts, load) if self.hosts else None
            environment = build(plan.level(name), plan.level_workload(name), folder, self.templates, reached)
            self._environments[name] = environment
            with environment.apply_settings():
                environment.settle()
                # a capped device fills the memory for minutes; otherwise the trial's own warm-up is enough
                if plan.stands_side_by_side or environment.exceeds_memory(plan.scale):
                    with environment.uncapped():
                        self._warm(environment, load, seed=1)
                        environment.checkpoint()
        except BenchlibError as reason:
            # only this trial fails, or its block runs again
            if self.patient or not plan.stands_side_by_side or isinstance(reason, PASSING):
                raise
            raise StudyError(f"the cluster of level “{name}” cannot be built: {reason}") from reason
        return environment

    @contextlib.contextmanager
    def _environment_for(self, trial: Trial) -> Iterator[Environment]:
        if (period := self.plan.period(trial.block)) != self._period:
            self.close()
            self._period = period
        reusable = False
        try:
            environment = self._environments.get(trial.level) or self._build(trial.level)
            yield environment
            keeps = self.plan.stands_side_by_side or environment.server.in_place
            reusable = keeps and environment.usable
        finally:  # its state is unknown after an error
            if not reusable and trial.level in self._environments:
                self._environments.pop(trial.level).close()

    def close(self) -> None:
        """Stop and remove all clusters."""
        while self._environments:
            self._environments.popitem()[1].close()

    # --- one trial ----------------------------------------------------------------

    def measure(self, trial: Trial, folder: Path) -> Measurement:
        """Run one trial; the measurement has any error."""
        self.templates.run.check_guarded()
        load = self.plan.level_load(trial.level)
        # fields of the measurement, saved even if the trial fails
        notes: dict[str, Any] = {"trial": trial, "started_s": time.time(), "warnings": []}
        try:
            with (
                self._environment_for(trial) as environment,
                environment.apply_settings() as notes["host"],
                self._explains(trial, environment, folder),  # after the load, and after its log
                environment.logged(folder / SERVER_LOG, _LOG_LIMIT),
            ):
                server, work = environment.server, environment.workload
                self._prepare(trial, environment, folder, notes)
                commands = self._background_commands(environment, load, trial.beside_seed)
                with environment.background_load(commands, folder / BESIDE) as check_background:
                    self._warm(environment, load, seed=trial.warm_up_seed)
                    rows = count_rows(server, work)
                    environment.before_load(notes["host"])
                    before = statistics.snapshot(server)
                    before["tables"] = {"growth": environment.initial_growth, **(before["tables"] or {})}
                    sampler = environment.sampler(load.waits_hz, self.plan.samples)
                    with environment.watched(notes["warnings"], folder) as check_replicas:

                        def check() -> None:
                            check_background()
                            check_replicas()

                        job = self._job(environment, work, load, trial.seed)
                        read_report = self._drive(environment, job, folder, notes, check, sampler)
                Samples.model_validate(sampler.raw).write(folder)
                notes["warnings"] += sampler.warnings
                environment.check_running()
                Counters(before=before, after=statistics.snapshot(server)).write(folder)
                report = read_report()  # after the counters: parsing takes time and disk
                if work.explain:
                    Plans(after=statistics.explained(server, work, self.plan.scale)).write(folder)
                with environment.uncapped():  # whole tables are read
                    check_invariant(server, work, rows, report)
                environment.check_promises(notes["warnings"], folder)
                if self.plan.stands_side_by_side and environment.usable:
                    environment.settle()
        except (StudyError, *PASSING):
            raise
        except BenchlibError as reason:
            notes |= {"error": str(reason), "error_kind": type(reason).__name__}
        notes["warnings"] = list(dict.fromkeys(notes["warnings"]))
        return Measurement(finished_s=time.time(), **notes)

    def _explains(
        self, trial: Trial, environment: Environment, folder: Path
    ) -> contextlib.AbstractContextManager[None]:
        work = environment.workload
        if trial.block > 1 or not environment.site or not work.by_query:
            return contextlib.nullcontext()
        job = self._job(environment, work, self.plan.level_load(trial.level), seed=1)
        job = replace(job, connection=environment.server.connection)
        return explains_queries(environment, self._tool(work), job, folder)

    def _prepare(self, trial: Trial, environment: Environment, folder: Path, notes: dict[str, Any]) -> None:
        server, site = environment.server, environment.site
        notes["warnings"] += site.remarks if site else []
        notes["settings"] = server.check_settings(server.database)
        notes["server_version"] = server.version()
        if trial.block == 1:  # long and constant: once per level
            Parameters.model_validate(server.parameters()).write(folder)
        if environment.cost:
            Cost(**asdict(environment.cost)).write(folder)
        if self.plan.level_load(trial.level).fsync_test and site:
            Flushes(durability=server.durability(), flushes=self._flushes(site)).write(folder)
        environment.checkpoint()
        if environment.initial_growth is None:  # before the reset
            environment.initial_growth = statistics.growth(server)
        if site:  # external counters are never reset
            statistics.reset(server)

    def _flushes(self, site: Site) -> dict[str, Any]:
        device = str((site.level.storage, site.level.host))  # whose settings may change its queue
        if device not in self._fsync:
            self.templates.tell("measuring flushes per second of the WAL's device")
            folder = site.cluster.placed_wal.parent
            self._fsync[device] = statistics.fsync_rates(site.shell, site.program("pg_test_fsync"), folder)
        return self._fsync[device]

    def _warm(self, environment: Environment, load: Load, *, seed: int) -> None:
        if load.warmup_s == 0 or not self._tool(environment.workload).warms:
            return
        load = load.changed(duration_s=load.warmup_s, transaction_log=False)
        folder = self.workspace / "warm-up"
        files.make(folder, mode=0o700)
        job = self._job(environment, environment.workload, load, seed)
        with environment.watched([]) as check:
            read_report = self._drive(environment, job, folder, {}, check, contextlib.nullcontext())
        if not load.generators:  # generators overlap too little in so short a load
            read_report()

    def _drive(
        self,
        environment: Environment,
        job: Job,
        folder: Path,
        notes: dict[str, Any],
        check: Check,
        during: During,
    ) -> Callable[[], dict[str, Any]]:
        """Run a load, and ``during`` meanwhile; return the parser of its report."""
        tool, load, client = self._tool(job.workload), job.load, environment.client
        if load.generators:
            assert self.hosts
            job = replace(job, connection=Connection(dbname=job.connection.dbname), scripts=())
            notes["load_argv"] = [tool.program.name, *tool.argv(job)[1:]]  # before the load is divided
            generated = drive(self.hosts, environment, job, check, during, tool.limit_s(load))
            return lambda: merge_results(generated, tool, load, folder, notes)
        logs = None
        if load.transaction_log:
            client.remove(self.workspace / "log")
            logs = client.make_directory(self.workspace / "log")
        argv = tool.argv(replace(job, log_prefix=logs and logs / "log"))
        shown_argv = notes["load_argv"] = [Path(argv[0]).name, *argv[1:]]
        out, err = folder / "stdout", folder / "stderr"
        with during:
            # a tool that hangs must not stop the study
            done = client.run(argv, stdout=out, stderr=err, timeout_s=tool.limit_s(load), watch=check)
        notes |= {"load_returncode": done.returncode, "load_wall_s": done.wall_s, "load_cpu_s": done.cpu_s}

        def read_report() -> dict[str, Any]:
            stdout, stderr = (path.read_text(errors="replace") for path in (out, err))
            report = tool.report(stdout, stderr, done.returncode, shown_argv)
            if logs:
                keep_log(client_logs(logs), folder / TRANSACTION_LOG, shown_argv, client.uid)
            return report

        return read_report

    def _tool(self, workload: Workload) -> LoadTool:
        return load_tool(workload.tool, self.templates.pgbench())

    def _job(self, environment: Environment, workload: Workload, load: Load, seed: int) -> Job:
        scripts = written(workload, self.workspace, self.templates.shell)
        entrance = environment.site.entrance if environment.site else None
        return Job(entrance or environment.server.connection, workload, load, self.plan.scale, seed, scripts)

    def _background_commands(self, environment: Environment, load: Load, seed: int) -> list[list[str]]:
        tool, work, commands = Pgbench(self.templates.pgbench()), environment.workload, []
        for number, script in enumerate(work.beside, 1):
            changes = {"name": f"{work.name}-beside-{number}", "scripts": (Script(sql=script.sql),)}
            background = Load(clients=script.clients, threads=1, duration_s=_WEEK_S, variables=load.variables)
            job = self._job(environment, work.model_copy(update=changes), background, seed)
            # without pooler, so that its sessions end with it
            commands.append(tool.argv(replace(job, connection=environment.server.connection)))
        return commands


def count_rows(server: Server, work: Workload) -> int | None:
    """Return the rows that transactions add to, if they do."""
    count = work.invariant.count
    return int(server.value(count, as_load=True)) if count else None


def check_invariant(server: Server, work: Workload, before: int | None, report: Mapping[str, Any]) -> None:
    """Check the rows that the report claims (else InvariantError)."""
    invariant = work.invariant
    if before is not None and (now := count_rows(server, work)) is not None:
        rows, growth = now - before, invariant.growth(report)
        if rows not in growth:
            wanted = f"{growth[0]} to {growth[-1]}" if len(growth) > 1 else f"{growth[0]}"
            raise InvariantError(
                f"{work.tool} acknowledged {report['transactions']} transactions, the database holds "
                f"{rows} new rows (expected {wanted})"
            )
    if invariant.violations and (wrong := int(server.value(invariant.violations, as_load=True))):
        raise InvariantError(f"{wrong} rows violate the workload's invariant")


@contextlib.contextmanager
def open_bench(study: Study, tell: Tell, hosts: Hosts | None = None) -> Iterator[Bench]:
    """Open the bench of a study; on exit no server and no file of it remains.

    Raises:
        PreflightError: a cluster is impossible, or another run is active.

    """
    plan, number = study.plan, secrets.randbelow(2**31)
    levels = {name: plan.level(name) for name in plan.factor.levels}
    with (
        workshop(f"study “{study.name}”", plan.scale, tell, abroad=plan.abroad) as templates,
        contextlib.ExitStack() as known,
        contextlib.closing(Bench(plan, templates, hosts, study.patient)) as bench,
    ):
        for server in dict.fromkeys(target.server for target in map(target_of, levels.values()) if target):
            known.enter_context(sole_run(server, number))
        for name, level in levels.items():
            if not level.target:  # the preflight checked external servers
                templates.check(name, level, plan.level_workload(name))
        yield bench
