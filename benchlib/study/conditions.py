"""What must be so in a study's trials for its effect to show, held against what was sampled in them.

A notebook declares conditions by name: ``{"every trial has a checkpoint": "checkpoints >= 1"}``, or for some levels
``{"holds": "kib_per_read >= 64", "levels": ["8 read-ahead"]}``, where parts of a name stand for all levels that have them. With
``"at": "reference"`` the figure is that of what each of these levels is compared with.
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
from benchlib.plan.metrics import METRICS
from benchlib.plan.model import Study
from benchlib.stats import Concern
from benchlib.study.instruments import Recorded, nearest_cap
from benchlib.study.published import matching
from benchlib.study.records import Parameters, understood
from benchlib.study.results import COSTS, TRIAL
from benchlib.study.store import StudyFolder

_OWN = {
    "data_to_memory": "data, times the memory that the server may use",
    "data_to_buffers": "data, times shared_buffers",
    "growth": "a table's rows, times those that ANALYZE last saw",
    "autovacuums": "tables that autovacuum vacuumed or analysed",
    "dirty_peak_mib": "peak of dirty memory, MiB",
    "kib_per_read": "size of a read, KiB",
    "cap_share": "share of the disk's cap in use",
    "processors_share": "share of all processors in use",
    "flushes_per_s": "flushes a second that the WAL's place can do",
}
FIGURES = _OWN | {name: METRICS[name].title for name in COSTS} | {name: name for name in (*HOST, *DEVICE)}
"""What a condition may be of, and how a table words it: one number a trial, of what is sampled each second the mean."""

_BOUND = re.compile(r"\s*([a-z0-9_]+)\s*(>=|<=)\s*(\d+(?:\.\d+)?)\s*")
_MOST = 0.8
"""The share of a level's trials in which a condition has to hold to be met."""
_MIB = 1 << 20


class Condition(Model):
    """A ``figure`` of each trial and its ``bound``, at some ``levels`` or, if none is named, at all; or ``at`` their references."""

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
            raise ValueError('it wants a figure and its bound, such as "checkpoints >= 1"')
        if match[1] not in FIGURES:
            raise ValueError(f"'{match[1]}' is no figure of a trial: there are {', '.join(FIGURES)}")
        return {"figure": match[1], "sign": match[2], "bound": match[3], **value}

    def __str__(self) -> str:
        return f"{FIGURES[self.figure]} {'≥' if self.sign == '>=' else '≤'} {self.bound:g}"

    def holds(self, values: "pd.Series[float]") -> "pd.Series[bool]":
        """Whether it holds, for each of some trials."""
        return values >= self.bound if self.sign == ">=" else values <= self.bound


def conditions(study: Study) -> dict[str, Condition]:
    """The conditions that a study's notebook declares, by name.

    Raises:
        InputError: one is none, or names a level that is not there.

    """
    notebook, given = study.declared, study.parameters.get("conditions") or {}
    # all levels that the notebook names, run here or not; of a grid one name that has every value of each dimension
    every = ", ".join(end for ends in notebook.grid.values() for end in ends)
    known = [*study.plan.factor.levels, *study.left_out, *notebook.levels, every]
    try:  # a kept study may come from anywhere
        declared = TypeAdapter(dict[str, Condition]).validate_python(given)
    except ValidationError as reason:
        raise InputError(f"parameter conditions: {first_problem(reason)}") from None
    for name, condition in declared.items():
        if unknown := [level for level in condition.levels if not matching(level, known)]:
            raise InputError(f"parameter conditions: {name}: '{unknown[0]}' is not among the levels")
    return declared


def checked(study: Study, figures: pd.DataFrame) -> pd.DataFrame:
    """Each condition at each level that it is of: ``condition, level, of, wanted, median, held, trials, met``.

    ``figures`` are those of :func:`figures_of`. ``met`` is whether it ``held`` in four of five ``trials`` of the ``level``; None
    where the figure is not known. ``of`` is the level whose effect it is a condition of.
    """
    rows, pairs = [], study.plan.factor.pairs()
    for name, condition in conditions(study).items():
        levels, cells = list(study.plan.factor.levels), study.plan.factor.cells
        named = (matching(part, levels, cells) for part in condition.levels)
        for of in dict.fromkeys(chain.from_iterable(named)) if condition.levels else levels:
            level = pairs.get(of, of) if condition.at == "reference" else of
            values = figures.loc[figures["level"] == level, condition.figure].dropna()
            held = int(condition.holds(values).sum())
            met = held >= _MOST * len(values) if len(values) else None
            rows.append((name, level, of, str(condition), values.median(), held, len(values), met))
    columns = ["condition", "level", "of", "wanted", "median", "held", "trials", "met"]
    return pd.DataFrame(rows, columns=columns).astype({"median": float, "met": object})


def unmet(rows: pd.DataFrame) -> list[Concern]:
    """A concern for each condition that a level did not meet, of the rows of :func:`checked`."""
    return [
        Concern(
            "condition",
            f"{row.condition} ({row.wanted} is wanted, the median is {row.median:.3g})",
            level=str(row.of),
        )
        for row in rows.itertuples()
        if row.met is False
    ]


def figures_of(folder: StudyFolder, study: Study, trials: pd.DataFrame, recorded: Recorded) -> pd.DataFrame:
    """All :data:`FIGURES` of the good ones of ``trials``, a row per trial (``level, block``); null where not known.

    Raises:
        InputError: a file is damaged.

    """
    good = trials[trials["error"].isna()].set_index(TRIAL)
    seconds = recorded.seconds.groupby(TRIAL)
    reads = seconds[["r_mib_s", "r_iops"]].sum()
    caps = {trial: nearest_cap(study.plan.level(str(trial[0])), of)[0] for trial, of in seconds}
    data_mib, levels = good["data_bytes"].astype(float) / _MIB, good.index.get_level_values("level")
    memory_mib = [
        _memory_mib(study, str(level), host) for level, host in zip(levels, good["host"], strict=True)
    ]
    figures = good.join(seconds[[*HOST, *DEVICE]].mean()).assign(
        data_to_memory=data_mib / np.array(memory_mib, dtype=float),
        data_to_buffers=data_mib / levels.map(_buffers_mib(folder, trials)).to_numpy(float),
        kib_per_read=1024 * reads["r_mib_s"] / reads["r_iops"].where(reads["r_iops"] > 0),
        dirty_peak_mib=seconds["dirty_mib"].max(),
        cap_share=pd.Series(caps, dtype=float),
    )
    return figures[[*FIGURES]].astype(float).reset_index()


def _memory_mib(study: Study, level: str, host: object) -> float | None:
    """What a server and its page cache may use: its cap, or all of the memory of the host that ran it; null elsewhere."""
    if study.plan.level(level).target:
        return None
    cap = study.plan.level(level).part("storage").get("memory")
    own = study.provenance.get("hosts", {}).get(host) or study.provenance.get("host", {})
    total: float | None = own.get("memory_mib")
    return cap / _MIB if cap else total


def _buffers_mib(folder: StudyFolder, trials: pd.DataFrame) -> dict[str, float]:
    """``shared_buffers`` as each level's server told it in the first block that did, in MiB; pages are of 8 kB."""
    buffers: dict[str, float] = {}
    for level, name in trials[["level", "trial"]].itertuples(index=False, name=None):
        with understood(folder, name):
            if level not in buffers and (parameters := Parameters.read(folder, name)):
                told: Values = (parameters.model_extra or {}).get("shared_buffers", {})
                if told.get("unit") == "8kB":
                    buffers[level] = float(told["setting"]) / 128
    return buffers
