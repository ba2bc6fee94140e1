"""Two studies of the same comparisons, of which the truth is known; change points come from another package, which may not be there."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from scipy.stats import ttest_ind

from benchlib.stats.between import ENDS, change_points
from benchlib.stats.between import between as held_against
from benchlib.stats.effects import compare


def between(one, other):
    return held_against(one, other, alpha=0.05, margin=0.03)


@pytest.fixture
def trials_of(make_trials):
    def make(seed, levels=("defaults", "control", "tuned"), **more):
        return make_trials(levels, seed=seed, **{"blocks": 6, "sd": 0.02, **more})

    return make


@pytest.fixture
def study(trials_of):
    """The effects that a study found, its controls aside."""

    def make(seed, levels=("defaults", "control", "tuned"), **more):
        effects = compare(trials_of(seed, levels, **more), baseline="defaults", controls=["control"])
        return effects[effects["level"] != "control"]

    return make


def test_of_two_levels_it_is_welch_s_test_of_the_differences_inside_blocks(trials_of):
    trials = [trials_of(seed, ("defaults", "tuned"), blocks=blocks) for seed, blocks in ((1, 5), (2, 9))]
    one, other = (compare(each, baseline="defaults") for each in trials)
    wide = [np.log(each.pivot(index="block", columns="level", values="tps")) for each in trials]
    logs = [each["tuned"] - each["defaults"] for each in wide]
    expected = ttest_ind(logs[1], logs[0], equal_var=False)
    (row,) = between(one, other).to_dict("records")
    assert row["p_value"] == pytest.approx(expected.pvalue)
    ends = [logs[1].mean() - logs[0].mean(), *expected.confidence_interval(0.95)]
    assert [row[name] for name in ("percent_change", "ci_low", "ci_high")] == pytest.approx(
        100 * np.expm1(ends)
    )
    assert row["percent_change_first"] == pytest.approx(one["percent_change"].iloc[-1])


def test_the_other_way_round_it_is_the_opposite(study):
    levels = ("defaults", "control", "a", "b")
    one, other = study(1, levels), study(2, levels, effects={"a": 0.1})
    there, back, same = between(one, other), between(other, one), between(one, one)
    assert there["level"].to_list() == ["a", "b"]
    for end, opposite in zip(ENDS, ("percent_change", "ci_high", "ci_low"), strict=True):
        assert (1 + there[end] / 100).to_numpy() == pytest.approx(1 / (1 + back[opposite] / 100).to_numpy())
    assert there["p_value"].to_numpy() == pytest.approx(back["p_value"].to_numpy())
    assert same["percent_change"].to_numpy() == pytest.approx([0, 0], abs=1e-9)
    assert not same["verdict"].eq("differs").any()


def test_the_words(study):
    one, far = study(1, sd=0.002), study(2, sd=0.002, effects={"tuned": 0.2})
    still, invalid = study(1, sd=0.0, mood=0.0), one.assign(verdict="invalid")
    pairs = [(one, far), (one, study(5, sd=0.002)), (one, study(4, sd=0.2)), (invalid, far), (still, still)]
    words = [word for pair in pairs for word in between(*pair)["verdict"]]
    assert words == ["differs", "same within ±3 %", *["cannot tell"] * 3]


def test_only_what_both_compare_in_the_same_way_is_there(study):
    other = between(study(1), study(2, ("defaults", "control", "another")))
    assert other.empty
    assert set(other) == set(between(study(1), study(2)))


@pytest.mark.statistics
def test_effects_that_are_the_same_differ_in_one_pair_of_twenty_at_most(study):
    levels, sessions = ("defaults", "control", "a", "b", "c"), 300
    pairs = ([study(2 * n + k, levels, blocks=5, sd=0.03) for k in (0, 1)] for n in range(sessions))
    differ = sum(between(*pair)["verdict"].eq("differs").any() for pair in pairs)
    assert differ / sessions <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / sessions)


def test_a_study_of_several_workloads_keeps_the_errors_of_all(make_trials):
    levels = ["defaults", "control", "a", "other defaults", "b"]
    part = dict.fromkeys(levels[:3], "one") | dict.fromkeys(levels[3:], "two")
    trials = [make_trials(levels, seed=seed) for seed in (1, 2)]
    how = {"baseline": "defaults", "controls": ["control"], "against": {"b": "other defaults"}}
    effects = (compare(each.assign(part=each["level"].map(part)), **how) for each in trials)
    rows = between(*(each[each["level"] != "control"] for each in effects))
    assert rows[["level", "against"]].to_numpy().tolist() == [["a", "defaults"], ["b", "other defaults"]]
    assert rows["p_value"].between(0, 1).all()


@pytest.mark.parametrize("there", [False, True])
def test_a_package_that_is_not_there_tells_nothing_and_one_that_is_gets_the_factors(monkeypatch, there):
    def compute(series, min_magnitude):
        assert [*series, min_magnitude] == [1.0, 1.1, 2.0, 2.1, 0.03]
        return [SimpleNamespace(index=np.int64(2))], None

    package = ModuleType("otava.analysis")
    package.compute_change_points = compute
    for name in ("otava", "otava.analysis"):
        monkeypatch.setitem(sys.modules, name, package if there else None)
    assert change_points([1.0, 1.1, 2.0, 2.1], 0.03) == ([2] if there else None)
