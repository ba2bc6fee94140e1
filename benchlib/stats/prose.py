"""One plain sentence about a level: what it does, by how much, how sure, and what is missing."""

from typing import TYPE_CHECKING, Any

import numpy as np

from benchlib.errors import InputError
from benchlib.plan.metrics import format_percent

if TYPE_CHECKING:
    from benchlib.stats.analysis import Analysis

_RANK = ("faster", "slower", "equivalent", "inconclusive", "invalid")


def headline(analysis: "Analysis", level: str | None = None) -> str:
    """Return the sentence on ``level``, or on the level that leads with the others in brief."""
    rows = {row["level"]: row for row in analysis.table.to_dict("records")}
    if level is not None:
        if level not in analysis.against:
            raise InputError(f"no comparison for level {level!r}; there are: {', '.join(analysis.against)}")
        return _sentence(analysis, rows[level])
    leader = leading(analysis)
    others = set(analysis.asked) - {leader}
    verdicts = [rows[name]["verdict"] for name in others]
    sentence = _sentence(analysis, rows[leader])
    rest = ", ".join(f"{verdicts.count(word)} {word}" for word in _RANK if word in verdicts)
    if not verdicts:
        return sentence
    if len(verdicts) == 1:
        return f"{sentence[:-1]}; the other level is {verdicts[0]}."
    return f"{sentence[:-1]}; {len(verdicts)} other levels: {rest}."


def leading(analysis: "Analysis") -> str:
    """Return the level that a headline is about: the best verdict, then the largest improvement."""
    rows = {row["level"]: row for row in analysis.table.to_dict("records")}
    asked = analysis.asked
    sign = 1.0 if analysis.metric.higher_is_better else -1.0

    def standing(name: str) -> tuple[int, float]:
        change = rows[name]["percent_change"]
        return _RANK.index(rows[name]["verdict"]), -sign * change if np.isfinite(change) else np.inf

    return min(asked, key=standing) if asked else analysis.controls[0]


def _sentence(analysis: "Analysis", row: dict[Any, Any]) -> str:
    reference = analysis.against[row["level"]]
    name, base, verdict = f"“{row['level']}”", f"“{reference}”", row["verdict"]
    margin = f"{100 * analysis.margin:g} %"
    extra = analysis.equivalence.set_index("level").loc[row["level"]]
    figures = f"{_figures(analysis, row)}, {_blocks(analysis.blocks)}{_p(row['p_adjusted'])}"
    if verdict in ("faster", "slower"):
        weight = ""
        if extra["tiny"]:
            weight = f", but by less than the {margin} that matter"
        elif extra["meaningful"]:
            weight = f" by more than the {margin} that matter"
        return f"{name} is {verdict} than {base}{weight}: {figures}."
    if verdict == "equivalent":
        return f"{name} and {base} are equivalent within ±{margin}: {figures}."
    if verdict == "invalid":
        concerned = (None, row["level"], reference, *analysis.controls)
        reasons = [w.message for w in analysis.warnings if w.grave and w.level in concerned]
        return f"No verdict on {name} against {base}: {'; '.join(dict.fromkeys(reasons))}."
    return f"Inconclusive for {name} against {base}: {figures}{_missing(analysis, row, margin)}."


def _figures(analysis: "Analysis", row: dict[Any, Any]) -> str:
    if not np.isfinite(row["percent_change"]):
        return "no block has both"
    of = analysis.metric.unit if analysis.metric.name == "tps" else analysis.metric.title
    change = f"{format_percent(row['percent_change'])} % {of}"
    if not np.isfinite(row["ci_low"]):
        return change
    confidence = f"{100 * (1 - analysis.alpha):.3g} %"
    interval = f"{format_percent(row['ci_low'])} to {format_percent(row['ci_high'])}"
    return f"{change} ({confidence} interval {interval})"


def _blocks(count: int) -> str:
    return "1 block" if count == 1 else f"{count} blocks"


def _p(p: float) -> str:
    if not np.isfinite(p):
        return ""
    if p < 1e-4:
        return ", p < 0.0001"
    return f", p = {p:.4f}" if p < 0.001 else f", p = {p:.3f}"


def _missing(analysis: "Analysis", row: dict[Any, Any], margin: str) -> str:
    if not np.isfinite(row["mde_percent"]):
        return "; more blocks are needed for any answer" if analysis.blocks < 3 else ""
    seen = f"; this study could have seen {format_percent(row['mde_percent']).lstrip('+')} %"
    if not np.isfinite(row["blocks_needed"]):
        return f"{seen}; more blocks than are practical would be needed to settle ±{margin}"
    more = int(row["blocks_needed"]) - analysis.blocks
    return f"{seen}; about {more} more block{'s' if more != 1 else ''} would settle ±{margin}"
