"""A factorial of changes: what each brings, and where all combinations were run, how they meet and whether the gains add up.

For a study whose levels are a grid of dimensions with two values each, the first of which is "low". A dimension of
which only one value was run is no change, and is left aside. A screening tells the changes' own effects alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from benchlib.errors import InputError
from benchlib.plan.design import SCREENING_RUNS
from benchlib.report import figures as plots
from benchlib.report.figures.frames import signed
from benchlib.report.figures.tables import Table, html_table, p_words
from benchlib.report.view import Statement, View
from benchlib.stats.crossed import additivity, effects, interaction_means
from benchlib.stats.ladder import ladder
from benchlib.study.experiment import Experiment

MOST_PAIRS = 4


def half_normal(view: View) -> plots.Figure | Statement:
    """The effects of all changes and of their pairs (of a screening the changes' alone), those named that stand out of the noise."""
    experiment = view.experiment
    found = _factorial(experiment)
    if isinstance(found, Statement):
        return found
    trials, design, _ = found
    metric, order = experiment.plan.metric, 1 if _screened(experiment) else 2
    return plots.half_normal(effects(trials, design, metric=metric, order=order), metric=metric)


def interactions(view: View) -> plots.Figure | Statement:
    """How the pairs of changes meet that meet most: the means at the four corners."""
    experiment = view.experiment
    found = _whole_factorial(experiment)
    if isinstance(found, Statement):
        return found
    trials, design, changes = found
    metric = experiment.plan.metric
    table = effects(trials, design, metric=metric)
    pairs = table.loc[table["order"] == 2, "effect"].head(MOST_PAIRS)
    if pairs.empty:
        return Statement("With one change there is nothing that could meet.")
    means = [interaction_means(trials, design, *pair.split(" × "), metric=metric) for pair in pairs]
    return plots.interaction(means, effects=table, changes=changes, metric=metric)


def gains(view: View) -> Table | Statement:
    """Each change alone, what they would bring if the gains multiplied, and what all of them bring."""
    experiment = view.experiment
    found = _whole_factorial(experiment)
    if isinstance(found, Statement):
        return found
    trials, design, changes = found
    try:
        rows = additivity(trials, design, metric=experiment.plan.metric)
    except InputError as reason:
        return Statement(f"Whether the gains add up is not known: {reason}.")
    named = {name: f"{name}: {high} instead of {low}" for name, (low, high) in changes.items()}
    rows["what"] = [named.get(what, what) for what in rows["what"]]
    formats = {
        **dict.fromkeys(("percent", "ci_low", "ci_high"), signed),
        "p_value": lambda p: p_words(p) or "",
    }
    labels = {"what": "", "percent": "change", "ci_low": "from", "ci_high": "to", "p_value": "p"}
    note = (
        "Against everything as it was; single 95 % intervals by the block model. The last row tells by how much all together "
        "miss, or exceed, what they would bring if each still brought on top of the others what it brings alone."
    )
    dimensions = next(iter(experiment.plan.factor.cells.values()))
    if constant := [name for name in dimensions if name not in changes]:
        note += f" One value only was run of {' and '.join(constant)}."
    return html_table(rows, "Do the gains add up?", labels=labels, formats=formats, note=note)


def waterfall(view: View, steps: Sequence[str]) -> plots.Figure | Statement:
    """The levels ``steps``, the start first, as a waterfall: each against the one before, and against the start."""
    experiment = view.experiment
    plan, trials = experiment.plan, experiment.by_level()
    good = trials[trials["error"].isna()]
    there = [step for step in steps if step in set(good["level"])]
    if len(there) < 2:
        absent = ", ".join(step for step in steps if step not in there)
        return Statement(f"The ladder was not measured here: there is no good trial of {absent}.")
    controls = plan.factor.controls if there[0] == plan.factor.baseline else ()
    rows = good[good["level"].isin([*there, *controls])]
    found = ladder(rows, there, controls=controls, metric=plan.metric, margin=plan.margin)
    return plots.waterfall(found, start=there[0], metric=plan.metric)


_Found = tuple[pd.DataFrame, pd.DataFrame, dict[str, tuple[str, str]]]


def _screened(experiment: Experiment) -> bool:
    return bool(experiment.study.parameters.get("screen"))


def _whole_factorial(experiment: Experiment) -> _Found | Statement:
    """As :func:`_factorial`, and a screening is none."""
    if _screened(experiment):
        return Statement(
            "A screening tells what each change brings by itself, not how changes meet: run those that stood out once more, in all their combinations."
        )
    return _factorial(experiment)


def _factorial(experiment: Experiment) -> _Found | Statement:
    """The good trials without the controls, the design (−1 and +1 per level and dimension), and each dimension's two values."""
    factor = experiment.plan.factor
    cells = factor.cells
    run: dict[str, tuple[str, ...]] = {
        str(name): tuple(dict.fromkeys(ends)) for name, ends in pd.DataFrame(cells.values()).items()
    }
    changes = {name: (ends[0], ends[1]) for name, ends in run.items() if len(ends) == 2}
    if not changes or any(len(ends) > 2 for ends in run.values()):
        return Statement("This study is no factorial: it takes a grid of dimensions with two values each.")
    if len(cells) < (SCREENING_RUNS if _screened(experiment) else 2 ** len(changes)):
        return Statement("This study is no whole factorial: some of its combinations are left out.")
    design = pd.DataFrame(
        {
            name: {level: 1 if ends[name] == high else -1 for level, ends in cells.items()}
            for name, (_, high) in changes.items()
        }
    )
    rows = experiment.trials[experiment.trials["error"].isna()]
    rows = rows[rows["level"].isin(list(design.index))]
    if set(rows["level"]) != set(design.index):
        return Statement("Not every combination has a good trial yet.")
    return rows, design, changes
