import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_rel

import benchlib
from benchlib.stats.block_model import arm_weights, fit_blocks


def test_two_levels_are_the_paired_t(make_trials):
    for seed in range(20):
        trials = make_trials(["a", "b"], blocks=3 + seed % 7, effects={"b": 0.03}, seed=seed)
        wide = np.log(trials.pivot(index="block", columns="level", values="tps"))
        paired = ttest_rel(wide["b"], wide["a"])
        interval = paired.confidence_interval(0.95)
        row = benchlib.analyze(trials, baseline="a").table.iloc[1]
        assert row.p_value == pytest.approx(paired.pvalue, rel=1e-10)
        assert row.p_adjusted == row.p_value
        assert row.ci_low == pytest.approx(100 * np.expm1(interval.low), rel=1e-10)
        assert row.ci_high == pytest.approx(100 * np.expm1(interval.high), rel=1e-10)


@pytest.mark.parametrize("absent", [0, 1, 4])
@pytest.mark.parametrize("arms", [1, 2, 3])
def test_contrasts_agree_with_statsmodels(make_trials, absent, arms):
    ols = pytest.importorskip("statsmodels.formula.api").ols
    levels = list("abcdef")
    trials = make_trials(levels, blocks=6, effects={"e": 0.1}, seed=arms)
    trials = trials.drop(trials.sample(absent, random_state=arms).index).reset_index(drop=True)
    trials["y"] = np.log(trials["tps"])
    theirs = ols("y ~ C(block) + C(level)", trials).fit()
    ours = fit_blocks(
        trials["block"].to_numpy() - 1,
        trials["level"].map(levels.index).to_numpy(),
        trials["y"].to_numpy(),
        6,
    )
    weights = arm_weights(6, arms)
    estimate, unscaled = ours.contrasts(weights)
    names = list(theirs.params.index)
    contrast = np.zeros((5, len(names)))
    for column, level in enumerate("bcdef", start=1):
        contrast[:, names.index(f"C(level)[T.{level}]")] = weights[:, column]
    test = theirs.t_test(contrast)
    assert ours.df == theirs.df_resid
    assert ours.variance == pytest.approx(theirs.mse_resid, rel=1e-10)
    assert estimate == pytest.approx(test.effect, rel=1e-10, abs=1e-12)
    assert np.sqrt(ours.variance * np.diag(unscaled)) == pytest.approx(test.sd, rel=1e-10)
    assert ours.residual == pytest.approx(theirs.resid.to_numpy(), abs=1e-12)


@settings(deadline=None)
@given(st.integers(2, 9), st.integers(2, 6), st.integers(1, 3))
def test_variance_of_a_complete_design(blocks, levels, arms):
    arms = min(arms, levels - 1)
    block, level = np.array(list(itertools.product(range(blocks), range(levels)))).T
    fit = fit_blocks(block, level, np.random.default_rng(1).normal(size=len(block)), levels)
    _, unscaled = fit.contrasts(arm_weights(levels, arms))
    assert fit.df == (blocks - 1) * (levels - 1)
    assert np.diag(unscaled)[arms - 1 :] == pytest.approx((1 + 1 / arms) / blocks)
    assert np.diag(unscaled)[: arms - 1] == pytest.approx(2 / blocks)


def test_levels_that_share_no_block_cannot_be_compared():
    fit = fit_blocks(np.array([0, 0, 1, 1]), np.array([0, 1, 2, 3]), np.array([1.0, 2.0, 3.0, 4.0]), 4)
    estimate, unscaled = fit.contrasts(arm_weights(4, 1))
    assert estimate[0] == pytest.approx(1.0)
    assert np.isnan(estimate[1:]).all()
    assert np.isnan(unscaled[0, 1])
    assert np.isfinite(unscaled[0, 0])
