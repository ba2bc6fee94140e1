"""Two studies of the same comparisons, of which the truth is known; change points come from another package, which may not be there."""

import dataclasses
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_ind

import benchlib
from benchlib.stats.between import ENDS, between, change_points


@pytest.fixture
def study(make_trials):
    def make(seed, levels=("defaults", "control", "tuned"), controls=("control",), **more):
        trials = make_trials(levels, seed=seed, **{"blocks": 6, "sd": 0.02, **more})
        return benchlib.analyze(trials, baseline="defaults", controls=controls)

    return make


def test_of_two_levels_it_is_welch_s_test_of_the_differences_inside_blocks(study):
    one, other = (study(seed, ("defaults", "tuned"), (), blocks=blocks) for seed, blocks in ((1, 5), (2, 9)))
    logs = [np.log1p(each.differences["percent"] / 100) for each in (one, other)]
    expected = ttest_ind(logs[1], logs[0], equal_var=False)
    (row,) = between(one, other).to_dict("records")
    assert row["p_value"] == pytest.approx(expected.pvalue)
    assert np.log1p(row["percent_change"] / 100) == pytest.approx(logs[1].mean() - logs[0].mean())
    ends = expected.confidence_interval(0.95)
    assert [row["ci_low"], row["ci_high"]] == pytest.approx([100 * np.expm1(end) for end in ends])
    assert row["percent_change_first"] == pytest.approx(one.table["percent_change"].iloc[-1])


def test_the_other_way_round_it_is_the_opposite(study):
    levels = ("defaults", "control", "a", "b")
    one, other = study(1, levels), study(2, levels, effects={"a": 0.1})
    there, back = between(one, other), between(other, one)
    assert there["level"].to_list() == ["a", "b"]
    for end, opposite in zip(ENDS, ("percent_change", "ci_high", "ci_low"), strict=True):
        assert (1 + there[end] / 100).to_numpy() == pytest.approx(1 / (1 + back[opposite] / 100).to_numpy())
    assert there["p_value"].to_numpy() == pytest.approx(back["p_value"].to_numpy())
    same = between(one, one)
    assert same["percent_change"].to_numpy() == pytest.approx([0, 0], abs=1e-9)
    assert not same["verdict"].eq("differs").any()


def test_the_words(study):
    one = study(1, sd=0.002)
    assert between(one, study(2, sd=0.002, effects={"tuned": 0.2}))["verdict"].to_list() == ["differs"]
    assert between(one, study(5, sd=0.002))["verdict"].to_list() == ["same within ±3 %"]
    assert between(one, study(4, sd=0.2))["verdict"].to_list() == ["cannot tell"]
    table = one.table.assign(verdict="invalid")
    far = study(2, sd=0.002, effects={"tuned": 0.2})
    assert between(dataclasses.replace(one, table=table), far)["verdict"].to_list() == ["cannot tell"]


def test_only_what_both_compare_in_the_same_way_is_there(study):
    other = study(2, ("defaults", "control", "another"))
    assert between(study(1), other).empty
    assert set(between(study(1), other)) == set(between(study(1), study(2)))


def test_without_noise_nothing_can_be_told(make_trials):
    trials = make_trials(["defaults", "tuned"], sd=0.0, mood=0.0)
    one = benchlib.analyze(trials, baseline="defaults")
    assert between(one, one)["verdict"].to_list() == ["cannot tell"]


@pytest.mark.statistics
def test_effects_that_are_the_same_differ_in_one_pair_of_twenty_at_most(make_trials):
    levels, differ, sessions = ["defaults", "control", "a", "b", "c"], 0, 300
    trials = [make_trials(levels, seed=seed, blocks=5, sd=0.03) for seed in range(2 * sessions)]
    analyses = [benchlib.analyze(each, baseline="defaults", controls=["control"]) for each in trials]
    for one, other in zip(analyses[::2], analyses[1::2], strict=True):
        differ += between(one, other)["verdict"].eq("differs").any()
    assert differ / sessions <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / sessions)


def test_a_study_of_several_workloads_keeps_the_errors_of_all(make_trials):
    from benchlib.stats.strata import analyze_strata

    levels = ["defaults", "control", "a", "other defaults", "b"]
    strata = dict.fromkeys(levels[:3], "one") | dict.fromkeys(levels[3:], "two")
    against = {"b": "other defaults"}
    one, other = (
        analyze_strata(make_trials(levels, seed=seed), strata, baseline="defaults", controls=["control"], against=against)
        for seed in (1, 2)
    )  # fmt: skip
    rows = between(one, other)
    assert list(zip(rows["level"], rows["against"], strict=True)) == [
        ("a", "defaults"),
        ("b", "other defaults"),
    ]
    assert isinstance(rows, pd.DataFrame)
    assert rows["p_value"].between(0, 1).all()


def test_without_the_package_there_are_none_to_tell_of(monkeypatch):
    monkeypatch.setitem(sys.modules, "otava", None)
    monkeypatch.setitem(sys.modules, "otava.analysis", None)
    assert change_points([1.0, 1.0, 2.0, 2.0], 0.03) is None


def test_the_package_is_given_the_factors_and_its_places_are_told(monkeypatch):
    given, module = [], ModuleType("otava.analysis")

    def compute(series, min_magnitude):
        given.extend([*series, min_magnitude])
        return [SimpleNamespace(index=np.int64(2))], None

    module.compute_change_points = compute
    monkeypatch.setitem(sys.modules, "otava", ModuleType("otava"))
    monkeypatch.setitem(sys.modules, "otava.analysis", module)
    assert change_points([1.0, 1.1, 2.0, 2.1], 0.03) == [2]
    assert given == [1.0, 1.1, 2.0, 2.1, 0.03]


def test_the_package_itself_finds_a_step_and_none_in_noise():
    pytest.importorskip("otava.analysis")
    noise = np.random.default_rng(1).normal(0, 0.01, 24)
    assert change_points((1 + noise).tolist(), 0.03) == []
    assert change_points((1 + noise + 0.2 * (np.arange(24) >= 12)).tolist(), 0.03) == [12]
    for few in ([], [1.0], [1.0, 1.2], [1.0, 1.2, 1.1]):
        assert change_points(few, 0.3) == []
