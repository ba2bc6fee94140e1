"""An experiment that shows itself: in its notebook, and in the page that is made from it.

Every method returns something with an HTML form of its own, so a notebook's cells stay
one line long and hold no logic.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from benchlib import plots
from benchlib.experiment import Experiment
from benchlib.levers.preflight import preflight
from benchlib.metrics import METRICS
from benchlib.plots.frames import signed
from benchlib.plots.levels import levels_table, rates_words
from benchlib.plots.tables import Table, html_table, p_words, verdict_table
from benchlib.results import tunables
from benchlib.stats.multiple import exploratory
from benchlib.stats.sensitivity import sensitivity
from benchlib.study import missing

EXPLORATORY = (
    "latency_average_ms",
    "latency_stddev_ms",
    "latency_p99_ms",
    "schedule_lag_average_ms",
    "wal_bytes_per_transaction",
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
    """An experiment with its tables, charts and sentences."""

    def summary(self) -> Statement:
        """What will run, how long it takes, and what is kept already."""
        load, left = self.plan.load, missing(self.study, self.folder.kept() if self.folder.exists() else ())
        minutes = len(left) * (load.duration_s + load.warmup_s + 1) / 60
        todo = f"{len(left)} to run, about {max(1, round(minutes))} min" if left and self.may_run else "kept"
        stops = ", or fewer if all is settled earlier" if self.plan.looks else ""
        return Statement(
            f"Study “{self.folder.name}”: {len(self.plan.factor.levels)} arms × {self.study.blocks} blocks = "
            f"{len(self.study.trials)} trials of {load.duration_s} s{stops} ({todo}). Load: {self.plan.workload.title.lower()}, "
            f"{load.clients} clients on {min(load.threads, load.clients)} threads, {load.protocol} protocol{rates_words(self.plan)}. "
            + self._profile_words()
        )

    def _profile_words(self) -> str:
        profile = self.study.parameters.get("profile")
        if profile in (None, "full"):
            return ""
        return f"These are the sizes of the profile “{profile}”, scaled down from the original study's, which are “full”."

    def levels(self) -> Table:
        """What differs between the levels, and what each gives up if the machine crashes."""
        return levels_table(self.plan)

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
        rows = exploratory(self.by_level(), usable, baseline=factor.baseline, controls=factor.controls)
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

    def mechanism(self) -> Table:
        """What the trials cost, averaged per level: WAL, checkpoints, the load tool's own CPU; under a rate the lag."""
        good = self.trials[self.trials["error"].isna()]
        columns = {
            "wal_bytes_per_transaction": "WAL, bytes",
            "checkpoints": "checkpoints",
            "client_cpu_share": "client CPU, %",
            "latency_average_ms": "latency, ms",
            "latency_stddev_ms": "± inside a trial, ms",
        }
        note = "WAL is per transaction, checkpoints per trial; client CPU is the share of its time that a pgbench thread was busy."
        if good["rate_tps"].notna().any():
            columns |= {
                "schedule_lag_average_ms": "schedule lag, ms",
                "schedule_lag_max_ms": "highest lag, ms",
            }
            note += " Under a rate latency counts from the scheduled start, so the lag is in it."
        means = good.groupby("level", sort=False)[list(columns)].mean().reindex(list(self.plan.factor.levels))
        means["client_cpu_share"] *= 100
        shown = means.rename(columns=columns).reset_index()
        note = "WAL is per transaction, checkpoints per trial; client CPU is the share of its time that a pgbench thread was busy."
        return html_table(shown, caption="What a trial cost, mean per level", note=note)

    def provenance(self) -> Table:
        """Where and with what this was measured, and the tunables that were in force."""
        kept = dict(self.study.provenance)
        servers = [("server", "; ".join(filter(None, s.values()))) for s in kept.pop("servers", [])]
        rows = [(name, _words(value)) for name, value in _flatten(kept) if name != "builds differ"]
        for tunable, levels in tunables(self.folder).items():
            in_force = "; ".join(f"{value} ({names})" for value, names in levels.items())
            rows.append((f"tunable, {tunable}", in_force))
        return html_table(pd.DataFrame([*servers, *rows], columns=["what", "value"]), caption="Provenance")

    def _more_blocks(self) -> str:
        return "auto" if self.plan.looks else str(self.study.blocks + 2)

    def rerun(self) -> Statement:
        """The command that repeats or extends this study."""
        return Statement(
            f"benchlib run {self.study.notebook} -p study {self.folder.name} -p blocks {self._more_blocks()}",
            kind="command",
        )


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
