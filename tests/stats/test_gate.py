"""A gate is green only where a study shows that nothing is slower than tolerated."""

import math

import pytest

from benchlib.stats.gate import PASSED, SLOWER, UNKNOWN, gate

ATTRS = {"higher_is_better": True, "margin": 0.03, "blocks": 12}
FASTER = {
    "verdict": "faster",
    "percent_change": 5,
    "ci_low": 4,
    "ci_high": 6,
    "equal_low": 4,
    "equal_high": 6,
    "n": 12,
}
SAME = FASTER | {
    "verdict": "equivalent",
    "percent_change": 0,
    "ci_low": -2.5,
    "ci_high": 2,
    "equal_low": -2,
    "equal_high": 2,
}
WORSE = FASTER | {"verdict": "slower", "percent_change": -8, "ci_low": -9, "ci_high": -7}
OPEN = FASTER | {
    "verdict": "inconclusive",
    "percent_change": 0,
    "ci_low": -5,
    "ci_high": 5,
    "equal_low": -4,
    "equal_high": 4,
}
# real, and within the margin by the equivalence test, though the adjusted interval ends just outside
TINY = SAME | {
    "verdict": "slower",
    "percent_change": -2.5,
    "ci_low": -3.05,
    "ci_high": -1.9,
    "equal_low": -2.9,
}
UNMET = {"unmet": "no checkpoint"}


@pytest.mark.parametrize(
    ("row", "tolerance", "outcome", "why"),
    [
        (FASTER, 0.03, PASSED, ""),
        (SAME, 0.03, PASSED, ""),
        (SAME, 0.01, UNKNOWN, "equivalent: it may be slower by 2.5 %"),
        (WORSE, 0.03, SLOWER, ""),
        (WORSE | UNMET, 0.03, SLOWER, ""),
        (WORSE, 0.1, PASSED, ""),
        (TINY, 0.03, PASSED, ""),
        (TINY, 0.02, SLOWER, ""),
        (OPEN, 0.03, UNKNOWN, "inconclusive: it may be slower by 5.0 %"),
        (OPEN | {"ci_low": math.nan, "ci_high": math.nan}, 0.03, UNKNOWN, "there is no interval"),
        (FASTER | UNMET, 0.03, UNKNOWN, "condition not met: no checkpoint"),
        (FASTER | {"n": 2}, 0.9, UNKNOWN, "fewer than 3 good trials"),
        (FASTER | {"n": 9}, 0.03, UNKNOWN, "only 9 of 12 blocks"),
        (FASTER | {"n": 10}, 0.03, PASSED, ""),
        (FASTER | {"verdict": "invalid"}, 0.03, UNKNOWN, "invalid: see the limits"),
        (FASTER | {"verdict": "invalid", "limit": "It drifts."}, 0.03, UNKNOWN, "invalid: It drifts."),
        (FASTER | {"verdict": "differs by host"}, 0.03, UNKNOWN, "differs by host"),
    ],
)
def test_only_what_is_shown_passes_or_fails(row, tolerance, outcome, why):
    found, reason = gate(row, ATTRS, tolerance)
    assert (found, why in reason) == (outcome, True)


def test_less_is_better_for_a_latency():
    latency = ATTRS | {"higher_is_better": False}
    assert gate(WORSE | {"verdict": "faster"}, latency, 0.03)[0] == PASSED
    assert gate(FASTER | {"verdict": "slower"}, latency, 0.03)[0] == SLOWER
