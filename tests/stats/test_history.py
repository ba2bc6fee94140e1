import numpy as np
import pytest

import benchlib
from benchlib.errors import InputError
from benchlib.stats.history import Prior, estimate_prior


def earlier(rng, studies, d0=8.0, s0=6e-4, df=12):
    true = s0 * d0 / rng.chisquare(d0, studies)
    return true * rng.chisquare(df, studies) / df, [df] * studies


def test_the_prior_is_found_again():
    prior = estimate_prior(*earlier(np.random.default_rng(1), 4000))
    assert prior.df == pytest.approx(8.0, rel=0.15)
    assert prior.variance == pytest.approx(6e-4, rel=0.05)


def test_constant_noise_is_capped_by_what_was_seen():
    rng = np.random.default_rng(2)
    assert estimate_prior(6e-4 * rng.chisquare(12, 15) / 12, [12] * 15).df <= 15


def test_too_little_or_too_wild_a_past_is_no_prior():
    rng = np.random.default_rng(3)
    assert estimate_prior(*earlier(rng, 11)) is None
    assert estimate_prior([np.nan, 0.0, *earlier(rng, 11)[0]], [12] * 13) is None
    assert estimate_prior(np.exp(rng.normal(0, 5, 30)), [12] * 30) is None
    with pytest.raises(InputError, match="variances"):
        estimate_prior([1.0], [1.0, 2.0])


def test_moderation_and_its_refusal():
    prior = Prior(variance=4.0, df=10.0, studies=20)
    variance, df, said = prior.moderate(2.0, 4.0)
    assert (variance, df, said.code) == (pytest.approx((4 * 2 + 10 * 4) / 14), 14.0, "history_used")
    for strange in (400.0, 0.001):
        assert prior.moderate(strange, 4.0)[:2] == (strange, 4.0)
        assert prior.moderate(strange, 4.0)[2].code == "history_refused"


def test_history_in_an_analysis(make_trials):
    trials = make_trials(["base", "x"], blocks=3, seed=2)
    plain = benchlib.analyze(trials, baseline="base")
    prior = Prior(variance=plain.residual_sd**2, df=20.0, studies=30)
    moderated = benchlib.analyze(trials, baseline="base", history=prior)
    assert moderated.df == 22.0
    assert moderated.residual_sd == pytest.approx(plain.residual_sd)
    assert np.ptp(moderated.table[["ci_low", "ci_high"]].iloc[1]) < np.ptp(
        plain.table[["ci_low", "ci_high"]].iloc[1]
    )
    assert "history_used" in {w.code for w in moderated.warnings}


def test_false_alarms_with_an_estimated_prior():
    rng = np.random.default_rng(5)
    from scipy.stats import t

    alarms = 0
    for _ in range(1500):
        variances, dfs = earlier(rng, 16, s0=1.0)
        prior = estimate_prior(variances, dfs)
        true = 8.0 / rng.chisquare(8)
        variance, df = true * rng.chisquare(4) / 4, 4.0
        if prior:
            variance, df, _ = prior.moderate(variance, df)
        alarms += 2 * t.sf(abs(rng.normal(0, np.sqrt(true))) / np.sqrt(variance), df) < 0.05
    assert 0.035 < alarms / 1500 < 0.07
