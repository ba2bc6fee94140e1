"""Reasons for doubt: those that trials show, and those that what they left behind shows."""

import numpy as np
import pandas as pd
import pytest
from scipy.signal import lfilter

import benchlib
from benchlib.stats import validity
from benchlib.stats.validity import behind_schedule, client_bound, failures, implausible, unsteady

NAN = float("nan")


def series(rng, n, rho):
    noise = lfilter([1.0], [1.0, -rho], rng.normal(size=n + 200))[200:]
    return 1000 + 50 * np.sqrt(1 - rho**2) * noise


def told(concerns):
    return [(concern.code, concern.grave) for concern in concerns]


def test_an_outlier_is_shown_and_kept(make_trials):
    trials = make_trials(["base", "x", "y"], blocks=8, seed=1)
    trials.loc[4, "tps"] *= 0.5
    analysis = benchlib.analyze(trials, baseline="base")
    assert analysis.table.n.tolist() == [8, 8, 8]
    (outlier,) = (w for w in analysis.warnings if w.code == "outlier")
    assert ("block 2, 'x'" in outlier.value, outlier.grave) == (True, False)


def test_sound_trials_raise_no_alarm(make_trials):
    studies = (make_trials(["base", "c", "x"], blocks=6, seed=seed) for seed in range(12))
    analyses = [benchlib.analyze(trials, baseline="base", controls=["c"]) for trials in studies]
    codes = [warning.code for analysis in analyses for warning in analysis.warnings]
    assert len(codes) <= 3
    assert "effect_drift" not in codes


def test_a_drifting_host_is_noted_and_a_drifting_effect_is_grave(make_trials):
    trials = make_trials(["base", "x"], blocks=8, mood=0.005, sd=0.005, seed=2)
    trials["tps"] *= np.exp(0.02 * trials["block"])
    analysis = benchlib.analyze(trials, baseline="base")
    assert ("host_drift", False) in told(analysis.warnings)
    assert analysis.table.verdict[1] != "invalid"
    trials["tps"] *= np.where(trials["level"] == "x", np.exp(-0.03 * trials["block"]), 1.0)
    spoilt = benchlib.analyze(trials, baseline="base")
    assert [w.code for w in spoilt.warnings if w.grave] == ["effect_drift"]
    assert spoilt.table.verdict[1] == "invalid"


