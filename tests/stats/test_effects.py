"""From a frame of trials to a frame of effects: its columns, who answers, parts, doubts and looks; and the changes of a screening."""

import numpy as np
import pandas as pd
import pytest

import benchlib
from benchlib.errors import InputError
from benchlib.stats.effects import compare, judge, readable

COLUMNS = (
    "level against answer family n base mean percent_change ci_low ci_high equal_low equal_high p_value p_adjusted verdict "
    "mde_percent blocks_needed error df"
)
ONE = {"baseline": "base", "controls": ["control"]}


def by_level(effects):
    return effects.set_index("level")


def test_a_row_is_a_comparison_the_answers_first_and_the_controls_last(make_trials):
    trials = make_trials(["base", "control", "x", "y"], effects={"y": 0.1}, seed=1)
    effects = compare(trials, **ONE, answers={"y": "the change"}, margin=0.05)
    assert " ".join(effects.columns) == COLUMNS
    assert effects["level"].to_list() == ["y", "x", "control"]
    assert effects["answer"].to_list() == ["the change", "", ""]
    assert effects["family"].to_list() == ["answer", "exploratory", "control"]
    table = by_level(benchlib.analyze(trials, **ONE, margin=0.05, answers=["y"]).table)
    row = by_level(effects).loc["y"]
    same = ["percent_change", "ci_low", "ci_high", "p_value", "p_adjusted", "verdict", "mean", "n"]
    assert row[same].to_list() == table.loc["y", same].to_list()
    arms = trials.loc[trials["level"].isin(["base", "control"]), "tps"]
    assert (row["against"], row["base"]) == ("base", pytest.approx(arms.mean()))
    assert (
        effects.attrs.items()
        >= {"kind": "effects", "metric": "tps", "margin": 0.05, "alpha": 0.05, "blocks": 5}.items()
    )
    assert [w["code"] for w in effects.attrs["warnings"]] == [
        w.code for w in benchlib.analyze(trials, **ONE).warnings
    ]
    assert compare(trials, **ONE, answers=["x"])["answer"].to_list() == ["x", "", ""]


MANY = ["base", "control", *"vwxyz"]
WIDTHS = [
    "percent_change",
    "ci_low",
    "ci_high",
    "equal_low",
    "equal_high",
    "p_value",
    "p_adjusted",
    "verdict",
]


@pytest.mark.parametrize("against", [{}, {"y": "v", "z": "w"}], ids=["one baseline", "other references"])
def test_each_family_is_judged_as_a_study_of_its_own(make_trials, against):
    trials = make_trials(MANY, blocks=6, effects={"y": 0.04, "w": 0.04}, seed=8)
    both = by_level(compare(trials, **ONE, against=against, answers=["y", "z"], margin=0.04))
    others = [name for name in "vwx" if name not in against.values()]
    assert both["family"].to_dict() == {
        **dict.fromkeys("yz", "answer"),
        **dict.fromkeys(others, "exploratory"),
        "control": "control",
    }
    for names in ["y", "z"], others:
        of_family = {name: against.get(name, "base") for name in names}
        used = {"base", "control", *of_family, *of_family.values()}
        alone = trials[trials["level"].isin(used)]
        found = by_level(compare(alone, **ONE, against=of_family, answers=names, margin=0.04))
        pd.testing.assert_frame_equal(both.loc[names, WIDTHS], found.loc[names, WIDTHS])
    one = by_level(compare(trials, **ONE, against=against, margin=0.04))
    assert set(one["family"]) == {"answer", "control"}
    pd.testing.assert_series_equal(one["percent_change"], both.loc[one.index, "percent_change"])
    pd.testing.assert_series_equal(one.loc["control", WIDTHS], both.loc["control", WIDTHS])


def test_only_parts_that_hold_answers_share_their_error_rate(make_trials):
    trials = make_trials(MANY, blocks=6, seed=8)
    trials["part"] = trials["level"].isin(["base", "control", "v"])
    both = by_level(compare(trials, **ONE, against={"y": "w", "z": "x"}, answers=["y", "z"]))
    alone = by_level(compare(trials[~trials["part"]], baseline="w", against={"z": "x"}))
    pd.testing.assert_frame_equal(both.loc[["y", "z"], WIDTHS], alone.loc[["y", "z"], WIDTHS])
    assert both["family"].to_dict() == {
        "y": "answer",
        "z": "answer",
        "v": "exploratory",
        "control": "control",
    }


def test_answers_that_are_all_comparisons_are_one_family_as_without_any(make_trials):
    trials = make_trials(MANY, seed=2).assign(part=["a", "a", "b", "b", "b", "b", "b"] * 5)
    against = dict.fromkeys("wxyz", "v")
    plain, named = (compare(trials, **ONE, against=against, answers=of) for of in ((), [*"wxyz"]))
    pd.testing.assert_frame_equal(plain.drop(columns="answer"), named.drop(columns="answer"))


def test_a_number_that_is_too_large_to_be_stated_is_text(make_trials):
    effects = compare(make_trials(["base", "x"], blocks=2, sd=0.5, seed=3), baseline="base")
    assert readable(effects)[["ci_high", "mde_percent"]].to_numpy().tolist() == [["> 1,000"] * 2]
    assert effects["ci_high"].gt(1000).all()
    for other in pd.DataFrame({"percent_change": ["a"], "ci_high": [1e9]}), effects[["level", "level"]]:
        assert readable(other) is not None


