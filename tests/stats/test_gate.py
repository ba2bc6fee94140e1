"""A gate is green only where a study shows that nothing is slower than tolerated."""

import numpy as np
import pytest

from benchlib.stats import Concern
from benchlib.stats.effects import compare
from benchlib.stats.gate import PASSED, SLOWER, UNKNOWN, gate

LATENCY = "latency_average_ms"


@pytest.fixture
def judged(make_trials):
    """The comparison of a level with a true effect, in percent, and the frame's attributes; its first trials may have failed."""

    def make(percent=0.0, *, blocks=9, metric="tps", failed=0, sd=0.004, **options):
        effects = {"tuned": np.log1p(percent / 100)}
        levels = ["defaults", "control", "tuned"]
        trials = make_trials(levels, effects=effects, blocks=blocks, sd=sd, metric=metric)
        lost = trials["level"].eq("tuned") & trials["block"].le(failed)
        trials = trials.assign(error=np.where(lost, "crashed", None))
        effects = compare(trials, baseline="defaults", controls=["control"], metric=metric, **options)
        return effects.set_index("level").loc["tuned"].to_dict(), effects.attrs

    return make


GRAVE = [Concern("failed_transactions", "a tenth", level="tuned", grave=True)]
UNMET = {"unmet": "no checkpoint"}


@pytest.mark.parametrize(
    ("percent", "options", "more", "tolerance", "outcome", "why"),
    [
        (0, {}, {}, 0.03, PASSED, ""),
        (-8, {}, {}, 0.03, SLOWER, ""),
        (-3, {}, {}, 0.03, UNKNOWN, ""),
        (8, {"metric": LATENCY}, {}, 0.03, SLOWER, ""),
        (-8, {"metric": LATENCY}, {}, 0.03, PASSED, ""),
        (0, {"blocks": 2}, {}, 0.9, UNKNOWN, "fewer than 3 good trials"),
        (0, {"concerns": GRAVE}, {}, 0.03, UNKNOWN, "invalid: see the limits"),
        (0, {}, UNMET, 0.03, UNKNOWN, "condition not met: no checkpoint"),
        (-8, {}, UNMET, 0.03, SLOWER, ""),  # what is shown is shown
        (5, {"blocks": 12, "failed": 2}, {}, 0.03, PASSED, ""),
        (5, {"blocks": 12, "failed": 9}, {}, 0.03, UNKNOWN, "only 3 of 12 blocks"),
        (0, {"blocks": 3, "sd": 0.0}, {}, 0.03, UNKNOWN, "there is no interval"),
    ],
)
def test_only_what_is_shown_passes_or_fails(judged, percent, options, more, tolerance, outcome, why):
    row, attrs = judged(percent, **options)
    told, reason = gate(row | more, attrs, tolerance)
    assert (told, why in reason) == (outcome, True)


def test_equivalence_within_a_wider_margin_shows_nothing_of_a_narrow_tolerance(judged):
    row, attrs = judged(-0.4)
    wide = row | {"verdict": "equivalent", "ci_low": -2.5, "ci_high": 2.0, "percent_change": -0.4}
    assert gate(wide, attrs, 0.03)[0] == PASSED
    assert gate(wide, attrs, 0.01) == (UNKNOWN, "equivalent: it may be slower by 2.5 %")
    # both real and shown to be within the margin, though its adjusted interval ends just outside
    tiny = wide | {"verdict": "slower", "ci_low": -3.05, "ci_high": -1.9, "percent_change": -2.5}
    tiny |= {"equal_low": -2.9, "equal_high": -2.0}
    assert [gate(tiny, attrs, tolerance)[0] for tolerance in (0.03, 0.02)] == [PASSED, SLOWER]
