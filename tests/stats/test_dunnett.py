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


@pytest.mark.parametrize("correlation", [(0.527, 0.418, 0.530), (0.0, 0.0, 0.0)], ids=["general", "pairs"])
@pytest.mark.parametrize("cut", [1.0, 2.3, 3.1])
def test_tails_agree_with_scipy(correlation, cut):
    shape, above = np.eye(3), np.triu_indices(3, 1)
    shape[above] = shape.T[above] = correlation
    lam = loadings(shape)
    assert np.outer(lam, lam)[above] == pytest.approx(correlation, abs=1e-6)
    box = np.full(3, cut)
    inside = multivariate_t(shape=shape, df=7, seed=1).cdf(box, lower_limit=-box, maxpts=400_000)
    assert tail(cut, lam, 7) == pytest.approx(1 - inside, abs=3e-4)


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 8), st.integers(1, 5), st.floats(1, 300), st.floats(0.001, 0.4))
def test_cut_and_tail_are_inverse_and_bounded(comparisons, controls, df, alpha):
    lam = (float(np.sqrt(1 / (1 + controls))),) * comparisons
    cut = critical(alpha, lam, df)
    assert tail(cut, lam, df) == pytest.approx(alpha, rel=1e-6)
    assert t.isf(alpha / 2, df) <= cut <= t.isf(alpha / 2 / comparisons, df) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("covariance", "product", "within"),
    [
        (np.full((3, 3), 1.0) + np.eye(3), 0.5, 1e-6),
        ([[1.0, -0.3], [-0.3, 1.0]], -0.3, 1e-6),
        # contrasts that are nearly the same, as in blocks of which most trials are absent
        ([[1.0, 0.95, 0.9], [0.95, 1.0, 0.95], [0.9, 0.95, 1.0]], 0.95, 0.02),
    ],
)
def test_the_correlation_of_two_contrasts_is_the_product_of_their_loadings(covariance, product, within):
    assert np.prod(loadings(np.array(covariance))[:2]) == pytest.approx(product, abs=within)
    assert loadings(np.array([[3.0]])) == (0.0,)
