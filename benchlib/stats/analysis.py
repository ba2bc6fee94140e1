"""What an analysis holds, and one plain sentence about some levels: what each does, by how much, how sure.

What a reader must know beside a number is data too, and travels with the verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from benchlib.errors import InputError
from benchlib.plan.metrics import MOST_ANSWERS, Metric, confidence_words, percent_words


@dataclass(frozen=True)
class Concern:
    """One warning: a stable ``code``, a sentence, and whether it is grave.

    A grave concern makes the verdict ``invalid``: that of its ``level``, or every verdict where
    ``level`` is None or names the baseline or a control.
    """

    code: str
    message: str
    grave: bool = False
    level: str | None = None

    @property
    def brief(self) -> str:
        """The message without what follows a colon, as long as that is in no level's name."""
        name = repr(self.level)
        return name.join(part.partition(": ")[0] for part in self.message.split(name)[:2])


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
    ``errors``: ``level, against, estimate, error, df``, each comparison's log-ratio, its standard error and degrees of
    freedom.
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
        return "; ".join(w.message for w in self.warnings if w.code == "condition" and w.level in pair)

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
            "warnings": [asdict(warning) for warning in self.warnings],
        }

    def headline(
        self,
        comparisons: Mapping[str, tuple[str, str]] | None = None,
        gives_up: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        """Return one sentence on some comparisons: of each the change, its interval and the verdict.

        ``comparisons`` has for each level the words for it, and for what it is compared with (empty: those for the level say
        that too); without them the sentence is on the first five that the study asks about, by the levels' names.
        ``gives_up`` says what a crash may cost with a level. Raises InputError for a level that has no comparison.
        """
        if comparisons is None:
            asked = self.asked[:MOST_ANSWERS]
            comparisons = {name: (f"“{name}”", f"“{self.against[name]}”") for name in asked}
        if absent := [name for name in comparisons if name not in self.against]:
            raise InputError(f"no comparison for level {absent[0]!r}; there are: {', '.join(self.against)}")
        rows = {row["level"]: row for row in self.table.to_dict("records")}
        clauses, told, before, explained = list[str](), {""}, "", False
        for level, (name, other) in comparisons.items():
            row, clause = rows[level], ""
            if other not in ("", before):
                clause = f"{'against' if clauses else 'Against'} {other}: "
            if row["verdict"] == "invalid":
                reason = self.doubts(level, brief=True)
                clause += f"no verdict on {name}{' either' if reason in told else f': {reason}'}"
            else:
                reason = gives_up.get(level, "")
                cost = "" if reason in told else f", but {reason}"
                colon = ":" if not other or name[-1:].isdigit() or "=" in name else ""
                figures = self._figures(row, explained=explained)
                clause += f"{name}{colon} {figures}, {self._verdict(row)}{cost}"
                explained |= bool(np.isfinite(row["ci_low"]))
            clauses.append(clause)
            told.add(reason)
            before = other or before
        return f"{'; '.join(clauses) or 'No level is compared with the baseline'}.".replace("\u00a0", " ")

    def doubts(self, level: str, *, brief: bool = False) -> str:
        """The grave reasons for doubt that make a level's comparison invalid; ``brief`` without what each is read from."""
        concerned = (None, level, self.against[level], *self.controls)
        grave = [w for w in self.warnings if w.grave and w.level in concerned]
        return "; ".join(dict.fromkeys(w.brief if brief else w.message for w in grave))

    def _figures(self, row: dict[Any, Any], *, explained: bool) -> str:
        """The change and its interval; unless that is explained, with what they are of."""
        change, interval = percent_words(row["percent_change"], row["ci_low"], row["ci_high"])
        if not np.isfinite(row["percent_change"]):
            return "was in no block with that"
        if not explained:
            change += f" {self.metric.unit if self.metric.name == 'tps' else self.metric.title}"
            interval = interval and f"{confidence_words(self.alpha)} interval {interval}"
        return f"{change} ({interval})" if interval else change

    def _verdict(self, row: dict[Any, Any]) -> str:
        level, verdict, margin = row["level"], row["verdict"], f"{100 * self.margin:g} %"
        if verdict in self.metric.directions:
            weight = f" by less than the {margin} that matter" if level in self.tiny else ""
            ceiling = ", with the processors used up" if level in self.ceilings else ""
            return f"{verdict}{weight}{ceiling}"
        if verdict == "equivalent":
            return f"equivalent within ±{margin}"
        if level in self.unshown:
            parts = self.unshown[level].split("; ")
            conditions = dict.fromkeys(f"“{part.partition(': held in ')[0]}”" for part in parts)
            were = "were" if len(conditions) > 1 else "was"
            return f"cannot be shown on this machine: {' and '.join(conditions)} {were} not met"
        seen, _ = percent_words(row["mde_percent"], 0, row["mde_percent"])
        missed = "" if seen == "–" else f" (changes under {seen.lstrip('+')} are easily missed)"
        return f"inconclusive{missed}"
