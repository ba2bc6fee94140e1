"""Anybody's trials made safe: a frame of ``block, level, <metric>`` checked row by row.

An error names the row (counted from 1, as in the file below its header line); what is left out is
told in a concern that travels with the result.
"""

import re
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from benchlib.errors import InputError
from benchlib.stats.block_model import Fit, fit_blocks
from benchlib.stats.limits import Concern

_FEW_SHOWN = 3


@dataclass(frozen=True)
class Trials:
    """Clean trials: positive ``values``, a row per block and a column per level; NaN where a trial is absent.

    The levels start with the baseline, then the controls, then the others in the order of their
    categories or of their first appearance, those without a usable trial among them; blocks are
    sorted where they can be. ``hosts`` names the host that ran each block, one for all where the trials do not say;
    ``periods`` numbers the period, of its host, in which a block's clusters stayed; None where the trials do not say.
    """

    values: pd.DataFrame
    hosts: "pd.Series[Any]"
    periods: "pd.Series[Any] | None"
    concerns: tuple[Concern, ...]

    @cached_property
    def logs(self) -> pd.DataFrame:
        """The values' logarithms."""
        return pd.DataFrame(np.log(self.values.to_numpy()), self.values.index, self.values.columns)

    def fit(self) -> Fit:
        """The block model of all trials."""
        return fit_blocks(self.logs, self.hosts)


def read_trials(frame: pd.DataFrame, baseline: str, controls: Sequence[str], metric: str) -> Trials:
    """Check a frame and return its trials.

    Left out and told: rows with an ``error`` and rows without a value (failed trials). Accepted: further
    columns, any hashable block labels, levels that are numbers (compared as text), numbers that are text.
    Raises InputError for missing columns, rows without block or level, values that are not positive
    finite numbers (their logarithm is analysed), a (block, level) that is there twice, an unknown baseline
    or control, a block of two periods or hosts, and fewer than two levels.
    """
    for column in ("block", "level", metric):
        count = int((frame.columns == column).sum())
        if count != 1:
            columns = ", ".join(map(str, frame.columns)) or "none"
            raise InputError(
                f"the trials need one column {column!r}, here are {count}; their columns: {columns}"
            )
    for column in ("error", "host", "period"):
        if int((frame.columns == column).sum()) > 1:
            raise InputError(f"the trials need one column {column!r} at most")
    if frame.empty:
        raise InputError("there are no trials to analyse")
    for column in ("block", "level"):
        for row in np.flatnonzero(frame[column].isna()):
            raise InputError(f"row {row + 1}: {column} is empty; every trial needs its {column}")
    labels = frame.reset_index(drop=True)[["block", "level"]].astype({"level": str})
    failed = _failed(frame["error"]) if "error" in frame else np.zeros(len(frame), dtype=bool)
    missing = _blank(frame[metric]) & ~failed
    kept = labels[~failed & ~missing]
    value = pd.to_numeric(frame[metric], errors="coerce").to_numpy(dtype=float, na_value=np.nan)[kept.index]
    for row in kept.index[~((value > 0) & np.isfinite(value))]:
        raise InputError(
            f"{_where(labels, row)}: {metric} is {frame[metric].iloc[row]}, but only positive finite numbers can be "
            "compared as ratios; leave a failed trial's cell empty"
        )
    levels = _level_order(frame["level"].dtype, labels, kept, [baseline, *controls], metric)
    for row in kept.index[kept.duplicated()]:
        raise InputError(
            f"{_where(labels, row)} repeats an earlier row; a block holds each level once "
            "(a repetition is a block of its own)"
        )
    blocks = list(dict.fromkeys(kept["block"]))
    with suppress(TypeError):  # labels of several kinds stay in the order in which they came
        blocks = sorted(blocks, key=_natural)
    row_of = {block: row for row, block in enumerate(blocks)}
    values = np.full((len(blocks), len(levels)), np.nan)
    values[[row_of[block] for block in kept["block"]], pd.Index(levels).get_indexer(kept["level"])] = value
    concerns = (
        *_left_out(
            "failed_trials", "that ended with an error", labels[failed], len(frame), frame.get("error")
        ),
        *_left_out("missing_values", f"without {metric}", labels[missing], len(frame)),
    )
    index = pd.Index(blocks, tupleize_cols=False)
    hosts, periods = (_of_blocks(frame, column, labels["block"], index) for column in ("host", "period"))
    hosts = pd.Series(0, index) if hosts is None else hosts
    if periods is not None:  # every host has clusters of its own
        periods = periods.groupby([hosts.to_numpy(), periods.to_numpy()], sort=False).ngroup()
    return Trials(pd.DataFrame(values, index=index, columns=levels), hosts, periods, concerns)


