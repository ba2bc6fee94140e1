"""Matrices, such as of workloads and versions."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pandas as pd

from benchlib.stats.between import ENDS
from benchlib.stats.effects import compare


def steps(
    trials: pd.DataFrame,
    design: pd.DataFrame,
    along: str,
    *,
    baseline: str,
    controls: Sequence[str] = (),
    **arguments: Any,
) -> pd.DataFrame:
    """Return the effect of each cell against the one before it.

    ``design`` (``study.design``): a row per level, a column per dimension, values in order. All intervals
    hold together. For ``arguments`` see :func:`benchlib.stats.effects.compare`.

    Raises:
        InputError: invalid trials or arguments, or no steps.
    """
    measured = design[design.index.isin(trials["level"]) & ~design.duplicated()]
    rest = [name for name in design if name != along]
    rows = [list(cells.index) for _, cells in measured.groupby(rest, sort=False)]
    before = {str(level): str(other) for row in rows for other, level in pairwise(row)}
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
    rest, change_columns = [name for name in design if name != along], [*ENDS, "verdict"]
    cells = steps[steps["level"].isin(design.index)].join(design, on="level")
    cells = cells.assign(
        before=cells["against"].map(design[along]), shown=cells["verdict"].isin(["faster", "slower"])
    )
    cells["size"] = cells["percent_change"].abs().where(~cells["shown"])
    rows = []
    for names, row in cells.groupby(rest, sort=False):
        found = row[row["shown"]].head(1) if row["shown"].any() else row.nlargest(1, "size", keep="first")
        for cell in found.to_dict("records"):
            at = cell[along] if cell["shown"] else ""
            change = [cell[name] for name in change_columns]
            rows.append(
                (*names, at, cell["before"] if at else "", *change, len(row), int(row["shown"].sum()))
            )
    return pd.DataFrame(rows, columns=[*rest, "changed_at", "before", *change_columns, "steps", "shown"])
