"""A study as data frames, for notebooks. Nothing here draws or formats."""

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from benchlib.host.telemetry import processors_share
from benchlib.plan.metrics import METRICS, Metric
from benchlib.plan.model import CLIENTS, Study
from benchlib.plan.planning import answer_words
from benchlib.plan.settings import quantity, shown
from benchlib.plan.words import scrubbed, size_words
from benchlib.study.crashed import kept_crashes
from benchlib.study.experiment import Experiment
from benchlib.study.limits import disk_limits, limits
from benchlib.study.loop import Tell, missing
from benchlib.study.plans import explained
from benchlib.study.published import published_for
from benchlib.study.records import Flushes, Parameters, Plans, Record, ReplicaReadings
from benchlib.study.results import good_ones

if TYPE_CHECKING:
    from benchlib.study.runs import Runner

_FEW_WORKLOADS = 2
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r\n]")
_NUMBER = re.compile(r"[+-]?[\d.,]+(e[+-]?\d+)?")


def guarded(cell: Any) -> Any:
    """Return a CSV cell, with an apostrophe before text that a spreadsheet reads as a formula."""
    formula = isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if formula else cell


def as_data(frame: pd.DataFrame) -> dict[str, Any]:
    """Return rows and ``attrs`` of a frame as plain JSON types, with null for missing values."""
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    attrs = {name: value for name, value in frame.attrs.items() if name != "kind"}
    return {"kind": frame.attrs.get("kind"), "rows": rows, "attrs": attrs}


