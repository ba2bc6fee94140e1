"""A cumulative ladder of changes: what each step adds to the one before."""

from __future__ import annotations

from collections.abc import Sequence

from benchlib.report import figures as plots
from benchlib.report.view import Statement, View
from benchlib.stats.ladder import ladder


def waterfall(experiment: View, steps: Sequence[str]) -> plots.Figure | Statement:
    """The levels ``steps``, the start first, as a waterfall: each against the one before, and against the start."""
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
