"""Where the curve bends: a study's metric over the values of one setting, or over the number of clients."""

from collections.abc import Sequence

import pandas as pd

from benchlib.plan.model import CLIENTS
from benchlib.plan.settings import quantity
from benchlib.plan.words import size_words
from benchlib.report.figures.figure import Figure
from benchlib.report.figures.frames import amount, change_words, finding, in_common, signed, span
from benchlib.report.figures.responses import Words, setting_curve
from benchlib.report.figures.style import FEW
from benchlib.report.sections import NothingToShowError, refuse_invalid, section
from benchlib.stats.descriptive import enough
from benchlib.study.experiment import Experiment


@section
def curve(experiment: Experiment, setting: str) -> Figure:
    """The metric over ``setting``, a server parameter or ``clients``: a curve for each group of levels that differ in it alone.

    Values are what the servers said they ran with, so a level that leaves a parameter alone has no point. A curve bends
    at the smallest value from which on no larger one is faster by more than the margin, where the step to it is resolved.

    Raises:
        StudyError: too few trials are kept to compare anything.

    """
    values, value_words = _values(experiment, setting)
    groups = [
        sorted((level for level in group if level in values), key=values.__getitem__)
        for group in experiment.plan.alike(setting)
    ]
    groups = [group for group in groups if len(group) > 1]
    against = experiment.analysis.against
    shown = [
        (name, group, references.pop())
        for name, group in zip(_names(groups), groups, strict=True)
        if len(references := {against.get(level, level) for level in group}) == 1
    ][:FEW]
    if not shown:
        raise NothingToShowError(f"No two levels differ in {setting} alone and are compared with the same.")
    refuse_invalid(experiment, [level for _, group, _ in shown for level in group])
    curves, bends = list[pd.DataFrame](), list[str]()
    note = f"Against {' and '.join(dict.fromkeys(reference for *_, reference in shown))}."
    for name, group, _ in shown:
        points, about = _points(experiment, values, group), f"{setting}, {name}" if name else setting
        bend, facts = _bend(experiment, points, value_words)
        curves.append(points.assign(series=name, bends=points.index == bend))
        bends.append(f"{about}: {facts[0]}")
        note += f" {about}: {'; '.join(facts)}."
    title = finding(bends[0], *(f"; {each}" for each in bends[1:]))
    points = pd.concat(curves, ignore_index=True)
    return setting_curve(points, setting, experiment.analysis, value_words, title=title, note=note)


def _values(experiment: Experiment, setting: str) -> tuple[dict[str, float], Words]:
    """The value at each level that has one, and how a value is written."""
    plan = experiment.plan
    if setting == CLIENTS:
        return {name: float(plan.level_load(name).clients) for name in plan.factor.levels}, amount
    shown = {
        m.trial.level: m.settings[setting]
        for m in experiment.kept.values()
        if setting in m.settings and m.error is None
    }
    quantities = {level: read for level, text in shown.items() if (read := quantity(text))}
    values = {level: value for level, (value, _) in quantities.items()}
    units = {unit for _, unit in quantities.values()}  # one parameter has one
    if "B" in units:
        return values, lambda value: size_words(int(value))
    return values, (lambda value: f"{amount(value)} s") if "s" in units else amount


def _names(groups: Sequence[list[str]]) -> list[str]:
    """What the names of each group's levels have in common, the first of them where that tells no groups apart; of one nothing."""
    names = [in_common(group) for group in groups] if len(groups) > 1 else [""]
    return names if len(set(names)) == len(groups) else [group[0] for group in groups]


def _points(experiment: Experiment, values: dict[str, float], group: Sequence[str]) -> pd.DataFrame:
    """The levels with their values and changes; one without a change, since its trials failed, is left out."""
    analysis = experiment.analysis
    table = analysis.table.set_index("level").reindex(list(group))
    rows = table[["percent_change", "ci_low", "ci_high"]].set_axis(["value", "low", "high"], axis=1)
    rows.loc[[level for level in group if level not in analysis.against], "value"] = 0.0
    return rows.assign(x=pd.Series(values)).dropna(subset="value").rename_axis("level").reset_index()


def _bend(experiment: Experiment, points: pd.DataFrame, value_words: Words) -> tuple[int | None, list[str]]:
    """The place among the points at which they bend, if they do, and in words what they do there and beyond."""
    speed, metric = 1 + points["value"] / 100, experiment.analysis.metric
    if not metric.higher_is_better:
        speed = 1 / speed
    place, last = enough(speed.to_list(), experiment.plan.margin), len(points) - 1
    texts = [value_words(value) for value in points["x"]]
    facts = [f"the means {'still improve at' if place else 'gain nothing above'} {texts[place]}"]
    bend: int | None = None
    if place:
        row, _ = experiment.compared(points["level"][place], points["level"][place - 1], metric.name)
        facts.append(f"{texts[place]} instead of {texts[place - 1]}: {change_words(row)}")
        if place < last and (row["ci_low"] > 0 or row["ci_high"] < 0):
            facts[0], bend = f"bends at {texts[place]}", place
        elif place < last:
            facts[0] = "no bend that the trials resolve"
    if place < last:
        beyond = speed[place + 1 :] / speed[place]
        worse = beyond < 1 - experiment.plan.margin
        if worse.any():
            place_of = "beyond, most" if worse.all() else "on the way"
            facts[0] += f", worse means {place_of} at {texts[int(beyond.idxmin())]}"
        beyond = beyond if metric.higher_is_better else 1 / beyond
        facts.append(f"means above {texts[place]}, compared with it: {span(100 * (beyond - 1), signed)}")
    return bend, facts
