"""A kept study: its trials as frames, the verdicts on them, and what it was run with. Nothing is run from here."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import replace
from functools import cached_property
from typing import Any

import pandas as pd

from benchlib.errors import StudyError
from benchlib.plan.metrics import percent_words
from benchlib.plan.model import Measurement, Plan, Study
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

    @cached_property
    def kept(self) -> dict[str, Measurement]:
        """What the trials left, by trial id; see :meth:`benchlib.study.store.StudyFolder.kept`."""
        return self.folder.kept() if self.folder.exists() else {}

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
        self.check_comparable()
        if self.plan.looks:
            return self._latest_look()[0]
        parts, against = self.plan.strata(), self.plan.factor.against
        return analyze_strata(self.by_level(), parts, against=against, alpha=self.alpha, **self._comparison())

    def check_comparable(self) -> None:
        """Check that there is something to compare.

        Raises:
            StudyError: no block has two good trials.

        """
        good = self.trials[self.trials["error"].isna()]
        if good.groupby("block").size().lt(2).all():
            failed = self.trials["error"].dropna()
            why = f"the first failure: {failed.iloc[0]}" if len(failed) else "run it first"
            raise StudyError(f"study '{self.folder.name}' has no block with two good trials: {why}")

    @property
    def alpha(self) -> float:
        """The error rate of all comparisons together; each extension of the study lowers it."""
        return _ALPHA * EXTENSION ** len(self._looks_after)

    @property
    def fixed_hosts(self) -> bool:
        """Whether the verdicts are about the hosts that ran the study alone."""
        return self.study.declared.hosts == "fixed"

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
        return f"provisional, after {complete} of {self.study.blocks} blocks: {'; '.join(effects)}"

    def forget(self) -> None:
        """Derive all frames anew when they are next asked for: trials have been added."""
        self.__dict__ = {"folder": self.folder, "study": self.study}

    @cached_property
    def concerns(self) -> list[Concern]:
        """The limits that the trials themselves show, beside those that the analysis finds."""
        cold = [name for name in self.plan.factor.levels if self.plan.level(name).cache == "cold"]
        doubts = [
            # a cold start is meant to be in no steady state
            replace(doubt, grave=False) if doubt.code == "no_steady_state" and doubt.level in cold else doubt
            for doubt in concerns(self.measured, self.plan.margin)
        ]
        doubts += conditions.unmet(self.conditions)
        if self.study.extended:
            doubts.append(Concern("extended", ", ".join(map(str, self._looks_after))))
        if builds := self.study.provenance.get("builds_differ"):
            doubts.append(Concern("builds_differ", builds))
        return doubts

    def _comparison(self) -> dict[str, Any]:
        """The arguments of every analysis of the study."""
        factor = self.plan.factor
        return {
            "baseline": factor.baseline, "controls": factor.controls, "metric": self.plan.metric,
            "margin": self.plan.margin, "concerns": self.concerns, "fixed_hosts": self.fixed_hosts,
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
