"""A saved study, read-only."""

import contextlib
from collections import Counter
from dataclasses import replace
from functools import cached_property
from typing import Any

import pandas as pd

from benchlib.errors import InputError, StudyError
from benchlib.plan.metrics import percent_words
from benchlib.plan.model import Measurement, Plan, Study
from benchlib.plan.planning import answer_words
from benchlib.stats.analysis import Analysis
from benchlib.stats.effects import judge
from benchlib.stats.limits import Concern
from benchlib.stats.sequential import EXTENSION, decide
from benchlib.study import conditions
from benchlib.study.instruments import Recorded, bottlenecks, recorded
from benchlib.study.results import Measured, concerns, measured
from benchlib.study.store import StudyFolder

_ALPHA = 0.05
_MOST_EXTENSIONS = 4
SO_FAR_FROM = 3


class Experiment:
    """A study with the frames of its trials."""

    def __init__(self, folder: StudyFolder, study: Study) -> None:
        self.folder = folder
        self.study = study

    @property
    def plan(self) -> Plan:
        """The study's plan."""
        return self.study.plan

    @cached_property
    def kept(self) -> dict[str, Measurement]:
        """The measurements by trial id."""
        return self.folder.kept() if self.folder.exists() else {}

    @cached_property
    def measured(self) -> Measured:
        """The trials' frames."""
        return measured(self.folder, self.plan, self.kept)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row per trial."""
        return self.measured.trials

    @cached_property
    def recorded(self) -> Recorded:
        """Samples of successful trials."""
        return recorded(self.folder, self.plan, self.trials)

    @cached_property
    def conditions(self) -> pd.DataFrame:
        """The notebook's conditions, checked."""
        declared = conditions.conditions(self.study)
        return conditions.checked(self.study, self.figures if declared else pd.DataFrame())

    @cached_property
    def figures(self) -> pd.DataFrame:
        """Figures of successful trials."""
        return conditions.figures_of(self.folder, self.study, self.trials, self.recorded)

    @cached_property
    def bottlenecks(self) -> pd.DataFrame:
        """Each level's bottleneck."""
        return bottlenecks(self.plan, self.trials, self.recorded)

    @cached_property
    def analysis(self) -> Analysis:
        """The verdicts; StudyError without a comparison."""
        self.check_comparable()
        trials = self.by_level()
        trials = trials.assign(part=trials["level"].map(self.plan.strata()))
        return judge(trials, concerns=self.concerns, **self.comparison)

    @property
    def comparison(self) -> dict[str, Any]:
        """Arguments of :func:`benchlib.compare`, without trials."""
        plan, factor, (baseline, controls) = self.plan, self.plan.factor, self._arms
        # controls stay those of the factor's baseline
        own = dict.fromkeys(factor.controls if baseline != factor.baseline else (), factor.baseline)
        return {
            "baseline": baseline, "controls": controls, "against": {**factor.against, **own},
            "metric": plan.metric, "margin": plan.margin, "alpha": self.alpha, "looks": plan.looks,
            "answers": answer_words(self.study),
        } | ({"repeats": factor.repeats} if self.study.declared.survey else {}) | ({"fixed_hosts": True} if self.study.declared.hosts == "fixed" else {})  # fmt: skip

    @property
    def _arms(self) -> tuple[str, tuple[str, ...]]:
        """The baseline with its controls; if it always failed, a grid's next reference."""
        factor, begun = self.plan.factor, {each.trial.level for each in self.kept.values()}
        good = {each.trial.level for each in self.kept.values() if each.error is None}
        others = [name for name in factor.against.values() if name in good] if factor.cells else []
        if factor.baseline in good or not others:
            return factor.baseline, tuple(name for name in factor.controls if name in begun or not begun)
        return others[0], ()

    def check_comparable(self) -> None:
        """Raise StudyError if no block has two successful trials."""
        good = self.trials[self.trials["error"].isna()]
        if good.groupby("block").size().lt(2).all():
            failed = self.trials["error"].dropna()
            why = f"the first failure: {failed.iloc[0]}" if len(failed) else "run it first"
            raise StudyError(f"study '{self.folder.name}' has no block with two successful trials: {why}")
        self.check_arms()

    def check_arms(self) -> None:
        """Raise StudyError without a good trial of baseline or control."""
        baseline, controls = self._arms
        failed = {each.trial.level: each.error for each in self.kept.values() if each.error}
        good = {each.trial.level for each in self.kept.values() if not each.error}
        # a screening needs no level, and in a study of several parts a lost control costs its comparison alone
        parts = {*self.plan.strata().values()}
        needed = () if self.study.declared.screen else (baseline, *(controls if len(parts) == 1 else ()))
        for name in needed:
            if good and name in failed.keys() - good:
                raise StudyError(f"level “{name}” has no successful trial: {failed[name]}")

    @property
    def alpha(self) -> float:
        """The error rate of each family of comparisons; extensions lower it."""
        return _ALPHA * EXTENSION ** len(self._looks_after)

    def by_level(self) -> pd.DataFrame:
        """Return the trials by level."""
        return self.ordered(self.trials)

    def ordered(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return rows by level, in the plan's order."""
        position = {name: index for index, name in enumerate(self.plan.factor.levels)}
        return frame.sort_values("level", key=lambda names: names.map(position), kind="stable")

    @property
    def _complete_blocks(self) -> int:
        sizes = Counter(measurement.trial.block for measurement in self.kept.values())
        return sum(size == len(self.plan.factor.levels) for size in sizes.values())

    def settled(self) -> str | None:
        """Return why the study may stop early, or None."""
        if self._complete_blocks not in self.plan.looks:
            return None
        options = {name: of for name, of in self.comparison.items() if name not in ("alpha", "against")}
        with contextlib.suppress(InputError):  # no trial of the baseline has succeeded
            return decide(self.by_level(), concerns=self.concerns, **options)[1]
        return None

    def so_far(self) -> str | None:
        """Return provisional effects, after three complete blocks."""
        if not SO_FAR_FROM <= self._complete_blocks < self.study.blocks:
            return None
        try:
            rows = self.analysis.table.dropna(subset="percent_change").to_dict("records")
        except (StudyError, InputError):
            return None
        effects = []
        for row in rows:
            change, interval = percent_words(row["percent_change"], row["ci_low"], row["ci_high"])
            effects.append(f"{row['level']} {change} [{interval.replace(' to ', ', ')}] {row['verdict']}")
        return (
            f"provisional, after {self._complete_blocks} of {self.study.blocks} blocks: {'; '.join(effects)}"
        )

    def forget(self) -> None:
        """Drop all frames."""
        self.__dict__ = {"folder": self.folder, "study": self.study}

    @cached_property
    def concerns(self) -> list[Concern]:
        """The limits found in the trials."""
        cold = [name for name in self.plan.factor.levels if self.plan.level(name).cache == "cold"]
        doubts = [
            # a cold start has no steady state by design
            replace(doubt, grave=False) if doubt.code == "no_steady_state" and doubt.level in cold else doubt
            for doubt in concerns(self.measured, self.plan.margin)
        ]
        doubts += conditions.unmet(self.conditions)
        if self.study.extended:
            doubts.append(Concern("extended", ", ".join(map(str, self._looks_after))))
        if builds := self.study.provenance.get("builds_differ"):
            doubts.append(Concern("builds_differ", builds))
        return doubts

    @property
    def _looks_after(self) -> tuple[int, ...]:
        return self.study.extended[:_MOST_EXTENSIONS]


def shown(folder: StudyFolder) -> Experiment:
    """Return the experiment of a saved study."""
    return Experiment(folder, folder.read())
