import numpy as np
import pytest
from scipy.stats import nct, t

from benchlib.stats.block_model import fit_complete
from benchlib.stats.dunnett import complete_loadings
from benchlib.stats.power import Plan, blocks_to_answer, detectable

SD = 0.0355 / np.sqrt(2)


def power_of(effect_in_se, cut, df):
    """The power of the two-sided test for an effect given in standard errors."""
    return nct.sf(cut, df, effect_in_se) + nct.cdf(-cut, df, effect_in_se)


def test_detectable_is_where_power_is_reached():
    assert power_of(detectable(2.3, 12), 2.3, 12) == pytest.approx(0.80, abs=1e-6)


def test_there_is_an_end_to_it():
    assert blocks_to_answer(Plan(0.05, 1, 0.0), 5.0, 2.0, 0.03, 5) is None
    assert blocks_to_answer(Plan(0.05, 1, 0.0), 1e-6, 2.0, 0.03, 5) == 6


@pytest.mark.parametrize(("levels", "controls"), [(2, 0), (3, 1), (5, 1)])
def test_the_blocks_that_are_promised_give_an_answer(levels, controls):
    arms = controls + 1
    plan = Plan(0.05, levels - arms, complete_loadings(levels - arms, arms)[0])
    blocks = blocks_to_answer(plan, SD, 1 + 1 / arms, 0.03, 2)
    logs = np.random.default_rng(levels).normal(0, SD, (20_000, blocks, levels))
    *fit, df, _ = fit_complete(logs, controls)
    estimate, error = (values[:, -1] for values in fit)
    own = 1 - 0.95 ** (1 / plan.count)
    inside = np.abs(estimate) + t.isf(own, df) * error < np.log1p(0.03)
    seen = np.abs(estimate + np.log1p(0.03)) > plan.cut(blocks) * error
    assert 0.79 <= min(inside.mean(), seen.mean()) <= 0.87
