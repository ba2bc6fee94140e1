"""Running a study on this machine: preflight, provenance, capacity, and the loop over its trials."""

import contextlib
import datetime as dt
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchlib import __version__
from benchlib.errors import HostBusyError, InputError, Interrupted, PreflightError, StudyError
from benchlib.host import facts
from benchlib.host.guardian import scratch_root
from benchlib.levers import BY_KEY, worded
from benchlib.levers.target import target_of, target_words
from benchlib.load.workloads import load_workload
from benchlib.plan.factors import CONTROL
from benchlib.plan.fleet import elsewhere_of
from benchlib.plan.level import Level, Values, rate_at
from benchlib.plan.model import Plan, Study
from benchlib.plan.planning import make_study
from benchlib.plan.words import given_folders
from benchlib.server.installations import Installation, find_pgbench
from benchlib.server.remote import Remote
from benchlib.server.rights import Target
from benchlib.study.bench import open_bench
from benchlib.study.conditions import conditions
from benchlib.study.curate import check_idle
from benchlib.study.driver import run_on_fleet
from benchlib.study.experiment import Experiment
from benchlib.study.fleet import Hosts
from benchlib.study.fleet_check import library
from benchlib.study.loop import Tell, keep_study, missing, run_study, same_study, set_failed_aside
from benchlib.study.preflight import Pairs, builds_differ, cannot_run, check_helper, installations, preflight
from benchlib.study.store import StudyFolder, checksum

_FEW_BLOCKS = 3
CAPACITY_S = 30
"""The trials that measure the capacity are as long as the study's own, but no longer."""
_PACKAGES = ("matplotlib", "numpy", "pandas", "psycopg", "scipy")


def plan_study(values: Values, hosts: Hosts | None = None) -> Study:
    """The study that a notebook's checked parameters describe, on this machine, or on these hosts: then for the least of them.

    With the parameter ``leave_out`` it is without the levels that this machine, or one of the hosts, cannot run.

    Raises:
        InputError: the parameters do not make a study.
        PreflightError: a host cannot be asked.

    """
    # the fleet's file is the driver's, no part of the study
    values = {name: value for name, value in values.items() if name != "fleet"}
    memory = min(_asked(hosts, facts.memory_bytes).values())
    study = make_study(values, memory, load_workload, BY_KEY)
    if values.get("leave_out"):
        refused = _asked(hosts, cannot_run, study.plan)
        reasons = {name: why for each in refused.values() for name, why in each.items()}
        study = make_study(values, memory, load_workload, BY_KEY, reasons) if reasons else study
    conditions(study)
    return worded(study)