class OpenStudy:
    """A study opened by a notebook; every attribute and method returns a data frame or a plain value.

    With a ``runner``, missing trials can be run.
    """

    def __init__(
        self,
        experiment: Experiment,
        runner: "Runner | None" = None,
        progress: "Callable[[], Tell] | None" = None,
    ) -> None:
        self._experiment = experiment
        self._runner = runner
        self._progress = progress

    def __repr__(self) -> str:
        return f"<study {self.name}: {len(self.study.trials)} trials planned, {len(self._experiment.kept)} saved>"

    # --- the question -----------------------------------------------------------

    @property
    def name(self) -> str:
        """The study's name under ``data/``."""
        return self._experiment.folder.name

    @property
    def study(self) -> Study:
        """The plan, its trials and their provenance."""
        return self._experiment.study

    @property
    def baseline(self) -> str:
        """The level that the others are compared with."""
        return self.study.plan.factor.baseline

    @property
    def controls(self) -> tuple[str, ...]:
        """The A/A controls: further arms of the baseline."""
        return self.study.plan.factor.controls

    @property
    def against(self) -> dict[str, str]:
        """The levels with another reference than the baseline, and that reference."""
        return dict(self.study.plan.factor.against)

    @property
    def answers(self) -> dict[str, str]:
        """The levels that answer the question, with a title each; all comparisons if none is declared."""
        return answer_words(self.study)

    @property
    def metric(self) -> Metric:
        """The metric of the verdicts."""
        return METRICS[self.study.plan.metric]

    @property
    def margin(self) -> float:
        """The smallest change that matters, a fraction."""
        return self.study.plan.margin

    @property
    def alpha(self) -> float:
        """The error rate of all comparisons together; extensions lower it."""
        return self._experiment.alpha

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of blocks after which the study may stop (``blocks: auto``)."""
        return self.study.plan.looks

    @property
    def comparison(self) -> dict[str, Any]:
        """All arguments of :func:`benchlib.compare` except the trials."""
        return {
            "baseline": self.baseline, "controls": self.controls, "against": self.against, "answers": self.answers,
            "metric": self.metric.name, "margin": self.margin, "alpha": self.alpha, "looks": self.looks,
        } | ({"fixed_hosts": True} if self._experiment.fixed_hosts else {})  # fmt: skip

    @property
    def levels(self) -> pd.DataFrame:
        """One row per level, one column per setting that differs between levels."""
        words = self.study.levels_in_words
        costs = {name: "; ".join(costs) for name, costs in self.study.crash_costs.items()}
        names = list(self.study.plan.factor.levels)
        frame = pd.DataFrame({name: words.get(name, {}) for name in names}).T.reindex(names)
        frame["a crash may cost"] = [costs.get(name) or "nothing" for name in names]
        differing = frame.loc[:, frame.astype(str).nunique() > 1]
        return differing.rename_axis("level").reset_index()

    @property
    def differences(self) -> pd.DataFrame:
        """Settings that differ from the reference: ``level, against, what, value, reference``."""
        words = self.study.levels_in_words
        rows = [
            (level, against, what, words[level].get(what, ""), words[against].get(what, ""))
            for level, against in self.study.plan.factor.pairs().items()
            if level not in self.controls and {level, against} <= {*words}
            for what in dict.fromkeys([*words[against], *words[level]])
            if words[level].get(what) != words[against].get(what)
        ]
        return pd.DataFrame(rows, columns=["level", "against", "what", "value", "reference"])

    @property
    def alike(self) -> pd.DataFrame:
        """Settings common to all levels: ``what, value``."""
        words = self.study.levels_in_words.get(self.baseline, {})
        same = {name: text for name, text in words.items() if name not in self.levels}
        return pd.DataFrame(same.items(), columns=["what", "value"])

    @property
    def design(self) -> pd.DataFrame:
        """The value of each grid dimension (column) for each level (row); empty without a grid."""
        return pd.DataFrame.from_dict(self.study.plan.factor.cells, orient="index", dtype=object).rename_axis(
            "level"
        )

    @property
    def signs(self) -> pd.DataFrame:
        """The two-valued dimensions of the grid, coded −1 (first value) and +1, per level."""
        design = self.design
        two = design.loc[:, design.nunique() == 2]
        return two.ne(two.iloc[0] if len(two) else 0).astype(int) * 2 - 1

    # --- running --------------------------------------------------------------------

    def preflight(self) -> pd.DataFrame:
        """Check that this machine can run the missing trials: ``check, found``; empty if none is missing.

        Raises:
            PreflightError: this machine cannot run the study.

        """
        rows = list(self._runner.preflight()) if self._runner and self.missing else []
        return pd.DataFrame(rows, columns=["check", "found"])

    @property
    def missing(self) -> int:
        """The number of planned trials that are not saved; 0 if the study may stop."""
        if self._experiment.settled():
            return 0
        folder = self._experiment.folder
        return len(missing(self.study, folder.kept() if folder.exists() else ()))

    def run(self) -> pd.DataFrame:
        """Run the missing trials, with progress and provisional effects; return :attr:`trials`."""
        if self._runner and self._progress:
            self._runner.run(self._progress())
        return self.trials

    def crash(self, rounds: int) -> pd.DataFrame:
        """Run the missing crashes, ``rounds`` per level and kind; return :meth:`crashes`."""
        if self._runner and self._progress and not self._runner.hosts:
            from benchlib.study.crashes import crash_missing

            crash_missing(self._experiment.folder, rounds, self._progress(), self._runner.check_host)
        return self.crashes()

    # --- frames ---------------------------------------------------------------------

    @property
    def trials(self) -> pd.DataFrame:
        """One row per trial, by level; docs/reference/files.md documents the columns.

        - ``part``: trials that share noise
        - ``doubt``: why comparisons of the level are invalid
        - ``error``: why the trial failed
        """
        rows, doubts = self._experiment.by_level(), dict[str, list[str]]()
        for concern in self._experiment.concerns:
            if concern.grave and concern.level:
                doubts.setdefault(concern.level, []).append(concern.text)
        reasons = {level: " ".join(texts) for level, texts in doubts.items()}
        strata = self.study.plan.strata()
        return rows.assign(
            part=rows["level"].map(strata), doubt=rows["level"].map(reasons).astype(object)
        ).reset_index(drop=True)

    def seconds(self) -> pd.DataFrame:
        """One row per trial and second: ``level, block, second, tps`` and host and device samples."""
        progress = self._experiment.progress.rename(columns={"elapsed_s": "second"})
        progress = progress.assign(second=progress["second"].round())
        return self._sorted(
            progress.merge(self._experiment.recorded.seconds, on=["level", "block", "second"], how="outer")
        )

    def waits(self) -> pd.DataFrame:
        """Mean number of sessions per wait event (or ``CPU``): ``level, block, wait, sessions``."""
        events = self._experiment.recorded.waits.drop(columns="second")
        means = events.groupby(["level", "block"], sort=False).mean()
        return self._sorted(
            means.melt(ignore_index=False, var_name="wait", value_name="sessions").reset_index()
        )

    def _sorted(self, frame: pd.DataFrame) -> pd.DataFrame:
        place = {name: number for number, name in enumerate(self.study.plan.factor.levels)}
        return frame.sort_values("level", key=lambda names: names.map(place), kind="stable").reset_index(
            drop=True
        )

    def checkpoints(self) -> pd.DataFrame:
        """Checkpoints in trials: ``level, block, start_s, end_s, kind``, seconds of load."""
        rows = self._experiment.recorded.checkpoints
        columns = ["level", "block", "start_s", "end_s", "kind"]
        return pd.DataFrame(columns=columns) if rows is None else rows

    def statements(self) -> pd.DataFrame:
        """Latency of each statement, if measured: ``level, block, script, statement, latency_ms``."""
        return self._experiment.measured.statements

    def figures(self) -> pd.DataFrame:
        """Sampled figures, one row per successful trial: sizes, shares, rates, costs per transaction."""
        return self._experiment.figures

    def conditions(self) -> pd.DataFrame:
        """Conditions for the effect: ``condition, level, wanted, median, held, trials, met``."""
        return self._experiment.conditions

    def bottlenecks(self) -> pd.DataFrame:
        """The bottleneck of each level: ``level, bottleneck`` and shares in use."""
        return self._experiment.bottlenecks.drop(columns="sessions")

    def plans(self) -> pd.DataFrame:
        """Query plans, without the controls'; see :func:`benchlib.study.plans.explained`."""
        return explained(self._experiment.trials, self._records(Plans), self.metric.name, self.controls)

    def parameters(self) -> pd.DataFrame:
        """Server parameters (rows) by level (columns) that differ between levels or from the default."""
        kept = {
            level: dict(record)
            for level, _, record in self._records(Parameters)
            if level not in self.controls
        }
        shown = {
            level: {name: _spelt(row, "setting") for name, row in rows.items()}
            for level, rows in kept.items()
        }
        frame = pd.DataFrame(shown)
        default = {name: _spelt(row, "boot_val") for rows in kept.values() for name, row in rows.items()}
        chosen = {name for rows in kept.values() for name, row in rows.items()
                  if row["source"] != "default" and row["setting"] != row["boot_val"]}  # fmt: skip
        differs = frame.nunique(axis=1, dropna=False) > 1 if len(frame) else pd.Series(dtype=bool)
        frame = frame[differs | frame.index.isin(chosen)].sort_index()
        return (
            frame.assign(**{"PostgreSQL's default": frame.index.map(default)})
            .rename_axis("parameter")
            .reset_index()
        )

    def flushes(self) -> pd.DataFrame:
        """Median ``pg_test_fsync`` rates of the WAL's device: ``level, method, flushes_per_s, used``."""
        rows = [
            (level, rate.method, rate.ops_per_s, rate.method == record.durability.get("wal_sync_method"))
            for level, _, record in self._records(Flushes)
            for rate in record.flushes.methods
            if record.per_s(rate.method) == rate.ops_per_s
        ]
        frame = pd.DataFrame(rows, columns=["level", "method", "flushes_per_s", "used"])
        return (
            frame.groupby(["level", "method", "used"], sort=False)[["flushes_per_s"]].median().reset_index()
        )

    def replicas(self) -> pd.DataFrame:
        """Replication lag, one row per reading: ``level, block, replica, second`` and three lags."""
        lags = ["replay_lag_s", "replay_lag_bytes", "write_lag_bytes"]
        rows = [
            {**row, "level": level, "block": block, "second": round(row["at_s"] - record.lag[0]["at_s"])}
            for level, block, record in self._records(ReplicaReadings)
            for row in record.lag
        ]
        frame = pd.DataFrame(rows, columns=["level", "block", "replica", "second", *lags])
        # the first reading precedes the load
        return frame[frame["second"].gt(0)].astype(dict.fromkeys(lags, float))

    def verified(self) -> pd.DataFrame:
        """Replicas verified after each trial: ``level, block, synchronous_commit, held, count`` and more."""
        kept = self._records(ReplicaReadings)
        rows = [{"level": level, "block": block, **of.verified} for level, block, of in kept if of.verified]
        first = ["level", "block", "synchronous_commit", "held", "count"]
        return pd.DataFrame(rows, columns=None if rows else first)

    def hosts(self) -> pd.DataFrame:
        """Hosts by role: ``level, server, role, host, round_trip_ms, busy_percent`` (medians)."""
        rows = list[tuple[str, str, str, str, float, float]]()
        for trial_id, kept in self._experiment.kept.items():
            level, server = kept.trial.level, kept.ran_on or "this machine"
            rows.append((level, server, "server", server, np.nan, np.nan))
            rows += [
                (level, server, "load", one.host, 1000 * one.round_trip_s, np.nan) for one in kept.generators
            ]
            if replicas := ReplicaReadings.read(self._experiment.folder, trial_id):
                rows += [
                    (
                        level,
                        server,
                        "replica",
                        away.host,
                        1000 * away.round_trip_s,
                        100 * processors_share(dict(away)),
                    )
                    for away in replicas.elsewhere.values()
                    if len(away.readings) > 1
                ]
        columns = ["level", "server", "role", "host", "round_trip_ms", "busy_percent"]
        frame = pd.DataFrame(rows, columns=columns)
        return self._sorted(frame.groupby(columns[:4], sort=False).median().reset_index())

    def crashes(self) -> pd.DataFrame:
        """Crashes: ``level, kind, number, acknowledged, lost, oldest_lost_ms, recovery_s, damage``."""
        rows = [crash.model_dump() for crash in kept_crashes(self._experiment.folder)]
        names = ["level", "kind", "number", "acknowledged", "lost", "oldest_lost_ms", "recovery_s", "damage"]
        return pd.DataFrame(rows, columns=names)

    def published(self) -> pd.DataFrame:
        """Published figures for this factor; see :func:`benchlib.study.published.published_for`."""
        frame, factor = published_for(self.study.notebook or ""), self.study.plan.factor
        named = {name: factor.named(name) or name for name in {*frame["level"], *frame["against"]}}
        return frame.assign(level=frame["level"].map(named), against=frame["against"].map(named))

    def by_setting(self, setting: str) -> pd.DataFrame:
        """Series of levels that differ in one server parameter, or ``clients``: ``series, level, value``.

        ``value`` is as reported by the server (bytes, seconds or a number); levels without it are left out.
        """
        plan = self.study.plan
        if setting == CLIENTS:
            values = {name: float(plan.level_load(name).clients) for name in plan.factor.levels}
        else:
            reported = {
                m.trial.level: m.settings.get(setting, "")
                for m in self._experiment.kept.values()
                if m.error is None
            }
            values = {level: read[0] for level, text in reported.items() if (read := quantity(text))}
        rows = [
            (series, level, values[level])
            for series, group in enumerate(plan.alike(setting))
            for level in group
            if level in values and len([name for name in group if name in values]) > 1
        ]
        return pd.DataFrame(rows, columns=["series", "level", "value"]).sort_values(["series", "value"])

    def limits(self, effects: pd.DataFrame) -> pd.DataFrame:
        """Return the limits of the answers among ``effects``; see :func:`benchlib.study.limits.limits`."""
        return limits(self._experiment, self.signs, effects)

    # --- setup and provenance --------------------------------------------------------

    @property
    def setup(self) -> pd.DataFrame:
        """Summary of the setup: ``what, value``."""
        provenance, plan, trials = self.study.provenance, self.study.plan, self._experiment.trials
        good = trials[trials["error"].isna()]
        hosts = [*(provenance.get("hosts") or {"": provenance.get("host", {})}).values()]
        external = all(plan.level(name).target for name in plan.factor.levels)
        works = list(dict.fromkeys(plan.level_workload(name).label for name in plan.factor.levels))
        load = ", ".join(works) if len(works) <= _FEW_WORKLOADS else f"{len(works)} workloads"
        sizes = good.groupby("level")["data_bytes"].median().dropna().astype(float)
        durations = sorted({plan.level_load(name).duration_s for name in plan.factor.levels})
        planned = len(trials) if self._experiment.settled() else len(self.study.trials)
        rows = {
            "server": ", ".join(
                f"PostgreSQL {version}" for version in sorted(set(good["server_version"].dropna()))
            ),
            "load": f"{load}, {_span([plan.level_load(name).clients for name in plan.factor.levels])} clients",
            "trials": f"{len(good)} of {planned}, {_span(durations)} s each, {good['block'].nunique()} blocks",
            "machine": "; ".join(dict.fromkeys(map(_machine, hosts))) + " (load tool)" * external,
            "disk": "" if external else "; ".join(dict.fromkeys(filter(None, map(_file_system, hosts)))),
            "disk limits": "; ".join(
                dict.fromkeys(filter(None, (disk_limits(plan.level(name)) for name in plan.factor.levels)))
            ),
            "data": " to ".join(dict.fromkeys(size_words(int(size)) for size in (sizes.min(), sizes.max())))
            if len(sizes)
            else "",
            "measured": str(provenance.get("created", ""))[:10],
        }
        frame = pd.DataFrame([row for row in rows.items() if row[1]], columns=["what", "value"])
        frame.attrs = {"kind": "setup"}
        return frame

    @property
    def provenance(self) -> pd.DataFrame:
        """Machine, servers, builds, load tool, seeds and versions: ``what, value``."""
        known = {name: value for name, value in self.study.provenance.items() if name != "builds_differ"}
        servers = ["; ".join(map(str, filter(None, server.values()))) for server in known.pop("servers", [])]
        (facts,) = pd.json_normalize(known, sep=", ").to_dict("records") or [{}]
        rows = [("server", text) for text in servers] + [
            (str(k).replace("_", " "), str(v)) for k, v in facts.items()
        ]
        rows += [("seed", str(self.study.plan.seed)), ("notes", self.study.notes)]
        return pd.DataFrame(
            [(what, scrubbed(value)) for what, value in rows if value], columns=["what", "value"]
        )

    def _records(self, kind: type[Record]) -> list[tuple[str, int, Any]]:
        good = good_ones(self._experiment.by_level())
        kept = ((level, block, kind.read(self._experiment.folder, name)) for level, block, name in good)
        return [(level, block, record) for level, block, record in kept if record is not None]


def _span(values: list[Any]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _machine(facts: Mapping[str, Any]) -> str:
    cores, memory = facts.get("processors"), facts.get("memory_mib")
    parts = [f"{cores} cores" if cores else "", f"{memory / 1024:.0f} GiB" if memory else ""]
    return ", ".join(filter(None, parts)) or "not known"


def _file_system(facts: Mapping[str, Any]) -> str:
    kind = facts.get("file_system")
    return str(kind.get("type") or "") if isinstance(kind, dict) else ""


def _spelt(row: Mapping[str, Any], which: str) -> str:
    """Return a parameter's value with its unit: ``128 MB``, ``300 s``."""
    value, unit = row[which], row["unit"]
    if value is None:
        return "not shown"
    if not unit or value.startswith("-"):
        return value or "empty"
    read = quantity(shown(value, unit))
    return size_words(int(read[0])) if read and read[1] == "B" else f"{value} {unit}"
