"""The block model against scipy's paired t and statsmodels' ordinary least squares."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_rel

import benchlib
from benchlib.stats.block_model import arm_weights, fit_blocks
from benchlib.stats.trials import read_trials


def test_two_levels_are_the_paired_t(make_trials):
    for seed in range(8):
        trials = make_trials(["a", "b"], blocks=3 + seed % 7, effects={"b": 0.03}, seed=seed)
        wide = np.log(trials.pivot(index="block", columns="level", values="tps"))
        paired = ttest_rel(wide["b"], wide["a"])
        row = benchlib.analyze(trials, baseline="a").table.iloc[1]
        assert row.p_value == pytest.approx(paired.pvalue, rel=1e-10)
        assert row.p_adjusted == row.p_value
        ends = 100 * np.expm1(paired.confidence_interval(0.95))
        assert (row.ci_low, row.ci_high) == pytest.approx(tuple(ends), rel=1e-10)


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
    assert ours.noise.sd**2 == pytest.approx(theirs.mse_resid, rel=1e-10)
    assert estimate == pytest.approx(test.effect, rel=1e-10, abs=1e-12)
    assert ours.noise.sd * np.sqrt(np.diag(unscaled)) == pytest.approx(test.sd, rel=1e-10)
    residual = theirs.resid.set_axis(pd.MultiIndex.from_frame(trials[["block", "level"]])).unstack()
    assert ours.residual == pytest.approx(residual.to_numpy(), abs=1e-12, nan_ok=True)


@pytest.mark.parametrize(("blocks", "levels", "arms"), [(2, 2, 1), (5, 4, 2), (9, 6, 3)])
def test_variance_of_a_complete_design(make_trials, blocks, levels, arms):
    names = [f"l{number}" for number in range(levels)]
    fit = fit_blocks(read_trials(make_trials(names, blocks=blocks), names[0], names[1:arms], "tps").logs)
    _, unscaled = fit.contrasts(arm_weights(levels, arms))
    assert fit.df == (blocks - 1) * (levels - 1)
    assert np.diag(unscaled)[arms - 1 :] == pytest.approx((1 + 1 / arms) / blocks)
    assert np.diag(unscaled)[: arms - 1] == pytest.approx(2 / blocks)


def test_levels_that_share_no_block_cannot_be_compared():
    trials = pd.DataFrame({"block": [0, 0, 1, 1], "level": list("abcd"), "tps": np.exp([1.0, 2.0, 3.0, 4.0])})
    estimate, unscaled = fit_blocks(read_trials(trials, "a", (), "tps").logs).contrasts(arm_weights(4, 1))
    assert estimate[0] == pytest.approx(1.0)
    assert np.isnan(estimate[1:]).all()
    assert np.isnan(unscaled[0, 1])
    assert np.isfinite(unscaled[0, 0])
