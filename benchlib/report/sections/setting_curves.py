"""Where the curve bends: a study's metric over the values of one setting, or over the number of clients."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from benchlib.plan.settings import quantity
from benchlib.plan.words import size_words
from benchlib.report.figures.figure import Figure
from benchlib.report.figures.frames import change_words, in_common, plain, signed, span
from benchlib.report.figures.responses import Curve, Words, setting_curve
from benchlib.report.figures.style import FEW
from benchlib.report.sections import NothingToShowError, refuse_invalid, section
from benchlib.report.view import CLIENTS, alike
from benchlib.stats.ladder import enough
from benchlib.study.experiment import Experiment

_MECHANISMS = (
    "temp_bytes_per_transaction",
    "blocks_read_per_transaction",
    "read_kib_per_transaction",
    "wal_bytes_per_transaction",
    "full_page_images_per_transaction",
    "buffers_by_backends_per_transaction",
    "context_switches_per_transaction",
    "server_cpu_ms_per_transaction",
)
_PANELS = 2
_LEAST_RANGE = 0.1  # of a mechanism's highest mean: what varies less explains no bend


@section
def curve(experiment: Experiment, setting: str) -> Figure:
    """The metric over ``setting``, a server parameter or ``clients``: a curve for each group of levels that differ in it alone.

    Values are what the servers said they ran with, so a level that leaves a parameter alone has no point. A curve bends
    at the smallest value from which on no larger one is faster by more than the margin, where the step to it is resolved.

    Raises:
        StudyError: too few trials are kept to compare anything.

    """
    refuse_invalid(experiment)
    values, value_words = _values(experiment, setting)
    groups = [
        sorted((level for level in group if level in values), key=values.__getitem__)
        for group in alike(experiment.plan, setting)
    ]
    groups = [group for group in groups if len(group) > 1]
    shown = [
        (name, group, reference)
        for name, group in zip(_names(groups), groups, strict=True)
        if (reference := _reference(experiment, group)) is not None
    ][:FEW]
    if not shown:
        raise NothingToShowError(f"No two levels differ in {setting} alone and are compared with the same.")
    mechanisms = _mechanisms(experiment, [level for _, group, _ in shown for level in group])
    bends = [
        _curve(experiment, setting, name, _points(experiment, values, group, mechanisms), value_words)
        for name, group, _ in shown
    ]
    references = " and ".join(dict.fromkeys(reference for *_, reference in shown))
    analysis = experiment.analysis
    return setting_curve(bends, setting, analysis=analysis, reference=references, value_words=value_words)


def _values(experiment: Experiment, setting: str) -> tuple[dict[str, float], Words]:
    """The value at each level that has one, and how a value is written."""
    plan = experiment.plan
    if setting == CLIENTS:
        return {name: float(plan.level_load(name).clients) for name in plan.factor.levels}, plain
    shown = {
        m.trial.level: m.settings[setting]
        for m in experiment.folder.kept().values()
        if setting in m.settings and m.error is None
    }
    quantities = {level: read for level, text in shown.items() if (read := quantity(text))}
    values = {level: value for level, (value, _) in quantities.items()}
    units = {unit for _, unit in quantities.values()}  # one parameter has one
    if "B" in units:
        return values, lambda value: size_words(int(value))
    return values, (lambda value: f"{plain(value)} s") if "s" in units else plain


def _reference(experiment: Experiment, group: Sequence[str]) -> str | None:
    """The one level that all others of a group are compared with; None if there are several."""
    against = experiment.analysis.against
    references = {against.get(level, level) for level in group}
    return references.pop() if len(references) == 1 else None


def _names(groups: Sequence[Sequence[str]]) -> list[str]:
    """What the names of each group's levels have in common, the first of them where that tells no groups apart; of one nothing."""
    if len(groups) == 1:
        return [""]
    names = []
    for group in groups:
        parts = [part for part in group[0].split(", ") if all(part in name.split(", ") for name in group)]
        names.append(", ".join(parts) or in_common(list(group)))
    return names if len(set(names)) == len(names) else [group[0] for group in groups]


def _points(
    experiment: Experiment, values: dict[str, float], group: Sequence[str], mechanisms: Sequence[str]
) -> pd.DataFrame:
    """The rows of a :class:`Curve`; a level without a change, since its trials failed, has none."""
    analysis = experiment.analysis
    table = analysis.table.set_index("level").reindex(list(group))
    rows = table[["percent_change", "ci_low", "ci_high"]].set_axis(["change", "low", "high"], axis=1)
    rows.loc[[level for level in group if level not in analysis.against], "change"] = 0.0
    trials = analysis.differences.groupby("level")["percent"]
    means = experiment.recorded.costs.groupby("level")[list(mechanisms)].mean()
    rows = rows.assign(value=pd.Series(values), least=trials.min(), most=trials.max()).join(means)
    return rows.dropna(subset="change").rename_axis("level").reset_index()


def _curve(
    experiment: Experiment, setting: str, name: str, points: pd.DataFrame, value_words: Words
) -> Curve:
    """The points with the value at which they bend, and a sentence that says so."""
    speed, metric = 1 + points["change"] / 100, experiment.analysis.metric
    if not metric.higher_is_better:
        speed = 1 / speed
    place, last = enough(speed.to_list(), experiment.plan.margin), len(points) - 1
    texts, facts = [value_words(value) for value in points["value"]], ["no bend inside the range"]
    bend: float | None = None
    if place:
        row, _ = experiment.compared(points["level"][place], points["level"][place - 1], metric.name)
        facts.append(f"{texts[place]} instead of {texts[place - 1]}: {change_words(row)}")
        if place < last and (row["ci_low"] > 0 or row["ci_high"] < 0):
            facts[0], bend = f"bends at {texts[place]}", float(points["value"][place])
        elif place < last:
            facts[0] = "no bend that the trials resolve"
    if place < last:
        facts.append(f"beyond: {span(100 * (speed[place + 1 :] / speed[place] - 1), signed)}")
    about = f"{setting}, {name}" if name else setting
    return Curve(name, points, bend, f"{about}: {'; '.join(facts)}.")


def _mechanisms(experiment: Experiment, levels: Sequence[str]) -> list[str]:
    """The costs that vary most between the levels, and by more than trials of one level do."""
    costs = experiment.recorded.costs
    by_level = costs[costs["level"].isin(levels)].groupby("level")[list(_MECHANISMS)]
    means, noise = by_level.mean(), by_level.std().pow(2).mean().pow(0.5).fillna(0.0)
    width = means.max() - means.min()
    ranges = (width / means.max())[means.notna().all() & (width > 3 * noise)]
    most = ranges[ranges >= _LEAST_RANGE].sort_values(ascending=False, kind="stable")
    return [str(name) for name in most.index[:_PANELS]]
