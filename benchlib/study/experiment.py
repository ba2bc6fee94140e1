"""A kept study: its trials as frames, the verdicts on them, and what it was run with. Nothing is run from here."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import pandas as pd

from benchlib.errors import StudyError
from benchlib.plan.metrics import percent_words
from benchlib.plan.model import Measurement, Plan, Study
from benchlib.plan.words import rates_words
from benchlib.stats import Analysis, Concern, analyze
from benchlib.stats.sequential import EXTENSION, decide, plan_looks
from benchlib.stats.strata import analyze_strata, exploratory
from benchlib.study import conditions
from benchlib.study.instruments import Recorded, bottlenecks, recorded
from benchlib.study.results import COSTS, TRIAL, Measured, concerns, measured
from benchlib.study.store import StudyFolder

_ALPHA = 0.05
_MOST_EXTENSIONS = 4
_FEW_WORKLOADS = 3
SO_FAR = "provisional, after"
"""How the effects of an unfinished study begin."""
SO_FAR_FROM = 3
_CAPPED = "capped at "
"""How words of storage begin that name a cap."""


class Experiment:
    """One study, its kept trials, and what follows from them."""

    def __init__(self, folder: StudyFolder, study: Study) -> None:
        self.folder = folder
        self.study = study

    @property
    def plan(self) -> Plan:
        """The study's plan."""
        return self.study.plan

    def durability(self) -> dict[str, str]:
        """What a crash may cost, for each level that gives something up."""
        return {name: "; ".join(costs) for name, costs in self.study.crash_costs.items() if costs}

    def workloads(self) -> str:
        """The workloads that levels run, in their order, and what runs beside them."""
        labels = (self.plan.level_workload(name).label for name in self.plan.factor.levels)
        return ", ".join(dict.fromkeys(labels))

    def clients(self) -> str:
        """How many clients drive the levels, in words."""
        counts = {self.plan.level_load(name).clients for name in self.plan.factor.levels}
        low, high = min(counts), max(counts)
        return f"{low} to {high} clients" if low < high else f"{low} client{'s' if low > 1 else ''}"

    @cached_property
    def kept(self) -> dict[str, Measurement]:
        """What the trials left, by trial id; see :meth:`benchlib.study.store.StudyFolder.kept`."""
        return self.folder.kept()

    @cached_property
    def measured(self) -> Measured:
        """What the trials told; see :class:`benchlib.study.results.Measured`."""
        return measured(self.folder, self.plan, self.kept)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row per kept trial."""
        return self.measured.trials

    @property
    def costs(self) -> pd.DataFrame:
        """What each good trial cost: ``level``, ``block`` and :data:`benchlib.study.results.COSTS`; null where it was not sampled."""
        return self.figures[[*TRIAL, *COSTS]]

    @property
    def progress(self) -> pd.DataFrame:
        """tps over time inside the trials."""
        return self.measured.progress

    @cached_property
    def recorded(self) -> Recorded:
        """What the instruments of the good trials recorded; see :func:`benchlib.study.instruments.recorded`."""
        return recorded(self.folder, self.plan, self.trials)

    @cached_property
    def conditions(self) -> pd.DataFrame:
        """The conditions of the notebook, held against the trials; see :func:`benchlib.study.conditions.checked`.

        Raises:
            InputError: one of them is none.

        """
        declared = conditions.conditions(self.study)
        return conditions.checked(self.study, self.figures if declared else pd.DataFrame())

    @cached_property
    def figures(self) -> pd.DataFrame:
        """What conditions may be of, a row per good trial; see :func:`benchlib.study.conditions.figures_of`."""
        return conditions.figures_of(self.folder, self.study, self.trials, self.recorded)

    @cached_property
    def bottlenecks(self) -> pd.DataFrame:
        """What held each level back; see :func:`benchlib.study.instruments.bottlenecks`."""
        return bottlenecks(self.plan, self.trials, self.recorded)

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
            raise StudyError(f"study '{self.folder.name}' has no block with two good trials: {why}")
        if self.plan.looks:
            return self._latest_look()[0]
        parts, against = self.plan.strata(), self.plan.factor.against
        alpha = _ALPHA * EXTENSION ** len(self._looks_after)
        return analyze_strata(self.by_level(), parts, against=against, alpha=alpha, **self._comparison())

    def leads(self, figures: pd.DataFrame) -> pd.DataFrame:
        """The same comparisons by other figures, for leads, not for verdicts; see :func:`benchlib.stats.strata.exploratory`.

        ``figures``: ``level, block``, and theirs.
        """
        factor, hosts = self.plan.factor, self.trials.groupby("block")["host"].first()
        # with what their blocks lie in: a period of the clusters, and a host
        blocks = figures["block"]
        return exploratory(
            figures.assign(period=blocks.map(self.plan.period), host=blocks.map(hosts)), self.plan.strata(),
            baseline=factor.baseline, controls=factor.controls, against=factor.against,
        )  # fmt: skip

    def compared(self, level: str, against: str, metric: str) -> tuple[dict[Hashable, Any], bool]:
        """One level against another: its row of ``Analysis.table``, and whether that is a verdict of the study.

        What the study itself compares is told as it tells it; any other pair is judged alone, by the trials of its
        part, at the study's error rate.
        """
        analysis = self.analysis
        judged = metric == analysis.metric.name and analysis.against.get(level) == against
        if not judged:
            trials, parts = self.by_level(), self.plan.strata()
            trials = trials[trials["level"].map(parts).isin([parts[level], parts[against]])]
            twins = analysis.controls if against == analysis.baseline else ()
            grave = [c for c in analysis.warnings if c.grave]
            # what invalidates the baseline's twins invalidates every comparison
            grave = [replace(c, level=None) if c.level in analysis.controls else c for c in grave]
            analysis = analyze(
                trials, baseline=against, controls=twins, metric=metric,
                alpha=analysis.alpha, margin=analysis.margin, concerns=grave,
            )  # fmt: skip
        rows = {row["level"]: row for row in analysis.table.to_dict("records")}
        return rows[level], judged

    def by_level(self) -> pd.DataFrame:
        """The trials with the levels in the plan's order, which is how tables and charts list them."""
        place = {name: index for index, name in enumerate(self.plan.factor.levels)}
        return self.trials.sort_values("level", key=lambda names: names.map(place), kind="stable")

    def settled(self) -> str | None:
        """Why the study may stop here; None where it has to go on, or runs all its blocks."""
        if not self.plan.looks:
            return None
        sizes = Counter(measurement.trial.block for measurement in self.kept.values())
        whole = sum(size == len(self.plan.factor.levels) for size in sizes.values())
        return self._latest_look()[1] if whole in self.plan.looks else None

    def so_far(self) -> str | None:
        """Return the effects of an unfinished study in a line; None while fewer than three blocks are complete."""
        names, blocks = self.plan.factor.levels, Counter(m.trial.block for m in self.kept.values())
        complete = sum(size == len(names) for size in blocks.values())
        if not SO_FAR_FROM <= complete < self.study.blocks:
            return None
        try:
            rows = self.analysis.table.dropna(subset="percent_change").to_dict("records")
        except StudyError:
            return None
        effects = []
        for row in rows:
            change, interval = percent_words(row["percent_change"], row["ci_low"], row["ci_high"])
            effects.append(f"{row['level']} {change} [{interval.replace(' to ', ', ')}] {row['verdict']}")
        return f"{SO_FAR} {complete} of {self.study.blocks} blocks: {'; '.join(effects)}"

    def forget(self) -> None:
        """Derive all frames anew when they are next asked for: trials have been added."""
        self.__dict__ = {"folder": self.folder, "study": self.study}

    def facts(self) -> dict[str, str]:
        """What a reader wants to know at once, in words by their labels; what is not known of the host is left out."""
        provenance, good = self.study.provenance, self.trials[self.trials["error"].isna()]
        hosts = [*(provenance.get("hosts") or {"": provenance.get("host", {})}).values()]
        elsewhere = all(self.plan.level(name).target for name in self.plan.factor.levels)
        planned = len(self.trials) if self.settled() else len(self.study.trials)
        servers = ", ".join(f"PostgreSQL {v}" for v in sorted(set(good["server_version"].dropna())))
        flushes = good["flushes_per_s"].astype(float).median()
        works = {work.label: work for work in map(self.plan.level_workload, self.plan.factor.levels)}
        scales = any(work.pgbench_tables or work.mib_per_scale > 0 for work in works.values())
        load = self.workloads() if len(works) <= _FEW_WORKLOADS else f"{len(works)} workloads"
        kinds = [m.get("type") for host in hosts if isinstance(m := host.get("file_system"), dict)]
        rate = f"{flushes:,.0f} flushes a second" if flushes > 0 else None
        facts = {
            "Study": self.folder.name,
            "Server": servers or "none ran",
            "Load": f"{load}, {self.clients()}{rates_words(self.plan)}",
            "Scale": f"{self.plan.scale:,}" if scales else None,
            "Trials": f"{len(good)} of {planned}, {self.plan.load.duration_s} s each",
            "Blocks": self.analysis.blocks,
            "Machine": _machines(hosts) + " (the load tool's, not the server's)" * elsewhere,
            "Kernel": None if elsewhere else _each(host.get("kernel") for host in hosts),
            "Disk": None if elsewhere else ", ".join(filter(None, (_each(kinds), rate))) or None,
            "Caps": self.caps(self.plan.factor.levels, ("reads", "writes", "memory")) or None,
            "Data": f"{span} × the memory, before the load" if (span := self._data_to_memory()) else None,
            "benchlib": provenance.get("benchlib"),
            "Measured": provenance.get("created", "")[:10],
            "Notes": self.study.notes or None,
        }
        return {label: str(fact) for label, fact in facts.items() if fact is not None}

    def _data_to_memory(self) -> str:
        """The data's size against the memory that they had, over all levels."""
        ratios = sorted(self.figures.groupby("level")["data_to_memory"].median().dropna())
        return " to ".join(dict.fromkeys(f"{ratio:.2g}" for ratio in ratios[:1] + ratios[-1:]))

    def caps(self, levels: Iterable[str], headings: Sequence[str] = ("reads", "writes")) -> str:
        """Our caps that these levels have alike, in words."""
        told = dict[str, list[str]]()
        words_of = [self.study.levels_in_words.get(level, {}) for level in levels]
        for heading in headings:
            caps = {words.get(heading, "") for words in words_of}
            cap = caps.pop() if len(caps) == 1 else ""
            if cap.startswith(_CAPPED):
                told.setdefault(cap.removeprefix(_CAPPED), []).append(heading)
        return "; ".join(f"{' and '.join(headings)} {cap}" for cap, headings in told.items())

    def _comparison(self) -> dict[str, Any]:
        """What the trials are compared by."""
        cold = [name for name in self.plan.factor.levels if self.plan.level(name).cache == "cold"]
        doubts = [
            # a cold start is meant to be in no steady state
            replace(doubt, grave=False) if doubt.code == "no_steady_state" and doubt.level in cold else doubt
            for doubt in concerns(self.measured, self.plan.margin)
        ]
        doubts += conditions.unmet(self.conditions)
        if self.study.extended:
            doubts.insert(0, Concern("extended", _extended(self._looks_after)))
        if builds := self.study.provenance.get("builds_differ"):
            doubts.append(Concern("builds_differ", builds))
        factor = self.plan.factor
        return {
            "baseline": factor.baseline, "controls": factor.controls, "metric": self.plan.metric,
            "margin": self.plan.margin, "concerns": doubts,
        }  # fmt: skip

    @property
    def _looks_after(self) -> tuple[int, ...]:
        """How many blocks the study had each time that it was extended, as far as that costs certainty."""
        return self.study.extended[:_MOST_EXTENSIONS]

    def _latest_look(self) -> tuple[Analysis, str | None]:
        """The verdicts at the latest look of a study that may stop early, and why it may stop there."""
        factor = self.plan.factor
        looks = plan_looks(len(factor.levels), len(factor.controls), self.plan.looks)
        return decide(self.by_level(), looks, **self._comparison())


