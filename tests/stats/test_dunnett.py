import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_t, t

from benchlib.stats.dunnett import critical, loadings, tail

HALF = float(np.sqrt(0.5))


@pytest.mark.parametrize(
    ("comparisons", "df", "cut"),
    # C. W. Dunnett (1964), table of two-sided 5 % points
    [(2, 5, 3.03), (3, 10, 2.76), (5, 10, 2.99), (3, 20, 2.54)],
)
def test_published_table(comparisons, df, cut):
    assert critical(0.05, (HALF,) * comparisons, df) == pytest.approx(cut, abs=0.0051)


def test_against_scipy_on_a_general_correlation():
    covariance = np.array([[2.0, 1.0, 0.7], [1.0, 1.8, 0.9], [0.7, 0.9, 1.6]])
    scale = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(scale, scale)
    lam = loadings(covariance)
    assert np.outer(lam, lam)[np.triu_indices(3, 1)] == pytest.approx(
        correlation[np.triu_indices(3, 1)], abs=1e-6
    )
    for cut in (1.0, 2.3, 3.1):
        box = np.full(3, cut)
        inside = multivariate_t(shape=correlation, df=7, seed=1).cdf(box, lower_limit=-box, maxpts=400_000)
        assert tail(cut, lam, 7) == pytest.approx(1 - inside, abs=3e-4)


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 8), st.integers(1, 5), st.floats(1, 300), st.floats(0.001, 0.4))
def test_cut_and_tail_are_inverse_and_bounded(comparisons, controls, df, alpha):
    lam = (float(np.sqrt(1 / (1 + controls))),) * comparisons
    cut = critical(alpha, lam, df)
    assert tail(cut, lam, df) == pytest.approx(alpha, rel=1e-6)
    assert t.isf(alpha / 2, df) <= cut <= t.isf(alpha / 2 / comparisons, df) * (1 + 1e-9)


def test_loadings_of_complete_designs_are_exact():
    assert loadings(np.array([[3.0]])) == (0.0,)
    assert loadings(np.full((3, 3), 1.0) + np.eye(3)) == pytest.approx((HALF,) * 3)
    assert np.prod(loadings(np.array([[1.0, -0.3], [-0.3, 1.0]]))) == pytest.approx(-0.3, abs=1e-6)


def test_contrasts_that_are_nearly_the_same_have_loadings():
    """As in blocks of which most trials are absent."""
    covariance = np.array([[1.0, 0.95, 0.9], [0.95, 1.0, 0.95], [0.9, 0.95, 1.0]])
    assert np.prod(loadings(covariance)[:2]) == pytest.approx(0.95, abs=0.02)