def test_the_interval_of_equivalence_lies_within_the_margin_where_that_is_the_verdict(make_trials):
    trials = make_trials(["base", "control", "x", "y"], blocks=12, sd=0.004, effects={"y": 0.2}, seed=5)
    rows = by_level(compare(trials, **ONE))
    assert rows["verdict"][["x", "y"]].to_list() == ["equivalent", "faster"]
    inside = rows["equal_low"].gt(-3) & rows["equal_high"].lt(3)
    assert inside[["x", "y"]].to_list() == [True, False]
    assert (rows["equal_low"] < rows["percent_change"]).all()


def test_n_is_that_of_the_side_that_has_fewer(make_trials):
    trials = make_trials(["base", "x"], blocks=6)
    failed = trials["level"].eq("base") & trials["block"].le(2)
    (row,) = compare(trials.assign(error=np.where(failed, "died", None)), baseline="base").to_dict("records")
    assert row["n"] == 4


@pytest.mark.parametrize(
    ("doubted", "invalid"),
    [("x", ["x"]), ("control", ["x", "y", "control"]), ("base", ["x", "y", "control"])],
)
def test_a_doubt_makes_every_comparison_of_its_level_invalid(make_trials, doubted, invalid):
    trials = make_trials(["base", "control", "x", "y"], effects={"x": 0.3})
    reason = trials["level"].map({doubted: "It did not take"}).astype(object)
    analysis = judge(trials.assign(doubt=reason), **ONE)
    verdicts = by_level(analysis.table)["verdict"]
    assert sorted(verdicts.index[verdicts == "invalid"]) == sorted(invalid)
    assert "It did not take" in analysis.doubts("x")[0].text


@pytest.mark.parametrize("part", [{}, {"part": ["a", "a", "b", "b"] * 5}], ids=["whole", "parts"])
def test_levels_may_be_numbers(make_trials, part):
    trials = make_trials([14, 15, 16, 17]).assign(**part)
    effects = compare(trials, baseline=14, against={17: 16}, answers={17: "the newest"})
    assert effects.loc[0, ["level", "against", "answer"]].to_list() == ["17", "16", "the newest"]
    assert trials["level"].dtype == int


def test_planned_looks_are_those_of_each_family_and_the_answers_decide_when_to_stop(make_trials):
    trials = make_trials(["base", "control", "x", "y", "z"], blocks=3, effects={"x": 0.3}, seed=3)
    effects = compare(trials, **ONE, looks=(3, 5, 7, 9), answers=["x"])
    alone = compare(trials[trials["level"].isin(["base", "control", "x"])], **ONE, looks=(3, 5, 7, 9))
    assert effects.attrs["alpha"] == alone.attrs["alpha"]
    pd.testing.assert_series_equal(by_level(effects).loc["x", WIDTHS], by_level(alone).loc["x", WIDTHS])
    assert effects.attrs["exploratory_alpha"] != effects.attrs["alpha"]
    assert "stopped_early" in {w["code"] for w in effects.attrs["warnings"]}
    assert "inconclusive" in set(by_level(effects)["verdict"][["y", "z"]])


def test_planned_looks_spend_alpha_and_a_study_that_stops_says_so(make_trials):
    trials = make_trials(["base", "control", "x"], blocks=3, effects={"x": 0.3}, seed=3)
    effects = compare(trials, **ONE, looks=(3, 5, 7, 9))
    assert effects.attrs["alpha"] < 0.05
    assert "stopped_early" in {w["code"] for w in effects.attrs["warnings"]}
    assert by_level(effects)["verdict"]["x"] == "faster"
    with pytest.raises(InputError, match="against"):
        compare(trials, **ONE, looks=(3, 5), against={"x": "base"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"baseline": "typo"}, "unknown baseline 'typo'"),
        ({**ONE, "controls": ["kontrol"]}, "unknown control 'kontrol'"),
        ({**ONE, "metric": "latency_p90_ms"}, "one column 'latency_p90_ms'"),
        ({**ONE, "looks": (3, 5), "alpha": 0.01}, "leave out alpha"),
    ],
)
@pytest.mark.parametrize("part", [{}, {"part": ["a", "a", "b", "b"] * 5}], ids=["whole", "parts"])
def test_a_wrong_argument_is_named_whatever_the_analysis(make_trials, arguments, message, part):
    trials = make_trials(["base", "control", "x", "y"]).assign(**part)
    with pytest.raises(InputError, match=message):
        compare(trials, **arguments)


def test_a_lower_error_rate_does_not_hide_that_the_control_differs(make_trials):
    told = list[bool]()
    for effect in (0.005, 0.01, 0.015, 0.02, 0.03):
        trials = make_trials(
            ["base", "control", "x"], blocks=10, sd=0.01, effects={"control": effect}, seed=2
        )
        graves = [
            [
                w["grave"]
                for w in compare(trials, **ONE, alpha=alpha).attrs["warnings"]
                if w["code"] == "control_differs"
            ]
            for alpha in (0.05, 0.005)
        ]
        assert graves[0] == graves[1]
        told += graves[0]
    assert any(told)
