"""What an analysis holds, and one plain sentence about a level: what it does, by how much, how sure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from benchlib.errors import InputError
from benchlib.plan.metrics import Metric, format_percent
from benchlib.stats.concerns import Concern

_RANK = ("faster", "slower", "equivalent", "inconclusive", "invalid")


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
    comparison columns. ``trials``: ``block, level, value``, those that were analysed.
    ``differences``: ``block, level, percent``, the same comparisons inside each block.
    ``tiny``: the levels with a real difference that is equivalent all the same, by two one-sided tests.
    ``residual_sd`` is in log units, so about the fraction by which a trial strays, NaN where it cannot be known.
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
    trials: pd.DataFrame
    differences: pd.DataFrame
    tiny: frozenset[str]
    residual_sd: float

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
        reasons = {
            name: "; ".join(
                warning.message
                for warning in self.warnings
                if warning.code == "condition" and warning.level in (name, other)
            )
            for name, other in self.against.items()
            if verdicts[name] == "inconclusive"
        }
        return {name: reason for name, reason in reasons.items() if reason}

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
            "warnings": [asdict(warning) for warning in self.warnings],
        }

    def headline(self, level: str | None = None) -> str:
        """Return one sentence on that level; without one, on the level that leads and the rest in brief.

        Raises InputError for a level that has no comparison.
        """
        rows = {row["level"]: row for row in self.table.to_dict("records")}
        if level is not None:
            if level not in self.against:
                raise InputError(f"no comparison for level {level!r}; there are: {', '.join(self.against)}")
            return _sentence(self, rows[level])
        leader = leading(self)
        others = set(self.asked) - {leader}
        unshown = self.unshown
        verdicts = ["not to be shown here" if name in unshown else rows[name]["verdict"] for name in others]
        sentence = _sentence(self, rows[leader])
        rest = ", ".join(
            f"{verdicts.count(word)} {word}" for word in (*_RANK, "not to be shown here") if word in verdicts
        )
        if not verdicts:
            return sentence
        if len(verdicts) == 1:
            return f"{sentence[:-1]}; the other level is {verdicts[0]}."
        return f"{sentence[:-1]}; {len(verdicts)} other levels: {rest}."


def leading(analysis: Analysis) -> str:
    """Return the level that a headline is about: the best verdict, then the largest improvement."""
    rows = {row["level"]: row for row in analysis.table.to_dict("records")}
    asked = analysis.asked
    sign = 1.0 if analysis.metric.higher_is_better else -1.0

    def standing(name: str) -> tuple[int, float]:
        change = rows[name]["percent_change"]
        return _RANK.index(rows[name]["verdict"]), -sign * change if np.isfinite(change) else np.inf

    return min(asked, key=standing) if asked else analysis.controls[0]


def _sentence(analysis: Analysis, row: dict[Any, Any]) -> str:
    reference = analysis.against[row["level"]]
    name, base, verdict = f"“{row['level']}”", f"“{reference}”", row["verdict"]
    margin = f"{100 * analysis.margin:g} %"
    figures = f"{_figures(analysis, row)}, {analysis.blocks} block{'s' * (analysis.blocks != 1)}{_p(row['p_adjusted'])}"
    if verdict in ("faster", "slower"):
        weight = ""
        if row["level"] in analysis.tiny:
            weight = f", but by less than the {margin} that matter"
        elif max(row["ci_low"], -row["ci_high"]) > 100 * analysis.margin:
            weight = f" by more than the {margin} that matter"
        ceiling = ", at the ceiling of the processors" if row["level"] in analysis.ceilings else ""
        return f"{name} is {verdict} than {base}{weight}: {figures}{ceiling}."
    if verdict == "equivalent":
        return f"{name} and {base} are equivalent within ±{margin}: {figures}."
    if verdict == "invalid":
        concerned = (None, row["level"], reference, *analysis.controls)
        reasons = [w.message for w in analysis.warnings if w.grave and w.level in concerned]
        return f"No verdict on {name} against {base}: {'; '.join(dict.fromkeys(reasons))}."
    if reason := analysis.unshown.get(row["level"]):
        return f"Cannot be shown on this machine for {name} against {base}: {reason} ({figures})."
    return f"Inconclusive for {name} against {base}: {figures}{_missing(analysis, row, margin)}."


def _figures(analysis: Analysis, row: dict[Any, Any]) -> str:
    if not np.isfinite(row["percent_change"]):
        return "no block has both"
    of = analysis.metric.unit if analysis.metric.name == "tps" else analysis.metric.title
    change = f"{format_percent(row['percent_change'])} % {of}"
    if not np.isfinite(row["ci_low"]):
        return change
    confidence = f"{100 * (1 - analysis.alpha):.3g} %"
    interval = f"{format_percent(row['ci_low'])} to {format_percent(row['ci_high'])}"
    return f"{change} ({confidence} interval {interval})"


def _p(p: float) -> str:
    if not np.isfinite(p):
        return ""
    if p < 1e-4:
        return ", p < 0.0001"
    return f", p = {p:.4f}" if p < 0.001 else f", p = {p:.3f}"


def _missing(analysis: Analysis, row: dict[Any, Any], margin: str) -> str:
    if not np.isfinite(row["mde_percent"]):
        return "; more blocks are needed for any answer" if analysis.blocks < 3 else ""
    seen = f"; this study could have seen {format_percent(row['mde_percent']).lstrip('+')} %"
    if not np.isfinite(row["blocks_needed"]):
        return f"{seen}; more blocks than are practical would be needed to settle ±{margin}"
    more = int(row["blocks_needed"]) - analysis.blocks
    return f"{seen}; about {more} more block{'s' if more != 1 else ''} would settle ±{margin}"
