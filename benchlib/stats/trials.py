"""Anybody's trials made safe: a frame of ``block, level, <metric>`` checked row by row.

What is refused names the row (counted from 1, as in the file below its header line); what is
handled is said in a concern that travels with the result.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from benchlib.errors import InputError
from benchlib.stats.concerns import Concern

_FEW_SHOWN = 3


@dataclass(frozen=True)
class Trials:
    """Clean trials: one entry per trial in ``block``, ``level`` (indices) and ``value`` (positive).

    ``levels`` starts with the baseline, then the controls, then the others in the order of their
    categories or of their first appearance, those without a usable trial among them; ``blocks`` are
    sorted where they can be.
    """

    blocks: tuple[Hashable, ...]
    levels: tuple[str, ...]
    block: np.ndarray
    level: np.ndarray
    value: np.ndarray
    concerns: tuple[Concern, ...]


def read_trials(frame: pd.DataFrame, baseline: str, controls: Sequence[str], metric: str) -> Trials:
    """Check a frame and return its trials.

    Handled and said: rows with an ``error``, rows without a value (a failed trial), rows with
    further columns, any hashable block labels, levels that are numbers (compared as text), numbers
    that are text. Raises InputError for missing columns, rows without block or level, values that
    are not positive finite numbers (their logarithm is what is analysed), a (block, level) that is
    there twice, an unknown baseline or control, and fewer than two levels.
    """
    if not isinstance(frame, pd.DataFrame):
        raise InputError(f"trials must be a pandas DataFrame, not {type(frame).__name__}")
    for column in ("block", "level", metric):
        if column not in frame.columns:
            found = ", ".join(map(str, frame.columns)) or "none"
            raise InputError(f"the trials have no column {column!r}; their columns: {found}")
        if isinstance(frame[column], pd.DataFrame):
            raise InputError(f"the trials have two columns {column!r}; keep one")
    if frame.empty:
        raise InputError("there are no trials to analyse")
    labels, names = _labels(frame, "block"), _labels(frame, "level")
    values = _numbers(frame[metric], metric, labels, names)
    failed = _failed(frame)
    missing = np.isnan(values) & ~failed
    kept = ~failed & ~missing
    for row in np.flatnonzero(kept & ~((values > 0) & np.isfinite(values))):
        raise InputError(
            f"row {row + 1} (block {labels[row]}, level {names[row]!r}): {metric} is {values[row]:g}, "
            "but only positive finite values can be compared as ratios; leave a failed trial's cell empty"
        )
    levels = _level_order(frame["level"], names, kept, baseline, controls, metric)
    blocks = _block_order([label for label, keep in zip(labels, kept, strict=True) if keep])
    _refuse_duplicates(labels, names, kept)
    block_of = {label: index for index, label in enumerate(blocks)}
    level_of = {name: index for index, name in enumerate(levels)}
    rows = np.flatnonzero(kept)
    concerns = [
        _dropped("failed_trials", "ended with an error", failed, labels, names),
        _dropped("missing_values", f"have no {metric}", missing, labels, names),
    ]
    return Trials(
        blocks=tuple(blocks),
        levels=tuple(levels),
        block=np.array([block_of[labels[row]] for row in rows]),
        level=np.array([level_of[names[row]] for row in rows]),
        value=values[rows],
        concerns=tuple(concern for concern in concerns if concern),
    )


def _labels(frame: pd.DataFrame, column: str) -> list[Any]:
    labels = list(frame[column])
    for row, label in enumerate(labels, start=1):
        try:
            hash(label)
        except TypeError:
            raise InputError(f"row {row}: {column} is {label!r}, which cannot name a {column}") from None
        if label is None or (pd.api.types.is_scalar(label) and pd.isna(label)):
            raise InputError(f"row {row}: {column} is empty; every trial needs its {column}")
    return [str(label) for label in labels] if column == "level" else labels


def _numbers(column: "pd.Series[Any]", metric: str, labels: list[Any], names: list[str]) -> np.ndarray:
    if column.dtype.kind == "f":
        return column.to_numpy(dtype=float)
    values = np.empty(len(column))
    for row, value in enumerate(column):
        blank = value is None or value is pd.NA or (isinstance(value, str) and not value.strip())
        try:
            if isinstance(value, bool | np.bool_ | complex | np.complexfloating):
                raise TypeError
            values[row] = np.nan if blank else float(value)
        except (TypeError, ValueError, OverflowError):
            where = f"row {row + 1} (block {labels[row]}, level {names[row]!r})"
            raise InputError(f"{where}: {metric} is {value!r}, which is not a number") from None
    return values


def _failed(frame: pd.DataFrame) -> np.ndarray:
    if "error" not in frame.columns:
        return np.zeros(len(frame), dtype=bool)
    said = frame["error"]
    blank = said.isna() | said.map(lambda text: isinstance(text, str) and not text.strip())
    return ~blank.to_numpy(dtype=bool)


def _dropped(code: str, why: str, rows: np.ndarray, labels: list[Any], names: list[str]) -> Concern | None:
    found = np.flatnonzero(rows)
    if not len(found):
        return None
    shown = ", ".join(f"block {labels[row]} {names[row]!r}" for row in found[:_FEW_SHOWN])
    more = f" and {len(found) - _FEW_SHOWN} more" if len(found) > _FEW_SHOWN else ""
    return Concern(code, f"{len(found)} of {len(rows)} trials {why} and are left out: {shown}{more}")


def _level_order(
    column: "pd.Series[Any]",
    names: list[str],
    kept: np.ndarray,
    baseline: str,
    controls: Sequence[str],
    metric: str,
) -> list[str]:
    usable = {name for name, keep in zip(names, kept, strict=True) if keep}
    found = list(dict.fromkeys(names))
    if isinstance(column.dtype, pd.CategoricalDtype):
        found = [str(name) for name in column.dtype.categories if str(name) in found]
    for role, name in [("baseline", baseline), *(("control", control) for control in controls)]:
        if name not in found:
            raise InputError(f"unknown {role} {name!r}; the levels are: {', '.join(found)}")
        if name not in usable:
            raise InputError(f"{role} {name!r} has no trial with a usable {metric}")
    if len(found) < 2:
        raise InputError(f"only one level ({found[0]!r}) has trials; a comparison takes two")
    return [baseline, *controls, *(name for name in found if name != baseline and name not in controls)]


def _block_order(labels: list[Any]) -> list[Any]:
    blocks = list(dict.fromkeys(labels))
    try:
        return sorted(blocks)
    except TypeError:  # labels of several kinds: the order in which they came
        return blocks


def _refuse_duplicates(labels: list[Any], names: list[str], kept: np.ndarray) -> None:
    seen: dict[tuple[Any, str], int] = {}
    for row in np.flatnonzero(kept):
        key = (labels[row], names[row])
        if key in seen:
            raise InputError(
                f"rows {seen[key] + 1} and {row + 1} are both block {key[0]}, level {key[1]!r}; "
                "a block holds each level once (a repetition is a block of its own)"
            )
        seen[key] = int(row)
