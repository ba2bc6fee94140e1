"""A gate over comparisons: which are no slower than tolerated, which are, and of which that cannot be said."""

import math

from benchlib.stats.analysis import Analysis
from benchlib.stats.verdicts import BY_HOST, HOST_BY_LEVEL, LEAST_BLOCKS

PASSED, SLOWER, UNKNOWN = "passed", "slower", "cannot be said"
_MOST = 0.8
"""Of the blocks: with fewer good trials the others are no accident."""


def gate(analysis: Analysis, level: str, tolerance: float) -> tuple[str, str]:
    """Return the outcome of a level that may be slower by a fraction ``tolerance`` than what it is compared with, and why.

    It passes where the study shows that it is no slower than that: by its interval, by equivalence within a margin that is
    no wider, or because it is faster. It is slower where that is shown and the change itself is beyond the tolerance.
    All else cannot be said: what is invalid, what could not show under the conditions of the run, what has too few
    trials or none.
    """
    if level not in analysis.against:
        return UNKNOWN, "it was not measured, or is compared with nothing"
    rows, other, most = analysis.table.set_index("level"), analysis.against[level], 100 * tolerance
    row = rows.loc[level].to_dict()
    verdict, sign = row["verdict"], -1 if analysis.metric.higher_is_better else 1
    loss, worst = sign * row["percent_change"], max(sign * row["ci_low"], sign * row["ci_high"])
    if verdict == "invalid":
        return UNKNOWN, f"invalid: {' '.join(doubt.text for doubt in analysis.doubts(level))}"
    if verdict == BY_HOST:
        why = next((w.value for w in analysis.warnings if (w.code, w.level) == (HOST_BY_LEVEL, level)), "")
        return UNKNOWN, f"{BY_HOST}: {why}"
    if verdict == "slower" and loss > most:
        return SLOWER, f"slower by more than {most:g} %"
    if unmet := analysis.unmet(level):
        return UNKNOWN, f"conditions not met: {unmet}"
    usable = int(rows["n"][[level, other]].min())
    if usable < LEAST_BLOCKS:
        return UNKNOWN, f"it takes at least {LEAST_BLOCKS} trials of both"
    if usable < _MOST * analysis.blocks:
        return UNKNOWN, f"only {usable} of {analysis.blocks} blocks have a good trial"
    tiny = verdict == "slower" and level in analysis.tiny  # both real and within the margin
    equivalent = (verdict == "equivalent" or tiny) and analysis.margin <= tolerance
    if worst <= most or verdict == "faster" or equivalent:
        return PASSED, f"no slower than {most:g} %"
    if not math.isfinite(worst):
        return UNKNOWN, f"{verdict}: there is no interval"
    return UNKNOWN, f"{verdict}: it may be slower by {worst:.1f} %"
