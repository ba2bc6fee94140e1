"""The result of an analysis."""

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

    ``table`` has a row per level: baseline, controls, others. Columns: those of :func:`benchlib.compare`,
    ``sd`` (in the metric's unit), ``cv`` (percent).

    - ``against``: level → reference
    - ``errors``: ``level, against, family, estimate, error, df, equal_low, equal_high``, on the log scale
    - ``residual_sd``: a trial's deviation in log units
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
    errors: pd.DataFrame
    residual_sd: float
    exploratory_alpha: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of ``benchlib analyze --json``."""
        table = self.table.astype({"blocks_needed": "Int64"}).replace([np.inf, -np.inf], np.nan)
        return {
            "baseline": self.baseline,
            "metric": self.metric.name,
            "blocks": self.blocks,
            "levels": table.astype(object).where(table.notna(), None).to_dict("records"),
            "warnings": [warning.record() for warning in self.warnings],
        }

    def doubts(self, level: str) -> list[Concern]:
        """Return the grave limits that concern a level's comparison."""
        concerned = (None, level, self.against[level], *self.controls)
        return [w for w in self.warnings if w.grave and w.level in concerned]
