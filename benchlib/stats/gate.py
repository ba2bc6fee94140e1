"""A regression gate."""

import math
from collections.abc import Mapping
from typing import Any

from benchlib.plan.metrics import MOST_STATED
from benchlib.stats.limits import BY_HOST, LEAST_BLOCKS

PASSED, SLOWER, UNKNOWN = "passed", "slower", "cannot be said"
_MOST = 0.8
"""The share of blocks that must have good trials of both levels."""


def gate(row: Mapping[str, Any], attrs: Mapping[str, Any], tolerance: float) -> tuple[str, str]:
    """Return the outcome of a comparison that may be slower by ``tolerance``, and the reason.

    ``row`` and ``attrs`` are of :func:`benchlib.compare`.
    """
    most, verdict, sign = 100 * tolerance, row["verdict"], -1 if attrs["higher_is_better"] else 1
    loss, worst = sign * row["percent_change"], max(sign * row["ci_low"], sign * row["ci_high"])
    if verdict in ("invalid", BY_HOST):
        return UNKNOWN, f"{verdict}: {row.get('limit') or 'see the limits of the study'}"
    if verdict == "slower" and loss > most:
        return SLOWER, f"slower by more than {most:g} %"
    if unmet := row.get("unmet"):
        return UNKNOWN, f"condition not met: {unmet}"
    if row["n"] < LEAST_BLOCKS:
        return UNKNOWN, f"fewer than {LEAST_BLOCKS} good trials of both levels"
    if row["n"] < _MOST * attrs["blocks"]:
        return UNKNOWN, f"only {row['n']} of {attrs['blocks']} blocks have a good trial"
    margin = 100 * attrs["margin"]
    within = -margin <= row["equal_low"] and row["equal_high"] <= margin
    if worst <= most or verdict == "faster" or (within and attrs["margin"] <= tolerance):
        return PASSED, f"no slower than {most:g} %"
    if math.isnan(worst):
        return UNKNOWN, f"{verdict}: there is no interval"
    most_told = f"{worst:.1f} %" if worst <= MOST_STATED else f"more than {MOST_STATED:,} %"
    return UNKNOWN, f"{verdict}: it may be slower by {most_told}"
