"""Runs of a study on this machine or a fleet."""

import contextlib
import datetime as dt
import functools
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
from benchlib.plan.model import PACKAGES, VERSION, WHEEL, Plan, Study, one_builder
from benchlib.plan.planning import make_study, study_name
from benchlib.plan.words import given_folders
from benchlib.plan.workload import Workload
from benchlib.server.datasets import pinned
from benchlib.server.installations import Installation, find_pgbench, found
from benchlib.server.installations import installations as all_installations
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
from benchlib.study.preflight import Pairs, builds_differ, cannot_run, installations, preflight
from benchlib.study.store import StudyFolder, checksum

_FEW_BLOCKS = 3
_FEW_TRANSACTIONS = 10
CAPACITY_S = 30
"""Maximum duration of a trial that measures capacity."""
_PACKAGES = ("matplotlib", "numpy", "pandas", "psycopg", "scipy")


def plan_study(values: Values, hosts: Hosts | None = None, tell: Tell = lambda line: None) -> Study:
    """Return the study of a notebook's parameters, for this machine or the smallest host.

    Raises:
        InputError: the parameters make no study.
        PreflightError: a host cannot be reached.

    """
    # the fleet file is not part of the study
    values = {name: value for name, value in values.items() if name != "fleet"}
    values = with_builder(values)
    memory = min(_on_servers(hosts, facts.memory_bytes).values())
    folder = StudyFolder(study_name(values))
    saved = folder.read().plan if folder.exists() else None
    workload = functools.cache(partial(_workload, saved, tell))
    study = make_study(values, memory, workload, BY_KEY)
    if values.get("leave_out"):
        refused = _on_servers(hosts, cannot_run, study.plan)
        reasons = {name: why for by_level in refused.values() for name, why in by_level.items()}
        study = make_study(values, memory, workload, BY_KEY, reasons) if reasons else study
    if study.plan.capacity_shares():
        StudyFolder(_capacity_name(folder.name))  # refuses too long a name
    conditions(study)
    return worded(study)


def _capacity_name(name: str) -> str:
    return f"{name}-capacity"


def with_builder(values: Values) -> Values:
    """Return a matrix's parameters with a builder that has all versions here.

    Raises:
        PreflightError: none has all, and ``leave_out`` is false.

    """
    versions, name = [*map(str, values.get("versions") or ())], study_name(values)
    if not versions or values.get("builder") or not all(map(VERSION.fullmatch, versions)):
        return values
    if (folder := StudyFolder(name)).exists():
        return {**values, "builder": folder.read().declared.builder}
    here: dict[str, list[str]] = {
        builder: [version for version in versions if found(f"{version} {builder}")]
        for builder in (WHEEL, PACKAGES, *(one.builder for one in all_installations()))
    }
    # several versions of one builder, or else the first of those with most
    builder = max(here, key=lambda name: len(here[name]))
    if len(here[builder]) < len(versions) and not values.get("leave_out"):
        builder = one_builder(versions)
        missing = [version for version in versions if version not in here[builder]]
        raise PreflightError(
            f"one builder must have all versions; {builder} lacks {', '.join(missing)}: "
            + " && ".join(f"benchlib postgres install {version}" for version in missing)
        )
    return {**values, "builder": builder}


def _workload(saved: Plan | None, tell: Tell, name: str) -> Workload:
    found = load_workload(name)
    if not found.data:
        return found
    known = [saved.workload, *saved.workloads.values()] if saved else []
    before = next((one.data for one in known if one.name == found.name), None)
    return found.changed(data=pinned(found.data, before, tell))


def _on_servers(hosts: Hosts | None, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """Return values by host, or under an empty name."""
    return hosts.ask_servers(function, *arguments) if hosts else {"": function(*arguments)}


def software(plan: Plan) -> tuple[list[str], str]:
    """Return the servers and the load tool that a plan uses here."""
    return sorted({one.label for one in installations(plan).values()}), _load_tool(plan)


def _load_tool(plan: Plan) -> str:
    return f"pgbench of {find_pgbench(abroad=plan.abroad).label}"


def provenance(study: Study) -> dict[str, Any]:
    """Return a study's machine and software, without paths and machine names."""
    plan = study.plan
    differ = builds_differ(plan)
    # each server once, for all schemas
    targets = filter(None, (target_of(plan.level(name)) for name in plan.factor.levels))
    servers = {t.server: Target(server=t.server, in_place=t.in_place) for t in targets}.values()
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
        "load_tool": _load_tool(plan),
        **({"builds_differ": differ} if differ else {}),
        **({"builds": own} if (own := builds(plan)) else {}),
    }  # fmt: skip


def calls_tps(plan: Plan) -> float:
    """Return the transactions/s of the least busy server."""
    targets = filter(None, (target_of(plan.level(name)) for name in plan.factor.levels))
    used = {target.server: target for target in targets if target.in_place}
    return float(f"{min(Remote(target).calls_per_s() for target in used.values()):.3g}")


