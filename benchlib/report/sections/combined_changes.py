"""Changes combined: what each brings, whether the gains add up, and what each step adds to those before.

See :func:`benchlib.report.screening.factorial`. A screening tells the changes' own effects alone: main effects in
the design of R. L. Plackett and J. P. Burman (1946) with its fold-over, which no pair of changes can pass for.
"""

from collections.abc import Sequence

import pandas as pd

from benchlib.plan.metrics import confidence_words
from benchlib.report.figures import changes
from benchlib.report.figures.figure import Figure
from benchlib.report.figures.frames import UNSHOWN, change_cells
from benchlib.report.figures.tables import Format, Table, html_table, p_words
from benchlib.report.screening import combination, factorial, main_effects, standing_out
from benchlib.report.sections import NothingToShowError, refuse_invalid, section
from benchlib.report.view import Statement
from benchlib.stats.crossed import effects, ladder
from benchlib.study.experiment import Experiment
from benchlib.study.store import notebooks

_ENOUGH = 7  # effects: the noise is told from the many that are small


@section
def half_normal(experiment: Experiment) -> Figure:
    """The effects of all changes and of their pairs (of a screening the changes' alone), those named that stand out of the noise."""
    metric = experiment.plan.metric
    if experiment.study.declared.screen:
        table = main_effects(experiment)
    else:
        trials, design, _ = factorial(experiment)
        table = effects(trials, design, metric=metric, alpha=experiment.analysis.alpha)
        if len(table) < _ENOUGH:
            raise NothingToShowError(f"{len(table)} effects are too few to tell noise by their order.")
    return changes.half_normal(table, metric=metric, alpha=experiment.analysis.alpha)


@section
def confirm(experiment: Experiment) -> Statement:
    """Which changes of a screening are worth all their combinations, and the command that runs these."""
    table, study = standing_out(main_effects(experiment)), experiment.study
    if table.empty:
        return Statement("Nothing stands out of the noise, so there is nothing to confirm.")
    notebook = study.notebook if study.notebook in notebooks() else "template"
    text = f"# confirm these, in all {2 ** len(table)} combinations: {', '.join(table['effect'])}"
    command = f"benchlib run {notebook} -p study {experiment.folder.name} --confirm"
    return Statement(f"{text}\n{command}", kind="command")


@section
def gains(experiment: Experiment) -> Table:
    """Each change alone, how each pair of them meets, what they would bring if the gains multiplied, and what all of them bring.

    Where only some of the combinations were run, it says nothing of pairs.
    """
    if experiment.study.declared.screen:
        raise NothingToShowError(
            "A screening tells each change's effect alone: run those that stood out once more."
        )
    trials, design, ends = factorial(experiment, 1)
    rows, alpha = combination(experiment, design), experiment.analysis.alpha
    names = {name: f"{name}: {high} instead of {low}" for name, (low, high) in ends.items()}
    parts = [rows.iloc[: len(ends)].replace({"what": names}), rows.iloc[len(ends) :]]
    note = (
        "Single intervals and p by one error of all levels: narrower than those of the verdicts, which stand."
    )
    if len(design) == 2 ** len(ends):
        pairs = effects(trials, design, metric=experiment.plan.metric, alpha=alpha).query("order == 2")
        parts.insert(1, pairs.rename(columns={"effect": "what"}))
        note += (
            " × : by how much one change raises or lowers the other's gain, halved, averaged over the rest."
        )
    rows = pd.concat(parts)
    words = [change_cells(*row) for row in rows[["percent", "ci_low", "ci_high"]].to_numpy().tolist()]
    interval = f"{confidence_words(alpha)} interval"
    table = pd.DataFrame(words, columns=["change", interval]).assign(p=rows["p_value"].to_list())
    table.insert(0, "what", rows["what"].to_list())
    formats: dict[str, Format] = {"change": str, interval: str, "p": p_words}
    return html_table(table, "Do the gains add up?", formats=formats, note=note)


@section
def waterfall(experiment: Experiment, steps: Sequence[str]) -> Figure:
    """The levels ``steps``, the start first, as a waterfall: each against the one before, and against the start."""
    plan, trials = experiment.plan, experiment.by_level()
    good = trials[trials["error"].isna()]
    measured = [step for step in steps if step in set(good["level"])]
    if len(measured) < 2:
        absent = ", ".join(step for step in steps if step not in measured)
        raise NothingToShowError(f"The ladder was not measured here: there is no good trial of {absent}.")
    start, alpha = measured[0], experiment.analysis.alpha
    controls = plan.factor.controls if start == plan.factor.baseline else ()
    rows = good[good["level"].isin([*measured, *controls])]
    refuse_invalid(experiment, [*measured, *controls])
    table = ladder(rows, measured, controls=controls, metric=plan.metric, alpha=alpha)
    unshown = table["level"].isin([*experiment.analysis.unshown])
    for of in ("step_verdict", "total_verdict"):
        table[of] = table[of].mask(unshown & table[of].eq("inconclusive"), UNSHOWN)
    return changes.waterfall(table, start=start, metric=plan.metric, alpha=alpha)