def _asked(hosts: Hosts | None, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """What a function gives at each of the hosts that run servers; without any, here, under an empty name."""
    return hosts.asked(function, *arguments) if hosts else {"": function(*arguments)}


def provenance(study: Study) -> dict[str, Any]:
    """Where and with what a study runs: never a path, never a name of a machine.

    Raises:
        PreflightError: a server of a level is not there.

    """
    plan = study.plan
    differ = builds_differ(plan)
    # each server once, whatever schemas of our own the levels have there
    targets = filter(None, (target_of(plan.level(name)) for name in plan.factor.levels))
    servers = [Target(server=server) for server in dict.fromkeys(target.server for target in targets)]
    return {
        "created": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "benchlib": __version__,
        "python": sys.version.split()[0],
        "packages": {name: version(name) for name in _PACKAGES},
        "host": facts.facts(scratch_root()),
        "given_folders": {alias: facts.file_system(Path(path)) for path, alias in given_folders(plan).items()},
        "servers": [
            {"label": i.label, "compiler": i.compiler, "configure": _options(i)}
            | ({"package": i.integrity} if i.integrity else {})
            for i in sorted(set(installations(plan).values()), key=lambda i: i.label)
        ],
        "targets": {target_words(plan, target): Remote(target).identity() for target in servers},
        "load_tool": f"pgbench of {find_pgbench(abroad=plan.abroad).label}",
        **({"builds_differ": differ} if differ else {}),
        **({"builds": own} if (own := builds(plan)) else {}),
    }  # fmt: skip


def builds(plan: Plan) -> dict[str, str]:
    """Checksums of the servers that levels name by a path, which may be built anew in place.

    Raises:
        PreflightError: one is not there.

    """
    ours = installations(plan)
    by_path = [name for name in ours if "/" in (plan.level(name).postgres or "")]
    return {name: checksum(ours[name].program("postgres")) for name in by_path}


def _options(installation: Installation) -> str | None:
    """The options that an installation was configured with, those aside that hold a path."""
    options = re.findall(r"'([^']*)'", installation.configure or "")
    return " ".join(option for option in options if "/" not in option) or None


@dataclass
class Runner:
    """Runs what an experiment misses, here or on the hosts of a fleet. What they lack for it is looked up once."""

    experiment: Experiment
    retry_failed: bool = False
    hosts: Hosts | None = None
    _checks: Pairs | None = None

    def preflight(self) -> Pairs:
        """What the study needs of this machine and what there is, as pairs of words.

        Raises:
            PreflightError: something is missing; nothing has been started.

        """
        if self._checks is None:
            plan = self.experiment.plan
            self._check_elsewhere(plan)
            self._check_hosts(plan)
            rows = _asked(self.hosts, preflight, plan)
            self._checks = [(f"{at}: {name}" if at else name, text) for at in rows for name, text in rows[at]]
        return self._checks

    def _check_elsewhere(self, plan: Plan) -> None:
        """See that the hosts which levels have load from, or replicas on, are there for that, and each for one thing at a time.

        Raises:
            PreflightError: one is not.

        """
        fleet, uses = self.hosts.fleet if self.hosts else None, elsewhere_of(plan)
        for role, name in uses:
            what = "load from" if role == "load" else "replicas on"
            if not fleet or name not in fleet.with_role(role):
                raise PreflightError(
                    f"levels have {what} {name}: run the study with a fleet (--fleet) whose file gives that host "
                    f"the role '{role}' and an address"
                )
            at_once = plan.stands_side_by_side and role == "follower" and uses.count((role, name)) > 1
            if at_once or name in fleet.with_role("server") or len({use for use in uses if name in use}) > 1:
                raise PreflightError(
                    f"levels have {what} {name}, which can do one thing at a time and is there for two"
                )

        if self.hosts and uses and not all(plan.level(name).target for name in plan.factor.levels):
            for name in dict.fromkeys([*(name for _, name in uses), *self.hosts.servers()]):
                self.hosts.reached_at(name)  # which no server of ours listens without

    def _check_hosts(self, plan: Plan) -> None:
        """See that every host has this benchlib, and those that levels have load from, or replicas on, what they need.

        Raises:
            PreflightError: some do not; each with its reason.

        """
        if self.hosts:
            uses, ours = list(dict.fromkeys(elsewhere_of(plan))), library()
            names = dict.fromkeys([*self.hosts.servers(), *(name for _, name in uses)])
            known, errors = self.hosts.ask(list(names), library)
            others = {name: theirs for name, theirs in known.items() if theirs != ours}
            errors += [f"{name}: runs benchlib {theirs}, this is {ours}" for name, theirs in others.items()]
            for role, name in uses:
                errors += self.hosts.ask([name], check_helper, plan, role)[1] if name in known else []
            if errors:
                raise PreflightError("; ".join(errors))

    def run(self, tell: Tell) -> None:
        """Run the trials that are missing, keeping each as it ends.

        Raises:
            InputError: the study is kept with another plan, or from another machine.
            PreflightError: this machine cannot run it.
            StudyError: as :func:`benchlib.study.loop.run_study`.

        """
        with self.hosts.connected() if self.hosts else contextlib.nullcontext():
            experiment, folder = self.experiment, self.experiment.folder
            asked, new = experiment.study, not folder.exists()
            if new:
                self.preflight()
                asked = self._begun(tell)
            else:
                self._check_kept()
            experiment.study = keep_study(folder, asked, tell)
            if self.retry_failed:
                set_failed_aside(folder)
            try:
                if self.hosts:
                    with folder.held():
                        run_on_fleet(folder, self.hosts, tell, partial(self._enough, tell))
                else:
                    run_study(
                        folder,
                        partial(open_bench, experiment.plan, folder.name),
                        tell,
                        partial(self._enough, tell),
                    )
            except (PreflightError, StudyError) as reason:
                if new and not isinstance(reason, Interrupted):
                    with contextlib.suppress(HostBusyError):  # another start of it goes on with what is there
                        check_idle(folder.name)
                        folder.withdraw()  # a level to be mended must not be in its own way
                raise
            experiment.forget()

    def _check_kept(self) -> None:
        """See, before anything of a kept study changes, that it is the one asked for, and can go on here as far as it has to.

        Raises:
            InputError: it is kept with another plan, or was begun elsewhere or with other builds.
            PreflightError: this machine cannot run it.

        """
        asked, folder = self.experiment.study, self.experiment.folder
        self.experiment.study = kept = same_study(folder, asked)
        self._check_builds()
        measured = folder.kept()
        again = self.retry_failed and any(m.error is not None for m in measured.values())
        if again:
            check_idle(folder.name)
        if again or asked.blocks > kept.blocks or missing(kept, measured):
            self.check_host()
            self.preflight()

    def _check_builds(self) -> None:
        """See that no server is another one than when the study was begun; one that is gone changes nothing that is kept.

        Raises:
            InputError: one has been built anew since.

        """
        begun, each = self.experiment.study.provenance.get("builds", {}), dict[str, dict[str, str]]()
        with contextlib.suppress(PreflightError):
            each = _asked(self.hosts, builds, self.experiment.plan) if begun else {}
        if changed := [name for now in each.values() for name in now if begun.get(name) != now[name]]:
            raise InputError(
                f"study '{self.experiment.folder.name}' was begun with another build of “{changed[0]}”: "
                "choose another name (-p study NAME)"
            )

    def _begun(self, tell: Tell) -> Study:
        """The study with where it runs and, where rates are shares of it, the capacity."""
        study = self.experiment.study
        origin, plan = self._provenance(study), study.plan
        if shares := plan.capacity_shares():
            origin["capacity"] = self._capacity(shares, tell)
            plan = plan.changed(capacity_tps=origin["capacity"]["tps"])
        return worded(study.changed(plan=plan, provenance=origin))

    def _provenance(self, study: Study) -> dict[str, Any]:
        """Where and with what the study runs; of a fleet the first host's, and each host's own facts.

        Raises:
            PreflightError: hosts run different software; they may differ in nothing else than the machine.

        """
        origins = _asked(self.hosts, provenance, study)
        (first, origin), *others = origins.items()
        for name, other in others:
            for fact in ("benchlib", "servers", "load_tool", "builds"):
                if other.get(fact) != origin.get(fact):
                    differ = f"{fact.replace('_', ' ')} than {first}: {other.get(fact)}, {origin.get(fact)}"
                    raise PreflightError(f"{name} has other {differ}")
        return {**origin, "hosts": {name: one["host"] for name, one in origins.items()}} if first else origin

    def _capacity(self, shares: Iterable[str], tell: Tell) -> dict[str, Any]:
        """The baseline's mean tps without a limit, its spread, and the shares of it as rates; for the provenance.

        From short trials in a study of their own, ``NAME-capacity``, which are kept and resumed like any
        other: a study that is begun again has the same rates.
        """
        plan, factor = self.experiment.plan, self.experiment.plan.factor
        seconds = min(CAPACITY_S, plan.load.duration_s)
        load = plan.load.changed(duration_s=seconds, rate=None, latency_limit_ms=None, transaction_log=False)
        baseline = {factor.baseline: _unlimited(factor.levels[factor.baseline])}
        factor, base = factor.changed(levels={**factor.levels, **baseline}), _unlimited(plan.base)
        plan = plan.changed(factor=factor, base=base, load=load, metric="tps", capacity_tps=None)
        short = self._baseline_alone("capacity", plan, tell)
        tps = short.trials["tps"].dropna()
        if tps.empty:
            raise StudyError(f"study '{short.folder.name}' has no tps that a rate could be a share of")
        capacity = float(f"{tps.mean():.6g}")
        return {
            "tps": capacity,
            "lowest_tps": float(f"{tps.min():.6g}"),
            "highest_tps": float(f"{tps.max():.6g}"),
            "trials": f"{len(tps)} of {seconds} s",
            "rates": {share: f"{rate_at(share, capacity):g} tps" for share in shares},
        }

    def _baseline_alone(self, what: str, plan: Plan, tell: Tell) -> Experiment:
        """The baseline of a plan and its twin in a few blocks, run and kept beside this study as ``NAME-what``."""
        factor, folder = plan.factor, self.experiment.folder
        arms = dict.fromkeys((factor.baseline, CONTROL), factor.levels[factor.baseline])
        alone = factor.changed(levels=arms, controls=(CONTROL,))
        plan = plan.changed(factor=alone, looks=())
        name, title = f"{folder.name}-{what}", f"{self.experiment.study.title}, {what}"
        study = Study(name=name, title=title, plan=plan, trials=plan.design(_FEW_BLOCKS))
        experiment = Experiment(StudyFolder(name, folder.path.parent), study)
        # who can run all levels can run one of them
        runner = Runner(experiment, self.retry_failed, self.hosts, self.preflight())
        runner.run(tell)
        runner.check_host()
        return experiment

    def check_host(self) -> None:
        """See that the study was begun on this machine, or on hosts of which none is now another machine.

        Raises:
            InputError: it was begun elsewhere.

        """
        origin, name = self.experiment.study.provenance, self.experiment.folder.name
        begun = origin.get("hosts") or {"": origin.get("host", {})}
        now = _asked(self.hosts, facts.identity)
        if all(host in begun and begun[host].get("identity") in (None, now[host]) for host in now):
            return
        where = ", ".join(filter(None, begun)) or "another machine, or without a fleet"
        advice = "it goes on where it began, with the same hosts; else choose another name (-p study NAME)"
        raise InputError(f"study '{name}' was begun on {where}: {advice}")

    def _enough(self, tell: Tell) -> str | None:
        self.experiment.forget()
        if effects := self.experiment.so_far():
            tell(effects)
        return self.experiment.settled()


def _unlimited(level: Level) -> Level:
    """A level without a rate."""
    return level.changed(load=level.load.changed(rate=None))
