"""A study as its notebook sees it: run it, and ask it for verdicts, charts and tables.

Every method returns something that shows itself in a notebook and in the published page,
so a notebook's cells stay one line long and hold no logic.
"""

from __future__ import annotations

import datetime as dt
import html
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from benchlib import __version__, plots
from benchlib.errors import InputError, Interrupted, PreflightError, StudyError
from benchlib.guardian import scratch_root
from benchlib.levers import host
from benchlib.levers.bench import open_bench, preflight
from benchlib.levers.postgres import find_installation, find_pgbench
from benchlib.levers.workloads import load_workload
from benchlib.metrics import METRICS
from benchlib.model import Level, Plan, Study, durability_loss
from benchlib.planning import CONTROL, make_study
from benchlib.plots.frames import signed
from benchlib.plots.tables import Table, html_table, p_words, verdict_table
from benchlib.results import TRIAL_COLUMNS, concerns, progress_frame, trials_frame
from benchlib.stats import Analysis, analyze
from benchlib.stats.history import LEAST_STUDIES, Prior, estimate_prior
from benchlib.stats.multiple import exploratory
from benchlib.stats.pilot import plan_study as plan_study_size
from benchlib.stats.sensitivity import sensitivity
from benchlib.stats.sequential import Decision, decide, plan_looks
from benchlib.store import StudyFolder, walk
from benchlib.study import Progress, design, keep_study, missing, run_study, set_failed_aside

EXPLORATORY = ("latency_average_ms", "latency_stddev_ms", "latency_p99_ms", "wal_bytes_per_transaction")
PILOT_S = 12
PILOT_BLOCKS = 3
_FORMATS = dict.fromkeys(("percent_change", "ci_low", "ci_high"), signed) | {
    name: lambda p: p_words(p) or "" for name in ("p_value", "p_bh")
}
_PACKAGES = ("matplotlib", "numpy", "pandas", "psycopg", "scipy")


def plan_study(values: Mapping[str, Any]) -> Study:
    """The study that a notebook's checked parameters describe, on this machine.

    Raises:
        InputError: the parameters do not make a study.

    """
    study = make_study(values, host.memory_bytes(), load_workload, {})
    if study.plan.metric not in METRICS.keys() & set(TRIAL_COLUMNS):
        known = ", ".join(name for name in TRIAL_COLUMNS if name in METRICS)
        raise InputError(f"parameter metric: trials have no '{study.plan.metric}'; there are {known}")
    return study


def provenance(study: Study, scratch: Path) -> dict[str, Any]:
    """Where and with what a study runs: never a path, never a name of the machine."""
    installed = {find_installation(study.plan.level(name).postgres) for name in study.plan.factor.levels}
    return {
        "created": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "benchlib": __version__,
        "python": sys.version.split()[0],
        "packages": {name: version(name) for name in _PACKAGES},
        "host": host.facts(scratch),
        "servers": [
            {"label": i.label, "configure": i.configure} for i in sorted(installed, key=lambda i: i.label)
        ],
        "load_tool": f"pgbench of {find_pgbench().label}",
    }


@dataclass(frozen=True)
class Statement:
    """A sentence that shows itself; ``kind`` is its class in the page: plain, headline or command."""

    text: str
    kind: str = "plain"

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        tag = "pre" if self.kind == "command" else "p"
        return f'<{tag} class="bl-{self.kind}">{html.escape(self.text)}</{tag}>'


