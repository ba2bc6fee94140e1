"""Changes combined: what each brings, how they meet, whether the gains add up, and what each step adds to those before.

A factorial is a study whose levels are a grid of dimensions with two values each, the first of which is "low". A
dimension of which only one value was run is no change, and is left aside. A screening tells the changes' own effects alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from benchlib.errors import InputError
from benchlib.plan.design import SCREENING_RUNS
from benchlib.report.figures import changes, responses
from benchlib.report.figures.figure import Figure
from benchlib.report.figures.frames import signed
from benchlib.report.figures.tables import Format, Table, html_table, p_words
from benchlib.report.sections import NothingToShowError, refuse_invalid, section
from benchlib.stats.crossed import additivity, effects, interaction_means
from benchlib.stats.ladder import ladder
from benchlib.study.experiment import Experiment

MOST_PAIRS = 4
_ENOUGH = 7  # effects: the noise is told from the many that are small


@section
def half_normal(experiment: Experiment) -> Figure:
    """The effects of all changes and of their pairs (of a screening the changes' alone), those named that stand out of the noise."""
    screened = _screened(experiment)
    trials, design, _ = _factorial(experiment, screened=screened)
    metric, alpha = experiment.plan.metric, experiment.analysis.alpha
    table = effects(trials, design, metric=metric, order=1 if screened else 2, alpha=alpha)
    if len(table) < _ENOUGH and not screened:
        raise NothingToShowError(f"{len(table)} effects are too few to tell noise by their order.")
    return changes.half_normal(table, metric=metric)


@section
def interactions(experiment: Experiment) -> Figure:
    """How the pairs of changes meet that meet most: the means at the four corners."""
    trials, design, ends = _factorial(experiment)
    metric = experiment.plan.metric
    table = effects(trials, design, metric=metric, alpha=experiment.analysis.alpha)
    pairs = table.loc[table["order"] == 2, "effect"].head(MOST_PAIRS)
    if pairs.empty:
        raise NothingToShowError("With one change there is nothing that could meet.")
    means = [
        interaction_means(trials, design, *pair.split(" × "), metric=metric, effects=table) for pair in pairs
    ]
    return responses.interaction(means, effects=table, changes=ends, metric=metric)


@section
def gains(experiment: Experiment) -> Table:
    """Each change alone, what they would bring if the gains multiplied, and what all of them bring."""
    _, design, ends = _factorial(experiment)
    factor, metric, alpha = experiment.plan.factor, experiment.plan.metric, experiment.analysis.alpha
    controls = factor.controls if design.loc[factor.baseline].lt(0).all() else ()
    trials = experiment.trials[experiment.trials["error"].isna()]
    trials = trials[trials["level"].isin([*design.index, *controls])]
    try:
        rows = additivity(trials, design, controls=controls, metric=metric, alpha=alpha)
    except InputError as reason:
        raise NothingToShowError(f"Whether the gains add up is not known: {reason}.") from None
    names = {name: f"{name}: {high} instead of {low}" for name, (low, high) in ends.items()}
    percents = dict.fromkeys(("percent", "ci_low", "ci_high"), signed)
    formats: dict[str, Format] = {**percents, "p_value": p_words}
    labels = {"what": "", "percent": "change", "ci_low": "from", "ci_high": "to", "p_value": "p"}
    note = (
        "Against everything as it was; single 95 % intervals by the block model. The last row tells by how much all together "
        "miss, or exceed, what they would bring if each still brought on top of the others what it brings alone."
    )
    if constant := [name for name in next(iter(factor.cells.values())) if name not in ends]:
        note += f" One value only was run of {' and '.join(constant)}."
    rows["what"] = rows["what"].replace(names)
    return html_table(rows, "Do the gains add up?", labels=labels, formats=formats, note=note)


@section
def waterfall(experiment: Experiment, steps: Sequence[str]) -> Figure:
    """The levels ``steps``, the start first, as a waterfall: each against the one before, and against the start."""
    plan, trials = experiment.plan, experiment.by_level()
    good = trials[trials["error"].isna()]
    measured = [step for step in steps if step in set(good["level"])]
    if len(measured) < 2:
        absent = ", ".join(step for step in steps if step not in measured)
        raise NothingToShowError(f"The ladder was not measured here: there is no good trial of {absent}.")
    refuse_invalid(experiment)
    start = measured[0]
    controls = plan.factor.controls if start == plan.factor.baseline else ()
    rows = good[good["level"].isin([*measured, *controls])]
    table = ladder(rows, measured, controls=controls, metric=plan.metric, alpha=experiment.analysis.alpha)
    return changes.waterfall(table, start=start, metric=plan.metric)


def _screened(experiment: Experiment) -> bool:
    return bool(experiment.study.parameters.get("screen"))


def _factorial(
    experiment: Experiment, *, screened: bool = False
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, tuple[str, str]]]:
    """The good trials without the controls, the design (−1 and +1 per level and dimension), and each dimension's two values.

    Raises:
        NothingToShowError: the study is no whole factorial, or a screening where none will do.

    """
    if _screened(experiment) and not screened:
        raise NothingToShowError(
            "A screening tells what each change brings by itself, not how changes meet: run those that stood out once more, in all their combinations."
        )
    cells = pd.DataFrame.from_dict(experiment.plan.factor.cells, orient="index", dtype=object)
    values = {str(name): tuple(column.unique()) for name, column in cells.items()}
    ends = {name: pair for name, pair in values.items() if len(pair) == 2}
    if not ends or any(len(several) > 2 for several in values.values()):
        raise NothingToShowError(
            "This study is no factorial: it takes a grid of dimensions with two values each."
        )
    if len(cells) < (SCREENING_RUNS if screened else 2 ** len(ends)):
        raise NothingToShowError("This study is no whole factorial: some of its combinations are left out.")
    highs = pd.Series({name: high for name, (_, high) in ends.items()})
    design = cells[[*ends]].eq(highs).astype(int) * 2 - 1
    trials = experiment.trials[experiment.trials["error"].isna()]
    trials = trials[trials["level"].isin(design.index)]
    if set(trials["level"]) != set(design.index):
        raise NothingToShowError("Not every combination has a good trial yet.")
    refuse_invalid(experiment)
    return trials, design, ends
