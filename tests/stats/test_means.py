"""Geometric means and their intervals."""

import numpy as np
import pytest

from benchlib.stats.means import geometric_mean


def test_intervals_are_those_of_students_t():
    middle, low, high = geometric_mean([1.0, 100.0])
    assert middle == pytest.approx(10)
    assert low == pytest.approx(10 / np.exp(12.706 * np.log(10)), rel=1e-3)
    assert low * high == pytest.approx(100)


@pytest.mark.parametrize(("values", "mean"), [([3.0], 3.0), ([], np.nan)])
def test_one_value_or_none_has_no_interval(values, mean):
    middle, *ends = geometric_mean(values)
    assert middle == pytest.approx(mean, nan_ok=True)
    assert np.isnan(ends).all()
