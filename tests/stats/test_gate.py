"""A gate is green only where a study shows that nothing is slower than tolerated."""

import math

import pytest

from benchlib.stats.gate import PASSED, SLOWER, UNKNOWN, gate

ATTRS = {"higher_is_better": True, "margin": 0.03, "blocks": 12}
NAMES = ("verdict", "percent_change", "ci_low", "ci_high", "equal_low", "equal_high", "n")


def row(*values, n=12, **more):
    return dict(zip(NAMES, [*values, n], strict=True)) | more


FASTER, WORSE = ("faster", 5, 4, 6, 4, 6), ("slower", -8, -9, -7, -9, -7)
SAME = ("equivalent", 0, -2.5, 2, -2, 2)
# real, and within the margin by the equivalence test, though the adjusted interval ends just outside
TINY = ("slower", -2.5, -3.05, -1.9, -2.9, -2)
UNMET = {"unmet": "no checkpoint"}


@pytest.mark.parametrize(
    ("effect", "tolerance", "outcome", "why"),
    [
        (row(*FASTER), 0.03, PASSED, ""),
        (row(*SAME), 0.03, PASSED, ""),
        (row(*SAME), 0.01, UNKNOWN, "equivalent: it may be slower by 2.5 %"),
        (row(*WORSE), 0.03, SLOWER, ""),
        (row(*WORSE, **UNMET), 0.03, SLOWER, ""),
        (row(*WORSE), 0.1, PASSED, ""),
        (row(*TINY), 0.03, PASSED, ""),
        (row(*TINY), 0.02, SLOWER, ""),
        (row("inconclusive", 0, -5, 5, -4, 4), 0.03, UNKNOWN, "inconclusive: it may be slower by 5.0 %"),
        (row("inconclusive", *[math.nan] * 5), 0.03, UNKNOWN, "there is no interval"),
        (row(*FASTER, **UNMET), 0.03, UNKNOWN, "condition not met: no checkpoint"),
        (row(*FASTER, n=2), 0.9, UNKNOWN, "fewer than 3 good trials"),
        (row(*FASTER, n=9), 0.03, UNKNOWN, "only 9 of 12 blocks"),
        (row(*FASTER, n=10), 0.03, PASSED, ""),
        (row("invalid", *FASTER[1:]), 0.03, UNKNOWN, "invalid: see the limits"),
        (row("invalid", *FASTER[1:], limit="It drifts."), 0.03, UNKNOWN, "invalid: It drifts."),
        (row("differs by host", *FASTER[1:]), 0.03, UNKNOWN, "differs by host"),
    ],
)
def test_only_what_is_shown_passes_or_fails(effect, tolerance, outcome, why):
    found, reason = gate(effect, ATTRS, tolerance)
    assert (found, why in reason) == (outcome, True)


def test_less_is_better_for_a_latency():
    latency = ATTRS | {"higher_is_better": False}
    assert gate(row("faster", *WORSE[1:]), latency, 0.03)[0] == PASSED
    assert gate(row("slower", *FASTER[1:]), latency, 0.03)[0] == SLOWER
    assert "more than 1,000 %" in gate(row("inconclusive", 9, -90, 1e140, -4, 4), latency, 0.03)[1]
