"""Checks of trials: a frame of ``block, level, <metric>``."""

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
    """Checked trials: positive ``values`` (blocks, levels), NaN if missing, arms first.

    ``hosts`` and ``periods`` have a value per block.
    """

    values: pd.DataFrame
    hosts: "pd.Series[Any]"
    periods: "pd.Series[Any] | None"
    concerns: tuple[Concern, ...]

    @cached_property
    def logs(self) -> pd.DataFrame:
        """Return the logarithms."""
        return pd.DataFrame(np.log(self.values.to_numpy()), self.values.index, self.values.columns)

    def fit(self) -> Fit:
        """Return the block model."""
        return fit_blocks(self.logs, self.hosts)


def usable(trials: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the trials that did not fail and have a value."""
    good = trials.dropna(subset=[metric])
    return good[~_failed(good["error"])] if "error" in good else good


def read_trials(frame: pd.DataFrame, baseline: str, controls: Sequence[str], metric: str) -> Trials:
    """Check a frame; rows with an ``error`` or without a value are omitted and reported.

    Raises:
        InputError: an invalid or repeated trial, or nothing to compare.
    """
    for column in ("block", "level", metric, "error", "host", "period"):
        count = int((frame.columns == column).sum())
        if count > 1 or (count == 0 and column in ("block", "level", metric)):
            columns = ", ".join(map(str, frame.columns)) or "none"
            raise InputError(
                f"the trials need one column {column!r}, here are {count}; their columns: {columns}"
            )
    if frame.empty:
        raise InputError("there are no trials to analyse")
    for column in ("block", "level"):
        for row in np.flatnonzero(frame[column].isna()):
            raise InputError(f"row {row + 1}: {column} is empty; every trial needs a {column}")
    labels = frame.reset_index(drop=True)[["block", "level"]].astype({"level": str})
    failed = _failed(frame["error"]) if "error" in frame else np.zeros(len(frame), dtype=bool)
    missing = _blank(frame[metric]) & ~failed
    good = labels[~failed & ~missing]
    value = pd.to_numeric(frame[metric], errors="coerce").to_numpy(dtype=float, na_value=np.nan)[good.index]
    for row in good.index[~((value > 0) & np.isfinite(value))]:
        raise InputError(
            f"{_where(labels, row)}: {metric} is {frame[metric].iloc[row]}, but only positive finite numbers can be "
            "compared as ratios; leave a failed trial's cell empty"
        )
    levels = _level_order(frame["level"].dtype, labels, good, [baseline, *controls], metric)
    for row in good.index[good.duplicated()]:
        raise InputError(
            f"{_where(labels, row)} repeats an earlier row; a block holds each level once "
            "(a repetition is a block of its own)"
        )
    blocks = list(dict.fromkeys(good["block"]))
    with suppress(TypeError):  # mixed labels keep their order
        blocks = sorted(blocks, key=_natural)
    index = pd.Index(blocks, tupleize_cols=False)
    values = np.full((len(blocks), len(levels)), np.nan)
    values[index.get_indexer_for(good["block"]), pd.Index(levels).get_indexer(good["level"])] = value
    concerns = (
        *_left_out("failed_trials", labels[failed], len(frame), frame.get("error")),
        *_left_out("missing_values", labels[missing], len(frame)),
    )
    hosts, periods = (_of_blocks(frame, column, labels["block"], index) for column in ("host", "period"))
    hosts = pd.Series(0, index) if hosts is None else hosts
    if periods is not None:  # each host has its own clusters
        periods = periods.groupby([hosts.to_numpy(), periods.to_numpy()], sort=False).ngroup()
    return Trials(pd.DataFrame(values, index=index, columns=levels), hosts, periods, concerns)


def _natural(label: Any) -> Any:
    """Return a sort key: ``b2`` before ``b10``."""
    if not isinstance(label, str):
        return label
    parts = re.findall(r"\d+|\D+", label)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def _of_blocks(
    frame: pd.DataFrame, column: str, block: "pd.Series[Any]", index: pd.Index
) -> "pd.Series[Any] | None":
    """Return each block's value, or None if empty."""
    if column not in frame or (blank := _blank(frame[column])).all():
        return None
    value: dict[Hashable, Any] = {}
    for name, found in zip(block[~blank], frame[column][~blank], strict=True):
        if value.setdefault(name, found) != found:
            raise InputError(f"block {name} has two {column}s, {value[name]} and {found}; one is expected")
    if missing := [name for name in index if name not in value]:
        raise InputError(f"block {missing[0]} has no {column}, but other blocks have one")
    return pd.Series([value[name] for name in index], index=index)


def _failed(error: "pd.Series[Any]") -> np.ndarray:
    errors = error.astype(object).where(~_blank(error), 0)
    return errors.map(lambda value: isinstance(value, str) or value != 0).to_numpy(dtype=bool)


def _blank(column: "pd.Series[Any]") -> np.ndarray:
    blank = column.isna()
    if not pd.api.types.is_numeric_dtype(column):
        blank |= column.astype(str).str.strip().eq("")
    return blank.to_numpy(dtype=bool)


def _where(labels: pd.DataFrame, row: int) -> str:
    return f"row {row + 1} (block {labels['block'][row]}, level {labels['level'][row]!r})"


def _left_out(
    code: str, labels: pd.DataFrame, total: int, errors: "pd.Series[Any] | None" = None
) -> list[Concern]:
    if labels.empty:
        return []
    first = None if errors is None else errors.iloc[labels.index[0]]
    reason = f"; the first: {first}" if isinstance(first, str) else ""
    shown = ", ".join(f"block {row.block} {row.level!r}" for row in labels[:_FEW_SHOWN].itertuples())
    more = f" and {len(labels) - _FEW_SHOWN} more" if len(labels) > _FEW_SHOWN else ""
    return [Concern(code, f"{len(labels)} of {total} ({shown}{more}){reason}")]


def _level_order(
    dtype: Any, labels: pd.DataFrame, usable: pd.DataFrame, arms: Sequence[str], metric: str
) -> list[str]:
    """Return ``arms``, then the others."""
    names, measured = labels["level"].unique().tolist(), set(usable["level"])
    if isinstance(dtype, pd.CategoricalDtype):
        names = [name for name in dtype.categories.astype(str) if name in names]
    for place, name in enumerate(arms):
        role = "control" if place else "baseline"
        if name not in names:
            raise InputError(f"unknown {role} {name!r}; the levels are: {', '.join(names)}")
        if name not in measured:
            raise InputError(f"{role} {name!r} has no trial with a usable {metric}")
    if len(names) < 2:
        raise InputError(f"only one level ({names[0]!r}) has trials; a comparison needs two")
    return list(dict.fromkeys([*arms, *names]))
