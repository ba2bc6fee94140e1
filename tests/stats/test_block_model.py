"""The block model against scipy's paired t and statsmodels' ordinary least squares."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_rel

import benchlib
from benchlib.stats.block_model import arm_weights, fit_blocks
from benchlib.stats.trials import read_trials


@pytest.mark.parametrize("blocks", [3, 4, 7, 9])
def test_two_levels_are_the_paired_t(make_trials, blocks):
    trials = make_trials(["a", "b"], blocks=blocks, effects={"b": 0.03}, seed=blocks)
    wide = np.log(trials.pivot(index="block", columns="level", values="tps"))
    paired = ttest_rel(wide["b"], wide["a"])
    row = benchlib.analyze(trials, baseline="a").table.iloc[1]
    assert [row.p_value, row.p_adjusted] == pytest.approx([paired.pvalue] * 2, rel=1e-10)
    assert [row.ci_low, row.ci_high] == pytest.approx(
        100 * np.expm1(paired.confidence_interval(0.95)), rel=1e-10
    )


@pytest.mark.parametrize("absent", [0, 4])
@pytest.mark.parametrize("arms", [1, 3])
def test_contrasts_agree_with_statsmodels(make_trials, absent, arms):
    ols = pytest.importorskip("statsmodels.formula.api").ols
    trials = make_trials(list("abcdef"), blocks=6, effects={"e": 0.1}, seed=arms)
    trials = trials.drop(trials.sample(absent, random_state=arms).index).sort_values("level")
    theirs = ols("y ~ C(block) + C(level)", trials.assign(y=np.log(trials["tps"]))).fit()
    ours = fit_blocks(read_trials(trials, "a", ("b", "c")[: arms - 1], "tps").logs)
    weights = arm_weights(6, arms)
    estimate, unscaled = ours.contrasts(weights)
    names = list(theirs.params.index)
    contrast = np.zeros((5, len(names)))
    for column, level in enumerate("bcdef", start=1):
        contrast[:, names.index(f"C(level)[T.{level}]")] = weights[:, column]
    test = theirs.t_test(contrast)
    assert ours.df == theirs.df_resid
    assert ours.residual_sd**2 == pytest.approx(theirs.mse_resid, rel=1e-10)
    assert estimate == pytest.approx(test.effect, rel=1e-10, abs=1e-12)
    assert ours.residual_sd * np.sqrt(np.diag(unscaled)) == pytest.approx(test.sd, rel=1e-10)
    residual = theirs.resid.set_axis(pd.MultiIndex.from_frame(trials[["block", "level"]])).unstack()
    assert ours.residual == pytest.approx(residual.to_numpy(), abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("levels", [2, 7, 25])
def test_what_a_processor_rounds_does_not_decide_what_is_known(levels):
    random = np.random.default_rng(levels)
    fit = fit_blocks(pd.DataFrame(random.normal(size=(4, levels))))
    weights = arm_weights(levels, 1)
    estimate, unscaled = fit.contrasts(weights)
    rounded = random.normal(scale=1e-14, size=fit.unscaled.shape) * abs(fit.unscaled).max()
    other, covariance = replace(fit, unscaled=fit.unscaled + rounded + rounded.T).contrasts(weights)
    assert np.isfinite(estimate).all()
    np.testing.assert_allclose(other, estimate)
    np.testing.assert_allclose(covariance, unscaled, rtol=1e-9, atol=1e-12)
