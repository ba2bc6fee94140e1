"""A gate is green only where a study shows that nothing is slower than tolerated."""

import dataclasses
from functools import cache

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import benchlib
from benchlib.stats import Concern
from benchlib.stats.gate import PASSED, SLOWER, UNKNOWN, gate

LEVELS = ["defaults", "control", "tuned"]


@pytest.fixture
def judged(make_trials):
    """An analysis of a level with a true effect, in percent."""

    def make(percent=0.0, *, blocks=9, metric="tps", **options):
        effects = {"tuned": np.log1p(percent / 100)}
        trials = make_trials(LEVELS, effects=effects, blocks=blocks, sd=0.004, metric=metric)
        return benchlib.analyze(trials, baseline="defaults", controls=["control"], metric=metric, **options)

    return make


@pytest.mark.parametrize(
    ("percent", "metric", "outcome"),
    [(0, "tps", PASSED), (20, "tps", PASSED), (-8, "tps", SLOWER), (-3, "tps", UNKNOWN), (8, "latency_average_ms", SLOWER), (-8, "latency_average_ms", PASSED)],
)  # fmt: skip
def test_what_is_slower_depends_on_the_metric(judged, percent, metric, outcome):
    assert gate(judged(percent, metric=metric), "tuned", 0.03)[0] == outcome


def test_nothing_passes_for_want_of_data(judged):
    assert gate(judged(), "tuned", 0.03)[0] == PASSED
    assert gate(judged(), "never run", 0.03) == (UNKNOWN, "it was not measured, or is compared with nothing")
    assert gate(judged(), "defaults", 0.03)[0] == UNKNOWN
    assert gate(judged(blocks=2), "tuned", 0.9) == (UNKNOWN, "it takes at least 3 trials of both")
    grave = [Concern("failures", "a tenth failed", level="tuned", grave=True)]
    assert gate(judged(concerns=grave), "tuned", 0.03) == (UNKNOWN, "invalid: a tenth failed")
    unmet = [Concern("condition", "no checkpoint", level="defaults")]
    assert gate(judged(concerns=unmet), "tuned", 0.03) == (UNKNOWN, "conditions not met: no checkpoint")
    assert gate(judged(-8, concerns=unmet), "tuned", 0.03)[0] == SLOWER, "what is shown is shown"


def test_most_trials_that_failed_are_no_accident(make_trials):
    trials = make_trials(LEVELS, effects={"tuned": 0.05}, blocks=12, sd=0.004)
    for failed, outcome in ((2, PASSED), (9, UNKNOWN)):
        lost = trials["level"].eq("tuned") & trials["block"].le(failed)
        kept = trials.assign(error=np.where(lost, "crashed", None))
        analysis = benchlib.analyze(kept, baseline="defaults", controls=["control"])
        assert gate(analysis, "tuned", 0.03)[0] == outcome


def test_equivalence_within_a_wider_margin_shows_nothing_of_a_narrow_tolerance(judged):
    analysis = judged(-0.4, margin=0.03)
    table = analysis.table.assign(verdict="equivalent", ci_low=-2.5, ci_high=2.0, percent_change=-0.4)
    analysis = dataclasses.replace(analysis, table=table)
    assert gate(analysis, "tuned", 0.03)[0] == PASSED
    assert gate(analysis, "tuned", 0.01) == (UNKNOWN, "equivalent: it may be slower by 2.5 %")
    # both real and shown to be within the margin, though its adjusted interval ends just outside
    table = table.assign(verdict="slower", ci_low=-3.05, ci_high=-1.9, percent_change=-2.5)
    analysis = dataclasses.replace(analysis, table=table, tiny=frozenset({"tuned"}))
    assert gate(analysis, "tuned", 0.03)[0] == PASSED
    assert gate(analysis, "tuned", 0.02)[0] == SLOWER


percents = st.floats(-60, 60)


@given(
    percents,
    st.floats(0, 30),
    st.floats(0, 30),
    st.tuples(st.floats(0, 0.4), st.floats(0, 0.4)),
    st.booleans(),
)
def test_a_larger_tolerance_never_makes_it_worse(change, below, above, tolerances, higher):
    analysis = analysis_of("tps" if higher else "latency_average_ms")
    low, high = change - below, change + above
    up, down = analysis.metric.directions
    verdict = up if low > 0 else down if high < 0 else "inconclusive"
    table = analysis.table.assign(percent_change=change, ci_low=low, ci_high=high, verdict=verdict)
    analysis = dataclasses.replace(analysis, table=table, tiny=frozenset())
    tight, wide = (gate(analysis, "tuned", tolerance)[0] for tolerance in sorted(tolerances))
    order = [SLOWER, UNKNOWN, PASSED]
    assert order.index(tight) <= order.index(wide)
    worst = -low if higher else high
    if wide == SLOWER:
        assert verdict == "slower"
    if wide == PASSED:
        assert worst <= 100 * max(tolerances) or verdict == "faster"


@cache
def analysis_of(metric):
    rows = [
        {"block": block, "level": level, metric: 100 + block + place + (block * place) % 3}
        for block in range(1, 6)
        for place, level in enumerate(LEVELS)
    ]
    return benchlib.analyze(pd.DataFrame(rows), baseline="defaults", controls=["control"], metric=metric)


def test_what_has_no_interval_cannot_be_said():
    rows = [(block, level, tps) for block in range(3) for level, tps in (("a", 100.0), ("b", 101.0))]
    analysis = benchlib.analyze(pd.DataFrame(rows, columns=["block", "level", "tps"]), baseline="a")
    assert gate(analysis, "b", 0.03) == (UNKNOWN, "inconclusive: there is no interval")
