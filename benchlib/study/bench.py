"""The test bench: the stands of a study on this machine, and one trial on one of them.

A stand is built for each trial, from a loaded template that is copied, so that no level keeps the luck of its
files' layout. Where ``rebuild_every`` is more than one, *standing* keeps one warmed stand per level, from its first trial
on, and loads one at a time; after so many blocks all are built anew, in another order.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
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
from benchlib.plan.model import Load, Measurement, Plan
from benchlib.plan.workload import Script, Workload
from benchlib.server import statistics
from benchlib.server.remote import sole_run
from benchlib.server.server import Server
from benchlib.server.templates import Templates, workshop
from benchlib.study.calls import PASSING, OtherHosts
from benchlib.study.generators import During, drive, put_together, reach
from benchlib.study.loop import Tell
from benchlib.study.records import BESIDE, SERVER_LOG, Counters, Flushes, Parameters, Plans, Samples
from benchlib.study.stand import Check, Stand, build, written
from benchlib.study.store import TRANSACTION_LOG

_LOG_LIMIT = 200_000
_WEEK_S = 7 * 86400


@dataclass
class Bench:
    """Runs the trials of one plan. Get one from :func:`open_bench`."""

    plan: Plan
    templates: Templates
    hosts: OtherHosts | None = None
    _standing: dict[str, Stand] = field(default_factory=dict)
    _period: int | None = None
    _made: int = 0
    _fsync: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def workspace(self) -> Path:
        """The run's folder, which goes when the run goes."""
        return self.templates.run.folder

    # --- building -----------------------------------------------------------------

    def _stand(self, name: str) -> Stand:
        self.templates.tell(f"building the cluster of “{name}”")
        self._made += 1
        plan, load, folder = self.plan, self.plan.level_load(name), self.workspace / f"c{self._made:03d}"
        try:
            reached = partial(reach, self.hosts, load) if self.hosts else None
            stand = build(plan.level(name), plan.level_workload(name), folder, self.templates, reached)
            self._standing[name] = stand
            with stand.under():
                stand.settle()
                # else its only trial warms it; but at a cap's rate a memory that the data exceed fills for minutes
                if plan.stands_side_by_side or stand.exceeds_memory(plan.scale):
                    with stand.uncapped():
                        self._warm(stand, load, seed=1)
                        stand.checkpoint()
        except BenchlibError as reason:
            # then this trial fails, and no other; or its block runs again
            if not plan.stands_side_by_side or isinstance(reason, PASSING):
                raise
            raise StudyError(f"the cluster of level “{name}” cannot be built: {reason}") from reason
        return stand

    def close(self) -> None:
        """Take away every stand."""
        while self._standing:
            self._standing.popitem()[1].close()

    # --- one trial ----------------------------------------------------------------

    def measure(self, trial: Trial, folder: Path) -> Measurement:
        """Run one trial; its raw files go to ``folder``. What ends it early is in the measurement."""
        self.templates.run.check_guarded()
        # of the measurement; kept even if the trial fails half-way
        notes: dict[str, Any] = {"trial": trial, "started_s": time.time(), "warnings": []}
        try:
            with self._stand_for(trial) as stand, stand.under() as notes["host"]:
                notes["warnings"] += stand.site.remarks if stand.site else []
                with stand.logged(folder / SERVER_LOG, _LOG_LIMIT):
                    self._measure(trial, stand, folder, notes)
        except (StudyError, *PASSING):
            raise
        except BenchlibError as reason:
            notes |= {"error": str(reason), "error_kind": type(reason).__name__}
        notes["warnings"] = list(dict.fromkeys(notes["warnings"]))
        return Measurement(finished_s=time.time(), **notes)

    @contextlib.contextmanager
    def _stand_for(self, trial: Trial) -> Iterator[Stand]:
        """A level's stand for a trial; it goes afterwards, unless it serves others of its period too and is in order."""
        if (period := self.plan.period(trial.block)) != self._period:
            self.close()
            self._period = period
        stays = False
        try:
            stand = self._standing.get(trial.level) or self._stand(trial.level)
            yield stand
            stays = self.plan.stands_side_by_side and stand.usable
        finally:  # after an error nobody knows what state it is in
            if not stays and trial.level in self._standing:
                self._standing.pop(trial.level).close()

    def _measure(self, trial: Trial, stand: Stand, folder: Path, notes: dict[str, Any]) -> None:
        load, server, work = self.plan.level_load(trial.level), stand.server, stand.workload
        notes["settings"] = server.check_settings(server.database)
        notes["server_version"] = server.version()
        if trial.block == 1:  # once for each level: a long list, which does not change
            Parameters.model_validate(server.parameters()).write(folder)
        if load.fsync_test and stand.site:
            flushes = {"durability": server.durability(), "flushes": self._flushes(stand.site)}
            Flushes.model_validate(flushes).write(folder)
        stand.checkpoint()
        if stand.grown is None:  # which the reset forgets
            stand.grown = statistics.growth(server)
        if stand.site:  # nobody else counts on them
            statistics.reset(server)
        with stand.beside(self._beside(stand, load, trial.beside_seed), folder / BESIDE) as check_beside:
            self._warm(stand, load, seed=trial.warm_up_seed)
            count = work.invariant.count
            before_load = int(server.value(count)) if count else None
            if stand.site and stand.site.before_load:
                with stand.uncapped():  # or to write its pages takes a server longer than it is given to stop
                    stand.checkpoint()
                    for prepare in stand.site.before_load:
                        notes["host"] |= prepare()
            before = statistics.snapshot(server)
            before["tables"] = {"growth": stand.grown, **(before["tables"] or {})}

            sampler = stand.sampler(load.waits_hz)
            with stand.watched(notes["warnings"], folder) as watch:

                def check() -> None:
                    check_beside()
                    watch()

                read_report = self._drive(stand, load, trial.seed, folder, notes, check, sampler)
        Samples.model_validate(sampler.raw).write(folder)
        notes["warnings"] += sampler.warnings
        stand.check_running()
        after = statistics.snapshot(server)
        Counters.model_validate({"before": before, "after": after}).write(folder)
        report = read_report()
        if work.explain:
            Plans(after=statistics.explained(server, work, self.plan.scale)).write(folder)
        with stand.uncapped():  # it reads whole tables, which at a cap's rate takes longer than the trial
            check_invariant(server, work, before_load, report)
        stand.check_promises(notes["warnings"], folder)
        if self.plan.stands_side_by_side and stand.usable:
            stand.settle()

    def _flushes(self, site: Site) -> dict[str, Any]:
        """What each way of flushing reaches where the WAL lies; levels of one storage have one place."""
        place = str(site.level.storage)
        if place not in self._fsync:
            self.templates.tell("measuring how often the WAL's place can be flushed")
            folder = site.cluster.placed_wal.parent
            self._fsync[place] = statistics.fsync_rates(site.shell, site.program("pg_test_fsync"), folder)
        return self._fsync[place]

    def _warm(self, stand: Stand, load: Load, *, seed: int) -> None:
        if load.warmup_s == 0 or not self._tool(stand.workload).warms:
            return
        load = load.changed(duration_s=load.warmup_s, transaction_log=False)
        folder = self.workspace / "warm-up"
        files.make(folder, mode=0o700)
        with stand.watched([]) as watch:
            read_report = self._drive(stand, load, seed, folder, {}, watch, contextlib.nullcontext())
        if not load.generators:  # so short a load may not be measured together by all of them
            read_report()

    def _drive(
        self,
        stand: Stand,
        load: Load,
        seed: int,
        folder: Path,
        notes: dict[str, Any],
        watch: Check,
        during: During,
    ) -> Callable[[], dict[str, Any]]:
        """Run a load to its end, from this host or from others, its output verbatim in the folder; ``during`` is entered meanwhile.

        What gives its report, for which there is time once counters have been read. The command line of a load from other
        hosts is the one that all of them share in.
        """
        tool, job = self._tool(stand.workload), self._job(stand, stand.workload, load, seed)
        if load.generators:
            assert self.hosts
            job = replace(job, connection=Connection(dbname=job.connection.dbname), scripts=())
            notes["load_argv"] = [tool.program.name, *tool.argv(job)[1:]]
            generated = drive(self.hosts, stand, job, watch, during, tool.limit_s(load))
            return lambda: put_together(generated, tool, load, folder, notes)
        logs = None
        if load.transaction_log:
            stand.client.remove(self.workspace / "log")
            logs = stand.client.make_directory(self.workspace / "log")
        argv = tool.argv(replace(job, log_prefix=logs and logs / "log"))
        shown_argv = notes["load_argv"] = [Path(argv[0]).name, *argv[1:]]
        out, err = folder / "stdout", folder / "stderr"
        with during:
            # one that hangs must not hang the study
            done = stand.client.run(argv, stdout=out, stderr=err, timeout_s=tool.limit_s(load), watch=watch)
        notes |= {"load_returncode": done.returncode, "load_wall_s": done.wall_s, "load_cpu_s": done.cpu_s}

        def read_report() -> dict[str, Any]:
            stdout, stderr = (path.read_text(errors="replace") for path in (out, err))
            report = tool.report(stdout, stderr, done.returncode, shown_argv)
            if logs:
                keep_log(client_logs(logs), folder / TRANSACTION_LOG, shown_argv, stand.client.uid)
            return report

        return read_report

    def _tool(self, workload: Workload) -> LoadTool:
        return load_tool(workload.tool, self.templates.pgbench())

    def _job(self, stand: Stand, workload: Workload, load: Load, seed: int) -> Job:
        scripts = written(workload, self.workspace, self.templates.shell)
        entrance = stand.site.entrance if stand.site else None
        return Job(entrance or stand.server.connection, workload, load, self.plan.scale, seed, scripts)

    def _beside(self, stand: Stand, load: Load, seed: int) -> list[list[str]]:
        """The command line of each script beside the load, which is to be ended with it."""
        tool, commands = Pgbench(self.templates.pgbench()), []
        for number, script in enumerate(stand.workload.beside, 1):
            own = {"name": f"{stand.workload.name}-beside-{number}", "scripts": (Script(sql=script.sql),)}
            workload = stand.workload.model_copy(update=own)
            its_load = Load(clients=script.clients, threads=1, duration_s=_WEEK_S, variables=load.variables)
            # straight to the server, where its sessions end with it
            job = replace(self._job(stand, workload, its_load, seed), connection=stand.server.connection)
            commands.append(tool.argv(job))
        return commands


