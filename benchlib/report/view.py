"""An experiment in tables, charts and sentences: in its notebook, and in the page that is made from it.

Every method returns something with an HTML form of its own, or None where the study has nothing of the kind, so a
notebook's cells stay one line long and hold no logic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pandas as pd

from benchlib.plan.model import CLIENTS, Plan
from benchlib.plan.words import HOST_GRANTS, rates_words, unpublished, without
from benchlib.report.answers import answers, headline, limits, sentence, words_of
from benchlib.report.figures import changes, mechanism, over_time, responses
from benchlib.report.figures.figure import Figure
from benchlib.report.figures.frames import by_value, change_cells, in_common, quoted, span
from benchlib.report.figures.hosts import who_ran_what
from benchlib.report.figures.style import FEW, TEMPLATES, worded
from benchlib.report.figures.tables import Table, html_table, levels_table, p_words, verdict_table
from benchlib.stats.sensitivity import sensitivity
from benchlib.study.experiment import Experiment
from benchlib.study.loop import missing
from benchlib.study.records import ReplicaReadings
from benchlib.study.results import tunables
from benchlib.study.store import notebooks

if TYPE_CHECKING:
    from benchlib.study.runs import Runner

_LATENCIES = ("latency_average_ms", "latency_stddev_ms", "latency_p99_ms", "latency_p999_ms")


@dataclass(frozen=True)
class Statement:
    """A sentence that shows itself; ``kind`` is its class in the page: plain, headline, command, or absent, which a page leaves out; ``limits`` stand below it."""

    text: str
    kind: str = "plain"
    limits: str = ""

    def __str__(self) -> str:
        return "\n".join(filter(None, (self.text, self.limits)))

    def _repr_html_(self) -> str:
        return TEMPLATES.get_template("statement.html.j2").render(vars(self))


class View:
    """Shows an experiment; with a ``runner`` what is missing of it can be run."""

    def __init__(self, experiment: Experiment, runner: Runner | None = None) -> None:
        self.experiment = experiment
        self.runner = runner

    @property
    def _plan(self) -> Plan:
        return self.experiment.plan

    @property
    def _levels(self) -> list[str]:
        return list(self._plan.factor.levels)

    def _to_run(self) -> int:
        """How many trials are left to be run from here."""
        study, folder = self.experiment.study, self.experiment.folder
        return len(missing(study, folder.kept() if folder.exists() else ())) if self.runner else 0

    def summary(self) -> Statement:
        """What will run, how long it takes, and what is kept already."""
        study, load, left = self.experiment.study, self._plan.load, self._to_run()
        over = self.runner or self.experiment.settled()
        lacking = 0 if over else len(missing(study, self.experiment.kept))
        minutes = max(1, round(left * (load.duration_s + load.warmup_s + 1) / 60))
        profile, hidden = study.parameters.get("profile", "full"), unpublished(self._plan, study.parameters)
        left_out = by_value(without(study.left_out, hidden))
        return Statement(sentence(
            "summary", experiment=self.experiment, study=study, plan=self._plan, left=left, minutes=minutes,
            lacking=lacking, rates=rates_words(self._plan), profile=profile, left_out=left_out,
        ))  # fmt: skip

    def levels(self) -> Table:
        """What differs between the levels, and what each gives up if the machine crashes."""
        return levels_table(self.experiment.study)

    def hosts(self) -> Figure | None:
        """Who ran what on a fleet, and how far from the server; None where one host did everything."""
        rows = list[tuple[str, str, str, str, str, float | None]]()
        for trial_id, kept in self.experiment.kept.items():
            here, level = kept.ran_on or "this machine", kept.trial.level
            server = "the target" if self._plan.level(level).target else here
            # as planned: a trial that failed may tell of no generator
            by_itself = not self._plan.level_load(level).generators
            serves = "server, load tool" if by_itself and server == here else "server"
            rows.append((server, server, "server", serves, level, None))
            if by_itself and server != here:
                rows.append((server, here, "load", "load tool", level, None))
            for one in kept.generators:
                rows.append((server, one.host, "load", "load tool", level, one.round_trip_s))
            if replicas := ReplicaReadings.read(self.experiment.folder, trial_id):
                for name, away in replicas.elsewhere.items():
                    rows.append((server, away.host, "follower", name, level, away.round_trip_s))
        columns = ["server", "host", "role", "runs", "level", "round_trip_ms"]
        frame = pd.DataFrame(rows, columns=columns).astype({"round_trip_ms": float})
        if not frame["host"].nunique() > 1:
            return None
        frame["round_trip_ms"] *= 1000
        order = frame["level"].map({level: place for place, level in enumerate(self._levels)})
        return who_ran_what(frame.iloc[order.argsort(kind="stable")])

    def preflight(self) -> Table | None:
        """What is to be run, and what that needs of this machine, checked; None when nothing is left to run.

        Raises:
            PreflightError: this machine cannot run it.

        """
        if not self.runner or not self._to_run():
            return None
        rows = [("to be run", str(self.summary())), *self.runner.preflight()]
        return html_table(pd.DataFrame(rows, columns=["check", "found"]), caption="Preflight")

    # --- the verdicts ---------------------------------------------------------------

    def doubts(self) -> Table | None:
        """The grave reasons for doubt, which make verdicts invalid."""
        return self._warnings("Grave reasons for doubt", grave=True)

    def validity(self) -> Table | None:
        """What else is to be said against the verdicts."""
        return self._warnings("Reasons for doubt", grave=False)

    def _warnings(self, caption: str, *, grave: bool) -> Table | None:
        warnings = [w for w in self.experiment.analysis.warnings if w.grave == grave]
        rows = [(warning.level or "the study", warning.message) for warning in warnings]
        return html_table(pd.DataFrame(rows, columns=["about", "what"]), caption) if rows else None

    def conditions(self) -> Table | None:
        """What must be so for the effect to show, and whether it was: a row per condition and level, the unmet ones first."""
        rows = self.experiment.conditions
        if rows.empty:
            return None
        rows = rows.assign(
            held=[f"{row.held} of {row.trials}" for row in rows.itertuples()],
            met=rows["met"].map({True: "met", False: "not met"}).fillna("not known"),
        )
        same = rows.groupby(["condition", "wanted", "met", "held"], sort=False)
        table = same.agg(
            median=("median", lambda values: span(values) or "–"),
            level=("level", lambda names: ", ".join(dict.fromkeys(names))),
        )
        table = table.reset_index().sort_values("met", key=lambda met: met == "met", kind="stable")
        labels = {"held": "trials", "median": "median of a level", "level": "levels"}
        columns = ["condition", "met", "wanted", "median", "held", "level"]
        return html_table(table[columns], "What must be so for the effect to show", labels=labels)

    def headline(self) -> Statement:
        """What answers the question, and below it what the study cannot show."""
        return Statement(headline(self.experiment), kind="headline", limits=limits(self.experiment))

    def verdicts(self) -> Table:
        """Means, deviations, intervals and verdicts, a row per level."""
        return verdict_table(self.experiment.analysis, durability=self.experiment.durability())

    def sensitivity(self) -> Table | None:
        """The same question by methods with other assumptions; None where they say nothing: with fewer than six blocks, or of several hosts."""
        rows = sensitivity(self.experiment.analysis)
        if rows.empty:
            return None
        ends = rows[["percent_change", "ci_low", "ci_high"]].to_numpy().tolist()
        words = pd.DataFrame([change_cells(*row) for row in ends], rows.index, ["change", "interval"])
        table = rows[["level", "method"]].join(words.mask(words.isin(["", "–"]))).assign(p=rows["p_value"])
        caption = "The same by other methods (each p by itself, not adjusted for their number)"
        return html_table(table, caption, formats={"change": str, "interval": str, "p": p_words})

    def forest(self) -> Figure:
        """Percentage changes with their intervals."""
        durability, words = self.experiment.durability(), words_of(self.experiment.study)
        return changes.forest(self.experiment.analysis, durability=durability, words=words)

    def drift(self) -> Figure:
        """The trials in the order in which they ran."""
        return over_time.drift(self.experiment.trials, self._plan.metric)

    def timeline(self) -> Figure | None:
        """tps over time inside the trials, with the checkpoints; None where all that was run is loading."""
        # loading is one piece of work, with no rate inside it
        levels = [name for name in self._levels if self._plan.level_workload(name).tool != "pgbench-init"]
        if not levels:
            return None
        warnings = sorted(self.experiment.analysis.warnings, key=lambda each: not each.grave)
        told = [each for each in warnings if each.code == "no_steady_state"]
        doubts = [
            each.brief if each.grave else f"{each.level!r} starts or ends otherwise than it runs"
            for each in told
        ]
        doubts += [each.brief for each in warnings if each.code == "too_short"]
        return over_time.timeline(
            self.experiment.progress, levels=levels, checkpoints=self.experiment.recorded.checkpoints,
            title=(doubts or ["Steady inside trials, as far as the readings tell"])[0],
        )  # fmt: skip

    def shares(self) -> Figure | None:
        """Each setting's share, where the study took a level apart (the parameter ``shares_of``)."""
        target, analysis = self.experiment.study.declared.shares_of, self.experiment.analysis
        return changes.shares(analysis, target) if target and not analysis.invalid(self._levels) else None

    # --- why ------------------------------------------------------------------------

    def why(self) -> Statement | None:
        """What held each level back, in a sentence."""
        if self.experiment.recorded.seconds.empty:
            return None
        factor, rows = self._plan.factor, self.experiment.bottlenecks
        every = [name for name in factor.levels if name not in factor.controls]
        alike = rows[rows["level"].isin(every)].groupby("bottleneck", sort=False)["level"]
        told = {name: _together(levels.tolist(), every) for name, levels in alike}
        return Statement(sentence("bottlenecks", told=told))

    def mechanism(self) -> Table:
        """What held each level back, where it was sampled; what its trials cost, and how long transactions took: leads, not verdicts."""
        trials, analysis = self.experiment.trials, self.experiment.analysis
        against = "what the table of verdicts compares it with"
        if analysis.one_reference:
            against = analysis.baseline
        cached = any(self._plan.level(name).cache for name in self._levels)
        others = [name for name in (*_LATENCIES, *["time_to_steady_s"] * cached) if name != self._plan.metric]
        took = trials.loc[trials["error"].isna(), ["level", "block", *others]]
        costs = self.experiment.costs.merge(took.astype(dict.fromkeys(others, float)))
        rated = costs["schedule_lag_average_ms"].notna().any()
        replicated = [self._plan.level(name).part("replication") for name in self._levels]
        replicas = any(of.get("replicas") and not of.get("on") for of in replicated)
        versions = trials["server_version"].dropna().str.split(".").str[0].nunique()
        note = sentence("costs", rated=rated, replicas=replicas, versions=versions, abroad=self._plan.abroad)
        table = mechanism.costs_table(
            costs, self._levels, self.experiment.leads(costs), against=against, note=note
        )
        if self.experiment.recorded.seconds.empty:
            return table
        return replace(table, html=mechanism.bottlenecks_table(self.experiment.bottlenecks).html + table.html)

    def statements(self) -> Table | None:
        """What each statement took, where the study had the load tool report it (``report_per_command``)."""
        rows = self.experiment.measured.statements
        return mechanism.statements_table(rows, self._levels) if len(rows) else None

    def waits(self) -> Figure | None:
        """What the load's sessions waited for, a bar per level; None where nearly all had a processor."""
        waits = self.experiment.recorded.waits
        return None if waits.empty else over_time.waits_by_level(waits, self._levels, self._pair())

    def devices(self, levels: Sequence[str] = (), figures: Sequence[str] = ()) -> Figure | None:
        """Speed, waits and the devices of data and WAL over time, of the levels named, or else of those that differ most.

        ``figures`` names others than a ladder's (:data:`benchlib.report.figures.over_time.DEVICES`).
        """
        recorded = self.experiment.recorded
        named = [name for name in levels if name in self._plan.factor.levels]
        if recorded.seconds.empty or (levels and not named):
            return None
        shown, note = (named, "") if named else self._few()
        sampled = set(recorded.seconds.dropna(subset="cpu_user_percent")["level"])
        remote = [name for name in shown if self._plan.level(name).target]
        hosts = worded("devices", {"remote": remote, "sampled": sampled, "grants": HOST_GRANTS})
        return over_time.device_panels(
            self.experiment.progress, recorded.seconds, recorded.waits, shown, f"{note} {hosts}".strip(),
            figures=figures or over_time.LADDER, pair=() if named else self._pair(),
            name="-".join(["devices", *named[:1], *figures[:1]]),
        )  # fmt: skip

    def correlation(self) -> Table | None:
        """Waits against speed and host."""
        recorded = self.experiment.recorded
        return mechanism.correlation_table(recorded.seconds, recorded.waits, self.experiment.progress)

    def latency_ladder(self) -> Figure | None:
        """Latency quantiles per level, where logs of all transactions are kept."""
        if self.experiment.trials["latency_p50_ms"].isna().all():
            return None
        return responses.quantile_ladder(self.experiment.trials, *self._few())

    def client_sweep(self, workload: str = "") -> Figure | None:
        """Throughput by number of clients, where levels differ in it; of the levels of one workload, if it is named."""
        levels = self._by_clients(workload)
        if levels["clients"].nunique() < 2:
            return None
        rows = self.experiment.by_level().drop(columns="clients", errors="ignore").merge(levels, on="level")
        return responses.client_sweep(rows.assign(level=rows["series"]), self._plan.metric, workload)

    def change_by_clients(self) -> Figure | None:
        """What a change brings at each number of clients, where levels are compared with others of as many clients."""
        analysis, levels = self.experiment.analysis, self._by_clients()
        rows = levels.merge(analysis.table.dropna(subset="percent_change"), on="level")
        other = pd.MultiIndex.from_arrays([rows["level"].map(dict(analysis.against)), rows["clients"]])
        rows["against"] = levels.set_index(["level", "clients"])["series"].reindex(other).to_numpy()
        names = {"clients": "x", "percent_change": "value", "ci_low": "low", "ci_high": "high"}
        rows = rows.dropna(subset="against").rename(columns=names)[["series", *names.values(), "against"]]
        several = rows["x"].nunique() > 1 and not analysis.invalid(levels["level"])
        return responses.change_by_clients(rows, analysis) if several else None

    def _by_clients(self, workload: str = "") -> pd.DataFrame:
        """The levels of a workload, or of all: ``level, clients``, and as ``series`` what those that differ in it alone have in common."""
        plan = self._plan
        groups = [g for g in plan.alike(CLIENTS) if workload in ("", plan.level_workload(g[0]).name)]
        rows = [(level, plan.level_load(level).clients, in_common(g)) for g in groups for level in g]
        return pd.DataFrame(rows, columns=["level", "clients", "series"])

    def _pair(self) -> tuple[str, ...]:
        """What the first answer compares: the reference, and the level."""
        told = answers(self.experiment)[:1]
        return next(((each.against, each.level) for each in told if each.against != each.level), ())

    def _few(self) -> tuple[list[str], str]:
        """The levels that one panel has room for: the baseline, and those that differ most from it; and a note."""
        analysis, factor, names = self.experiment.analysis, self._plan.factor, self._levels
        if len(names) <= FEW:
            return names, ""
        change = analysis.table.set_index("level")["percent_change"].abs()
        others = change.drop(list(factor.controls), errors="ignore").nlargest(FEW - 1).index
        note = f"Of the {len(names)} levels the {FEW - 1} that differ most from what each is compared with are shown beside the baseline."
        return [name for name in names if name == factor.baseline or name in others], note

    def provenance(self) -> Table:
        """Where and with what this was measured, and the tunables that were in force."""
        provenance = dict(self.experiment.study.provenance)
        servers = [("server", "; ".join(filter(None, s.values()))) for s in provenance.pop("servers", [])]
        provenance.pop("builds_differ", None)
        if hosts := provenance.pop("hosts", {}):  # of a fleet: what differs stands side by side
            told = pd.DataFrame({name: pd.json_normalize(of, sep=", ").iloc[0] for name, of in hosts.items()})
            provenance["host"] = {}
            for fact, of in told.iterrows():
                each = "; ".join(f"{name}: {value}" for name, value in of.items())
                provenance["host"][fact] = of.iloc[0] if of.astype(str).nunique() == 1 else each
        (facts,) = pd.json_normalize(provenance, sep=", ").to_dict("records")
        words = {"None": "not known", "True": "yes", "False": "no"}
        rows = [(str(name).replace("_", " "), words.get(str(of), str(of))) for name, of in facts.items()]
        for tunable, levels in tunables(self._plan, self.experiment.kept).items():
            in_force = "; ".join(f"{value} ({names})" for value, names in levels.items())
            rows.append((f"tunable, {tunable}", in_force))
        rows = [*servers, *rows, *self._work()]
        return html_table(pd.DataFrame(rows, columns=["what", "value"]), caption="Provenance")

    def _work(self) -> Iterator[tuple[str, str]]:
        """The scripts of the workloads that ran, with their weights, and what was checked after each trial."""
        works = {work.name: work for work in map(self._plan.level_workload, self._levels)}
        for name, work in works.items():
            total = sum(script.weight for script in work.scripts)
            for number, script in enumerate(work.scripts, 1):
                source = script.sql or f"pgbench's {script.builtin}"
                yield f"{name}, script {number}, weight {script.weight} of {total}", source
            check = work.invariant
            if work.load_sql:
                yield f"{name}, tables and functions", work.load_sql
            checks = [f"{check.count} must grow by {check.per_transaction} a transaction"] * bool(check.count)
            checks += [f"{check.violations} must return 0"] * bool(check.violations)
            yield f"{name}, check after a trial", "; ".join(checks) or "none"

    def rerun(self) -> Statement:
        """The command that repeats this study anywhere, and apart from it the one that adds blocks to it here."""
        study, name = self.experiment.study, self.experiment.folder.name
        blocks = "auto" if self._plan.looks else study.blocks + 2
        notebook = study.notebook if study.notebook in notebooks() else "template"
        facts = {"notebook": notebook, "name": name, "fleet": study.provenance.get("hosts"), "blocks": blocks}
        return Statement(worded("rerun", facts), kind="command")


def _together(levels: list[str], every: list[str]) -> str:
    """Levels in words: “all levels”, what only they begin with, or the first three of them."""
    if len(levels) == len(every) > 1:
        return "all levels"
    start = in_common(levels)
    if levels == [name for name in every if name.startswith(start)] != [start]:
        return f"“{start} …”"
    return quoted(levels[:3]) + f" and {len(levels) - 3} more" * (len(levels) > 3)
