import numpy as np
import pandas as pd
import pytest

import benchlib
from benchlib.stats.multiple import exploratory, holm


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    with_gap = holm([0.01, np.nan, 0.04])
    assert with_gap[[0, 2]] == pytest.approx([0.02, 0.04])
    assert np.isnan(with_gap[1])


def test_exploratory_metrics(make_trials):
    trials = make_trials(["base", "x", "y"], effects={"x": 0.4})
    trials["latency_p95_ms"] = 1000 / trials["tps"]
    rng = np.random.default_rng(1)
    trials["wal_bytes_per_transaction"] = rng.lognormal(5, 0.1, len(trials))
    metrics = ["tps", "latency_p95_ms", "wal_bytes_per_transaction"]
    frame = exploratory({m: benchlib.analyze(trials, baseline="base", metric=m) for m in metrics})
    assert len(frame) == 6
    assert isinstance(frame, pd.DataFrame)
    assert set(frame.loc[frame["noteworthy"], "level"]) == {"x"}
