"""A gate over comparisons: which are no slower than tolerated, which are slower, and of which that cannot be said."""

import math
from collections.abc import Mapping
from typing import Any

from benchlib.stats.limits import BY_HOST, LEAST_BLOCKS

PASSED, SLOWER, UNKNOWN = "passed", "slower", "cannot be said"
_MOST = 0.8
"""The share of blocks that must have a good trial of both levels."""


def gate(row: Mapping[str, Any], attrs: Mapping[str, Any], tolerance: float) -> tuple[str, str]:
    """Return the outcome of a comparison that may be slower by a fraction ``tolerance``, and why.

    ``row`` is a row of :func:`benchlib.compare`, perhaps with ``unmet`` (conditions that were not met) and ``limit``; ``attrs`` are
    the frame's: ``blocks, margin, higher_is_better``. A comparison passes where the study shows that it is no slower than
    tolerated: by its interval, by equivalence within a margin that is no wider, or because it is faster. It is slower where that
    is shown and the change itself is beyond the tolerance. All else cannot be said.
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
        return UNKNOWN, f"it takes at least {LEAST_BLOCKS} trials of both"
    if row["n"] < _MOST * attrs["blocks"]:
        return UNKNOWN, f"only {row['n']} of {attrs['blocks']} blocks have a good trial"
    margin = 100 * attrs["margin"]
    within = (
        -margin <= row["equal_low"] and row["equal_high"] <= margin
    )  # equivalent, and perhaps a real difference too
    if worst <= most or verdict == "faster" or (within and attrs["margin"] <= tolerance):
        return PASSED, f"no slower than {most:g} %"
    if not math.isfinite(worst):
        return UNKNOWN, f"{verdict}: there is no interval"
    return UNKNOWN, f"{verdict}: it may be slower by {worst:.1f} %"
