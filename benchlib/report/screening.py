"""Factorials as their statistics take them, and of a screening what each change brings by itself."""

from collections.abc import Sequence

import pandas as pd

from benchlib.errors import InputError, NothingToShowError
from benchlib.plan.design import SCREENING_RUNS
from benchlib.report.figures.frames import standing
from benchlib.stats.crossed import additivity, effects
from benchlib.study.experiment import Experiment


def refuse_invalid(experiment: Experiment, levels: Sequence[str]) -> None:
    """Raise NothingToShowError where the verdict on one of the levels is invalid: what follows from its trials is no better."""
    analysis = experiment.analysis
    if invalid := analysis.invalid(levels):
        reasons = dict.fromkeys(reason for level in invalid for reason in analysis.doubts(level).split("; "))
        raise NothingToShowError(f"The study is invalid, and so is this: {'; '.join(reasons)}.")


def factorial(
    experiment: Experiment, runs: int | None = None
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, tuple[str, str]]]:
    """The good trials without the controls, the design (−1 and +1 per level and dimension), and each dimension's two values.

    The levels are a grid of dimensions with two values each, the first of which is "low". A dimension of which only one value
    was run is no change, and is left aside.

    Raises:
        NothingToShowError: the study is no factorial, has fewer combinations than ``runs``, or than all, or is invalid.

    """
    cells = pd.DataFrame.from_dict(experiment.plan.factor.cells, orient="index", dtype=object)
    values = {str(name): tuple(column.unique()) for name, column in cells.items()}
    ends = {name: pair for name, pair in values.items() if len(pair) == 2}
    if not ends or any(len(several) > 2 for several in values.values()):
        raise NothingToShowError(
            "This study is no factorial, which is a grid of two values in each dimension."
        )
    good = experiment.trials[experiment.trials["error"].isna()]
    trials = good[good["level"].isin(cells.index)]
    if len(cells) < (runs or 2 ** len(ends)) or set(trials["level"]) != set(cells.index):
        raise NothingToShowError("This study is no whole factorial: some of its combinations are left out.")
    refuse_invalid(experiment, [*cells.index])
    highs = pd.Series({name: high for name, (_, high) in ends.items()})
    return trials, cells[[*ends]].eq(highs).astype(int) * 2 - 1, ends


def combination(experiment: Experiment, design: pd.DataFrame) -> pd.DataFrame:
    """The changes of a design, each alone, and all of them: the rows of :func:`benchlib.stats.crossed.additivity`.

    Raises:
        NothingToShowError: a combination that it takes was not measured.

    """
    plan, alpha = experiment.plan, experiment.analysis.alpha
    controls = plan.factor.controls if plan.factor.baseline in design.index[design.lt(0).all(axis=1)] else ()
    good = experiment.trials[experiment.trials["error"].isna()]
    good = good[good["level"].isin([*design.index, *controls])]
    try:
        return additivity(good, design, controls=controls, metric=plan.metric, alpha=alpha)
    except InputError as reason:
        raise NothingToShowError(f"Whether the gains add up is not known: {reason}.") from None


def main_effects(experiment: Experiment) -> pd.DataFrame:
    """What each change of a screening brings by itself, by size: the rows of :func:`benchlib.stats.crossed.effects`, and more.

    ``change`` is what it is in words, ``gives_up`` what a crash may cost with it, and ``verdict`` is faster or slower where it
    stands out of the noise, else inconclusive.

    Raises:
        NothingToShowError: the study is no whole screening, or invalid.

    """
    if not experiment.study.declared.screen:
        raise NothingToShowError("This study is no screening: that has 'screen: true' and a grid.")
    trials, design, ends = factorial(experiment, SCREENING_RUNS)
    alpha, of, costs = experiment.analysis.alpha, experiment.plan.metric, experiment.study.crash_costs
    table = effects(trials, design, metric=of, order=1, alpha=alpha)

    def gives_up(name: str) -> str:
        low, high = (
            [{*costs.get(str(each), ())} for each in design.index[design[name] == sign]] for sign in (-1, 1)
        )
        return "; ".join(sorted(set.intersection(*high) - set[str]().union(*low)))

    return table.assign(
        change=[f"{name}: {ends[name][1]} instead of {ends[name][0]}" for name in table["effect"]],
        gives_up=table["effect"].map(gives_up),
        verdict=standing(table["percent"], table["p_holm"], of, alpha),
    )


def standing_out(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of :func:`main_effects` that stand out of the noise."""
    return table[table["verdict"] != "inconclusive"]
