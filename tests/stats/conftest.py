import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def make_trials():
    """A frame of trials from the model itself: block moods, level effects (log), trial noise (log)."""

    def make(levels, *, blocks=5, effects=None, sd=0.025, seed=0, metric="tps", centre=3000.0, mood=0.1):
        rng = np.random.default_rng(seed)
        effects = effects or {}
        moods = rng.normal(0, mood, blocks)
        rows = [
            (block + 1, level, centre * np.exp(moods[block] + effects.get(level, 0.0) + rng.normal(0, sd)))
            for block in range(blocks)
            for level in levels
        ]
        return pd.DataFrame(rows, columns=["block", "level", metric])

    return make
