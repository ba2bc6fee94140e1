import numpy as np
import pytest
from scipy.signal import lfilter

import benchlib
from benchlib.stats import validity
from benchlib.stats.validity import client_bound, failures, mser5, steadiness, unsteady


def series(rng, n=300, rho=0.5, mean=1000.0, sd=50.0):
    noise = lfilter([1.0], [1.0, -rho], rng.normal(size=n + 200))[200:]
    return mean + sd * np.sqrt(1 - rho**2) * noise


def test_an_outlier_is_shown_and_kept(make_trials):
    trials = make_trials(["base", "x", "y"], blocks=8, seed=1)
    trials.loc[4, "tps"] *= 0.5
    analysis = benchlib.analyze(trials, baseline="base")
    assert analysis.table.n.tolist() == [8, 8, 8]
    (said,) = (w for w in analysis.warnings if w.code == "outlier")
    assert "block 2, 'x'" in said.message
    assert not said.grave


def test_sound_trials_raise_no_alarm(make_trials):
    codes = [
        warning.code
        for seed in range(60)
        for warning in benchlib.analyze(
            make_trials(["base", "c", "x"], blocks=6, seed=seed), baseline="base", controls=["c"]
        ).warnings
    ]
    assert len(codes) <= 8
    assert "effect_drift" not in codes


def test_a_drifting_host_is_noted_and_a_drifting_effect_is_grave(make_trials):
    trials = make_trials(["base", "x"], blocks=8, mood=0.005, sd=0.005, seed=2)
    trials["tps"] *= np.exp(0.02 * trials["block"])
    analysis = benchlib.analyze(trials, baseline="base")
    assert "host_drift" in {w.code for w in analysis.warnings}
    assert analysis.table.verdict[1] != "invalid"
    trials["tps"] *= np.where(trials["level"] == "x", np.exp(-0.03 * trials["block"]), 1.0)
    spoilt = benchlib.analyze(trials, baseline="base")
    assert [w.code for w in spoilt.warnings if w.grave] == ["effect_drift"]
    assert spoilt.table.verdict[1] == "invalid"


def test_mser5_finds_the_start_up():
    rng = np.random.default_rng(3)
    x = series(rng, 400, 0.0, sd=10.0)
    assert mser5(x[:12]) == 0
    x[:60] -= 400
    assert mser5(x) == pytest.approx(60, abs=5)


def test_steady_state_against_the_fixed_warm_up():
    rng = np.random.default_rng(4)
    ramp = series(rng) - 600 * np.exp(-np.arange(300) / 30)
    assert not steadiness(ramp, warmup_s=5).steady
    assert steadiness(ramp, warmup_s=150).steady
    alarms = [
        not steadiness(series(rng, 120, rho), warmup_s=5).steady for rho in (0, 0.5, 0.8) for _ in range(60)
    ]
    assert np.mean(alarms) < 0.05
    found = steadiness(series(rng, 3000, 0.8), warmup_s=0)
    assert found.autocorrelation == pytest.approx(0.8, abs=0.08)
    assert 100 < found.effective_n < 700


@pytest.mark.parametrize("bad", [[], [1.0], [float("nan")] * 40, [5.0] * 40])
def test_poor_series_do_not_crash(bad):
    assert steadiness(bad, warmup_s=5).steady


def test_unsteady_levels():
    good = validity.Steadiness(5.0, 0.1, 100.0, True)
    bad = validity.Steadiness(50.0, 0.1, 100.0, False)
    assert unsteady("x", [good] * 5) is None
    assert not unsteady("x", [good, good, good, bad]).grave
    assert unsteady("x", [good, bad, bad]).grave


def test_failed_and_retried_transactions():
    assert failures("x", 1000, 0) is None
    assert failures("x", 0, 0).grave
    assert failures("x", 900, 100).grave
    assert not failures("x", 99_999, 1).grave
    assert failures("x", 1000, 0, retried=50).code == "retried_transactions"


def test_a_rate_that_is_held_is_no_concern():
    # 5 a second for 8 s: 40 are due, and 25 are not beyond the chance of a Poisson process
    assert validity.behind_schedule("t", 5, [25, 44], [25 / 8, 44 / 8], [2.0, 3.0]) is None
    assert validity.behind_schedule("t", 500, [29_700], [495], [float("nan")]) is None
    rng = np.random.default_rng(5)
    done = rng.poisson(500 * 30, 2000)
    assert sum(validity.behind_schedule("t", 500, [n], [n / 30], [2.0]) is not None for n in done) <= 3


def test_a_server_that_falls_behind_the_schedule_is_told():
    found = validity.behind_schedule("tuned", 500, [27_000, 30_000], [450, 500], [3_000, 2])
    assert (found.code, found.grave, found.level) == ("rate_not_held", False, "tuned")
    assert found.message == (
        "'tuned' did not hold the rate of 500 tps in 1 of 2 trials: there it reached 450 tps and began "
        "transactions 3,000 ms late on average, so that their latency depends on how long a trial is"
    )
    assert validity.behind_schedule("t", 500, [27_000] * 2, [450] * 2, [3_000] * 2).grave


def test_a_growing_lag_shows_what_chance_would_hide():
    # a tenth of so few is not beyond chance, but they were all late
    assert validity.behind_schedule("t", 5, [36], [36 / 8], [400.0]).grave
    assert validity.behind_schedule("t", 5, [36], [36 / 8], [4.0]) is None


def test_a_stall_that_was_caught_up_with_is_latency_like_any_other():
    assert validity.behind_schedule("t", 500, [1_490], [1_490 / 3], [90.0]) is None


def test_skipped_transactions_are_counted():
    assert validity.skipped("t", 100, 0) is None
    found = validity.skipped("t", 990, 10)
    assert not found.grave
    assert found.message.startswith("10 of 1000 transactions of 't' were skipped (1 %)")


def test_a_busy_client_is_the_bottleneck():
    (found,) = client_bound({"x": [0.97, 0.95, 0.2], "y": [0.3, 0.99, 0.4], "z": [float("nan")]})
    assert (found.level, found.grave) == ("x", True)
    assert "95 %" in found.message


def test_more_commits_than_the_device_can_flush_are_told():
    # study D: a disk of 80 flushes a second; 48,817 commits a second were a lying cache
    assert validity.implausible("x", 79.0, 80.3, 1) is None
    found = validity.implausible("x", 48_817.0, 80.3, 1)
    assert (found.code, found.level, found.grave) == ("implausible_commit_rate", "x", False)
    assert "48,817" in found.message


def test_one_flush_commits_for_all_who_wait():
    assert validity.implausible("x", 80.0 * 50, 80.3, 50) is None
    assert validity.implausible("x", 80.0 * 50, 80.3, 20) is not None
    assert validity.implausible("x", 110.0, 80.0, 1) is None, "devices vary from one measurement to the next"
    assert validity.implausible("x", 110.0, 80.0, 1, tolerated=1.2) is not None
