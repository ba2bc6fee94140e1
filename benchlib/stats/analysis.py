"""The result of an analysis: verdicts as a table, and the limits that belong to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from benchlib.plan.metrics import Metric
from benchlib.stats.limits import Concern


@dataclass(frozen=True)
class Analysis:
    """The verdicts on one factor by one metric.

    ``table``: one row per level, baseline first, then controls, then the others. ``mean`` and ``sd``
    are arithmetic, in the metric's unit; ``cv``, ``percent_change``, ``ci_*`` and ``mde_percent`` are
    percentages; ``ci_*`` is the simultaneous interval at 1 - alpha, ``p_value`` the single
    and ``p_adjusted`` the family's p. A level is compared with the geometric mean of baseline and
    controls, a control with the baseline alone. ``mde_percent`` is the smallest increase that this
    study would have found with 80 % power, ``blocks_needed`` the total number of blocks that would
    settle an inconclusive level (see ``power.blocks_to_answer``), else NaN.

    ``against`` says what each level that is compared is compared with; the others, the baseline among them, have empty
    comparison columns.
    ``differences``: ``block, level, percent``, the same comparisons inside each block.
    ``errors``: ``level, against, estimate, error, df, equal_low, equal_high``, each comparison's log-ratio, its standard error,
    degrees of freedom, and the interval that lies within the margin exactly where the comparison is equivalent.
    ``tiny``: the levels with a real difference that is equivalent all the same, by two one-sided tests.
    ``residual_sd`` is in log units, so about the fraction by which a trial strays, NaN where it cannot be known.
    ``of_periods``: whether comparisons are judged by periods in which clusters stayed, not by blocks.
    """

    table: pd.DataFrame
    baseline: str
    controls: tuple[str, ...]
    against: Mapping[str, str]
    metric: Metric
    blocks: int
    margin: float
    alpha: float
    warnings: tuple[Concern, ...]
    differences: pd.DataFrame
    errors: pd.DataFrame
    tiny: frozenset[str]
    residual_sd: float
    of_periods: bool = False

    @property
    def asked(self) -> list[str]:
        """The levels that the study asks about: those that are compared, the controls aside."""
        return [name for name in self.against if name not in self.controls]

    @property
    def ceilings(self) -> list[str]:
        """The levels that used up the machine's processors, where not all did."""
        return [warning.level for warning in self.warnings if warning.code == "ceiling" and warning.level]

    @property
    def unshown(self) -> dict[str, str]:
        """The levels whose effect could not show, each with the conditions that it or what it is compared with did not meet.

        Where a difference is found all the same, or none that matters, that stands.
        """
        verdicts = dict(zip(self.table["level"], self.table["verdict"], strict=True))
        reasons = {name: self.unmet(name) for name in self.asked if verdicts[name] == "inconclusive"}
        return {name: reason for name, reason in reasons.items() if reason}

    def unmet(self, level: str, against: str = "") -> str:
        """The conditions that the comparison of a level, with what it is compared with or another, did not meet.

        What a level did not meet that is compared with yet another one is of that comparison.
        """
        other = against or self.against[level]
        pair = (level,) if other in self.against else (level, other)
        return "; ".join(w.value for w in self.warnings if w.code == "condition" and w.level in pair)

    def invalid(self, levels: Iterable[str]) -> list[str]:
        """Those of the levels whose verdict is invalid: what is made of several says nothing then."""
        rows = self.table[self.table["level"].isin([*levels])]
        return [str(level) for level in rows["level"][rows["verdict"].eq("invalid")]]

    @property
    def one_reference(self) -> bool:
        """Whether all levels are compared with the baseline."""
        return set(self.against.values()) <= {self.baseline}

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON contract of ``benchlib analyze --json``: plain types, null for what is absent."""
        table = self.table.astype({"blocks_needed": "Int64"}).replace([np.inf, -np.inf], np.nan)
        return {
            "baseline": self.baseline,
            "metric": self.metric.name,
            "blocks": self.blocks,
            "levels": table.astype(object).where(table.notna(), None).to_dict("records"),
            "warnings": [warning.record() for warning in self.warnings],
        }

    def doubts(self, level: str) -> list[Concern]:
        """Return the grave limits that make a level's comparison invalid."""
        concerned = (None, level, self.against[level], *self.controls)
        return [w for w in self.warnings if w.grave and w.level in concerned]
