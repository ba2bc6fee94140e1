"""What one study's trials say: the contract of the table and its JSON, the words."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import benchlib
from benchlib.stats.limits import Concern

COLUMNS = (
    "level n mean sd cv percent_change ci_low ci_high p_value p_adjusted verdict mde_percent blocks_needed"
)


def rows(analysis):
    return analysis.table.set_index("level")


def codes(analysis):
    return {warning.code for warning in analysis.warnings}


def test_table_and_json_follow_the_contract(make_trials):
    trials = make_trials(["x", "base", "control", "y"], effects={"x": 0.1}, seed=1)
    analysis = benchlib.analyze(trials, baseline="base", controls=["control"])
    assert " ".join(analysis.table.columns) == COLUMNS
    assert list(analysis.table["level"]) == ["base", "control", "x", "y"]
    said = json.loads(json.dumps(analysis.to_dict(), allow_nan=False))
    assert list(said) == ["baseline", "metric", "blocks", "levels", "warnings"]
    assert (said["blocks"], said["metric"]) == (5, "tps")
    first, values = said["levels"][0], trials.loc[trials.level == "base", "tps"]
    assert all(first[column] is None for column in COLUMNS.split()[5:])
    mean, sd = values.mean(), values.std()
    assert said["levels"][2]["verdict"] == "faster"
    assert [first[column] for column in ("mean", "sd", "cv")] == pytest.approx([mean, sd, 100 * sd / mean])
    assert isinstance(said["levels"][3]["blocks_needed"], int)
    assert all(list(each) == ["code", "level", "value", "text", "grave"] for each in said["warnings"])


def test_equivalent_and_real_but_tiny(make_trials):
    trials = make_trials(["base", "x", "y"], blocks=12, sd=0.004, effects={"y": 0.012}, seed=5)
    analysis = benchlib.analyze(trials, baseline="base")
    assert rows(analysis).verdict[["x", "y"]].tolist() == ["equivalent", "faster"]


def test_a_control_that_differs_invalidates_everything(make_trials):
    trials = make_trials(["base", "control", "x"], effects={"control": 0.15, "x": 0.3})
    analysis = benchlib.analyze(trials, baseline="base", controls=["control"])
    assert rows(analysis).verdict[["control", "x"]].tolist() == ["invalid", "invalid"]
    assert [w.code for w in analysis.warnings if w.grave] == ["control_differs"]
    assert np.isfinite(rows(analysis).loc["x", "p_value"])


def test_grave_concerns_from_elsewhere(make_trials):
    trials = make_trials(["base", "x", "y"], effects={"x": 0.3, "y": 0.3})
    one = [Concern("doubt", "it did not take", grave=True, level="x"), Concern("caveat", "a note", level="y")]
    every = [Concern("no_variation", grave=True)]
    for concerns, verdicts in ((one, ["invalid", "faster"]), (every, ["invalid", "invalid"])):
        analysis = benchlib.analyze(trials, baseline="base", concerns=concerns)
        assert rows(analysis).verdict[["x", "y"]].tolist() == verdicts
    assert analysis.doubts("y") == every


def test_inconclusive_says_what_is_missing(make_trials):
    analysis = benchlib.analyze(make_trials(["base", "x"], blocks=5, sd=0.025, seed=11), baseline="base")
    row = rows(analysis).loc["x"]
    assert (row.verdict, row.mde_percent > 3, row.blocks_needed > 5) == ("inconclusive", True, True)


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("controls", [[], ["control"]])
def test_no_verdict_from_fewer_than_three_blocks(make_trials, blocks, controls):
    trials = make_trials(["base", *controls, "x", "y"], blocks=blocks, effects={"x": 2.0, "control": -2.0})
    analysis = benchlib.analyze(trials, baseline="base", controls=controls)
    assert set(rows(analysis).verdict.iloc[1:]) == {"inconclusive"}
    assert "few_blocks" in codes(analysis)
    assert np.isnan(rows(analysis).loc["x", "p_value"]) == (blocks == 1)


@pytest.mark.parametrize("effect", [0.0, 0.5])
def test_values_that_repeat_exactly_have_no_p(make_trials, effect):
    trials = make_trials(["base", "x", "y"], sd=0.0, effects={"x": effect})
    analysis = benchlib.analyze(trials, baseline="base")
    row = rows(analysis).loc["x"]
    assert (row.verdict, np.isnan(row.p_value), np.isnan(row.ci_low)) == ("inconclusive", True, True)
    assert "no_variation" in codes(analysis)
    json.dumps(analysis.to_dict(), allow_nan=False)


def test_levels_that_share_no_block_with_the_baseline(make_trials):
    trials = make_trials(["base", "x", "y", "z"], blocks=8)
    split = (trials.block <= 4) == trials.level.isin(["base", "x"])
    analysis = benchlib.analyze(trials[split], baseline="base")
    assert np.isnan(rows(analysis).percent_change["y"])
    assert rows(analysis).verdict["y"] == "inconclusive"


@pytest.mark.parametrize(("usable", "named"), [(0, {"x"}), (2, {"x"}), (3, set())])
def test_a_level_of_too_few_usable_trials_keeps_its_row_and_is_named(make_trials, usable, named):
    trials = make_trials(["base", "x", "y"], effects={"y": 0.4})
    trials.loc[(trials.level == "x") & (trials.block > usable), "tps"] = np.nan
    analysis = benchlib.analyze(trials, baseline="base")
    assert rows(analysis).n.tolist() == [5, usable, 5]
    assert rows(analysis).verdict[["x", "y"]].tolist() == ["inconclusive", "faster"]
    assert {w.level for w in analysis.warnings if w.code == "few_trials"} == named


@settings(deadline=None, max_examples=25)
@given(
    st.integers(1, 6),
    st.integers(2, 5),
    st.integers(0, 2**31),
    st.sampled_from([1e-12, 1e-6, 0.02, 0.5, 5.0]),
    st.floats(0, 0.6),
    st.sampled_from([(0.05, 0.03), (1e-6, 1e-9), (0.49, 0.999)]),
)
def test_whatever_the_numbers_the_table_is_sane(blocks, k, seed, sd, absent, cuts):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame([(b, f"l{i}") for b in range(blocks) for i in range(k)], columns=["block", "level"])
    frame["tps"] = np.exp(rng.normal(5, 1) + sd * rng.standard_normal(len(frame)))
    keep = (rng.random(len(frame)) >= absent) | (frame.index < 2)
    analysis = benchlib.analyze(frame[keep], baseline="l0", alpha=cuts[0], margin=cuts[1])
    table = analysis.table.iloc[1:]
    assert set(table.verdict) <= {"faster", "slower", "equivalent", "inconclusive", "invalid"}
    shown = table.dropna(subset=["p_value"])
    assert ((shown.p_value > 0) & (shown.p_value <= shown.p_adjusted) & (shown.p_adjusted <= 1)).all()
    assert ((shown.ci_low <= shown.percent_change) & (shown.percent_change <= shown.ci_high)).all()
    json.dumps(analysis.to_dict(), allow_nan=False)


def test_a_p_is_never_zero_not_even_by_underflow(make_trials):
    trials = make_trials(["a", "b"], blocks=100, effects={"b": 300.0}, sd=0.001)
    row = benchlib.analyze(trials, baseline="a").table.iloc[1]
    assert 0 < row.p_value <= row.p_adjusted


def test_two_levels_are_compared_in_the_blocks_that_they_share():
    # C, which strays where B is absent, has no say: B is as fast as A in every block that they share
    same = {"A": [1000] * 4, "B": [None, 1000, 1002, 998], "C": [500, 1000, 1001, 999]}
    two = {"A": [1000, 1010, 1000, 1000, None], "B": [None, None, 1220, 1225, 1300]}
    for tps, verdict in ((same, "equivalent"), (two, "inconclusive")):
        rows = pd.DataFrame(tps).rename_axis("block").rename_axis(columns="level").stack().dropna()
        table = benchlib.analyze(rows.reset_index(name="tps"), baseline="A").table.set_index("level")
        assert table["verdict"]["B"] == verdict
