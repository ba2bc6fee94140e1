"""A gate is green only where a study shows that nothing is slower than tolerated."""

import dataclasses

import numpy as np
import pytest

import benchlib
from benchlib.stats import Concern
from benchlib.stats.gate import PASSED, SLOWER, UNKNOWN, gate

LATENCY = "latency_average_ms"


@pytest.fixture
def judged(make_trials):
    """An analysis of a level with a true effect, in percent; its first trials may have failed."""

    def make(percent=0.0, *, blocks=9, metric="tps", failed=0, sd=0.004, **options):
        effects = {"tuned": np.log1p(percent / 100)}
        levels = ["defaults", "control", "tuned"]
        trials = make_trials(levels, effects=effects, blocks=blocks, sd=sd, metric=metric)
        lost = trials["level"].eq("tuned") & trials["block"].le(failed)
        trials = trials.assign(error=np.where(lost, "crashed", None))
        return benchlib.analyze(trials, baseline="defaults", controls=["control"], metric=metric, **options)

    return make


def said(analysis, tiny=(), **row):
    """The same, with figures of one's own."""
    return dataclasses.replace(analysis, table=analysis.table.assign(**row), tiny=frozenset(tiny))


GRAVE = [Concern("failures", "a tenth failed", level="tuned", grave=True)]
UNMET = [Concern("condition", "no checkpoint", level="defaults")]


@pytest.mark.parametrize(
    ("percent", "options", "level", "tolerance", "outcome", "why"),
    [
        (0, {}, "tuned", 0.03, PASSED, ""),
        (-8, {}, "tuned", 0.03, SLOWER, ""),
        (-3, {}, "tuned", 0.03, UNKNOWN, ""),
        (8, {"metric": LATENCY}, "tuned", 0.03, SLOWER, ""),
        (-8, {"metric": LATENCY}, "tuned", 0.03, PASSED, ""),
        (0, {}, "never run", 0.03, UNKNOWN, "not measured"),
        (0, {}, "defaults", 0.03, UNKNOWN, "compared with nothing"),
        (0, {"blocks": 2}, "tuned", 0.9, UNKNOWN, "at least 3 trials"),
        (0, {"concerns": GRAVE}, "tuned", 0.03, UNKNOWN, "invalid: a tenth failed"),
        (0, {"concerns": UNMET}, "tuned", 0.03, UNKNOWN, "conditions not met: no checkpoint"),
        (-8, {"concerns": UNMET}, "tuned", 0.03, SLOWER, ""),  # what is shown is shown
        (5, {"blocks": 12, "failed": 2}, "tuned", 0.03, PASSED, ""),
        (5, {"blocks": 12, "failed": 9}, "tuned", 0.03, UNKNOWN, "only 3 of 12 blocks"),
        (0, {"blocks": 3, "sd": 0.0}, "tuned", 0.03, UNKNOWN, "there is no interval"),
    ],
)
def test_only_what_is_shown_passes_or_fails(judged, percent, options, level, tolerance, outcome, why):
    told, reason = gate(judged(percent, **options), level, tolerance)
    assert (told, why in reason) == (outcome, True)


def test_equivalence_within_a_wider_margin_shows_nothing_of_a_narrow_tolerance(judged):
    wide = said(judged(-0.4), verdict="equivalent", ci_low=-2.5, ci_high=2.0, percent_change=-0.4)
    assert gate(wide, "tuned", 0.03)[0] == PASSED
    assert gate(wide, "tuned", 0.01) == (UNKNOWN, "equivalent: it may be slower by 2.5 %")
    # both real and shown to be within the margin, though its adjusted interval ends just outside
    tiny = said(wide, ["tuned"], verdict="slower", ci_low=-3.05, ci_high=-1.9, percent_change=-2.5)
    assert [gate(tiny, "tuned", tolerance)[0] for tolerance in (0.03, 0.02)] == [PASSED, SLOWER]