@pytest.mark.parametrize(
    ("levels", "codes"), [(["base", "x"], ["effect_drift"]), (["base", "x", "y", "z"], [])]
)
def test_a_trend_of_p_0_0004_is_no_drift_among_three_comparisons(levels, codes):
    block, wave = np.arange(8), 0.005 * (-1.0) ** np.arange(16)
    logs = pd.DataFrame({"base": 0.0, "x": 0.0065 * block + wave[:8], "y": wave[block // 2], "z": wave[1:9]})
    trials = np.exp(logs[levels]).rename_axis("block").rename_axis(columns="level").stack()
    analysis = benchlib.analyze(trials.reset_index(name="tps"), baseline="base")
    assert [w.code for w in analysis.warnings if w.grave] == codes


def readings(rng, *, n=5, burst=0.0):
    """Correlated readings of trials, by level; the first fifth of each trial of “0” is faster by ``burst``."""
    trials = {name: [series(rng, n, 0.8) * rng.uniform(0.5, 1) for _ in range(5)] for name in "0123"}
    for trial in trials["0"]:
        trial[: n // 5] *= 1 + burst
    return trials


def test_a_start_or_end_that_differs_is_found_and_grave_where_it_moves_the_mean():
    for margin, way, grave, end in (
        (0.03, 1, True, "first"),
        (0.3, 1, False, "first"),
        (0.03, -1, True, "last"),
    ):
        trials = readings(np.random.default_rng(4), burst=0.6)
        (concern,) = unsteady({name: [trial[::way] for trial in of] for name, of in trials.items()}, margin)
        assert (concern.code, concern.level, concern.grave) == ("no_steady_state", "0", grave)
        assert f"without the {end} quarter" in concern.value


def test_steady_trials_of_correlated_readings_raise_no_alarm():
    rng = np.random.default_rng(5)
    alarms = [bool(unsteady(readings(rng, n=n), 0.03)) for n in (4, 8, 30) for _ in range(60)]
    assert np.mean(alarms) < 0.1


@pytest.mark.parametrize(("cycles", "left_out"), [(3, "cycle"), (6, "2 cycles")])
def test_trials_of_whole_cycles_of_checkpoints_are_held_against_each_other_by_cycles(cycles, left_out):
    rng = np.random.default_rng(6)
    stalled = np.tile([1.0] * 8 + [0.1], cycles)  # each cycle ends in a stall
    steady = {"x": [series(rng, 9 * cycles, 0.5) * stalled for _ in range(5)]}
    by_quarters = [concern.grave for concern in unsteady(steady, 0.03) if concern.grave]
    assert by_quarters == [True] * (cycles == 3)  # of which the last has half of a stall too much
    assert not [concern for concern in unsteady(steady, 0.03, {"x": cycles}) if concern.grave]
    rising = {"x": [trial * np.linspace(1, 2, 9 * cycles) for trial in steady["x"]]}
    (concern,) = unsteady(rising, 0.03, {"x": cycles})
    assert concern.grave
    assert f" {left_out} of checkpoints of each trial" in concern.value
    assert told(unsteady(rising, 0.03, {"x": 1})) == [("too_short", False)]


def test_a_transaction_that_outlasts_a_quarter_is_no_change_of_speed():
    # one client, each of whose three transactions takes twelve seconds of thirty-six, give or take one
    gaps = [(11 + late, 11, 11 - late) for late in (0, 1, -1)]
    trials = {"x": [[second for gap in of for second in [*[0.0] * gap, 1.0]] for of in gaps]}
    for under_way, code in ((0, "no_steady_state"), (1 / 3, "too_short"), (1 / 30, "no_steady_state")):
        assert [concern.code for concern in unsteady(trials, 0.03, {}, {"x": under_way})] == [code]


@pytest.mark.parametrize(
    "poor", [[], [[]] * 5, [[1.0] * 3] * 5, [[1.0] * 8] * 2, [[NAN] * 9] * 3, [[0.0] * 9] * 3]
)
def test_trials_that_are_too_short_say_so(poor):
    (concern,) = unsteady({"x": poor, "y": [[5.0] * 8] * 3}, 0.03)
    assert told([concern]) == [("too_short", False)]
    assert concern.level == "x"


@pytest.mark.parametrize(
    ("concern", "wanted"),
    [
        (failures("x", 1000, 0), None),
        (failures("x", 1000, 0, 1), None),
        (failures("x", 0, 0), ("no_transactions", True, "")),
        (failures("x", 900, 100), ("failed_transactions", True, "100 of 1000 (10 %)")),
        (failures("x", 99_999, 1), ("failed_transactions", False, "1 of 100000 (0.001 %)")),
        (failures("x", 1000, 0, 50), ("retried_transactions", False, "50 of 1000")),
        (validity.skipped("x", 100, 0), None),
        (validity.skipped("x", 990, 10), ("skipped_transactions", False, "10 of 1000 (1 %)")),
        (client_bound("x", [0.97, 0.95, 0.2]), ("client_bound", True, "95 %")),
        (client_bound("x", [0.3, 0.99, 0.4]), None),
        (client_bound("x", [NAN]), None),
        # commits/s, flushes/s, clients
        (implausible("x", 79.0, 80.0, 1), None),
        (implausible("x", 110.0, 80.0, 1), None),
        (implausible("x", 4_000.0, 80.0, 50), None),
        (implausible("x", 4_000.0, 80.0, 20), ("implausible_commit_rate", False,
         "4,000 commits/s, at most 1,600/s with 80 flushes/s")),
    ],
)  # fmt: skip
def test_counts_of_a_level_raise_a_concern_where_they_matter(concern, wanted):
    assert (concern and (concern.code, concern.grave, concern.value)) == wanted
    assert concern is None or concern.level == "x"


@pytest.mark.parametrize(
    ("rate", "done", "tps", "lag_ms", "grave"),
    [
        # 5 a second for 8 s: 40 are due, and 25 are not beyond the chance of a Poisson process
        (5, [25, 44], [25 / 8, 44 / 8], [2.0, 3.0], None),
        (500, [29_700], [495], [NAN], None),
        (500, [27_000, 30_000], [450, 500], [3_000, 2], False),
        (500, [27_000] * 2, [450] * 2, [3_000] * 2, True),
        # a tenth of so few is not beyond chance, but they were all late
        (5, [36], [36 / 8], [400.0], True),
        (5, [36], [36 / 8], [4.0], None),
        # a stall that was caught up with is latency like any other
        (500, [1_490], [1_490 / 3], [90.0], None),
    ],
)
def test_trials_that_fall_behind_a_fixed_rate(rate, done, tps, lag_ms, grave):
    concern = behind_schedule("t", rate, done, tps, lag_ms)
    assert (concern and concern.grave) is grave


def test_a_level_that_uses_up_the_processors_is_at_a_ceiling():
    concerns = validity.ceilings({"base": [0.75, 0.7], "x": [0.99, 0.98, NAN], "y": [NAN]})
    assert [(c.code, c.level, c.grave) for c in concerns] == [("ceiling", "x", False)]
    assert [c.level for c in validity.ceilings({"base": [0.99], "x": [0.96]})] == [None]
