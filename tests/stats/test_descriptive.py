"""Geometric means with their intervals; correlations inside trials: those of ranks, blind to what differs between trials."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from benchlib.stats.descriptive import geometric_mean, within_trials


def make(trials, n=40, *, slope=0.0):
    random = np.random.default_rng(1)
    x, noise = random.normal(size=(2, trials * n))
    trial = np.repeat(range(trials), n)
    levels = np.array(["l0", "l1"])[trial % 2]
    return pd.DataFrame({"level": levels, "block": trial // 2, "x": x, "y": slope * x + noise})


def test_one_trial_is_spearmans_rank_correlation():
    frame = make(1, slope=0.5).round(1)  # with ties
    result = within_trials(frame, ["x"], ["y"])
    assert result.loc["x", "y"] == pytest.approx(spearmanr(frame["x"], frame["y"]).statistic)


def test_what_holds_inside_trials_is_seen_through_differences_the_other_way():
    frame = make(20, slope=2)
    frame["y"] -= 50 * (frame["level"] == "l1")
    frame["x"] += 50 * (frame["level"] == "l1")
    assert within_trials(frame, ["x"], ["y"]).loc["x", "y"] > 0.8


def test_what_stands_still_tells_nothing_and_does_not_dilute():
    frame = make(2, slope=1)
    alone = within_trials(frame[frame["level"] == "l0"], ["x"], ["y"]).loc["x", "y"]
    frame.loc[frame["level"] == "l1", "y"] = 3.0
    assert within_trials(frame, ["x"], ["y"]).loc["x", "y"] == pytest.approx(alone)
    assert within_trials(frame.assign(x=1.0), ["x"], ["y"]).isna().all(axis=None)


def test_too_few_seconds_are_null_and_missing_ones_left_out():
    assert within_trials(make(1, n=19), ["x"], ["y"]).isna().all(axis=None)
    frame = make(1, n=60, slope=1)
    whole = frame.iloc[:40]
    frame.loc[40:, "y"] = np.nan
    expected = spearmanr(whole["x"], whole["y"]).statistic
    assert within_trials(frame, ["x"], ["y"]).loc["x", "y"] == pytest.approx(expected)


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
