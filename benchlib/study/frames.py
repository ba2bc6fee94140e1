"""A study as data frames, for notebooks."""

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pandas as pd

from benchlib.host.telemetry import processors_share
from benchlib.plan.metrics import METRICS, Metric
from benchlib.plan.model import CLIENTS, Study
from benchlib.plan.settings import quantity
from benchlib.plan.workload import HIDDEN
from benchlib.stats.queries import compare_queries
from benchlib.study import setup
from benchlib.study.crashed import kept_crashes
from benchlib.study.experiment import Experiment
from benchlib.study.limits import limits
from benchlib.study.loop import Tell, missing
from benchlib.study.plans import PLANNED, explained, statements
from benchlib.study.published import published_for
from benchlib.study.queries import queries
from benchlib.study.records import Cost, Flushes, Parameters, Plans, ReplicaReadings, rows_of

if TYPE_CHECKING:
    from benchlib.study.runs import Runner

_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r\n]")
_NUMBER = re.compile(r"[+-]?[\d.,]+(e[+-]?\d+)?")


def guarded(cell: Any) -> Any:
    """Return a CSV cell, with an apostrophe before a spreadsheet's formula."""
    formula = isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if formula else cell


def as_data(frame: pd.DataFrame) -> dict[str, Any]:
    """Return a frame as JSON types."""
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    attrs = {name: value for name, value in frame.attrs.items() if name != "kind"}
    return {"kind": frame.attrs.get("kind"), "rows": rows, "attrs": attrs}


