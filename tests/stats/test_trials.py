"""Frames of trials as people have them: understood, or refused in one line."""

import datetime

import numpy as np
import pandas as pd
import pytest

import benchlib
from benchlib.errors import InputError
from benchlib.stats.trials import read_trials


@pytest.fixture
def trials(make_trials):
    return make_trials(["a", "b", "c"], blocks=4)


def spoilt(frame, value):
    return frame.assign(tps=frame["tps"].astype(object).where(frame.index != 4, value))


@pytest.mark.parametrize("value", [None, float("nan"), "", "  ", pd.NA])
def test_a_missing_value_is_a_failed_trial_not_a_zero(trials, value):
    analysis = benchlib.analyze(spoilt(trials, value), baseline="a")
    assert analysis.table.n.tolist() == [4, 3, 4]
    assert {w.code for w in analysis.warnings} == {"missing_values", "incomplete_blocks", "no_control"}
    assert "block 2 'b'" in analysis.warnings[0].value


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        ([None, "died", "died", "died", *[None] * 3, "died", *[None] * 4], [3, 2, 3]),
        (["", np.nan, None, " "] * 3, [4, 4, 4]),
        ([0, 0, 1] * 4, [4, 4, 0]),
        ([False, False, True] * 4, [4, 4, 0]),
        ([0.0, np.nan, 2.0] * 4, [4, 4, 0]),
        ([0, None, ""] * 4, [4, 4, 4]),
    ],
)
def test_rows_with_an_error_are_left_out_and_said(trials, error, counts):
    frame = trials.assign(error=pd.Series(error, dtype=None if None not in error else object))
    frame.loc[1, "tps"] *= -1.0 if "died" in error else 1.0
    analysis = benchlib.analyze(frame, baseline="a")
    assert analysis.table.n.tolist() == counts
    assert (f"{12 - sum(counts)} of 12 (" in analysis.warnings[0].value) == (sum(counts) < 12)


def test_text_numbers_and_odd_labels_are_understood(trials):
    plain = benchlib.analyze(trials, baseline="a").table.p_value.to_list()
    dates = {block: datetime.date(2025, 1, block) for block in range(1, 5)}
    odd = [trials.assign(block=trials["block"].map(m)) for m in (dates, {1: "one", 2: 2, 3: (3, 3), 4: 4.5})]
    odd += [trials.assign(tps=trials["tps"].map(repr)), trials.assign(tps=trials["tps"].astype("Float64"))]
    for frame in odd:
        values = benchlib.analyze(frame, baseline="a").table.p_value.to_list()
        assert values == pytest.approx(plain, nan_ok=True)


def test_blocks_whose_labels_are_texts_are_sorted_by_the_numbers_in_them(trials):
    text = trials.assign(block=trials["block"].map("run {}".format).replace("run 2", "run 10"))
    blocks = read_trials(text, "a", (), "tps").values.index
    assert blocks.tolist() == ["run 1", "run 3", "run 4", "run 10"]


def test_levels_may_be_numbers_and_ordered_by_category(trials):
    numbers = trials.assign(level=trials["level"].map({"a": 16, "b": 17, "c": 18}))
    ordered = trials.assign(level=pd.Categorical(trials["level"], ["unused", "c", "b", "a"]))
    for frame, baseline, levels in (
        (numbers, "17", "17 16 18"),
        (numbers, 16, "16 17 18"),
        (ordered, "a", "a c b"),
    ):
        assert benchlib.analyze(frame, baseline=baseline).table.level.tolist() == levels.split()


@pytest.mark.parametrize(
    ("change", "arguments", "says"),
    [
        (lambda f: spoilt(f, 0), {}, r"row 5 \(block 2, level 'b'\): tps is 0, but only positive"),
        (lambda f: spoilt(f, "many"), {}, "row 5 .*tps is many"),
        (lambda f: f.drop(columns="tps"), {}, "one column 'tps', here are 0; their columns: block, level"),
        (lambda f: f[:0], {}, "no trials"),
        (lambda f: pd.concat([f, f["tps"]], axis=1), {}, "one column 'tps', here are 2"),
        (lambda f: f.assign(level=f.level.where(f.index != 2)), {}, "row 3: level is empty"),
        (lambda f: pd.concat([f, f[4:5]], ignore_index=True), {}, r"row 13 \(block 2, level 'b'\) repeats"),
        (lambda f: f, {"baseline": "z"}, "unknown baseline 'z'; the levels are: a, b, c"),
        (lambda f: f, {"controls": ["z"]}, "unknown control 'z'"),
        (lambda f: f, {"controls": ["a"]}, "named once"),
        (lambda f: f[f.level == "a"], {}, r"only one level \('a'\)"),
        (lambda f: f.assign(tps=f.tps.where(f.level != "a")), {}, "baseline 'a' has no trial"),
        (lambda f: f, {"margin": 3}, "margin is a fraction"),
        (lambda f: f, {"alpha": 5}, "alpha is an error rate"),
        (lambda f: f, {"against": {"b": "b"}}, "level 'b' cannot be compared with 'b'"),
        (lambda f: f.assign(host=["x"] * 5 + ["y"] * 7), {}, "block 2 has two hosts, x and y"),
        (lambda f: f.assign(host=["x"] * 9 + [None] * 3), {}, "block 4 has no host"),
    ],
)
def test_refusals_are_one_clear_line(trials, change, arguments, says):
    with pytest.raises(InputError, match=says) as caught:
        benchlib.analyze(change(trials), **{"baseline": "a", **arguments})
    assert "\n" not in str(caught.value)
