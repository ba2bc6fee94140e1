import datetime

import numpy as np
import pandas as pd
import pytest

import benchlib
from benchlib.errors import InputError


@pytest.fixture
def trials(make_trials):
    return make_trials(["a", "b", "c"], blocks=4)


def spoilt(frame, value, row=4):
    column = frame["tps"].astype(object)
    column[row] = value
    return frame.assign(tps=column)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (0, r"row 5 \(block 2, level 'b'\): tps is 0, but only positive"),
        (float("inf"), "row 5 .*tps is inf"),
        ("many", "row 5 .*tps is many, but only positive"),
    ],
)
def test_values_that_cannot_be_compared(trials, value, says):
    with pytest.raises(InputError, match=says):
        benchlib.analyze(spoilt(trials, value), baseline="a")


@pytest.mark.parametrize("value", [None, float("nan"), "", "  ", pd.NA])
def test_a_missing_value_is_a_failed_trial_not_a_zero(trials, value):
    analysis = benchlib.analyze(spoilt(trials, value), baseline="a")
    assert analysis.table.n.tolist() == [4, 3, 4]
    assert {w.code for w in analysis.warnings} == {"missing_values", "incomplete_blocks", "no_control"}
    assert "block 2 'b'" in analysis.warnings[0].message


def test_rows_with_an_error_are_left_out_and_said(trials):
    errors = [None] * 12
    errors[1], errors[2], errors[3], errors[7] = "died", "died", "died", "died"
    frame = trials.assign(error=errors)
    frame.loc[1, "tps"] = -1.0
    analysis = benchlib.analyze(frame, baseline="a")
    assert analysis.table.n.tolist() == [3, 2, 3]
    assert "4 of 12 trials that ended with an error" in analysis.warnings[0].message
    assert "and 1 more" in analysis.warnings[0].message
    blank = benchlib.analyze(trials.assign(error=["", np.nan, None, " "] * 3), baseline="a")
    assert blank.table.n.tolist() == [4, 4, 4]


@pytest.mark.parametrize("error", [[0, 0, 1] * 4, [False, False, True] * 4, [0.0, np.nan, 2.0] * 4])
def test_a_count_of_errors_or_a_flag_says_0_where_there_was_none(trials, error):
    analysis = benchlib.analyze(trials.assign(error=error), baseline="a")
    assert analysis.table.n.tolist() == [4, 4, 0]


def test_text_numbers_and_odd_labels_are_understood(trials):
    plain = benchlib.analyze(trials, baseline="a").table
    text = trials.assign(tps=trials["tps"].map(repr))
    dates = trials.assign(block=trials["block"].map(lambda b: datetime.date(2025, 1, b)))
    mixed = trials.assign(block=trials["block"].map({1: "one", 2: 2, 3: (3, 3), 4: 4.5}))
    exact = trials.assign(tps=trials["tps"].astype("Float64"))
    for frame in (text, dates, mixed, exact):
        table = benchlib.analyze(frame, baseline="a").table
        assert table.p_value.iloc[1:].to_numpy() == pytest.approx(plain.p_value.iloc[1:].to_numpy())


def test_blocks_whose_labels_are_texts_are_sorted_by_the_numbers_in_them(trials):
    text = trials.assign(block=trials["block"].map("run {}".format).replace("run 2", "run 10"))
    analysis = benchlib.analyze(text, baseline="a")
    assert analysis.differences["block"].unique().tolist() == ["run 1", "run 3", "run 4", "run 10"]


def test_levels_may_be_numbers_and_ordered_by_category(trials):
    numbers = trials.assign(level=trials["level"].map({"a": 16, "b": 17, "c": 18}))
    assert benchlib.analyze(numbers, baseline="17").table.level.tolist() == ["17", "16", "18"]
    assert benchlib.analyze(numbers, baseline=16).table.level.tolist() == ["16", "17", "18"]
    ordered = trials.assign(level=pd.Categorical(trials["level"], ["unused", "c", "b", "a"]))
    assert benchlib.analyze(ordered, baseline="a").table.level.tolist() == ["a", "c", "b"]


@pytest.mark.parametrize(
    ("change", "arguments", "says"),
    [
        (lambda f: f.drop(columns="tps"), {}, "one column 'tps', here are 0; their columns: block, level"),
        (lambda f: f[:0], {}, "no trials"),
        (lambda f: pd.concat([f, f["tps"]], axis=1), {}, "one column 'tps', here are 2"),
        (lambda f: f.assign(level=f.level.where(f.index != 2)), {}, "row 3: level is empty"),
        (
            lambda f: pd.concat([f, f[4:5]], ignore_index=True),
            {},
            r"row 13 \(block 2, level 'b'\) repeats an earlier row",
        ),
        (lambda f: f, {"baseline": "z"}, "unknown baseline 'z'; the levels are: a, b, c"),
        (lambda f: f, {"controls": ["z"]}, "unknown control 'z'"),
        (lambda f: f, {"controls": ["a"]}, "named once"),
        (lambda f: f[f.level == "a"], {}, r"only one level \('a'\)"),
        (
            lambda f: f.assign(tps=f.tps.where(f.level != "a")),
            {},
            "baseline 'a' has no trial with a usable tps",
        ),
        (lambda f: f, {"margin": 3}, "margin is a fraction"),
        (lambda f: f, {"alpha": 5}, "alpha is an error rate"),
        (lambda f: f, {"against": {"b": "b"}}, "level 'b' cannot be compared with 'b'"),
        (lambda f: f, {"against": {"a": "b"}}, "level 'a' cannot be compared with 'b'"),
    ],
)
def test_refusals_are_one_clear_line(trials, change, arguments, says):
    with pytest.raises(InputError, match=says) as caught:
        benchlib.analyze(change(trials), **{"baseline": "a", **arguments})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("flag", [False, 0])
def test_a_flag_with_gaps_says_that_none_failed(flag):
    error = pd.Series([flag, None, flag, ""], dtype=object)
    frame = pd.DataFrame({"block": [1, 1, 2, 2], "level": list("abab"), "tps": [1.0, 2.0, 1.0, 2.0]})
    assert benchlib.analyze(frame.assign(error=error), baseline="a").table["n"].tolist() == [2, 2]
