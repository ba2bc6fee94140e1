"""The figures that the studies before this one published, and beside them what was measured here."""

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from benchlib.plan.metrics import described
from benchlib.report.figures.frames import MINUS, amount, apart, change_words, good, known, opening, said
from benchlib.report.figures.tables import Quiet, Table, html_table, mean_words
from benchlib.report.sections import NothingToShowError, section
from benchlib.study.experiment import Experiment
from benchlib.study.published import agreement, matching, published_for

_COLUMNS = ["figure", "agreement", "published", "measured here", "levels", "source"]
"""The columns of what was published beside what was measured."""
_ALONE = "‡"
_NO_CLAIM, _UNMEASURED = "–", Quiet("not measured here")


@section
def published(experiment: Experiment) -> Table:
    """Each published figure with its conditions and source, beside what this study found for the same levels; folded where nothing can agree.

    A comparison stands beside the same comparison: the study's own with its verdict, another pair of its
    levels by the same model over all levels of their part, marked. Whether the two agree is said where something was
    claimed. A figure by itself stands beside the mean of the level's trials.

    Raises:
        InputError: the file of published figures is damaged.
        StudyError: too few trials are kept to compare anything.

    """
    figures = published_for(experiment.study.notebook or "")
    if figures.empty:
        raise NothingToShowError("No published figures are kept of this notebook.")
    rows = beside(experiment, figures)
    sources = rows.groupby(["source", "conditions"], sort=False)
    rows["number"] = [f"[{number + 1}]" for number in sources.ngroup()]
    plan = experiment.plan
    here = f"{experiment.workloads()}, {experiment.clients()}, scale {plan.scale:,}, {plan.load.duration_s} s a trial"
    notes = [f"Measured here: {here}."]
    notes += [f"{row.number} {row.source}: {row.conditions}." for row in sources.head(1).itertuples()]
    for note, about in figures[figures["note"] != ""].groupby("note", sort=False)["figure"].unique().items():
        notes.append(opening(f"{', '.join(about)}: {note}." if len(about) < 3 else f"{note}."))
    table, claimed = rows.assign(source=rows["number"])[_COLUMNS], rows["agreement"].ne(_NO_CLAIM)
    caption, details, tables = "Published, and measured here", Markup("<br>").join(notes), []
    if claimed.any():
        alone = table[claimed]["measured here"].str.contains(_ALONE).any()
        note = f"{_ALONE} Not one of the study's own comparisons, but by the same model." if alone else ""
        tables.append(html_table(table[claimed], caption, note=note, details=details).html)
    if not claimed.all():
        rest, more = table[~claimed].drop(columns="agreement"), "" if tables else details
        tables.append(html_table(rest, "Other published figures", details=more, folded=True).html)
    return Table(caption, "".join(tables))


def beside(experiment: Experiment, figures: pd.DataFrame) -> pd.DataFrame:
    """Each published figure in words: the columns of :data:`_COLUMNS`, and ``conditions``."""
    rows, plan = [], experiment.plan
    for figure in figures.itertuples():
        change, measured = _measured(experiment, figure)
        names = (str(figure.level), str(figure.against))
        level, against = (_named(experiment, name) for name in names)
        unmet = experiment.analysis.unmet(level, against) if against else ""
        rates = [plan.level_load(name).rate for name in {level, against} & plan.factor.levels.keys()]
        if figure.metric in ("tps", "speed") and any(rates):
            unmet = unmet or "a rate sets how many transactions there are"
        agrees = agreement(figure, change, plan.margin, unmet) or _NO_CLAIM
        levels = " against ".join(filter(None, apart(*names))) or Quiet("none")
        row = (figure.figure, agrees, _number(figure), measured, levels, figure.source, figure.conditions)
        rows.append(row)
    return pd.DataFrame(rows, columns=[*_COLUMNS, "conditions"], dtype=object)


def _number(row: Any) -> str:
    """What was published: its words, or its number or range with the unit."""
    if row.words:
        return str(row.words)
    signs = "+" if row.against or row.unit == "%" else ""
    value, low, high = (
        f"{number:{signs},.12g}".replace("-", MINUS) if known(number) else ""
        for number in (row.value, row.low, row.high)
    )
    text = value or (f"{low} to {high}" if low and high else f"from {low}" if low else f"up to {high}")
    return _with_unit(text, row.unit)


def _with_unit(text: str, unit: str) -> str:
    return f"{text}\u00a0{unit}" if unit else text


def _measured(experiment: Experiment, row: Any) -> tuple[Mapping[Hashable, Any] | None, str]:
    """What was measured for the level, or for the pair, of a published figure: the change, if it is one, and the words."""
    trials = experiment.by_level()
    if row.metric not in trials:
        return None, _UNMEASURED if row.metric else Quiet(_NO_CLAIM)
    trials = good(trials, row.metric)
    if row.against:
        return _compared(experiment, trials[trials[row.metric] > 0], row)
    factor, texts = experiment.plan.factor, []
    means = trials.groupby("level")[row.metric].agg(["mean", "std"])
    asked = [level for level in factor.levels if level not in factor.controls]
    for name in matching(row.level, asked, factor.cells):
        if name in means.index:
            mean, sd = means.loc[name]
            # one reading that several trials share, such as the flushes of a place, has no deviation
            text = mean_words(mean, sd) or ""
            own = ", ".join(part for part in name.split(", ") if part not in row.level.split(", "))
            texts.append((f"{own}: " if own else "") + _with_unit(text, row.unit))
    return None, "; ".join(texts) or _UNMEASURED


def _compared(
    experiment: Experiment, trials: pd.DataFrame, row: Any
) -> tuple[Mapping[Hashable, Any] | None, str]:
    """The change from one level to another, and in words: with its interval, and its verdict where the study gives one."""
    means = trials.groupby("level")[row.metric].mean()
    level, against = _named(experiment, row.level), _named(experiment, row.against)
    if level not in means or against not in means or level == against:
        return None, _UNMEASURED
    of, judged = experiment.compared(level, against, row.metric)
    if not known(of["percent_change"]):
        return None, _UNMEASURED
    word = said(experiment.analysis, level, of["verdict"])
    other = row.metric != experiment.plan.metric
    change = change_words(of) + f" {described(row.metric).title}" * other
    change += f", {word}" if judged else f" {_ALONE}"
    if row.unit not in ("", "%"):
        both = trials.pivot(index="block", columns="level", values=row.metric)[[level, against]].dropna()
        step = float((both[level] - both[against]).mean())
        change = f"{'+' if step >= 0 else MINUS}{amount(abs(step))}\u00a0{row.unit}, {change}"
    return of, change


def _named(experiment: Experiment, name: str) -> str:
    """The study's own name of a level that a published figure names; that of the figure where it has none."""
    return experiment.plan.factor.named(name) or name
