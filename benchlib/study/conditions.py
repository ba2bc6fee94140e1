"""Conditions under which an effect can show, declared in a notebook.

- ``"checkpoints >= 1"``
- ``{"holds": "kib_per_read >= 64", "levels": ["8 read-ahead"]}``: for levels with these parts
- ``"at": "reference"``: for the levels that those are compared with
"""

import re
from itertools import chain
from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic import TypeAdapter, ValidationError, model_validator

from benchlib.errors import InputError
from benchlib.host.telemetry import DEVICE, HOST
from benchlib.plan.level import Model, NotEmpty, Values, first_problem
from benchlib.plan.metrics import METRICS, number_words
from benchlib.plan.model import Study
from benchlib.stats.limits import Concern
from benchlib.study.instruments import Recorded, nearest_cap
from benchlib.study.published import matching
from benchlib.study.records import Parameters, rows_of
from benchlib.study.results import COSTS, TRIAL
from benchlib.study.store import StudyFolder

_DERIVED = {
    "data_to_memory": "data, times the memory that the server may use",
    "data_to_buffers": "data, times shared_buffers",
    "growth": "a table's rows, times those that ANALYZE last saw",
    "autovacuums": "tables that autovacuum vacuumed or analysed",
    "dirty_peak_mib": "peak of dirty memory, MiB",
    "kib_per_read": "size of a read, KiB",
    "cap_share": "share of the disk's cap in use",
    "processors_share": "share of all processors in use",
    "flushes_per_s": "flushes a second that the WAL's device can do",
}
FIGURES = _DERIVED | {name: METRICS[name].title for name in COSTS} | {name: name for name in (*HOST, *DEVICE)}
"""Figures that a condition can use, with titles; figures of each second are averaged over the trial."""

_BOUND = re.compile(r"\s*([a-z0-9_]+)\s*(>=|<=)\s*(\d+(?:\.\d+)?)\s*")
_MOST = 0.8
"""Share of a level's trials in which a condition must hold."""
_MIB = 1 << 20