def _check_rates(plan: Plan) -> None:
    for name in plan.factor.levels:
        load = plan.level_load(name)
        rate = float(load.rate or 0)
        if plan.level(name).in_place and rate * load.duration_s < _FEW_TRANSACTIONS:
            raise PreflightError(
                f"level “{name}”: {rate:g} transactions/s, {plan.asked_rate(name)}, are {rate * load.duration_s:.0f} "
                f"in a trial: {_FEW_TRANSACTIONS} are needed; use longer trials (duration_s) or a higher rate"
            )


def builds(plan: Plan) -> dict[str, str]:
    """Return checksums of the servers that levels name by path, to detect rebuilds."""
    ours = installations(plan)
    by_path = [name for name in ours if "/" in (plan.level(name).postgres or "")]
    return {name: checksum(ours[name].program("postgres")) for name in by_path}


def _options(installation: Installation) -> str | None:
    options = re.findall(r"'([^']*)'", installation.configure or "")
    return " ".join(option for option in options if "/" not in option) or None


def _check_fleet(plan: Plan, hosts: Hosts | None) -> None:
    uses = elsewhere_of(plan)
    for role, name in uses:
        use = f"levels have {'load from' if role == 'load' else 'replicas on'} {name}"
        if not hosts or name not in hosts.fleet.with_role(role):
            raise PreflightError(
                f"{use}: run the study with a fleet (--fleet) whose file gives that host the role '{role}' "
                "and an address"
            )
        at_once = plan.stands_side_by_side and role == "follower" and uses.count((role, name)) > 1
        if (
            at_once
            or name in hosts.fleet.with_role("server")
            or len({use for use in uses if use[1] == name}) > 1
        ):
            raise PreflightError(f"{use}, which has a second task; a host can have one task at a time")
    if not hosts:
        return
    names, here = list(dict.fromkeys([*hosts.servers(), *(name for _, name in uses)])), library()
    if uses and not all(plan.level(name).target for name in plan.factor.levels):
        for name in names:
            hosts.reached_at(name)  # clusters need it to listen
    known, errors = hosts.ask(names, library)
    errors += [f"{name}: runs benchlib {it}, this is {here}" for name, it in known.items() if it != here]
    if errors:
        raise PreflightError("; ".join(errors))