class OpenStudy:
    """A study opened by a notebook; docs/reference/files.md documents all columns.

    With a ``runner``, missing trials can be run.

    - ``against``: levels with a reference other than ``baseline``
    - ``controls``: the A/A controls
    - ``margin``: the smallest change that matters, a fraction
    - ``repeats``: further trials of a survey's references
    - ``looks``: numbers of blocks after which the study may stop
    """

    def __init__(
        self,
        experiment: Experiment,
        runner: "Runner | None" = None,
        progress: "Callable[[], Tell] | None" = None,
    ) -> None:
        self._experiment, self._runner, self._progress = experiment, runner, progress
        plan, factor = experiment.plan, experiment.plan.factor
        self.name = experiment.folder.name
        self.metric: Metric = METRICS[plan.metric]
        self.margin = plan.margin
        self.looks = plan.looks
        self.fixed_hosts = experiment.study.declared.hosts == "fixed"
        self.repeats = factor.repeats if experiment.study.declared.survey else {}

    def __repr__(self) -> str:
        return f"<study {self.name}: {len(self.study.trials)} trials planned, {len(self._experiment.kept)} saved>"

    # --- the question -----------------------------------------------------------

    @property
    def study(self) -> Study:
        """The plan, its trials and their provenance."""
        return self._experiment.study

    @property
    def baseline(self) -> str:
        """The level that others are compared with."""
        return str(self.comparison["baseline"])

    @property
    def controls(self) -> tuple[str, ...]:
        """The A/A arms of the baseline."""
        return tuple(self.comparison["controls"])

    @property
    def against(self) -> dict[str, str]:
        """Other references by level."""
        return dict(self.comparison["against"])

    @property
    def answers(self) -> dict[str, str]:
        """Titles of the levels that answer the question, or all comparisons."""
        return dict(self.comparison["answers"])

    @property
    def alpha(self) -> float:
        """The error rate of each family of comparisons."""
        return self._experiment.alpha

    @property
    def comparison(self) -> dict[str, Any]:
        """Arguments of :func:`benchlib.compare`, without the trials."""
        return self._experiment.comparison

    @property
    def levels(self) -> pd.DataFrame:
        """Differing settings (columns) by level."""
        words = self.study.levels_in_words
        names = list(self.study.plan.factor.levels)
        frame = pd.DataFrame({name: words.get(name, {}) for name in names}).T.reindex(names)
        costs = self.study.crash_costs
        frame["a crash may cost"] = ["; ".join(costs.get(name, ())) or "nothing" for name in names]
        differing = frame.loc[:, frame.astype(str).nunique() > 1]
        return differing.rename_axis("level").reset_index()

    @property
    def differences(self) -> pd.DataFrame:
        """Settings unlike the reference's."""
        words = self.study.levels_in_words
        rows = [
            (level, against, what, words[level].get(what, ""), words[against].get(what, ""))
            for level, against in self.study.plan.factor.pairs().items()
            if level not in self.controls and {level, against} <= {*words}
            for what in {**words[against], **words[level]}
            if words[level].get(what) != words[against].get(what)
        ]
        return pd.DataFrame(rows, columns=["level", "against", "what", "value", "reference"])

    @property
    def alike(self) -> pd.DataFrame:
        """Common settings: ``what, value``."""
        words = self.study.levels_in_words.get(self.baseline, {})
        same = {name: text for name, text in words.items() if name not in self.levels}
        return pd.DataFrame(same.items(), columns=["what", "value"])

    @property
    def design(self) -> pd.DataFrame:
        """Grid dimensions (columns) by level; ``attrs["order"]``: their values."""
        cells = self.study.plan.factor.cells
        design = pd.DataFrame.from_dict(cells, orient="index", dtype=object).rename_axis("level")
        design.attrs["order"] = {name: [*ends] for name, ends in self.study.declared.grid.items()}
        return design

    @property
    def signs(self) -> pd.DataFrame:
        """Two-valued grid dimensions by level, coded −1 (first value) and +1."""
        design = self.design
        two = design.loc[:, design.nunique() == 2]
        declared = {name: design.attrs["order"].get(name, [*two[name]]) for name in two}
        first = {name: next(end for end in ends if end in {*two[name]}) for name, ends in declared.items()}
        return two.ne(pd.Series(first, dtype=object)).astype(int) * 2 - 1

    # --- running --------------------------------------------------------------------

    def preflight(self) -> pd.DataFrame:
        """Check this machine for missing trials (else PreflightError): ``check, found``."""
        rows = list(self._runner.preflight()) if self._runner and self.missing else []
        return pd.DataFrame(rows, columns=["check", "found"])

    @property
    def missing(self) -> int:
        """The number of missing trials; 0 if the study may stop."""
        return 0 if self._experiment.settled() else len(missing(self.study, self._experiment.kept))

    def run(self) -> pd.DataFrame:
        """Run the missing trials; return :attr:`trials`."""
        if self._runner and self._progress:
            self._runner.run(self._progress())
        self._experiment.check_arms()
        return self.trials

    def crash(self, rounds: int) -> pd.DataFrame:
        """Run missing crashes, ``rounds`` per level and kind."""
        if self._runner and self._progress and not self._runner.hosts:
            from benchlib.study.crashes import crash_missing

            crash_missing(self._experiment.folder, rounds, self._progress(), self._runner.check_host)
        return self.crashes()

    # --- frames ---------------------------------------------------------------------

    @property
    def trials(self) -> pd.DataFrame:
        """One row per trial, with ``part`` (levels that share noise), ``doubt`` and ``error``."""
        rows = self._experiment.by_level()
        grave = [(of.level, of.text) for of in self._experiment.concerns if of.grave and of.level]
        doubts = pd.DataFrame(grave, columns=["level", "text"]).groupby("level")["text"].agg(" ".join)
        parts = rows["level"].map(self.study.plan.strata())
        doubt = rows["level"].map(doubts).astype(object)
        return rows.assign(part=parts, doubt=doubt).reset_index(drop=True)

    def seconds(self) -> pd.DataFrame:
        """``level, block, second, tps`` and samples of host and device."""
        progress = self._experiment.measured.progress.rename(columns={"elapsed_s": "second"})
        progress = progress.assign(second=progress["second"].round())
        samples = self._experiment.recorded.seconds
        both = progress.merge(samples, on=["level", "block", "second"], how="outer")
        return self._experiment.ordered(both).reset_index(drop=True)

    def waits(self) -> pd.DataFrame:
        """Mean sessions per wait event (or ``CPU``)."""
        events = self._experiment.recorded.waits.drop(columns="second")
        means = events.groupby(["level", "block"], sort=False).mean()
        long = means.melt(ignore_index=False, var_name="wait", value_name="sessions").reset_index()
        return self._experiment.ordered(long).reset_index(drop=True)

    def checkpoints(self) -> pd.DataFrame:
        """Checkpoints, in seconds of load."""
        rows = self._experiment.recorded.checkpoints
        columns = ["level", "block", "start_s", "end_s", "kind"]
        return pd.DataFrame(columns=columns) if rows is None else rows

    def statements(self) -> pd.DataFrame:
        """Latencies, if measured."""
        return self._hidden(self._experiment.measured.statements, statement=HIDDEN)

    def queries(self) -> pd.DataFrame:
        """See :func:`benchlib.study.queries.queries`."""
        return queries(self._experiment, lambda: self.trials)

    def by_query(self) -> pd.DataFrame:
        """See :func:`benchlib.stats.queries.compare_queries`."""
        rows = self.queries()
        # a screening compares no levels
        return compare_queries(rows.head(0) if self.study.declared.screen else rows, **self.comparison)

    def figures(self) -> pd.DataFrame:
        """Sampled figures of successful trials."""
        return self._experiment.figures

    def conditions(self) -> pd.DataFrame:
        """The notebook's conditions, checked."""
        return self._experiment.conditions

    def bottlenecks(self) -> pd.DataFrame:
        """``level, bottleneck`` and shares in use."""
        return self._experiment.bottlenecks.drop(columns="sessions")

    def plans(self) -> pd.DataFrame:
        """See :func:`benchlib.study.plans.explained`."""
        rows = self._records(Plans, statements, PLANNED)
        rows = rows[~rows["level"].isin(self.controls)]
        plans = explained(self._experiment.trials, rows, self.metric.name)
        return self._hidden(plans, text=HIDDEN, explain=plans["outline"])

    def costs(self) -> pd.DataFrame:
        """Median costs of the levels' ``sql``."""
        rows = self._records(Cost, lambda cost: [dict(cost)], ["level", "seconds", "size_bytes", "wal_bytes"])
        return rows.groupby("level", sort=False).median().reset_index()

    def parameters(self) -> pd.DataFrame:
        """Server parameters that differ between levels (columns) or from the default."""
        rows = self._records(Parameters, setup.parameter_rows, setup.PARAMETERS)
        return setup.parameters(rows[~rows["level"].isin(self.controls)])

    def flushes(self) -> pd.DataFrame:
        """Median flush rates of the WAL's device."""
        frame = self._records(Flushes, Flushes.rows, ["level", "method", "used", "flushes_per_s"])
        return frame.groupby(["level", "method", "used"], sort=False).median().reset_index()

    def replicas(self) -> pd.DataFrame:
        """Replication lag per second."""
        lags = ["replay_lag_s", "replay_lag_bytes", "write_lag_bytes"]

        def readings(record: ReplicaReadings) -> Iterable[dict[str, Any]]:
            return [{**row, "second": round(row["at_s"] - record.lag[0]["at_s"])} for row in record.lag]

        frame = self._records(ReplicaReadings, readings, ["level", "block", "replica", "second", *lags])
        # the first reading precedes the load
        return frame[frame["second"].gt(0)].astype(dict.fromkeys(lags, float))

    def verified(self) -> pd.DataFrame:
        """The verification of replicas."""
        first = ["level", "block", "synchronous_commit", "held", "count", "warnings"]
        rows = self._records(ReplicaReadings, lambda of: [of.verified] if of.verified else [])
        return rows if len(rows) else rows.reindex(columns=first)

    def hosts(self) -> pd.DataFrame:
        """Median round trips and use of hosts, by role."""
        rows = []
        for trial_id, trial in self._experiment.kept.items():
            server = trial.ran_on or "this machine"
            hosts: list[dict[str, Any]] = [{"role": "server", "host": server}]
            hosts += [{"role": "load", **dict(one)} for one in trial.generators]
            if replicas := ReplicaReadings.read(self._experiment.folder, trial_id):
                remote = [dict(one) for one in replicas.elsewhere.values() if len(one.readings) > 1]
                hosts += [{"role": "replica", **one, "busy_share": processors_share(one)} for one in remote]
            rows += [{"level": trial.trial.level, "server": server, **host} for host in hosts]
        by, figures = ["level", "server", "role", "host"], ["round_trip_s", "busy_share"]
        frame = pd.DataFrame(rows, columns=[*by, *figures]).astype(dict.fromkeys(figures, float))
        medians = frame.groupby(by, sort=False).median() * [1000, 100]
        medians = medians.set_axis(["round_trip_ms", "busy_percent"], axis="columns")
        return self._experiment.ordered(medians.reset_index()).reset_index(drop=True)

    def crashes(self) -> pd.DataFrame:
        """The saved crashes."""
        rows = [crash.model_dump() for crash in kept_crashes(self._experiment.folder)]
        names = ["level", "kind", "number", "acknowledged", "lost", "oldest_lost_ms", "recovery_s", "damage"]
        return pd.DataFrame(rows, columns=names)

    def published(self, workload: str = "") -> pd.DataFrame:
        """See :func:`benchlib.study.published.published_for`; ``workload`` selects."""
        frame, factor = published_for(self.study.notebook or ""), self.study.plan.factor
        cell = f"{workload}, " if workload and factor.cells else ""

        def named(name: str) -> str:
            return name and (factor.named(cell + name) or cell + name)

        return frame.assign(level=frame["level"].map(named), against=frame["against"].map(named))

    def by_setting(self, setting: str) -> pd.DataFrame:
        """Levels that differ only in one parameter or ``clients``: ``series, level, value``."""
        plan = self.study.plan
        if setting == CLIENTS:
            values = {name: float(plan.level_load(name).clients) for name in plan.factor.levels}
        else:
            good = (m for m in self._experiment.kept.values() if m.error is None)
            reported = {m.trial.level: quantity(m.settings.get(setting, "")) for m in good}
            values = {level: read[0] for level, read in reported.items() if read}
        groups = [(series, level) for series, group in enumerate(plan.alike(setting)) for level in group]
        rows = pd.DataFrame(groups, columns=["series", "level"])
        rows = rows.assign(value=rows["level"].map(values).astype(float)).dropna()
        return rows[rows.duplicated("series", keep=False)].sort_values(["series", "value"])

    def limits(self, effects: pd.DataFrame) -> pd.DataFrame:
        """See :func:`benchlib.study.limits.limits`."""
        return limits(self._experiment, self.signs, effects, self.by_query())

    @property
    def setup(self) -> pd.DataFrame:
        """The setup: ``what, value``."""
        return setup.setup(self._experiment)

    @property
    def provenance(self) -> pd.DataFrame:
        """Machine, builds, seeds and versions: ``what, value``."""
        return setup.provenance(self.study)

    def _hidden(self, frame: pd.DataFrame, **instead: Any) -> pd.DataFrame:
        """Replace columns in the rows of private workloads."""
        private = frame["level"].map(lambda name: self.study.plan.level_workload(name).private).astype(bool)
        return frame.assign(**{name: frame[name].mask(private, other) for name, other in instead.items()})

    def _records(self, *of: Any) -> pd.DataFrame:
        """Return the rows of the successful trials' records, see :func:`rows_of`."""
        trials = self._experiment.by_level()
        return rows_of(self._experiment.folder, trials[trials["error"].isna()], *of)
