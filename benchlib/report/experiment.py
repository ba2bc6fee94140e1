"""One study from its parameters to its verdicts: run what is missing, derive what follows."""

from __future__ import annotations

import datetime as dt
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from benchlib import __version__
from benchlib.errors import InputError, Interrupted, PreflightError, StudyError
from benchlib.host import facts as host
from benchlib.host.guardian import scratch_root
from benchlib.load.latency import Latency
from benchlib.load.workloads import load_workload
from benchlib.plan.factors import CONTROL
from benchlib.plan.level import Level, Target, rate_at
from benchlib.plan.metrics import METRICS
from benchlib.plan.model import Plan, Study
from benchlib.plan.planning import make_study
from benchlib.report.figures.levels import given_folders, rates_words, target_words
from benchlib.server.installations import Installation, find_installation, find_pgbench
from benchlib.server.remote import Remote
from benchlib.stats import Analysis, Concern
from benchlib.stats.pilot import size_study
from benchlib.stats.sequential import Decision, decide, plan_looks
from benchlib.stats.strata import analyze_strata
from benchlib.study.bench import open_bench
from benchlib.study.instruments import Recorded, recorded
from benchlib.study.loop import Progress, design, keep_study, missing, run_study, set_failed_aside
from benchlib.study.preflight import builds_differ, cannot_run, preflight
from benchlib.study.results import (
    TRIAL_COLUMNS,
    concerns,
    latencies,
    progress_frame,
    trials_frame,
    warnings_frame,
)
from benchlib.study.store import StudyFolder

PILOT_S = 12
PILOT_BLOCKS = 3
CAPACITY_S = 30
"""The trials that measure the capacity are as long as the study's own, but no longer."""
_PACKAGES = ("matplotlib", "numpy", "pandas", "psycopg", "scipy")


def plan_study(values: Mapping[str, Any]) -> Study:
    """The study that a notebook's checked parameters describe, on this machine.

    With the parameter ``leave_out`` it is without the levels that this machine cannot run.

    Raises:
        InputError: the parameters do not make a study.

    """
    study = make_study(values, host.memory_bytes(), load_workload, {})
    if values.get("leave_out") and (reasons := cannot_run(study.plan)):
        study = make_study(values, host.memory_bytes(), load_workload, {}, reasons)
    if study.plan.metric not in METRICS.keys() & set(TRIAL_COLUMNS):
        known = ", ".join(name for name in TRIAL_COLUMNS if name in METRICS)
        raise InputError(f"parameter metric: trials have no '{study.plan.metric}'; there are {known}")
    return study


def provenance(study: Study, scratch: Path) -> dict[str, Any]:
    """Where and with what a study runs: never a path, never a name of a machine.

    Raises:
        PreflightError: a server of a level is not there.

    """
    levels = [study.plan.level(name) for name in study.plan.factor.levels]
    installed = {find_installation(level.postgres) for level in levels if level.target is None}
    differ = builds_differ(study.plan)
    return {
        "created": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "benchlib": __version__,
        "python": sys.version.split()[0],
        "packages": {name: version(name) for name in _PACKAGES},
        "host": host.facts(scratch),
        "given_folders": {words: host.file_system(Path(p)) for p, words in given_folders(study.plan).items()},
        "servers": [
            {"label": i.label, "compiler": i.compiler, "configure": _options(i)}
            for i in sorted(installed, key=lambda i: i.label)
        ],
        "targets": {target_words(study.plan, t): Remote(t).identity() for t in _targets(levels)},
        "load_tool": f"pgbench of {find_pgbench().label}",
        **({"builds_differ": differ} if differ else {}),
    }


def _targets(levels: Iterable[Level]) -> list[Target]:
    """The servers that are not ours, each once, whatever schemas of our own the levels have there."""
    servers = dict.fromkeys(level.target.server for level in levels if level.target)
    return [Target(server=server) for server in servers]


def _options(installation: Installation) -> str | None:
    """The options that an installation was configured with, those aside that hold a path."""
    words = re.findall(r"'([^']*)'", installation.configure or "")
    return " ".join(word for word in words if "/" not in word) or None


