"""The result of an analysis: verdicts as a table, with their limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from benchlib.plan.metrics import Metric
from benchlib.stats.limits import Concern


@dataclass(frozen=True)
class Analysis:
    """The verdicts on one factor by one metric.

    ``table`` has a row per level: baseline, controls, others. Levels are compared with the geometric mean of
    baseline and controls, controls with the baseline alone.

    - ``mean, sd``: arithmetic, in the metric's unit; ``cv, percent_change, ci_*, mde_percent`` in percent.
    - ``ci_*``: the simultaneous interval at 1 - alpha. ``p_value``: single. ``p_adjusted``: for the family.
    - ``mde_percent``: the smallest increase found with 80 % power.
    - ``blocks_needed``: total blocks that would settle an inconclusive level, else NaN.

    ``against``: the reference of each compared level. ``differences``: ``block, level, percent``.
    ``errors``: ``level, against, estimate, error, df, equal_low, equal_high`` on the log scale.
    ``residual_sd``: of a trial, in log units; NaN if unknown.
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
    residual_sd: float

    @property
    def asked(self) -> list[str]:
        """Return the compared levels without the controls."""
        return [name for name in self.against if name not in self.controls]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of ``benchlib analyze --json``: plain types, null for missing values."""
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
