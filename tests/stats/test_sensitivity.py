import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import wilcoxon

import benchlib
from benchlib.stats.sensitivity import bca, hodges_lehmann, sensitivity, sign_flip_p


@pytest.mark.parametrize(("blocks", "methods"), [(3, 0), (5, 0), (6, 2), (9, 2), (10, 4)])
def test_what_is_shown_depends_on_the_blocks(make_trials, blocks, methods):
    trials = make_trials(["base", "control", "x"], blocks=blocks, effects={"x": 0.1})
    frame = sensitivity(benchlib.analyze(trials, baseline="base", controls=["control"]))
    assert (frame["level"] == "x").sum() == methods
    assert not ((frame["p_value"] <= 0) | (frame["p_value"] > 1)).any()


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(-5, 5).filter(lambda x: abs(x) > 1e-3), min_size=2, max_size=9))
def test_sign_flips_against_enumeration(values):
    x = np.array(values)
    flipped = np.abs([np.mean(np.array(s) * x) for s in itertools.product((-1, 1), repeat=len(x))])
    expected = (flipped >= abs(x.mean()) - 1e-9).mean()
    assert sign_flip_p(x) == pytest.approx(expected, abs=1e-9)


def test_many_differences_are_resampled_and_p_is_never_zero():
    assert 0 < sign_flip_p(np.full(30, 1.0) + np.arange(30) / 100) <= 3 / 10_000


@pytest.mark.parametrize("n", [6, 10, 15])
def test_hodges_lehmann_interval_matches_the_signed_rank_test(n):
    x = np.random.default_rng(n).normal(0.3, 1.0, n)
    centre, low, high = hodges_lehmann(x)
    assert low <= centre <= high
    # just inside the interval the exact signed-rank test accepts, just outside it rejects
    assert wilcoxon(x - (low + 1e-9), method="exact").pvalue > 0.05
    assert wilcoxon(x - (low - 1e-9), method="exact").pvalue <= 0.05
    assert wilcoxon(x - (high + 1e-9), method="exact").pvalue <= 0.05


def test_bca_covers_the_mean_and_survives_constants():
    x = np.random.default_rng(1).normal(1.0, 0.1, 40)
    low, high = bca(x)
    assert low < x.mean() < high
    assert np.isnan(bca(np.ones(12))).all()


def test_blocks_that_share_clusters_are_no_replicates(make_trials):
    trials = make_trials(["base", "control", "x"], blocks=12, effects={"x": 0.1}, sd=0.001)
    rng = np.random.default_rng(2)
    luck = {(period, level): rng.normal(0, 0.05) for period in range(4) for level in ("base", "control", "x")}
    periods = (trials["block"] - 1) // 3
    lucky = [luck[key] for key in zip(periods, trials["level"], strict=True)]
    stays = trials.assign(period=periods, tps=trials["tps"] * np.exp(lucky))
    analysis = benchlib.analyze(stays, baseline="base", controls=["control"])
    assert analysis.of_periods
    assert sensitivity(analysis).empty
