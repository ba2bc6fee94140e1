"""A study as data frames: what a notebook opens, runs and reads. Nothing here draws or formats."""

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
from benchlib.stats.limits import Concern
from benchlib.study.crashed import kept_crashes
from benchlib.study.experiment import Experiment
from benchlib.study.instruments import DISKS_CAP
from benchlib.study.loop import Tell, missing
from benchlib.study.plans import explained
from benchlib.study.published import published_for
from benchlib.study.records import Flushes, Parameters, Plans, Record, ReplicaReadings
from benchlib.study.results import good_ones

if TYPE_CHECKING:
    from benchlib.study.runs import Runner

MOST_LIMITS = 7
_CAPS = ("read_iops", "write_iops", "read_bytes", "write_bytes")
_NAMED = 2
"""So many levels a sentence names."""


_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r\n]")
_NUMBER = re.compile(r"[+-]?[\d.,]+(e[+-]?\d+)?")


def guarded(cell: Any) -> Any:
    """Return a cell for a CSV file, with an apostrophe before a text that a spreadsheet would take for a formula."""
    formula = isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if formula else cell


def as_data(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the rows of a frame with its ``attrs`` as plain JSON types; what is missing is null."""
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    attrs = {name: value for name, value in frame.attrs.items() if name != "kind"}
    return {"kind": frame.attrs.get("kind"), "rows": rows, "attrs": attrs}


class OpenStudy:
    """A study that a notebook has opened. Every attribute and method returns a data frame, or a plain value.

    ``answers`` are the levels that answer the question, with a reader's words; ``controls, against, metric, margin, alpha,
    looks`` are what :func:`benchlib.compare` takes. With a ``runner`` the missing trials can be run.
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

    # --- what was asked -----------------------------------------------------------

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
        """The further arms of the baseline (A/A)."""
        return self.study.plan.factor.controls

    @property
    def against(self) -> dict[str, str]:
        """The levels that are compared with another level than the baseline, and with which."""
        return dict(self.study.plan.factor.against)

    @property
    def answers(self) -> dict[str, str]:
        """The levels that answer the question, with a reader's words for each; all comparisons where none is declared."""
        return answer_words(self.study)

    @property
    def metric(self) -> Metric:
        """The metric that the study is judged by."""
        return METRICS[self.study.plan.metric]

    @property
    def margin(self) -> float:
        """The smallest change that matters, a fraction."""
        return self.study.plan.margin

    @property
    def alpha(self) -> float:
        """The error rate of all comparisons together; smaller where the study was extended."""
        return self._experiment.alpha

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of blocks after which the study may stop (``blocks: auto``)."""
        return self.study.plan.looks

    @property
    def comparison(self) -> dict[str, Any]:
        """All arguments of :func:`benchlib.compare` for this study, but the trials."""
        return {
            "baseline": self.baseline, "controls": self.controls, "against": self.against, "answers": self.answers,
            "metric": self.metric.name, "margin": self.margin, "alpha": self.alpha, "looks": self.looks,
        } | ({"fixed_hosts": True} if self._experiment.fixed_hosts else {})  # fmt: skip

    @property
    def levels(self) -> pd.DataFrame:
        """What the levels run with: a row a level, a column for each thing in which they differ."""
        words = self.study.levels_in_words
        costs = {name: "; ".join(costs) for name, costs in self.study.crash_costs.items()}
        names = list(self.study.plan.factor.levels)
        frame = pd.DataFrame({name: words.get(name, {}) for name in names}).T.reindex(names)
        frame["a crash may cost"] = [costs.get(name) or "nothing" for name in names]
        differing = frame.loc[:, frame.astype(str).nunique() > 1]
        return differing.rename_axis("level").reset_index()

    @property
    def differences(self) -> pd.DataFrame:
        """In what each level differs from the level that it is compared with: ``level, against, what, value, reference``."""
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
        """What all levels run with: ``what, value``."""
        words = self.study.levels_in_words.get(self.baseline, {})
        same = {name: text for name, text in words.items() if name not in self.levels}
        return pd.DataFrame(same.items(), columns=["what", "value"])

    @property
    def design(self) -> pd.DataFrame:
        """The levels of a grid: a row a level, a column a dimension with its value there; empty without a grid."""
        return pd.DataFrame.from_dict(self.study.plan.factor.cells, orient="index", dtype=object).rename_axis(
            "level"
        )

    @property
    def signs(self) -> pd.DataFrame:
        """The levels of a grid of two values a dimension as −1 (the first value) and +1, without dimensions of one value."""
        design = self.design
        two = design.loc[:, design.nunique() == 2]
        return two.ne(two.iloc[0] if len(two) else 0).astype(int) * 2 - 1

    # --- running --------------------------------------------------------------------

    def preflight(self) -> pd.DataFrame:
        """Check what the missing trials need of this machine: ``check, found``; no rows where nothing is missing.

        Raises:
            PreflightError: this machine cannot run the study.

        """
        rows = list(self._runner.preflight()) if self._runner and self.missing else []
        return pd.DataFrame(rows, columns=["check", "found"])

    @property
    def missing(self) -> int:
        """The number of planned trials that are not saved; 0 where the study may stop."""
        if self._experiment.settled():
            return 0
        folder = self._experiment.folder
        return len(missing(self.study, folder.kept() if folder.exists() else ()))

    def run(self) -> pd.DataFrame:
        """Run the missing trials, showing progress and the effects so far; return all trials (see :attr:`trials`)."""
        if self._runner and self._progress:
            self._runner.run(self._progress())
        return self.trials

    def crash(self, rounds: int) -> pd.DataFrame:
        """Crash each level ``rounds`` times in each way, as far as that is missing; return all :meth:`crashes`."""
        if self._runner and self._progress and not self._runner.hosts:
            from benchlib.study.crashes import crash_missing

            crash_missing(self._experiment.folder, rounds, self._progress(), self._runner.check_host)
        return self.crashes()

    # --- frames ---------------------------------------------------------------------

    @property
    def trials(self) -> pd.DataFrame:
        """A row a trial, in the order of the levels; the columns are documented in docs/reference/files.md.

        ``part`` names the trials that share a noise, ``doubt`` why no comparison of that level is valid, ``error`` why a
        trial failed. A missing figure is null.
        """
        rows, doubts = self._experiment.by_level(), dict[str, list[str]]()
        for concern in self._own_concerns:
            if concern.grave and concern.level:
                doubts.setdefault(concern.level, []).append(concern.text)
        reasons = {level: " ".join(texts) for level, texts in doubts.items()}
        strata = self.study.plan.strata()
        return rows.assign(
            part=rows["level"].map(strata), doubt=rows["level"].map(reasons).astype(object)
        ).reset_index(drop=True)

    def seconds(self) -> pd.DataFrame:
        """A row a trial and second: ``level, block, second, tps`` and the host's and devices' figures; null where not sampled."""
        told = self._experiment.progress.rename(columns={"elapsed_s": "second"})
        told = told.assign(second=told["second"].round())
        return self._sorted(
            told.merge(self._experiment.recorded.seconds, on=["level", "block", "second"], how="outer")
        )

    def waits(self) -> pd.DataFrame:
        """Mean number of sessions per wait event: ``level, block, wait, sessions``; ``CPU`` are sessions that waited for nothing."""
        events = self._experiment.recorded.waits.drop(columns="second")
        means = events.groupby(["level", "block"], sort=False).mean()
        return self._sorted(
            means.melt(ignore_index=False, var_name="wait", value_name="sessions").reset_index()
        )

    def _sorted(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return a frame with its levels in the plan's order."""
        place = {name: number for number, name in enumerate(self.study.plan.factor.levels)}
        return frame.sort_values("level", key=lambda names: names.map(place), kind="stable").reset_index(
            drop=True
        )

    def checkpoints(self) -> pd.DataFrame:
        """The checkpoints during trials: ``level, block, start_s, end_s, kind``, seconds from the start of the load."""
        rows = self._experiment.recorded.checkpoints
        columns = ["level", "block", "start_s", "end_s", "kind"]
        return pd.DataFrame(columns=columns) if rows is None else rows

    def statements(self) -> pd.DataFrame:
        """What each statement of the scripts took, where it was measured: ``level, block, script, statement, latency_ms``."""
        return self._experiment.measured.statements

    def figures(self) -> pd.DataFrame:
        """What was sampled of each good trial, a row a trial: sizes, shares, rates, costs a transaction."""
        return self._experiment.figures

    def conditions(self) -> pd.DataFrame:
        """The conditions under which the effect can show: ``condition, level, wanted, median, held, trials, met``."""
        return self._experiment.conditions

    def bottlenecks(self) -> pd.DataFrame:
        """What limited each level: ``level, bottleneck`` and the shares that were in use."""
        return self._experiment.bottlenecks.drop(columns="sessions")

    def plans(self) -> pd.DataFrame:
        """The plans that servers chose (see :func:`benchlib.study.plans.explained`), without those of the controls."""
        return explained(self._experiment.trials, self._records(Plans), self.metric.name, self.controls)

    def parameters(self) -> pd.DataFrame:
        """Server parameters that differ between levels or from PostgreSQL's defaults: a row a parameter, a column a level."""
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
        """What ``pg_test_fsync`` reached where the WAL lies: ``level, method, flushes_per_s, used``."""
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
        """The replicas' lag, a row a reading: ``level, block, replica, second, replay_lag_s, replay_lag_bytes, write_lag_bytes``."""
        lags = ["replay_lag_s", "replay_lag_bytes", "write_lag_bytes"]
        rows = [
            {**row, "level": level, "block": block, "second": round(row["at_s"] - record.lag[0]["at_s"])}
            for level, block, record in self._records(ReplicaReadings)
            for row in record.lag
        ]
        frame = pd.DataFrame(rows, columns=["level", "block", "replica", "second", *lags])
        # the first reading comes right before the load
        return frame[frame["second"].gt(0)].astype(dict.fromkeys(lags, float))

    def verified(self) -> pd.DataFrame:
        """What was found on the replicas after each trial: ``level, block, synchronous_commit, held, count`` and more."""
        kept = self._records(ReplicaReadings)
        rows = [{"level": level, "block": block, **of.verified} for level, block, of in kept if of.verified]
        first = ["level", "block", "synchronous_commit", "held", "count"]
        return pd.DataFrame(
            rows, columns=[*first, *sorted({*(name for row in rows for name in row)} - {*first})]
        )

    def hosts(self) -> pd.DataFrame:
        """Which host ran what: ``level, server, role, host, round_trip_ms, busy_percent``, medians; one row where one host ran all."""
        rows = list[tuple[str, str, str, str, float, float]]()
        for trial_id, kept in self._experiment.kept.items():
            level, server = kept.trial.level, kept.ran_on or "this machine"
            rows.append((level, server, "server", server, 0.0, np.nan))
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
        """What crashes left, a row a crash: ``level, kind, number, acknowledged, lost, oldest_lost_ms, recovery_s, damage``."""
        rows = [crash.model_dump() for crash in kept_crashes(self._experiment.folder)]
        columns = [
            "level",
            "kind",
            "number",
            "acknowledged",
            "lost",
            "oldest_lost_ms",
            "recovery_s",
            "damage",
        ]
        return pd.DataFrame(rows, columns=columns)

    def published(self) -> pd.DataFrame:
        """The figures that earlier studies published for this factor (see :func:`benchlib.study.published.published_for`)."""
        frame, factor = published_for(self.study.notebook or ""), self.study.plan.factor
        named = {name: factor.named(name) or name for name in {*frame["level"], *frame["against"]}}
        return frame.assign(level=frame["level"].map(named), against=frame["against"].map(named))

    def by_setting(self, setting: str) -> pd.DataFrame:
        """The levels that differ in one server parameter, or in ``clients``, alone: ``series, level, value``.

        ``value`` is what the server said it ran with (bytes, seconds or a number); a level without it has no row.
        """
        plan = self.study.plan
        if setting == CLIENTS:
            values = {name: float(plan.level_load(name).clients) for name in plan.factor.levels}
        else:
            told = {
                m.trial.level: m.settings.get(setting, "")
                for m in self._experiment.kept.values()
                if m.error is None
            }
            values = {level: read[0] for level, text in told.items() if (read := quantity(text))}
        rows = [
            (series, level, values[level])
            for series, group in enumerate(plan.alike(setting))
            for level in group
            if level in values and len([each for each in group if each in values]) > 1
        ]
        return pd.DataFrame(rows, columns=["series", "level", "value"]).sort_values(["series", "value"])

    # --- what limits the answers ------------------------------------------------------

    def limits(self, effects: pd.DataFrame) -> pd.DataFrame:
        """Return at most seven limits of the answers, the worst first: ``code, level, value, text, grave``.

        ``effects`` is what :func:`benchlib.compare` returned. ``attrs["by_level"]`` has the worst limit of each answer.
        """
        answers = effects[effects["answer"].ne("")] if effects["answer"].ne("").any() else effects
        concerned = {*answers["level"], *answers["against"], *self.controls}
        if self.study.declared.screen:  # the answers are changes, and each level is a part of every answer
            concerned |= {*self.study.plan.factor.levels}
        concerns = [c for c in self._concerns(effects, answers) if c.level is None or c.level in concerned]
        concerns.sort(key=lambda concern: concern.order)
        by_level = {}
        for row in answers.to_dict("records"):
            own = next(
                (
                    c
                    for c in concerns
                    if c.level in (row["level"], row["against"]) or (c.grave and c.level is None)
                ),
                None,
            )
            by_level[row["level"]] = own.text if own else ""
        records = [concern.record() for concern in _joined(concerns)[:MOST_LIMITS]]
        frame = pd.DataFrame(records, columns=["code", "level", "value", "text", "grave"])
        frame["level"] = frame["level"].str.replace("[“”]", "", regex=True)  # of several levels
        frame.attrs = {"kind": "limits", "by_level": by_level, "unmet": self._unmet(answers)}
        return frame

    def _unmet(self, answers: pd.DataFrame) -> dict[str, str]:
        """Return the conditions that each comparison did not meet: those of its level and of its reference, where that is compared with none."""
        unmet, compared = (
            [c for c in self._own_concerns if c.code == "condition"],
            {*self.study.plan.factor.pairs()},
        )
        pairs = zip(answers["level"], answers["against"], strict=True)
        named = {level: {level} if other in compared else {level, other} for level, other in pairs}
        texts = {level: "; ".join(c.value for c in unmet if c.level in of) for level, of in named.items()}
        return {level: text for level, text in texts.items() if text}

    @property
    def _own_concerns(self) -> list[Concern]:
        return self._experiment.concerns

    def _concerns(self, effects: pd.DataFrame, answers: pd.DataFrame) -> list[Concern]:
        """All limits, in no order."""
        told = [
            Concern(w["code"], w["value"], w["grave"], w["level"]) for w in effects.attrs.get("warnings", ())
        ]
        concerns = [c for c in told if c.code != "doubt"] + self._own_concerns
        plan = self.study.plan
        for row in answers.to_dict("records"):
            if cost := self._cost(row["level"], row["against"]):
                concerns.append(Concern("durability", "; ".join(cost), level=row["level"]))
            if row["verdict"] == "inconclusive" and np.isfinite(row["mde_percent"]):
                concerns.append(
                    Concern(
                        "detectable",
                        f"{row['mde_percent']:{'.2g' if row['mde_percent'] < 100 else ',.0f'}} %",
                        level=row["level"],
                    )
                )
        if caveat := self.study.declared.stated_caveat:
            concerns.append(Concern("caveat", caveat))
        strays = effects[
            effects["level"].isin(self.controls) & effects["percent_change"].abs().gt(100 * self.margin)
        ]
        concerns += [
            Concern("control_strays", f"{row['percent_change']:+.1f} %", level=row["level"])
            for row in strays.to_dict("records")
        ]
        for row in self._experiment.bottlenecks.to_dict("records"):
            if row["bottleneck"].startswith(DISKS_CAP):
                concerns.append(Concern("disk_cap", self.disk_limits(row["level"]), level=row["level"]))
        names = {*answers["level"], *answers["against"]} & {*plan.factor.levels} or {*plan.factor.levels}
        levels = [plan.level(name) for name in names]
        parts = [level.part("storage") for level in levels]
        places = [part["data"] for part in parts if isinstance(part.get("data"), dict)]
        replicated = [part for level in levels if (part := level.part("replication")).get("replicas")]
        flags = {
            "external_server": any(level.target for level in levels),
            "replica_shares": any(not part.get("on") for part in replicated),
            "shared_machine": not any(level.target or plan.base.load.generators for level in levels)
            and not all(plan.level_load(name).generators for name in plan.factor.levels),
            "loop_device": any(place.get("file_system") not in (None, "tmpfs") for place in places),
        }
        return concerns + [Concern(code) for code, holds in flags.items() if holds]

    def _cost(self, level: str, against: str) -> tuple[str, ...]:
        """Return what a crash may cost at a level and not at its reference; or with a change of a screening, and not without it."""
        costs = self.study.crash_costs
        if level in self.study.plan.factor.levels:
            return () if (own := costs.get(level, ())) == costs.get(against, ()) else own
        signs = self.signs.get(level, pd.Series(dtype=int))
        high, low = ([{*costs.get(str(name), ())} for name in signs.index[signs == sign]] for sign in (1, -1))
        return tuple(sorted(set[str].intersection(*high).difference(*low))) if high else ()

    def disk_limits(self, level: str) -> str:
        """Return the limits that the study set on a level's disk, such as ``1,500 requests/s, 100 MB/s``."""
        storage = self.study.plan.level(level).part("storage")
        limits = [
            f"{storage[cap]:,} requests/s" if cap.endswith("iops") else f"{size_words(storage[cap])}/s"
            for cap in _CAPS
            if storage.get(cap)
        ]
        return ", ".join(dict.fromkeys(limits))

    # --- where it was measured --------------------------------------------------------

    @property
    def setup(self) -> pd.DataFrame:
        """What a reader wants to know at once: ``what, value``."""
        provenance, plan, trials = self.study.provenance, self.study.plan, self._experiment.trials
        good = trials[trials["error"].isna()]
        hosts = [*(provenance.get("hosts") or {"": provenance.get("host", {})}).values()]
        external = all(plan.level(name).target for name in plan.factor.levels)
        works = list(dict.fromkeys(plan.level_workload(name).label for name in plan.factor.levels))
        load = ", ".join(works) if len(works) <= _NAMED else f"{len(works)} workloads"
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
            "disk limits": "; ".join(dict.fromkeys(filter(None, map(self.disk_limits, plan.factor.levels)))),
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
        """Machine, servers, builds, flags, load tool, seeds and versions: ``what, value``."""
        told = {name: value for name, value in self.study.provenance.items() if name != "builds_differ"}
        servers = ["; ".join(map(str, filter(None, server.values()))) for server in told.pop("servers", [])]
        (facts,) = pd.json_normalize(told, sep=", ").to_dict("records") or [{}]
        rows = [("server", text) for text in servers] + [
            (str(k).replace("_", " "), str(v)) for k, v in facts.items()
        ]
        rows += [("seed", str(self.study.plan.seed)), ("notes", self.study.notes)]
        return pd.DataFrame(
            [(what, scrubbed(value)) for what, value in rows if value], columns=["what", "value"]
        )

    def _records(self, kind: type[Record]) -> list[tuple[str, int, Any]]:
        """The records of one kind that good trials left, each with its level and block, in the order of the levels."""
        good = good_ones(self._experiment.by_level())
        kept = ((level, block, kind.read(self._experiment.folder, name)) for level, block, name in good)
        return [(level, block, record) for level, block, record in kept if record is not None]


def _joined(concerns: list[Concern]) -> list[Concern]:
    """Join the limits of one code, so that a reader sees each once; the sentence names the first two levels.

    What levels give up, and conditions, are joined only where they are the same.
    """
    groups = dict[tuple[str, str], list[Concern]]()
    for concern in dict.fromkeys(concerns):
        value = concern.value if concern.code in ("durability", "condition") else ""
        groups.setdefault((concern.code, value), []).append(concern)
    joined = list[Concern]()
    for of_code in groups.values():
        first, levels = of_code[0], [c.level for c in of_code if c.level]
        if len(levels) < len(of_code) or len(set(levels)) < 2:
            joined += of_code[:1]
            continue
        levels = list(dict.fromkeys(levels))
        name = "”, “".join([*levels[:_NAMED], *["…"] * (len(levels) > _NAMED)])
        joined.append(Concern(first.code, first.value, any(c.grave for c in of_code), name))
    return joined


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
    """A parameter's value with its unit: ``128 MB``, ``300 s``."""
    value, unit = row[which], row["unit"]
    if value is None:
        return "not shown"
    if not unit or value.startswith("-"):
        return value or "empty"
    read = quantity(shown(value, unit))
    return size_words(int(read[0])) if read and read[1] == "B" else f"{value} {unit}"