def _natural(label: Any) -> Any:
    """A text sorts by the numbers in it, ``b2`` before ``b10``; anything else as it is."""
    if not isinstance(label, str):
        return label
    return [
        (0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.findall(r"\d+|\D+", label)
    ]


def _of_blocks(
    frame: pd.DataFrame, column: str, block: "pd.Series[Any]", index: pd.Index
) -> "pd.Series[Any] | None":
    """Return what a column says of each block; None where it says nothing."""
    if column not in frame or (blank := _blank(frame[column])).all():
        return None
    pairs = pd.DataFrame({"block": block, "value": frame[column].to_numpy()})[~blank].drop_duplicates()
    value: dict[Hashable, Any] = {}
    for name, own in pairs.itertuples(index=False):
        if value.setdefault(name, own) != own:
            raise InputError(f"block {name} has two {column}s, {value[name]} and {own}: it has one")
    if missing := [name for name in index if name not in value]:
        raise InputError(f"block {missing[0]} has no {column}, though others have")
    return pd.Series([value[name] for name in index], index=index)


def _failed(error: "pd.Series[Any]") -> np.ndarray:
    """Which trials ended with an error: a text says why; of a count or a flag, 0 says that there was none."""
    said = error.astype(object).where(~_blank(error), 0)
    return said.map(lambda told: isinstance(told, str) or told != 0).to_numpy(dtype=bool)


def _blank(column: "pd.Series[Any]") -> np.ndarray:
    blank = column.isna()
    if not pd.api.types.is_numeric_dtype(column):
        blank |= column.astype(str).str.strip().eq("")
    return blank.to_numpy(dtype=bool)


def _where(labels: pd.DataFrame, row: int) -> str:
    return f"row {row + 1} (block {labels['block'][row]}, level {labels['level'][row]!r})"


def _left_out(
    code: str, why: str, labels: pd.DataFrame, total: int, errors: "pd.Series[Any] | None" = None
) -> list[Concern]:
    if labels.empty:
        return []
    first = None if errors is None else errors.iloc[labels.index[0]]
    told = f"; the first: {first}" if isinstance(first, str) else ""
    shown = ", ".join(f"block {row.block} {row.level!r}" for row in labels[:_FEW_SHOWN].itertuples())
    more = f" and {len(labels) - _FEW_SHOWN} more" if len(labels) > _FEW_SHOWN else ""
    return [Concern(code, f"{len(labels)} of {total} ({shown}{more}){told}")]


def _level_order(
    dtype: Any, labels: pd.DataFrame, kept: pd.DataFrame, arms: Sequence[str], metric: str
) -> list[str]:
    """Return the levels: the ``arms``, then the others in the order of their categories or of their appearance."""
    names, usable = labels["level"].unique().tolist(), set(kept["level"].unique())
    if isinstance(dtype, pd.CategoricalDtype):
        names = [name for name in dtype.categories.astype(str) if name in names]
    for place, name in enumerate(arms):
        role = "control" if place else "baseline"
        if name not in names:
            raise InputError(f"unknown {role} {name!r}; the levels are: {', '.join(names)}")
        if name not in usable:
            raise InputError(f"{role} {name!r} has no trial with a usable {metric}")
    if len(names) < 2:
        raise InputError(f"only one level ({names[0]!r}) has trials; a comparison takes two")
    return list(dict.fromkeys([*arms, *names]))