@dataclass
class Runner:
    """A runner for missing trials; preflight results are cached."""

    experiment: Experiment
    retry_failed: bool = False
    hosts: Hosts | None = None
    _checks: Pairs | None = None

    def preflight(self) -> Pairs:
        """Return requirements and findings, else raise PreflightError."""
        if self._checks is None:
            plan = self.experiment.plan
            _check_fleet(plan, self.hosts)
            rows = _on_servers(self.hosts, preflight, plan)
            self._checks = [(f"{at}: {name}" if at else name, text) for at in rows for name, text in rows[at]]
        return self._checks

    def run(self, tell: Tell) -> None:
        """Run the missing trials and save each.

        Raises:
            InputError: the saved study has another plan or machine.
            PreflightError: this machine cannot run it.
            StudyError: as in :func:`benchlib.study.loop.run_study`.

        """
        with self.hosts.connected() if self.hosts else contextlib.nullcontext():
            experiment, folder = self.experiment, self.experiment.folder
            study, new = experiment.study, not folder.exists()
            if new:
                self.preflight()
                study = self._begun(tell)
            else:
                self._check_saved()
            experiment.study = keep_study(folder, study, tell)
            if self.retry_failed:
                set_failed_aside(folder)
            try:
                enough = partial(self._enough, tell)
                if self.hosts:
                    with folder.held():
                        run_on_fleet(folder, self.hosts, tell, enough)
                else:
                    run_study(folder, partial(open_bench, experiment.study), tell, enough)
            except (PreflightError, StudyError) as reason:
                if new and not isinstance(reason, Interrupted):
                    with contextlib.suppress(HostBusyError):  # another run continues it
                        check_idle(folder.name)
                        folder.withdraw()  # so that a corrected level can start again
                raise
            experiment.forget()

    def _check_saved(self) -> None:
        requested, folder = self.experiment.study, self.experiment.folder
        self.experiment.study = kept = same_study(folder, requested)
        self._check_builds()
        measured = folder.kept()
        retries = self.retry_failed and any(m.error is not None for m in measured.values())
        if retries:
            check_idle(folder.name)
        if retries or requested.blocks > kept.blocks or missing(kept, measured):
            self.check_host()
            self.preflight()
            self._check_software()

    def _check_software(self) -> None:
        """Refuse other servers, or another load tool, than it began with."""
        begun, study = self.experiment.study.provenance, self.experiment.study
        before = sorted({str(one.get("label")) for one in begun.get("servers", ())}), begun.get("load_tool")
        for now in _on_servers(self.hosts, software, study.plan).values() if before[1] else ():
            if now != before:
                names, new = (", ".join([*servers, str(tool)]) for servers, tool in (before, now))
                raise InputError(
                    f"study '{self.experiment.folder.name}' was begun with {names}, here is {new}: "
                    "install what it was begun with, or choose another name (-p study NAME)"
                )

    def _check_builds(self) -> None:
        begun, checksums = self.experiment.study.provenance.get("builds", {}), dict[str, dict[str, str]]()
        with contextlib.suppress(PreflightError):
            checksums = _on_servers(self.hosts, builds, self.experiment.plan) if begun else {}
        if changed := [name for now in checksums.values() for name in now if begun.get(name) != now[name]]:
            raise InputError(
                f"study '{self.experiment.folder.name}' was begun with another build of “{changed[0]}”: "
                "choose another name (-p study NAME)"
            )

    def _begun(self, tell: Tell) -> Study:
        study = self.experiment.study
        origin, plan = self._provenance(study), study.plan
        if shares := plan.capacity_shares():
            origin["capacity"] = self._capacity(shares, tell)
            plan = plan.changed(capacity_tps=origin["capacity"]["tps"])
        if any(plan.level(name).in_place for name in plan.factor.levels):
            origin["calls_tps"] = min(_on_servers(self.hosts, calls_tps, plan).values())
            plan = plan.changed(calls_tps=origin["calls_tps"])
            _check_rates(plan)
        return worded(study.changed(plan=plan, provenance=origin))

    def _provenance(self, study: Study) -> dict[str, Any]:
        origins = _on_servers(self.hosts, provenance, study)
        (first, origin), *others = origins.items()
        for name, other in others:
            for fact in ("benchlib", "servers", "load_tool", "builds"):
                if other.get(fact) != origin.get(fact):
                    differ = f"{fact.replace('_', ' ')} than {first}: {other.get(fact)}, {origin.get(fact)}"
                    raise PreflightError(f"{name} has other {differ}")
        return {**origin, "hosts": {name: one["host"] for name, one in origins.items()}} if first else origin

    def _capacity(self, shares: Iterable[str], tell: Tell) -> dict[str, Any]:
        """Measure the baseline's unlimited tps, in a study of its own."""
        plan, factor, folder = self.experiment.plan, self.experiment.plan.factor, self.experiment.folder
        seconds = min(CAPACITY_S, plan.load.duration_s)
        load = plan.load.changed(duration_s=seconds, rate=None, latency_limit_ms=None, transaction_log=False)
        levels = dict.fromkeys((factor.baseline, CONTROL), _unlimited(factor.levels[factor.baseline]))
        plan = plan.changed(
            factor=factor.changed(levels=levels, controls=(CONTROL,)), base=_unlimited(plan.base), load=load,
            metric="tps", capacity_tps=None, looks=(),
        )  # fmt: skip
        name, title = _capacity_name(folder.name), f"{self.experiment.study.title}, capacity"
        study = Study(name=name, title=title, plan=plan, trials=plan.design(_FEW_BLOCKS))
        short = Experiment(StudyFolder(name, folder.path.parent), study)
        # saved, so that a restarted study has the same rates; the preflight covers it
        runner = Runner(short, self.retry_failed, self.hosts, self.preflight())
        runner.run(tell)
        runner.check_host()
        tps = short.trials["tps"].dropna()
        if tps.empty:
            raise StudyError(
                f"study '{name}' has no successful trial, so the rates have no capacity to refer to"
            )
        capacity, lowest, highest = (float(f"{value:.6g}") for value in (tps.mean(), tps.min(), tps.max()))
        return {
            "tps": capacity,
            "lowest_tps": lowest,
            "highest_tps": highest,
            "trials": f"{len(tps)} of {seconds} s",
            "rates": {share: f"{float(rate_at(share, capacity)):g} tps" for share in shares},
        }

    def check_host(self) -> None:
        """Check that the study began here (else InputError)."""
        origin, name = self.experiment.study.provenance, self.experiment.folder.name
        begun = origin.get("hosts") or {"": origin.get("host", {})}
        now = _on_servers(self.hosts, facts.identity)
        if all(host in begun and begun[host].get("identity") in (None, now[host]) for host in now):
            return
        where = ", ".join(filter(None, begun)) or "another machine, or without a fleet"
        advice = "continue it on the same hosts, or choose another name (-p study NAME)"
        raise InputError(f"study '{name}' was begun on {where}: {advice}")

    def _enough(self, tell: Tell) -> str | None:
        self.experiment.forget()
        if effects := self.experiment.so_far():
            tell(effects)
        return self.experiment.settled()


def _unlimited(level: Level) -> Level:
    return level.changed(load=level.load.changed(rate=None))
