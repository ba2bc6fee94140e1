"""All kept studies side by side: which factor gives how much, how sure that is, and what it costs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from string import ascii_uppercase
from typing import Any

import pandas as pd
from markupsafe import Markup

from benchlib.errors import BenchlibError
from benchlib.report.figures import Figure
from benchlib.report.figures.changes import summary_forest
from benchlib.report.figures.frames import DAGGER, interval, known, rows_of, signed
from benchlib.report.figures.style import mark_of
from benchlib.report.figures.tables import Table, html_table, p_words
from benchlib.report.sections.beside_published import ALONE, beside
from benchlib.report.view import Statement
from benchlib.stats.analysis import leading
from benchlib.stats.multiple import holm
from benchlib.study.experiment import Experiment, shown
from benchlib.study.published import published_for
from benchlib.study.store import StudyFolder, walk

_UNSETTLED = {"inconclusive": 1, "invalid": 2}
"""What settles nothing, in the order in which it comes last."""


def summary_rows(experiments: Iterable[Experiment]) -> pd.DataFrame:
    """One row per study that compares anything, the largest gain first.

    ``level`` leads its study (see ``stats.prose.leading``); ``percent_change, ci_*`` are of ``metric`` as measured,
    ``gain, gain_*`` of the same with more being better: where less is, those of the reciprocal, so that a
    latency cut by half is +100 %. All are percentages. A study that is inconclusive or invalid has no ``rank``.

    Of a factor's studies the first is the one that measured each level longest, whatever came out; only that one is
    ranked; ``p_holm`` is the shown comparison's own p, adjusted in its study for its fellows and here for the factors (Holm). The ``further`` ones follow it.
    ``loss`` is what the level gives up of durability beyond what it is compared with; then ``durable_level`` leads those
    that give up nothing. ``host`` is a letter where there are several machines. ``page`` is the study's page.

    Raises:
        StudyError: a study has too few trials to compare anything.

    """
    asked = [experiment for experiment in experiments if experiment.analysis.asked]
    if not asked:
        return pd.DataFrame(columns=["study", "further"])
    asked.sort(key=lambda e: (-e.plan.load.duration_s * e.analysis.blocks, e.folder.name))
    frame = pd.DataFrame([_row(experiment) for experiment in asked])
    frame["further"] = frame.duplicated("factor")
    firsts = frame[~frame["further"]].assign(unsettled=lambda f: f["verdict"].map(_UNSETTLED.get).fillna(0))
    ranked = firsts.sort_values(["unsettled", "gain"], ascending=[True, False], kind="stable")["factor"]
    places = frame["factor"].map({factor: place for place, factor in enumerate(ranked, 1)})
    settled = ~frame["further"] & ~frame["verdict"].isin(_UNSETTLED.keys())
    frame = frame.assign(place=places, rank=places.where(settled)).sort_values("place", kind="stable")
    of_levels = firsts["p_adjusted"].where(firsts["verdict"] != "invalid")
    adjusted = frame["study"].map(dict(zip(firsts["study"], holm(of_levels.to_list()), strict=True)))
    machines, hosts = pd.factorize(frame["host"])
    letters = [ascii_uppercase[machine % 26] if len(hosts) > 1 else "" for machine in machines]
    return frame.assign(p_holm=adjusted, host=letters)


def _row(experiment: Experiment) -> dict[str, Any]:
    analysis, plan, study = experiment.analysis, experiment.plan, experiment.study
    level = leading(analysis)
    against, table = analysis.against[level], rows_of(analysis)
    change, low, high = (float(table[level][name]) for name in ("percent_change", "ci_low", "ci_high"))
    gain = (change, low, high)
    if not analysis.metric.higher_is_better:
        gain = (_inverse(change), _inverse(high), _inverse(low))
    losses = experiment.durability()
    loss = losses.get(level, "") if losses.get(level) != losses.get(against) else ""
    against_of = {name: analysis.against[name] for name in analysis.asked if loss and name not in losses}
    durable = leading(dataclasses.replace(analysis, against=against_of)) if against_of else ""
    facts = dict(experiment.facts())
    return {
        "study": experiment.folder.name,
        "factor": study.notebook or experiment.folder.name,
        "title": study.title,
        "level": level,
        "against": against,
        "metric": analysis.metric.title,
        "percent_change": change,
        "ci_low": low,
        "ci_high": high,
        **dict(zip(("gain", "gain_low", "gain_high"), gain, strict=True)),
        "verdict": table[level]["verdict"],
        "p_adjusted": table[level]["p_adjusted"],
        "margin": analysis.margin,
        "alpha": analysis.alpha,
        "blocks": analysis.blocks,
        "workload": plan.level_workload(level).name,
        "clients": plan.level_load(level).clients,
        "loss": loss,
        "durable_level": durable,
        "durable_change": table[durable]["percent_change"] if durable else math.nan,
        "host": study.provenance.get("host", {}).get("identity", ""),
        "machine": facts["Machine"],
        "measured": facts["Measured"],
        "page": f"{experiment.folder.name}.html",
    }


def _inverse(percent: float) -> float:
    """The change of a reciprocal: half of it is +100 %."""
    return 100 * math.expm1(-math.log1p(percent / 100))


class Summary:
    """The kept studies on one page; every method returns something that shows itself.

    ``experiments`` have a verdict on some level each; ``unused`` are the other studies, each with the reason.
    """

    def __init__(self, experiments: Sequence[Experiment], unused: Sequence[tuple[str, str]] = ()) -> None:
        self.experiments = experiments
        self.unused = unused

    @cached_property
    def rows(self) -> pd.DataFrame:
        """One row per study; see :func:`summary_rows`."""
        return summary_rows(self.experiments)

    def studies(self) -> Statement:
        """How many studies there are, when and on which machines they were measured."""
        if self.rows.empty:
            return Statement("No study has a verdict yet. Run one, for example: benchlib run configuration")
        rows = self.rows
        days = sorted({day for day in rows["measured"] if day})
        when = f", measured {' to '.join(dict.fromkeys((days[0], days[-1])))}" if days else ""
        machines = rows.groupby("host", sort=True)["machine"].first()
        if len(machines) > 1:
            where = f"on {len(machines)} machines: " + "; ".join(f"{k} is {m}" for k, m in machines.items())
            where += ". Each effect was measured within one machine; ranks across machines are no measurement"
        else:
            where = f"on one machine ({machines.iloc[0]})"
        factors = _counted(int((~rows["further"]).sum()), "factor", "factors")
        text = f"Studies: {len(rows)} of {factors}{when} {where}."
        if self.unused:
            text += f" Left out, with reasons below: {_counted(len(self.unused), 'study', 'studies')}."
        return Statement(text)

    def forest(self) -> Figure | Statement:
        """Every study's leading level with its gain, interval and verdict."""
        return Statement("Nothing to draw.") if self.rows.empty else summary_forest(self.rows)

    def ranking(self) -> Table | Statement:
        """The same in numbers, with what each was measured under and what it gives up."""
        if self.rows.empty:
            return Statement("Nothing to rank.")
        table = pd.DataFrame([_cells(row) for row in self.rows.to_dict("records")], dtype=object)
        if not self.rows["host"].any():
            table = table.drop(columns="machine")
        if not self.rows["loss"].any():
            table = table.drop(columns=["a crash may cost", "without that"])
        note = (
            "Interval and verdict are each study's own. p is that comparison's, adjusted for the number of factors too (Holm); where it is "
            "above the error rate of 5 %, that verdict may be the false alarm which so many questions asked at once must expect."
        )
        formats = dict.fromkeys(("change", "interval", "p", "blocks"), str)
        return html_table(table, "Factors by the gain of their leading level", formats=formats, note=note)

    def beside_published(self) -> Table | Statement:
        """The comparisons that other studies published of the same factors, beside what was measured here."""
        first = set(self.rows.loc[~self.rows["further"].astype(bool), "study"])
        tables = [pd.DataFrame()]
        for experiment in sorted(self.experiments, key=lambda e: e.study.title):
            if experiment.folder.name in first and experiment.study.notebook:
                figures = published_for(experiment.study.notebook).query("against != ''")
                rows = beside(experiment, figures)
                tables.append(rows.assign(factor=experiment.study.title))
        frame = pd.concat(tables)
        if frame.empty:
            return Statement("No published comparison is kept that one of these studies could be set beside.")
        columns = ["factor", "figure", "agreement", "published", "measured here", "levels", "source"]
        note = f"Each study's page has the conditions. {ALONE} None of a study's own comparisons."
        return html_table(frame[columns], "Published, and measured here", note=note)

    def left_out(self) -> Table | Statement:
        """The studies that have nothing to show here, and why."""
        if not self.unused:
            return Statement("No study is left out.")
        return html_table(pd.DataFrame(self.unused, columns=["study", "why"]), "Studies that are left out")


