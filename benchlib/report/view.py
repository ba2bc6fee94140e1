"""An experiment that shows itself: in its notebook, and in the page that is made from it.

Every method returns something with an HTML form of its own, so a notebook's cells stay
one line long and hold no logic.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from benchlib.plan.metrics import METRICS
from benchlib.plan.model import Study
from benchlib.plan.words import rates_words
from benchlib.report import figures as plots
from benchlib.report.figures.frames import in_common, signed
from benchlib.report.figures.levels import levels_table
from benchlib.report.figures.mechanism import comparable, correlation_table, costs_table, statements_table
from benchlib.report.figures.panels import FEW
from benchlib.report.figures.tables import Table, html_table, p_words, verdict_table
from benchlib.stats.multiple import exploratory
from benchlib.stats.sensitivity import sensitivity
from benchlib.study.experiment import Experiment
from benchlib.study.loop import missing
from benchlib.study.results import statements_frame, tunables
from benchlib.study.store import StudyFolder

if TYPE_CHECKING:
    from benchlib.study.runs import Runner

EXPLORATORY = (
    "latency_average_ms",
    "latency_stddev_ms",
    "latency_p99_ms",
    "latency_p999_ms",
)
_FORMATS = dict.fromkeys(("percent_change", "ci_low", "ci_high"), signed) | {
    name: lambda p: p_words(p) or "" for name in ("p_value", "p_bh")
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


class View(Experiment):
    """An experiment with its tables, charts and sentences; with a ``runner`` what is missing can be run."""

    def __init__(self, folder: StudyFolder, study: Study, *, runner: Runner | None = None) -> None:
        super().__init__(folder, study)
        self.runner = runner

    def summary(self) -> Statement:
        """What will run, how long it takes, and what is kept already."""
        load, left = self.plan.load, missing(self.study, self.folder.kept() if self.folder.exists() else ())
        minutes = len(left) * (load.duration_s + load.warmup_s + 1) / 60
        todo = f"{len(left)} to run, about {max(1, round(minutes))} min" if left and self.runner else "kept"
        stops = ", or fewer if all is settled earlier" if self.plan.looks else ""
        return Statement(
            f"Study “{self.folder.name}”: {len(self.plan.factor.levels)} arms × {self.study.blocks} blocks = "
            f"{len(self.study.trials)} trials of {load.duration_s} s{stops} ({todo}). Load: {self.workloads()}, "
            f"{self.clients()} on {self._threads()}, {load.protocol} protocol{rates_words(self.plan)}. "
            + self._capacity_words()
            + self._profile_words()
            + self._left_out_words()
        )

    def _threads(self) -> str:
        """How many threads of the load tool drive the levels."""
        loads = [self.plan.level_load(name) for name in self.plan.factor.levels]
        counts = sorted({min(load.threads, load.clients) for load in loads})
        return f"{counts[0]} to {counts[-1]} threads" if len(counts) > 1 else f"{counts[0]} threads"

    def _capacity_words(self) -> str:
        if not self.runner or self.plan.capacity_tps or not self.plan.capacity_shares():
            return ""
        return f"Before them {self.runner.CAPACITY_TRIALS} trials of the baseline without a limit show its capacity. "

    def _profile_words(self) -> str:
        profile = self.study.parameters.get("profile")
        if profile in (None, "full"):
            return ""
        return f"These are the sizes of the profile “{profile}”, scaled down from the original study's, which are “full”."

    def _left_out_words(self) -> str:
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.study.left_out.items():
            by_reason.setdefault(reason, []).append(f"“{name}”")
        said = [f"{', '.join(names)} ({reason})" for reason, names in by_reason.items()]
        pronoun = "it" if len(self.study.left_out) == 1 else "them"
        return f" Left out, since this machine cannot run {pronoun}: {'; '.join(said)}." if said else ""

    def levels(self) -> Table:
        """What differs between the levels, and what each gives up if the machine crashes."""
        return levels_table(self.plan)

    def preflight(self) -> Table:
        """What the run needs of this machine, checked; nothing is checked when nothing is left to run.

        Raises:
            PreflightError: this machine cannot run it.

        """
        if not self.runner or (self.folder.exists() and not missing(self.study, self.folder.kept())):
            rows = [("trials", "nothing is run: what is shown is kept, no server is needed")]
        else:
            rows = self.runner.preflight()
        return html_table(pd.DataFrame(rows, columns=["check", "found"]), caption="Preflight")

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

    def exploratory(self) -> Table | Statement:
        """Every other figure of the trials by the same model: leads to follow, not verdicts."""
        names = [name for name in EXPLORATORY if name != self.plan.metric]
        good = self.by_level()[lambda trials: trials["error"].isna()]
        rows = self._leads(good[["level", "block"]].join(good[names].astype(float)))
        if rows.empty:
            return Statement("The trials left no other figure by which the levels could be compared.")
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
        return plots.drift(self.trials, self.plan.metric, list(self.plan.factor.levels))

    def timeline(self) -> plots.Figure:
        """tps over time inside the trials, with the checkpoints."""
        checkpoints = self.recorded.checkpoints if self.recorded.logged else None
        # loading is one piece of work, with no rate inside it
        levels = [x for x in self.plan.factor.levels if self.plan.level_workload(x).tool != "pgbench-init"]
        return plots.timeline(
            self.progress, levels=levels, checkpoints=checkpoints, relative=self._in_parts(levels)
        )

    def shares(self) -> plots.Figure | Statement:
        """Each setting's share, where the study took a level apart (the parameter ``shares_of``)."""
        target = self.study.parameters.get("shares_of")
        if not target:
            baseline = self.plan.factor.levels[self.plan.factor.baseline].settings.items()
            levels = self.plan.factor.levels.items()
            names = [name for name, level in levels if len(level.settings.items() - baseline) > 1]
            if not names:
                return Statement(
                    "This study compares whole levels, and none of them changes two settings or more."
                )
            return Statement(
                f"This study compares whole levels. To see each setting's share, run it again with "
                f"shares_of = “{names[0]}”: every setting alone, and the whole set without it."
            )
        return plots.shares(self.analysis, full=target)

    # --- why ------------------------------------------------------------------------

    def mechanism(self) -> Table:
        """What the trials cost, per level: CPU, switches, I/O, WAL, pages; under a rate the lag."""
        factor = self.plan.factor
        costs, note = self.recorded.costs, ""
        if self.trials["rate_tps"].notna().any():
            note = "Under a rate latency counts from the scheduled start, so the lag is in it."
        else:
            costs = costs.drop(columns=["schedule_lag_average_ms", "schedule_lag_max_ms"])
        if not any(self.plan.level(name).replication for name in factor.levels):
            costs = costs.drop(columns="replay_lag_ms")
        against = factor.baseline if factor.one_reference else "the level named with each"
        return costs_table(costs, list(factor.levels), self._leads(costs), against=against, note=note)

    def _leads(self, figures: pd.DataFrame) -> pd.DataFrame:
        """The study's comparisons by each of some figures (``level, block``, and theirs), among the levels that have it."""
        baseline, controls = self.plan.factor.baseline, self.plan.factor.controls
        found = {}
        for name in figures.columns.drop(["level", "block"]):
            rows = figures.loc[
                figures.groupby("level")[name].transform("count") > 0, ["level", "block", name]
            ]
            there = set(rows["level"])
            if comparable(rows) and baseline in there and there - {baseline, *controls}:
                found[name] = self.judge(rows, name)
        return exploratory(found)

    def statements(self) -> Table | None:
        """What each statement took, where the study had the load tool report it (``report_per_command``)."""
        found = statements_frame(self.folder)
        return statements_table(found, list(self.plan.factor.levels)) if len(found) else None

    def waits(self) -> plots.Figure | Statement:
        """What the load's sessions waited for, a bar per level."""
        if self.recorded.waits.empty:
            return self._unrecorded("what the sessions waited for")
        return plots.waits_by_level(self.recorded.waits, list(self.plan.factor.levels))

    def waits_over_time(self) -> plots.Figure | None:
        """The same over time, a panel per level."""
        if self.recorded.waits.empty:
            return None  # it has been said
        return plots.waits_over_time(self.recorded.waits, list(self.plan.factor.levels))

    def devices(self, levels: Sequence[str] = ()) -> plots.Figure | Statement:
        """Speed, waits and the devices of data and WAL over time, of the levels named, or else of those that differ most."""
        found = self.recorded
        there = [name for name in levels if name in self.plan.factor.levels]
        if levels and not there:
            return Statement(f"None of these levels is in this study: {', '.join(levels)}.")
        shown, note = (there, "") if there else self._few()
        if found.seconds.empty:
            return self._unrecorded("what the devices did")
        away = [name for name in shown if self.plan.level(name).target]
        if away:
            note += f" The host of {', '.join(away)} is not ours: nothing is known of its devices."
        return plots.device_panels(
            self.progress, found.seconds, found.waits, shown, note.strip(), relative=self._in_parts(shown)
        )

    def correlation(self) -> Table | Statement:
        """Waits against speed and host."""
        table = correlation_table(self.recorded.seconds, self.recorded.waits, self.progress)
        return table or Statement(
            "Waits cannot be set against the host: one of them was not sampled, or for less than twenty seconds in all."
        )

    def latency_ladder(self) -> plots.Figure | Statement:
        """Latency quantiles per level, where logs of all transactions are kept."""
        levels, note = self._few()
        if self.trials["latency_p50_ms"].isna().all():
            return Statement(
                "No log of all transactions was kept, so quantiles are not known (a latency as the metric keeps one)."
            )
        return plots.quantile_ladder(self.trials, levels, note)

    def latency_over_time(self) -> plots.Figure | None:
        """All latencies over time, where logs of all transactions are kept."""
        if not self.latencies:
            return None  # it has been said
        return plots.latency_over_time(self.latencies, list(self.plan.factor.levels))

    def client_sweep(self, workload: str = "") -> plots.Figure | Statement:
        """Throughput by number of clients, where levels differ in it; of the levels of one workload, if it is named."""
        asked = [c for c in self._curves() if workload in ("", self.plan.level_workload(c[0]).name)]
        curves = {name: curve for curve in asked for name in curve}
        clients = {name: self.plan.level_load(name).clients for name in curves}
        if not curves:
            return Statement(f"No level of this study runs {workload}.")
        if len(set(clients.values())) < 2:
            return Statement("All levels of this study have the same number of clients.")
        rows = self.by_level()[lambda trials: trials["level"].isin(list(curves))]
        names = {name: in_common(curve) for name, curve in curves.items()}
        return plots.client_sweep(
            rows.assign(clients=rows["level"].map(clients), level=rows["level"].map(names)), self.plan.metric
        )

    def _curves(self) -> list[list[str]]:
        """The levels, those together that differ in clients and threads alone; without the controls."""
        found: dict[str, list[str]] = {}
        for name, level in self.plan.factor.levels.items():
            if name not in self.plan.factor.controls:
                load = level.load.model_copy(update={"clients": None, "threads": None})
                found.setdefault(level.model_copy(update={"load": load}).model_dump_json(), []).append(name)
        return list(found.values())

    def _in_parts(self, levels: Sequence[str]) -> bool:
        """Whether some of the levels run workloads that are not compared with each other."""
        parts = self.plan.strata()
        return len({parts[name] for name in levels}) > 1

    def _few(self) -> tuple[list[str], str]:
        """The levels that one panel has room for: the baseline, and those that differ most from it; and a note."""
        names = list(self.plan.factor.levels)
        if len(names) <= FEW:
            return names, ""
        change = self.analysis.table.set_index("level")["percent_change"].abs()
        others = change.drop(list(self.plan.factor.controls), errors="ignore").nlargest(FEW - 1).index
        shown = [name for name in names if name == self.plan.factor.baseline or name in others]
        return (
            shown,
            f"Of the {len(names)} levels the {FEW - 1} that differ most from "
            f"{'the baseline' if self.analysis.one_reference else 'what each is compared with'} are shown beside "
            f"{'it' if self.analysis.one_reference else 'the baseline'}.",
        )

    def _unrecorded(self, what: str) -> Statement:
        return Statement(f"Nothing was sampled during these trials, so {what} is not known.")

    def provenance(self) -> Table:
        """Where and with what this was measured, and the tunables that were in force."""
        kept = dict(self.study.provenance)
        servers = [("server", "; ".join(filter(None, s.values()))) for s in kept.pop("servers", [])]
        rows = [(name, _words(value)) for name, value in _flatten(kept) if name != "builds differ"]
        for tunable, levels in tunables(self.folder).items():
            in_force = "; ".join(f"{value} ({names})" for value, names in levels.items())
            rows.append((f"tunable, {tunable}", in_force))
        return html_table(pd.DataFrame([*servers, *rows], columns=["what", "value"]), caption="Provenance")

    def rerun(self) -> Statement:
        """The commands that extend this study here, and run it anew on another machine from its download."""
        name, command = self.folder.name, f"benchlib run {self.study.notebook}"
        blocks = "auto" if self.plan.looks else self.study.blocks + 2
        extend = f"{command} -p study {name} -p blocks {blocks}"
        return Statement(f"{extend}\n{command} -f {name}.study.json  # elsewhere", kind="command")


def _flatten(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, inner in value.items():
        name = f"{prefix}{key}".replace("_", " ")
        rows += _flatten(inner, f"{name}, ") if isinstance(inner, Mapping) else [(name, inner)]
    return rows


def _words(value: Any) -> str:
    if value is None:
        return "not known"
    return {"True": "yes", "False": "no"}.get(str(value), str(value))
