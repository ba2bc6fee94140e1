"""Matrices, such as of workloads and versions."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from benchlib.stats.between import ENDS
from benchlib.stats.effects import COLUMNS, compare
from benchlib.stats.trials import usable


def steps(
    trials: pd.DataFrame,
    design: pd.DataFrame,
    along: str,
    *,
    baseline: str,
    controls: Sequence[str] = (),
    **arguments: Any,
) -> pd.DataFrame:
    """Return the effect of each cell against the one before it; empty without steps.

    ``design`` (``study.design``): a row per level, a column per dimension, values in order. All intervals
    hold together. For ``arguments`` see :func:`benchlib.stats.effects.compare`.

    Raises:
        InputError: invalid trials or arguments.
    """
    metric = arguments.get("metric", "tps")
    good = usable(trials, metric) if metric in trials else trials  # what is missing is named below
    measured = design[design.index.isin(good["level"]) & ~design.duplicated()]
    rest = [name for name in design if name != along]
    rows = [list(cells.index) for _, cells in measured.groupby(rest, sort=False)]
    before = {str(level): str(other) for row in rows for other, level in pairwise(row)}
    if not before:
        return pd.DataFrame(columns=COLUMNS)
    starts = [row[0] for row in rows if len(row) > 1]
    if baseline not in starts:
        baseline, controls = next(iter(starts), baseline), ()
    inside = trials[trials["level"].isin({*before, *before.values(), *controls})]
    return compare(inside, baseline=baseline, controls=controls, against=before, **arguments)


def first_changes(steps: pd.DataFrame, design: pd.DataFrame, along: str) -> pd.DataFrame:
    """Return where each row of a matrix changes first, or else its largest step.

    Columns: ``changed_at`` (empty if no step differs), ``before``, the change; ``steps`` and ``shown`` count
    the row's steps, and those that differ.
    """
    rest = [name for name in design if name != along]
    cells = steps[steps["level"].isin(design.index)].join(design, on="level")
    shown = cells["verdict"].isin(["faster", "slower"])
    by_row = cells.assign(shown=shown).groupby(rest, sort=False)["shown"]
    cells = cells.assign(
        changed_at=cells[along].where(shown, ""),
        before=cells["against"].map(design[along]).where(shown, ""),
        size=cells["percent_change"].abs().fillna(-1).where(~shown, np.inf),
        steps=by_row.transform("size"),
        shown=by_row.transform("sum"),
    )
    found = cells.loc[cells.groupby(rest, sort=False)["size"].idxmax()]  # of equal ones the first
    figures = ["changed_at", "before", *ENDS, "verdict", "steps", "shown"]
    found = found[[*rest, *figures]].reset_index(drop=True)
    found.attrs = {}
    return found
