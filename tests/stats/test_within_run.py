import numpy as np
import pytest
from scipy.signal import lfilter

from benchlib.errors import InputError
from benchlib.stats.within_run import LABEL, mean_interval, quantile_interval


def correlated(rng, n, rho):
    return lfilter([1.0], [1.0, -rho], rng.normal(size=n + 200))[200:] * np.sqrt(1 - rho**2)


def test_a_mean_covers_inside_its_run():
    rng = np.random.default_rng(1)
    ends = np.array([mean_interval(correlated(rng, 400, 0.7)) for _ in range(400)])
    assert 0.90 <= ((ends[:, 0] < 0) & (ends[:, 1] > 0)).mean() <= 0.99


def test_a_quantile_covers_inside_its_run():
    rng = np.random.default_rng(2)
    ends = np.array([quantile_interval(correlated(rng, 4000, 0.9), 0.95) for _ in range(300)])
    assert 0.88 <= ((ends[:, 0] < 1.645) & (ends[:, 1] > 1.645)).mean() <= 0.99
    assert "this run" in LABEL


def test_too_little_is_refused():
    with pytest.raises(InputError, match="20 readings"):
        mean_interval(np.ones(5))
    with pytest.raises(InputError, match=r"too few for the 99\.9 %"):
        quantile_interval(np.ones(5000), 0.999)
    with pytest.raises(InputError, match="between 0 and 1"):
        quantile_interval(np.ones(5000), 99)