class Condition(Model):
    """A bound on a ``figure``, for some ``levels`` (default: all) or their references."""

    figure: str
    sign: str
    bound: float
    levels: tuple[NotEmpty, ...] = ()
    at: Literal["level", "reference"] = "level"

    @model_validator(mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        value = dict(value) if isinstance(value, dict) else {"holds": value}
        if not (match := _BOUND.fullmatch(str(value.pop("holds", "")))):
            raise ValueError('expected a figure and its bound, such as "checkpoints >= 1"')
        if match[1] not in FIGURES:
            raise ValueError(f"'{match[1]}' is not a figure of a trial; available: {', '.join(FIGURES)}")
        return {"figure": match[1], "sign": match[2], "bound": match[3], **value}

    def __str__(self) -> str:
        return f"{FIGURES[self.figure]} {'≥' if self.sign == '>=' else '≤'} {number_words(self.bound, 6)}"

    def holds(self, values: "pd.Series[float]") -> "pd.Series[bool]":
        """Return whether each value satisfies the bound."""
        return values >= self.bound if self.sign == ">=" else values <= self.bound


def conditions(study: Study) -> dict[str, Condition]:
    """Return the declared conditions; InputError if one is malformed."""
    notebook, given = study.declared, study.parameters.get("conditions") or {}
    # all levels of the notebook; for a grid, one name with every value of each dimension
    every = ", ".join(end for ends in notebook.grid.values() for end in ends)
    known = [*study.plan.factor.levels, *study.left_out, *notebook.levels, every]
    try:  # an imported study may be malformed
        declared = TypeAdapter(dict[str, Condition]).validate_python(given)
    except ValidationError as reason:
        raise InputError(f"parameter conditions: {first_problem(reason)}") from None
    for name, condition in declared.items():
        if unknown := [level for level in condition.levels if not matching(level, known)]:
            raise InputError(f"parameter conditions: {name}: '{unknown[0]}' is not a level")
    return declared


def checked(study: Study, figures: pd.DataFrame) -> pd.DataFrame:
    """Return a row per condition and level, from :func:`figures_of`.

    Columns: ``condition, level, of, wanted, median, held, trials, met``.

    - ``met``: ``held`` in four of five trials; None without a figure
    - ``of``: the level whose effect needs the condition
    """
    rows, pairs = [], study.plan.factor.pairs()
    for name, condition in conditions(study).items():
        levels, cells = list(study.plan.factor.levels), study.plan.factor.cells
        named = (matching(part, levels, cells) for part in condition.levels)
        for concerned in dict.fromkeys(chain.from_iterable(named)) if condition.levels else levels:
            level = pairs.get(concerned, concerned) if condition.at == "reference" else concerned
            values = figures.loc[figures["level"] == level, condition.figure].dropna()
            held = int(condition.holds(values).sum())
            met = held >= _MOST * len(values) if len(values) else None
            rows.append((name, level, concerned, str(condition), values.median(), held, len(values), met))
    columns = ["condition", "level", "of", "wanted", "median", "held", "trials", "met"]
    return pd.DataFrame(rows, columns=columns).astype({"median": float, "met": object})


def unmet(rows: pd.DataFrame) -> list[Concern]:
    """Return the unmet rows of :func:`checked` as concerns."""
    missed = rows.loc[rows["met"].eq(False), ["condition", "wanted", "median", "of"]]
    return [
        Concern("condition", f"{name} ({wanted}). Measured: {number_words(median)}", level=level)
        for name, wanted, median, level in missed.itertuples(index=False)
    ]


def figures_of(folder: StudyFolder, study: Study, trials: pd.DataFrame, recorded: Recorded) -> pd.DataFrame:
    """Return :data:`FIGURES` of successful ``trials`` by ``level, block``."""
    good = trials[trials["error"].isna()].set_index(TRIAL)
    seconds = recorded.seconds.groupby(TRIAL)
    reads = seconds[["r_mib_s", "r_iops"]].sum()
    caps = {trial: nearest_cap(study.plan.level(str(trial[0])), rows)[0] for trial, rows in seconds}
    data_mib, levels = good["data_bytes"].astype(float) / _MIB, good.index.get_level_values("level")
    memory_mib = [
        _memory_mib(study, str(level), host) for level, host in zip(levels, good["host"], strict=True)
    ]
    figures = good.join(seconds[[*HOST, *DEVICE]].mean()).assign(
        data_to_memory=data_mib / np.array(memory_mib, dtype=float),
        data_to_buffers=data_mib / levels.map(_buffers_mib(folder, good.reset_index())).to_numpy(float),
        kib_per_read=1024 * reads["r_mib_s"] / reads["r_iops"].where(reads["r_iops"] > 0),
        dirty_peak_mib=seconds["dirty_mib"].max(),
        cap_share=pd.Series(caps, dtype=float),
    )
    return figures[[*FIGURES]].astype(float).reset_index()


def _memory_mib(study: Study, level: str, host: object) -> float | None:
    if study.plan.level(level).target:
        return None
    cap = study.plan.level(level).part("storage").get("memory")
    facts = study.provenance.get("hosts", {}).get(host) or study.provenance.get("host", {})
    total: float | None = facts.get("memory_mib")
    return cap / _MIB if cap else total


def _buffers_mib(folder: StudyFolder, trials: pd.DataFrame) -> dict[Any, float]:
    def pages(parameters: Parameters) -> list[dict[str, Any]]:
        row: Values = (parameters.model_extra or {}).get("shared_buffers", {})
        return [{"pages": float(row["setting"])}] if row.get("unit") == "8kB" else []

    first = trials.drop_duplicates("level")
    rows = rows_of(folder, first, Parameters, pages, ["level", "pages"])
    return {level: size / 128 for level, size in zip(rows["level"], rows["pages"], strict=True)}