class Experiment:
    """One study, its kept trials, and what follows from them."""

    def __init__(
        self, folder: StudyFolder, study: Study, *, run: bool = True, retry_failed: bool = False
    ) -> None:
        self.folder = folder
        self.study = study
        self.may_run = run
        self._retry_failed = retry_failed

    @property
    def plan(self) -> Plan:
        """The study's plan."""
        return self.study.plan

    def durability(self) -> dict[str, str]:
        """What a crash may cost, for each level that gives something up."""
        losses = {name: self.plan.level(name).durability_loss() for name in self.plan.factor.levels}
        return {name: loss for name, loss in losses.items() if loss}

    def workloads(self) -> str:
        """The names of the workloads that levels run, in their order."""
        names = (self.plan.level_workload(name).name for name in self.plan.factor.levels)
        return ", ".join(dict.fromkeys(names))

    def clients(self) -> str:
        """How many clients drive the levels, in words."""
        counts = {self.plan.level_load(name).clients for name in self.plan.factor.levels}
        low, high = min(counts), max(counts)
        return f"{low} to {high} clients" if low < high else f"{low} client{'s' if low > 1 else ''}"

    # --- running --------------------------------------------------------------------

    def run(self, tell: Callable[[Progress], None], *, scratch: Path | None = None) -> None:
        """Run the trials that are missing; none where the experiment only shows what is kept.

        Raises:
            InputError: the study is kept with another plan, or from another machine.
            PreflightError: this machine cannot run it.
            StudyError: as :func:`benchlib.study.loop.run_study`.

        """
        if not self.may_run:
            return
        new = not self.folder.exists()
        if new:
            preflight(self.plan, scratch)
            found, plan = provenance(self.study, scratch or scratch_root()), self.plan
            if shares := plan.capacity_shares():
                found["capacity"] = self._capacity(shares, tell, scratch)
                plan = plan.model_copy(update={"capacity_tps": found["capacity"]["tps"]})
            self.study = self.study.model_copy(update={"plan": plan, "provenance": found})
        self.study = keep_study(self.folder, self.study)
        if self._retry_failed:
            set_failed_aside(self.folder)
        if missing(self.study, self.folder.kept()):
            self._same_host()
        bench = partial(open_bench, self.plan, self.folder.name, scratch=scratch)
        try:
            run_study(self.folder, lambda words: bench(tell=words), tell, self._enough)
        except (PreflightError, StudyError) as reason:
            if new and not isinstance(reason, Interrupted):
                self.folder.withdraw()  # a level to be mended must not be in its own way
            raise
        self._forget()

    def _same_host(self) -> None:
        measured_on = self.study.provenance.get("host", {}).get("identity")
        if measured_on not in (None, host.identity()):
            raise InputError(
                f"study '{self.folder.name}' was begun on another machine: comparisons stay on one host; "
                "choose another name (-p study NAME)"
            )

    def pilot(self, tell: Callable[[Progress], None], *, scratch: Path | None = None) -> str:
        """In a sentence, from a few short trials of the baseline: how long the trials, how many blocks, what cost.

        They are a study of their own, ``NAME-pilot``, so they are kept and resumed like any other.
        """
        factor = self.plan.factor
        load = self.plan.load.model_copy(update={"duration_s": PILOT_S})
        pilot = self._baseline_alone("pilot", self.plan.model_copy(update={"load": load}))
        pilot.run(tell, scratch=scratch)
        kept = [m for m in pilot.folder.kept().values() if m.error is None and m.load_wall_s is not None]
        overhead = sum(m.finished_s - m.started_s - (m.load_wall_s or 0) for m in kept) / max(len(kept), 1)
        series = [rows["tps"].dropna().to_list() for _, rows in pilot.progress.groupby(["level", "block"])]
        found = size_study(
            series,
            levels=len(factor.levels),
            controls=len(factor.controls),
            overhead_s=overhead,
            margin=self.plan.margin,
        )
        return found.sentence(self.plan.margin)

    def _capacity(
        self, shares: Iterable[str], tell: Callable[[Progress], None], scratch: Path | None
    ) -> dict[str, Any]:
        """The baseline's mean tps without a limit, its spread, and the shares of it as rates; for the provenance.

        From short trials in a study of their own, ``NAME-capacity``, which are kept and resumed like any
        other: a study that is begun again has the same rates.
        """
        plan, factor = self.plan, self.plan.factor
        seconds = min(CAPACITY_S, plan.load.duration_s)
        load = {"duration_s": seconds, "rate": None, "latency_limit_ms": None, "transaction_log": False}
        baseline = {factor.baseline: _unlimited(factor.levels[factor.baseline])}
        changes = {
            "factor": factor.model_copy(update={"levels": {**factor.levels, **baseline}}),
            "base": _unlimited(plan.base),
            "load": plan.load.model_copy(update=load),
            "metric": "tps",
            "capacity_tps": None,
        }
        short = self._baseline_alone("capacity", plan.model_copy(update=changes))
        short.run(tell, scratch=scratch)
        short._same_host()
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

    def _baseline_alone(self, what: str, plan: Plan) -> Experiment:
        """The baseline of a plan and its twin in a few blocks, kept beside this study as ``NAME-what``."""
        factor = plan.factor
        arms = dict.fromkeys((factor.baseline, CONTROL), factor.levels[factor.baseline])
        alone = factor.model_copy(update={"levels": arms, "controls": (CONTROL,)})
        plan = plan.model_copy(update={"factor": alone, "looks": ()})
        name, title = f"{self.folder.name}-{what}", f"{self.study.title}, {what}"
        study = Study(name=name, title=title, plan=plan, trials=design(plan, PILOT_BLOCKS))
        folder = StudyFolder(name, self.folder.path.parent)
        return Experiment(folder, study, retry_failed=self._retry_failed)

    # --- what came out --------------------------------------------------------------

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row per kept trial; see :func:`benchlib.study.results.trials_frame`."""
        return trials_frame(self.folder)

    @cached_property
    def progress(self) -> pd.DataFrame:
        """tps over time inside the trials; see :func:`benchlib.study.results.progress_frame`."""
        return progress_frame(self.folder)

    @cached_property
    def recorded(self) -> Recorded:
        """What the instruments of the good trials recorded; see :func:`benchlib.study.instruments.recorded`."""
        return recorded(self.folder, self.trials)

    @cached_property
    def latencies(self) -> dict[tuple[str, int], Latency]:
        """The latencies of all transactions by level and block; see :func:`benchlib.study.results.latencies`."""
        return latencies(self.folder, self.trials)

    @cached_property
    def analysis(self) -> Analysis:
        """The verdicts on the study's metric.

        Raises:
            StudyError: too few trials are kept to compare anything.

        """
        good = self.trials[self.trials["error"].isna()]
        if good.groupby("block").size().lt(2).all():
            failed = self.trials["error"].dropna()
            why = f"the first failure: {failed.iloc[0]}" if len(failed) else "run it first"
            raise StudyError(
                f"study '{self.folder.name}' has no block with two good trials to compare: {why}"
            )
        if self.plan.looks:
            return self._look().analysis
        return self._judged(self.by_level(), **self._comparison())

    def judge(self, figures: pd.DataFrame, metric: str) -> Analysis:
        """The same comparisons by another figure: for leads, not for verdicts. ``figures``: ``level, block, metric``."""
        factor, there = self.plan.factor, set(figures["level"])
        controls = [name for name in factor.controls if name in there]
        return self._judged(figures, baseline=factor.baseline, controls=controls, metric=metric)

    def _judged(self, trials: pd.DataFrame, **arguments: Any) -> Analysis:
        return analyze_strata(trials, self.plan.strata(), against=self.plan.factor.against, **arguments)

    def by_level(self) -> pd.DataFrame:
        """The trials with the levels in the plan's order, which is how tables and charts list them."""
        place = {name: index for index, name in enumerate(self.plan.factor.levels)}
        return self.trials.sort_values("level", key=lambda names: names.map(place), kind="stable")

    def _comparison(self) -> dict[str, Any]:
        """What the trials are compared by."""
        return {
            "baseline": self.plan.factor.baseline,
            "controls": self.plan.factor.controls,
            "metric": self.plan.metric,
            "margin": self.plan.margin,
            "concerns": [
                *concerns(self.trials, self.progress, warnings_frame(self.folder)),
                *self._builds_differ(),
            ],
        }

    def _builds_differ(self) -> list[Concern]:
        words = self.study.provenance.get("builds_differ")
        return [Concern("builds_differ", words)] if words else []

    def _look(self) -> Decision:
        """The verdict at the latest look of a study that may stop early, at that look's share of alpha."""
        factor = self.plan.factor
        looks = plan_looks(len(factor.levels), len(factor.controls), looks=self.plan.looks)
        return decide(self.by_level(), looks, **self._comparison())

    def _enough(self) -> str | None:
        """Why the study may stop here; None where it has to go on, or runs all its blocks."""
        self._forget()
        whole = self.trials.groupby("block").size().eq(len(self.plan.factor.levels)).sum()
        if whole not in self.plan.looks:
            return None
        look = self._look()
        return look.reason if look.stop else None

    def _forget(self) -> None:
        """Derive anew: trials have been added."""
        for name in ("trials", "progress", "recorded", "latencies", "analysis"):
            self.__dict__.pop(name, None)

    def facts(self) -> list[tuple[str, str]]:
        """What a reader wants to know at once, in pairs of words."""
        good = self.trials[self.trials["error"].isna()]
        servers = ", ".join(f"PostgreSQL {v}" for v in sorted(set(good["server_version"].dropna())))
        return [
            ("Study", self.folder.name),
            ("Server", servers or "none ran"),
            ("Load", f"{self.workloads()}, {self.clients()}{rates_words(self.plan)}"),
            ("Trials", f"{len(good)} of {len(self.trials)}, {self.plan.load.duration_s} s each"),
            ("Blocks", str(self.analysis.blocks)),
            ("Machine", _machine(self.study.provenance.get("host", {}))),
            ("Measured", str(self.study.provenance.get("created", ""))[:10]),
        ]  # fmt: skip


def shown(folder: StudyFolder) -> Experiment:
    """The experiment of a kept study, to be shown and not run.

    Raises:
        InputError: there is no such study.

    """
    return Experiment(folder, folder.read(), run=False)


def _unlimited(level: Level) -> Level:
    """A level without a rate."""
    return level.model_copy(update={"load": level.load.model_copy(update={"rate": None})})


def _machine(facts: Mapping[str, Any]) -> str:
    """The machine in a few words; what is not known is left out."""
    processor = f"{facts['processors']} × {facts['processor']}" if facts.get("processor") else ""
    memory = f"{facts['memory_mib'] / 1024:.0f} GiB" if facts.get("memory_mib") else ""
    return ", ".join(part for part in (processor, memory) if part) or "not known"
