"""Change points come from another package, which may not be there."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from benchlib.stats.change_points import change_points


def test_without_the_package_there_are_none_to_tell_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "otava", None)
    monkeypatch.setitem(sys.modules, "otava.analysis", None)
    assert change_points([1.0, 1.0, 2.0, 2.0], 0.03) is None


def test_the_package_is_given_the_factors_and_its_places_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    given, module = [], ModuleType("otava.analysis")

    def compute(series, min_magnitude):
        given.extend([*series, min_magnitude])
        return [SimpleNamespace(index=np.int64(2))], None

    module.compute_change_points = compute
    monkeypatch.setitem(sys.modules, "otava", ModuleType("otava"))
    monkeypatch.setitem(sys.modules, "otava.analysis", module)
    assert change_points([1.0, 1.1, 2.0, 2.1], 0.03) == [2]
    assert given == [1.0, 1.1, 2.0, 2.1, 0.03]


def test_the_package_itself_finds_a_step_and_none_in_noise() -> None:
    pytest.importorskip("otava.analysis")
    noise = np.random.default_rng(1).normal(0, 0.01, 24)
    assert change_points((1 + noise).tolist(), 0.03) == []
    assert change_points((1 + noise + 0.2 * (np.arange(24) >= 12)).tolist(), 0.03) == [12]
    for few in ([], [1.0], [1.0, 1.2], [1.0, 1.2, 1.1]):
        assert change_points(few, 0.3) == []