class Experiment:
    """One study, its kept trials, and what follows from them."""

    def __init__(
        self, folder: StudyFolder, study: Study, *, run: bool = True, retry_failed: bool = False
    ) -> None:
        self.folder = folder
        self.study = study
        self.may_run = run
        self._retry_failed = retry_failed

    # --- asking what is planned ----------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The study's plan."""
        return self.study.plan

    def summary(self) -> Statement:
        """What will run, how long it takes, and what is kept already."""
        load, left = self.plan.load, missing(self.study, self.folder.kept() if self.folder.exists() else ())
        minutes = len(left) * (load.duration_s + load.warmup_s + 1) / 60
        todo = f"{len(left)} to run, about {max(1, round(minutes))} min" if left else "all kept"
        return Statement(
            f"Study “{self.folder.name}”: {len(self.plan.factor.levels)} arms × {self.study.blocks} blocks = "
            f"{len(self.study.trials)} trials of {load.duration_s} s ({todo}). Load: {self.plan.workload.title.lower()}, "
            f"{load.clients} clients on {min(load.threads, load.clients)} threads, {load.protocol} protocol. "
            + self._profile_words()
        )

    def _profile_words(self) -> str:
        profile = self.study.parameters.get("profile")
        if profile in (None, "full"):
            return ""
        return f"These are the sizes of the profile “{profile}”, scaled down from the original study's, which are “full”."

    def levels(self) -> Table:
        """What differs between the levels, and what each gives up if the machine crashes."""
        names = list(self.plan.factor.levels)
        patches = {name: _flat(self.plan.factor.levels[name]) for name in names}
        keys = list(dict.fromkeys(key for patch in patches.values() for key in patch))
        rows = [
            {"level": name, **{key: patches[name].get(key, "default") for key in keys}, "a crash": self.durability().get(name, "loses nothing")}
            for name in names
        ]  # fmt: skip
        wide = pd.DataFrame(rows).set_index("level").T
        wide.insert(0, "what", wide.index)
        return html_table(wide, caption="What differs between the levels")

    def durability(self) -> dict[str, str]:
        """What a crash may cost, for each level that gives something up."""
        losses = {name: durability_loss(self.plan.level(name).settings) for name in self.plan.factor.levels}
        return {name: loss for name, loss in losses.items() if loss}

    def preflight(self) -> Table:
        """What the run needs of this machine, checked; nothing is checked when nothing is left to run.

        Raises:
            PreflightError: this machine cannot run it.

        """
        if not self.may_run or (self.folder.exists() and not missing(self.study, self.folder.kept())):
            rows = [("trials", "nothing is run: what is shown is kept, no server is needed")]
        else:
            rows = preflight(self.plan)
        return html_table(pd.DataFrame(rows, columns=["check", "found"]), caption="Preflight")

    # --- running --------------------------------------------------------------------

    def run(self, tell: Callable[[Progress], None], *, scratch: Path | None = None) -> None:
        """Run the trials that are missing; none where the experiment only shows what is kept.

        Raises:
            InputError: the study is kept with another plan, or from another machine.
            PreflightError: this machine cannot run it.
            StudyError: as :func:`benchlib.study.run_study`.

        """
        if not self.may_run:
            return
        new = not self.folder.exists()
        if new:
            preflight(self.plan, scratch)
        fresh = self.study.model_copy(
            update={"provenance": provenance(self.study, scratch or scratch_root())}
        )
        self.study = keep_study(self.folder, fresh)
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

    def pilot(self, tell: Callable[[Progress], None], *, scratch: Path | None = None) -> Statement:
        """A few short trials of the baseline and its twin: how long the trials and how many blocks should be.

        They are a study of their own, ``NAME-pilot``, so they are kept and resumed like any other.
        """
        factor = self.plan.factor
        arms = dict.fromkeys((factor.baseline, CONTROL), factor.levels[factor.baseline])
        plan = self.plan.model_copy(
            update={
                "factor": factor.model_copy(update={"levels": arms, "controls": (CONTROL,)}),
                "load": self.plan.load.model_copy(update={"duration_s": PILOT_S}),
                "looks": (),
            }
        )
        name = f"{self.folder.name}-pilot"
        study = Study(
            name=name, title=f"{self.study.title}, pilot", plan=plan, trials=design(plan, PILOT_BLOCKS)
        )
        pilot = Experiment(StudyFolder(name, self.folder.path.parent), study)
        pilot.run(tell, scratch=scratch)
        kept = [m for m in pilot.folder.kept().values() if m.error is None and m.load_wall_s is not None]
        overhead = sum(m.finished_s - m.started_s - (m.load_wall_s or 0) for m in kept) / max(len(kept), 1)
        series = [rows["tps"].dropna().to_list() for _, rows in pilot.progress.groupby(["level", "block"])]
        found = plan_study_size(
            series,
            levels=len(factor.levels),
            controls=len(factor.controls),
            overhead_s=overhead,
            margin=self.plan.margin,
        )
        return Statement(found.sentence(self.plan.margin))

    # --- what came out --------------------------------------------------------------

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row per kept trial; see :func:`benchlib.results.trials_frame`."""
        return trials_frame(self.folder)

    @cached_property
    def progress(self) -> pd.DataFrame:
        """tps over time inside the trials; see :func:`benchlib.results.progress_frame`."""
        return progress_frame(self.folder)

    @cached_property
    def analysis(self) -> Analysis:
        """The verdicts on the study's metric.

        Raises:
            StudyError: too few trials are kept to compare anything.

        """
        good = self.trials[self.trials["error"].isna()]
        if good.groupby("block").size().lt(2).all():
            raise StudyError(
                f"study '{self.folder.name}' has no block with two trials to compare: run it first"
            )
        return self._look().analysis if self.plan.looks else analyze(self.trials, **self._comparison())

    def _comparison(self) -> dict[str, Any]:
        """What the trials are compared by."""
        return {
            "baseline": self.plan.factor.baseline,
            "controls": self.plan.factor.controls,
            "metric": self.plan.metric,
            "margin": self.plan.margin,
            "concerns": concerns(self.trials, self.progress),
            "history": self._history(),
        }

    def _history(self) -> Prior | None:
        """What this host's earlier studies of the same load say of its noise; None with fewer than twelve."""
        earlier = [folder for folder in walk(self.folder.path.parent) if self._is_like(folder.read())]
        if len(earlier) < LEAST_STUDIES:
            return None
        known = [analyze(e.trials, **{**e._comparison(), "history": None}) for e in map(shown, earlier)]
        return estimate_prior([a.residual_sd**2 for a in known], [a.df for a in known])

    def _is_like(self, other: Study) -> bool:
        """Whether another study ran the same load on the same host, and was begun before this one."""
        here, there = self.study.provenance, other.provenance
        same = ("workload", "load", "scale", "arrangement", "metric")
        return (
            other.name != self.study.name
            and here.get("host", {}).get("identity") == there.get("host", {}).get("identity") is not None
            and str(there.get("created", "")) < str(here.get("created", ""))
            and all(getattr(other.plan, name) == getattr(self.plan, name) for name in same)
        )

    def _look(self) -> Decision:
        """The verdict at the latest look of a study that may stop early, at that look's share of alpha."""
        factor = self.plan.factor
        looks = plan_looks(len(factor.levels), len(factor.controls), looks=self.plan.looks)
        return decide(self.trials, looks, **self._comparison())

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
        for name in ("trials", "progress", "analysis"):
            self.__dict__.pop(name, None)

    def validity(self) -> Table:
        """Every reason to doubt the verdicts, or that there is none."""
        rows = [
            ("grave" if w.grave else "note", w.level or "the study", w.message)
            for w in self.analysis.warnings
        ] or [("none", "the study", "no reason for doubt was found")]
        return html_table(
            pd.DataFrame(rows, columns=["weight", "about", "what"]), caption="Reasons for doubt"
        )

    def headline(self) -> Statement:
        """The verdict in one sentence."""
        return Statement(self.analysis.headline(), kind="headline")

    def verdicts(self) -> Table:
        """Means, deviations, intervals and verdicts, a row per level."""
        return verdict_table(self.analysis, durability=self.durability())

    def sensitivity(self) -> Table | Statement:
        """The same question by methods with other assumptions; nothing with fewer than five blocks."""
        rows = sensitivity(self.analysis)
        if rows.empty:
            return Statement("With fewer than five blocks no rank or resampling method can say anything.")
        labels = {"percent_change": "change", "ci_low": "from", "ci_high": "to", "p_value": "p"}
        caption = "The same by other methods (single p, not adjusted)"
        return html_table(rows, caption, labels=labels, formats=_FORMATS)

    def exploratory(self) -> Table:
        """Every other figure of the trials by the same model: leads to follow, not verdicts."""
        good = self.trials[self.trials["error"].isna()]
        usable = [
            name for name in EXPLORATORY if name != self.plan.metric and good[name].astype(float).gt(0).all()
        ]
        factor = self.plan.factor
        rows = exploratory(self.trials, usable, baseline=factor.baseline, controls=factor.controls)
        rows["metric"] = [METRICS[name].title for name in rows["metric"]]
        labels = {"percent_change": "change", "p_value": "p", "p_bh": "p (false discovery rate)"}
        caption = "Exploratory: other figures by the same model"
        return html_table(rows.drop(columns="noteworthy"), caption, labels=labels, formats=_FORMATS)

    def forest(self) -> plots.Figure:
        """Percentage changes with their intervals."""
        return plots.forest(self.analysis, durability=self.durability())

    def paired_blocks(self) -> plots.Figure:
        """Each level against its block."""
        return plots.paired_blocks(self.analysis, self.trials)

    def drift(self) -> plots.Figure:
        """The trials in the order in which they ran."""
        return plots.drift(self.trials, self.plan.metric)

    def timeline(self) -> plots.Figure:
        """tps over time inside the trials."""
        return plots.timeline(self.progress, levels=list(self.plan.factor.levels))

    def shares(self) -> plots.Figure | Statement:
        """Each setting's share, where the study took a level apart (the parameter ``shares_of``)."""
        target = self.study.parameters.get("shares_of")
        if not target:
            names = [
                name
                for name in self.plan.factor.levels
                if name not in (self.plan.factor.baseline, *self.plan.factor.controls)
            ]
            return Statement(
                f"This study compares whole levels. To see each setting's share, run it again with "
                f"shares_of = “{names[0]}”: every setting alone, and the whole set without it."
            )
        return plots.shares(self.analysis, full=target)

    def mechanism(self) -> Table:
        """What the trials cost, averaged per level: WAL, checkpoints, the load tool's own CPU."""
        good = self.trials[self.trials["error"].isna()]
        columns = {
            "wal_bytes_per_transaction": "WAL, bytes",
            "checkpoints": "checkpoints",
            "client_cpu_share": "client CPU, %",
            "latency_average_ms": "latency, ms",
            "latency_stddev_ms": "± inside a trial, ms",
        }
        means = good.groupby("level", sort=False)[list(columns)].mean().reindex(list(self.plan.factor.levels))
        means["client_cpu_share"] *= 100
        shown = means.rename(columns=columns).reset_index()
        note = "WAL is per transaction, checkpoints per trial; client CPU is the share of its time that a pgbench thread was busy."
        return html_table(shown, caption="What a trial cost, mean per level", note=note)

    def provenance(self) -> Table:
        """Where and with what this was measured."""
        rows = [(name, _words(value)) for name, value in _flatten(self.study.provenance)]
        return html_table(pd.DataFrame(rows, columns=["what", "value"]), caption="Provenance")

    def rerun(self) -> Statement:
        """The command that repeats or extends this study."""
        return Statement(
            f"benchlib run {self.study.notebook} -p study {self.folder.name} -p blocks {self.study.blocks + 2}",
            kind="command",
        )

    def facts(self) -> list[tuple[str, str]]:
        """What a reader wants to know at once, in pairs of words."""
        good = self.trials[self.trials["error"].isna()]
        machine = self.study.provenance.get("host", {})
        servers = ", ".join(f"PostgreSQL {v}" for v in sorted(set(good["server_version"].dropna())))
        return [
            ("Study", self.folder.name),
            ("Server", servers or "none ran"),
            ("Load", f"{self.plan.workload.name}, {self.plan.load.clients} clients"),
            ("Trials", f"{len(good)} of {len(self.study.trials)}, {self.plan.load.duration_s} s each"),
            ("Blocks", str(self.study.blocks)),
            ("Machine", f"{machine.get('processors')} × {machine.get('processor')}, {machine.get('memory_mib', 0) / 1024:.0f} GiB"),
            ("Measured", str(self.study.provenance.get("created", ""))[:10]),
        ]  # fmt: skip


def shown(folder: StudyFolder) -> Experiment:
    """The experiment of a kept study, to be shown and not run.

    Raises:
        InputError: there is no such study.

    """
    return Experiment(folder, folder.read(), run=False)


def _flat(level: Level) -> dict[str, str]:
    """A level's patch as one row of words."""
    row: dict[str, str] = {}
    for key, value in level.model_dump(exclude_none=True, exclude_defaults=True).items():
        if isinstance(value, Mapping):
            row |= {name: str(inner) for name, inner in value.items() if inner is not None}
        else:
            row[key] = " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return row


def _flatten(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, inner in value.items():
        name = f"{prefix}{key}".replace("_", " ")
        rows += _flatten(inner, f"{name}, ") if isinstance(inner, Mapping) else [(name, inner)]
    return rows


def _words(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(str(v.get("label", v)) if isinstance(v, Mapping) else str(v) for v in value)
    return (
        "not known"
        if value is None
        else {True: "yes", False: "no"}.get(value, str(value))
        if isinstance(value, bool)
        else str(value)
    )