def check_invariant(server: Server, work: Workload, before: int | None, report: Mapping[str, Any]) -> None:
    """Make sure that the database holds what a load that has ended wrote, by its report.

    Raises:
        InvariantError: it does not.

    """
    invariant = work.invariant
    if before is not None and invariant.count:
        rows, growth = int(server.value(invariant.count)) - before, invariant.growth(report)
        if rows not in growth:
            wanted = f"{growth[0]} to {growth[-1]}" if len(growth) > 1 else f"{growth[0]}"
            raise InvariantError(
                f"{work.tool} acknowledged {report['transactions']} transactions, the database holds "
                f"{rows} new rows (wanted {wanted})"
            )
    if invariant.violations and (wrong := int(server.value(invariant.violations))):
        raise InvariantError(f"{wrong} rows contradict what the workload wrote")


@contextlib.contextmanager
def open_bench(
    plan: Plan, name: str, tell: Tell = lambda line: None, hosts: OtherHosts | None = None
) -> Iterator[Bench]:
    """A bench for a plan that this machine can run, guarded until it is left: then no server and no file of it remains.

    ``hosts`` are those that levels may have their load from and their replicas on.

    Raises:
        PreflightError: a cluster cannot be made, or another run is under way, here or on a server that is not ours.

    """
    with (
        workshop(f"study “{name}”", plan.scale, tell, abroad=plan.abroad) as templates,
        contextlib.ExitStack() as known,
        contextlib.closing(Bench(plan, templates, hosts)) as bench,
    ):
        targets = filter(None, (target_of(plan.level(level_name)) for level_name in plan.factor.levels))
        number = secrets.randbelow(2**31)
        for server in dict.fromkeys(target.server for target in targets):
            known.enter_context(sole_run(server, number))
        for level_name in plan.factor.levels:
            level = plan.level(level_name)
            if not level.target:  # somebody else's server has been asked by the preflight
                templates.check_initdb(level_name, level)
        yield bench