def shown(folder: StudyFolder) -> Experiment:
    """The experiment of a kept study, to be shown and not run.

    Raises:
        InputError: there is no such study.

    """
    return Experiment(folder, folder.read())


def _each(words: Iterable[str | None]) -> str | None:
    """What hosts are, each kind once; None where nothing is known."""
    return "; ".join(dict.fromkeys(filter(None, words))) or None


def _machines(hosts: Sequence[Mapping[str, Any]]) -> str:
    """The machine, or those of all hosts, each kind once."""
    kinds = Counter(map(_machine, hosts))
    if len(hosts) == 1:
        return next(iter(kinds))
    return f"{len(hosts)} hosts: " + "; ".join(f"{count} with {kind}" for kind, count in kinds.items())


def _machine(facts: Mapping[str, Any]) -> str:
    """The machine in a few words; what is not known is left out."""
    parts, count = [], facts.get("processors")
    if processor := facts.get("processor"):
        parts.append(f"{count} processor{'s' if count != 1 else ''} ({processor})")
    if memory_mib := facts.get("memory_mib"):
        parts.append(f"{memory_mib / 1024:.0f} GiB")
    return ", ".join(parts) or "not known"


def _extended(looks: Sequence[int]) -> str:
    after = ", ".join(map(str, looks))
    return (
        f"the study was extended after {after} blocks, and each such look is another chance to be wrong: its verdicts "
        f"are at {100 * _ALPHA * EXTENSION ** len(looks):g} % instead of {100 * _ALPHA:g} %; blocks='auto' plans its looks beforehand"
    )
