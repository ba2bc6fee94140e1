"""Power, adjusted p values and geometric means against closed forms."""

import numpy as np
import pytest
from calibration_page import geometric_mean
from scipy.stats import nct, t

from benchlib.stats.block_model import fit_complete
from benchlib.stats.dunnett import complete_loading
from benchlib.stats.multiple import benjamini_hochberg, holm
from benchlib.stats.power import Plan, blocks_to_answer, detectable


def test_a_geometric_mean_has_the_interval_of_student_s_t():
    middle, low, high = geometric_mean([1.0, 100.0])
    assert (middle, low * high) == (pytest.approx(10), pytest.approx(100))
    assert low == pytest.approx(10 / np.exp(12.706 * np.log(10)), rel=1e-3)
    for values, mean in (([3.0], 3.0), ([], np.nan)):
        assert geometric_mean(values) == pytest.approx((mean, np.nan, np.nan), nan_ok=True)


def test_p_values_are_adjusted_and_gaps_stay():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.01, np.nan, 0.04]) == pytest.approx([0.02, np.nan, 0.04], nan_ok=True)
    adjusted = benjamini_hochberg([0.01, np.nan, 0.04, 0.03, 0.005])
    assert adjusted == pytest.approx([0.02, np.nan, 0.04, 0.04, 0.02], nan_ok=True)


def test_a_detectable_effect_is_where_power_is_reached():
    effect = detectable(2.3, 12)
    assert nct.sf(2.3, 12, effect) + nct.cdf(-2.3, 12, effect) == pytest.approx(0.80, abs=1e-6)


@pytest.mark.parametrize(("sd", "blocks"), [(5.0, None), (1e-6, 6)])
def test_the_blocks_still_needed_have_an_end_and_are_more_than_there_are(sd, blocks):
    assert blocks_to_answer(Plan(0.05, 1, 0.0), sd, 2.0, 0.03, 5) == blocks


@pytest.mark.parametrize(("levels", "controls"), [(2, 0), (3, 1), (5, 1)])
def test_the_blocks_that_are_promised_give_an_answer(levels, controls):
    arms, sd = controls + 1, 0.0251
    plan = Plan(0.05, levels - arms, complete_loading(arms))
    blocks = blocks_to_answer(plan, sd, 1 + 1 / arms, 0.03, 2)
    logs = np.random.default_rng(levels).normal(0, sd, (20_000, blocks, levels))
    *fit, df, _ = fit_complete(logs, controls)
    estimate, error = (values[:, -1] for values in fit)
    own = 1 - 0.95 ** (1 / plan.count)
    inside = np.abs(estimate) + t.isf(own, df) * error < np.log1p(0.03)
    found = np.abs(estimate + np.log1p(0.03)) > plan.cut(blocks) * error
    assert 0.79 <= min(inside.mean(), found.mean()) <= 0.87
