import numpy as np
import pandas as pd
import pytest

from benchlib.stats.assumptions import assumptions_seen

LEVELS = ["base", "control", "x", "y"]
PARTS = dict.fromkeys(LEVELS, "all")


def trials(blocks=12, *, luck=0.0, noisy=1.0):
    """Studies with two blocks a period; the last level strays ``noisy`` times as much as the others."""
    rng = np.random.default_rng(1)
    rows = pd.DataFrame({"block": np.repeat(range(blocks), 4), "level": LEVELS * blocks})
    rows["period"] = rows["block"] // 2
    rows["position"] = rng.random((blocks, 4)).argsort(axis=1).ravel()
    clusters = np.repeat(rng.normal(0, luck, (-(-blocks // 2), 4)), 2, axis=0)[:blocks].ravel()
    noise = rng.normal(0, 0.02, len(rows)) * np.where(rows["level"] == "y", noisy, 1)
    return rows.assign(tps=1000 * np.exp(noise + clusters))


def test_tidy_trials_look_tidy():
    seen = assumptions_seen(trials(), "tps", PARTS)
    assert seen["noise"] == pytest.approx(0.02, rel=0.3)
    assert seen["luck"] < 0.7
    assert min(seen[p] for p in ("noisiest_p", "luck_p", "position_p", "lag_p")) > 0.01


def test_luck_and_a_noisy_level_are_seen():
    seen = assumptions_seen(trials(luck=0.04), "tps", PARTS)
    assert seen["luck"] == pytest.approx(2, rel=0.4)
    assert seen["luck_p"] < 0.01
    assert assumptions_seen(trials(noisy=10), "tps", PARTS)["noisiest_p"] < 0.01


def test_too_few_blocks_tell_nothing():
    assert all(np.isnan(value) for value in assumptions_seen(trials(2), "tps", PARTS).values())
