"""Changes combined: what each brings, whether the gains add up, and what each step adds to those before.

A factorial is a study whose levels are a grid of dimensions with two values each, the first of which is "low". A
dimension of which only one value was run is no change, and is left aside. A screening tells the changes' own effects alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from benchlib.errors import InputError
from benchlib.plan.design import SCREENING_RUNS
from benchlib.report.figures import changes
from benchlib.report.figures.figure import Figure
from benchlib.report.figures.frames import percent_words
from benchlib.report.figures.tables import Table, html_table, p_words
from benchlib.report.sections import NothingToShowError, refuse_invalid, section
from benchlib.stats.crossed import additivity, effects
from benchlib.stats.ladder import ladder
from benchlib.study.experiment import Experiment

_ENOUGH = 7  # effects: the noise is told from the many that are small


@section
def half_normal(experiment: Experiment) -> Figure:
    """The effects of all changes and of their pairs (of a screening the changes' alone), those named that stand out of the noise."""
    screened = bool(experiment.study.parameters.get("screen"))
    trials, design, _ = _factorial(experiment, SCREENING_RUNS if screened else None)
    metric, alpha = experiment.plan.metric, experiment.analysis.alpha
    table = effects(trials, design, metric=metric, order=1 if screened else 2, alpha=alpha)
    if len(table) < _ENOUGH and not screened:
        raise NothingToShowError(f"{len(table)} effects are too few to tell noise by their order.")
    return changes.half_normal(table, metric=metric)


@section
def gains(experiment: Experiment) -> Table:
    """Each change alone, how each pair of them meets, what they would bring if the gains multiplied, and what all of them bring."""
    if experiment.study.parameters.get("screen"):
        raise NothingToShowError(
            "A screening tells each change's effect alone: run those that stood out once more."
        )
    trials, design, ends = _factorial(experiment)
    factor, metric, alpha = experiment.plan.factor, experiment.plan.metric, experiment.analysis.alpha
    controls = factor.controls if design.loc[factor.baseline].lt(0).all() else ()
    good = experiment.trials[experiment.trials["error"].isna()]
    good = good[good["level"].isin([*design.index, *controls])]
    try:
        pairs = effects(trials, design, metric=metric, alpha=alpha).query("order == 2")
        rows = additivity(good, design, controls=controls, metric=metric, alpha=alpha)
    except InputError as reason:
        raise NothingToShowError(f"Whether the gains add up is not known: {reason}.") from None
    names = {name: f"{name}: {high} instead of {low}" for name, (low, high) in ends.items()}
    alone, whole = rows.iloc[: len(ends)].replace({"what": names}), rows.iloc[len(ends) :]
    rows = pd.concat([alone, pairs.rename(columns={"effect": "what"}), whole])
    words = [percent_words(*row) for row in rows[["percent", "ci_low", "ci_high"]].to_numpy().tolist()]
    table = pd.DataFrame(words, columns=["change", "95 % interval"])
    table.insert(0, "what", rows["what"].to_list())
    constant = [name for name in next(iter(factor.cells.values())) if name not in ends]
    note = f"One value only was run of {' and '.join(constant)}." if constant else ""
    table["p"] = rows["p_value"].to_list()
    return html_table(
        table, "Do the gains add up?", formats={"change": str, "95 % interval": str, "p": p_words}, note=note
    )


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


def _factorial(
    experiment: Experiment, runs: int | None = None
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, tuple[str, str]]]:
    """The good trials without the controls, the design (−1 and +1 per level and dimension), and each dimension's two values.

    Raises:
        NothingToShowError: the study is no factorial, or has fewer combinations than ``runs``, or than all.

    """
    cells = pd.DataFrame.from_dict(experiment.plan.factor.cells, orient="index", dtype=object)
    values = {str(name): tuple(column.unique()) for name, column in cells.items()}
    ends = {name: pair for name, pair in values.items() if len(pair) == 2}
    if not ends or any(len(several) > 2 for several in values.values()):
        raise NothingToShowError(
            "This study is no factorial, which is a grid of two values in each dimension."
        )
    trials = experiment.trials[
        experiment.trials["error"].isna() & experiment.trials["level"].isin(cells.index)
    ]
    if len(cells) < (runs or 2 ** len(ends)) or set(trials["level"]) != set(cells.index):
        raise NothingToShowError("This study is no whole factorial: some of its combinations are left out.")
    refuse_invalid(experiment)
    highs = pd.Series({name: high for name, (_, high) in ends.items()})
    return trials, cells[[*ends]].eq(highs).astype(int) * 2 - 1, ends
