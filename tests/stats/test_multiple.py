import numpy as np
import pandas as pd
import pytest
from scipy.stats import false_discovery_control

import benchlib
from benchlib.stats.multiple import benjamini_hochberg, holm
from benchlib.stats.strata import exploratory


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    with_gap = holm([0.01, np.nan, 0.04])
    assert with_gap[[0, 2]] == pytest.approx([0.02, 0.04])
    assert np.isnan(with_gap[1])


def test_false_discoveries_are_controlled_as_scipy_does():
    p = np.random.default_rng(1).random(20) ** 3
    assert benjamini_hochberg([*p, np.nan])[:-1] == pytest.approx(false_discovery_control(p))
    assert np.isnan(benjamini_hochberg([*p, np.nan])[-1])


def test_exploratory_metrics(make_trials):
    trials = make_trials(["base", "x", "y"], effects={"x": 0.4})
    trials["latency_p95_ms"] = 1000 / trials["tps"]
    rng = np.random.default_rng(1)
    trials["wal_bytes_per_transaction"] = rng.lognormal(5, 0.1, len(trials))
    metrics = ["tps", "latency_p95_ms", "wal_bytes_per_transaction"]
    trials["absent"], trials["now_and_then"] = np.nan, np.arange(len(trials)) % 2
    names = ["block", "level", *metrics, "absent", "now_and_then"]
    frame = exploratory(trials[names], dict.fromkeys(["base", "x", "y"], "one"), baseline="base")
    assert set(frame.loc[frame["noteworthy"], "level"]) == {"x"}
    columns = ["level", "percent_change", "p_value"]
    tables = [benchlib.analyze(trials, baseline="base", metric=m).table.iloc[1:] for m in metrics]
    same = pd.concat(tables, ignore_index=True)[columns]
    pd.testing.assert_frame_equal(frame[columns], same, check_dtype=False)