def read_summary(names: Sequence[str] = ()) -> Summary:
    """The summary of the studies of these names; of all that are kept, if none is given.

    Raises:
        InputError: there is no study of a name.

    """
    folders = [StudyFolder(name) for name in names]
    for folder in folders:
        folder.read()  # a name that was given is not passed over
    experiments, unused = [], []
    for folder in folders or walk():
        try:
            experiment = shown(folder)
            asked = experiment.analysis.asked
        except BenchlibError as reason:
            unused.append((folder.name, str(reason)))
            continue
        if asked:
            experiments.append(experiment)
        else:
            unused.append(
                (folder.name, "it measures the baseline alone: a pilot, or the capacity for a rate")
            )
    return Summary(experiments, unused)


def _cells(row: dict[Any, Any]) -> dict[str, Any]:
    """A study's row in words."""
    rank = f"{row['rank']:.0f}. " if known(row["rank"]) else ""
    name = row["study"] if row["further"] else row["title"]
    link = Markup('<a href="{}">{}</a>').format(row["page"], name)
    measured = "" if row["metric"] == "throughput" else f" {row['metric']}"
    durable = "no such level measured"
    if known(row["durable_change"]):
        durable = f"{row['durable_level']} {signed(row['durable_change'])}"
    return {
        "factor": Markup("{}{}").format(rank, link),
        "leading level": f"{row['level']}{DAGGER if row['loss'] else ''} against {row['against']}",
        "change": f"{signed(row['percent_change'])}{measured}" if known(row["percent_change"]) else None,
        "interval": interval(row["ci_low"], row["ci_high"]) if known(row["ci_low"]) else None,
        "verdict": f"{mark_of(row['verdict']).sign}\u00a0{row['verdict']}",
        "p": "" if row["further"] else p_words(row["p_holm"]),
        "blocks": row["blocks"],
        "load": f"{row['workload']}, {_counted(row['clients'], 'client', 'clients')}",
        "a crash may cost": row["loss"] or "nothing more",
        "without that": durable if row["loss"] else "",
        "machine": row["host"],
    }


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
