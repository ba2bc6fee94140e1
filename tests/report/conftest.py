"""What tests of pages share: trials whose truth is known, and the page of their effects."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchlib.report.model import PageData, page_data
from benchlib.stats.effects import compare
from benchlib.study.frames import as_data

Trials = Callable[..., pd.DataFrame]


@pytest.fixture(scope="session")
def trials_of() -> Trials:
    """Makes quiet trials of five blocks: defaults, its control, and levels that are so many percent faster."""

    def make(noise: float = 0.005, blocks: int = 5, **percent: float) -> pd.DataFrame:
        random, levels = np.random.default_rng(1), {"defaults": 0.0, "control": 0.0, **percent}
        rows = [
            (block, level, 1000 * (1 + change / 100) * np.exp(random.normal(0, noise)))
            for block in range(1, blocks + 1)
            for level, change in levels.items()
        ]
        return pd.DataFrame(rows, columns=["block", "level", "tps"])

    return make


@pytest.fixture(scope="session")
def page_of(trials_of: Trials, study_of: Callable[..., Any]) -> Callable[..., PageData]:
    """Makes the page of such trials; ``about`` are other fields of it."""

    def make(answers: dict[str, str] | None = None, noise: float = 0.005, about: Any = None, **percent: float) -> PageData:  # fmt: skip
        arms = {"baseline": "defaults", "controls": ["control"]}
        effects = compare(trials_of(noise, **percent), **arms, answers=answers or {})
        page = page_data(study_of(name="mine"), {"effects": as_data(effects)}, name="mine")
        return page.model_copy(update=about or {})

    return make
