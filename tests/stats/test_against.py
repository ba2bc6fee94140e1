"""Levels compared with others than the baseline, and studies in parts."""

import numpy as np
import pandas as pd
import pytest

import benchlib
from benchlib.errors import InputError
from benchlib.stats.strata import analyze_strata

LEVELS = ["slow, 4", "control", "fast, 4", "slow, 8", "fast, 8"]
AGAINST = {"fast, 4": "slow, 4", "fast, 8": "slow, 8"}
ONE = dict.fromkeys(LEVELS, "one")
PARTS = {name: "sorts" if "8" in name else "reads" for name in LEVELS}

STEPS = {"step 1": "start", "step 2": "step 1", "step 3": "step 2"}
OWN, LADDER = ["defaults", "control", "tuned"], ["start", *STEPS]


def rows(analysis):
    return analysis.table.set_index("level")


def judged(trials, strata=PARTS, **arguments):
    return analyze_strata(
        trials, strata, **{"baseline": "slow, 4", "controls": ["control"], "against": AGAINST, **arguments}
    )


def climbed(trials, apart=True):
    strata = dict.fromkeys(OWN, "inserts") | dict.fromkeys(LADDER, "mixed" if apart else "inserts")
    return judged(trials, strata, baseline="defaults", against={"tuned": "defaults", **STEPS})


def levels_told(analysis, code):
    return [concern.level for concern in analysis.warnings if concern.code == code]


def test_each_level_is_compared_with_its_own_reference(make_trials):
    trials = make_trials(LEVELS, effects={"slow, 8": 0.5, "fast, 4": 0.2, "fast, 8": 0.6}, blocks=6)
    analysis = benchlib.analyze(trials, baseline="slow, 4", controls=["control"], against=AGAINST)
    table, logs = rows(analysis), np.log(trials.pivot(index="block", columns="level", values="tps"))
    change = logs["fast, 8"] - logs["slow, 8"]
    both = logs["fast, 4"] - (logs["slow, 4"] + logs["control"]) / 2
    expected = [100 * np.expm1(both.mean()), 100 * np.expm1(change.mean())]
    assert table.loc[[*AGAINST], "percent_change"].to_list() == pytest.approx(expected)
    assert table.loc[["slow, 4", "slow, 8"], ["verdict", "p_value"]].isna().all(axis=None)


def test_without_a_reference_of_their_own_nothing_changes(make_trials):
    trials, arguments = make_trials(LEVELS, seed=4), {"baseline": "slow, 4", "controls": ["control"]}
    plain = benchlib.analyze(trials, **arguments)
    same = benchlib.analyze(trials, **arguments, against={"slow, 8": "slow, 4"})
    for other in (same, judged(trials, ONE, against={})):
        pd.testing.assert_frame_equal(plain.table, other.table)


def test_parts_have_a_noise_of_their_own_and_share_the_error_rate(make_trials):
    quiet = make_trials(LEVELS[:3], sd=0.002, blocks=6, seed=1)
    loud = make_trials(LEVELS[3:], sd=0.3, blocks=6, seed=2, centre=20)
    result, alone = judged(pd.concat([quiet, loud])), rows(benchlib.analyze(loud, baseline="slow, 8"))
    table = rows(result)
    width, of_one = (each["ci_high"] - each["ci_low"] for each in (table, alone))
    assert list(table.index) == LEVELS
    assert width["fast, 4"] < 2
    assert width["fast, 8"] > max(50, 1.05 * of_one["fast, 8"])
    assert table.loc["fast, 8", "p_adjusted"] >= alone.loc["fast, 8", "p_adjusted"]
    assert {c.code for c in result.warnings} & {"control_elsewhere", "no_control"} == {"control_elsewhere"}


def test_a_control_that_differs_spoils_every_part(make_trials):
    result = judged(make_trials(LEVELS, effects={"control": 0.3, "fast, 8": 0.5}))
    assert set(rows(result)["verdict"].dropna()) == {"invalid"}
    assert levels_told(result, "control_differs") == ["control"]


def test_a_step_of_a_ladder_is_compared_with_the_one_before_and_is_the_reference_of_the_next(make_trials):
    effects = {"step 1": 0.1, "step 2": 0.1, "step 3": 0.5}
    trials = make_trials([*OWN, *LADDER], effects=effects, sd=0.002)
    result = climbed(trials)
    assert result.against == {"control": "defaults", "tuned": "defaults", **STEPS}
    assert rows(result).loc[["step 1", "step 2"], "percent_change"].to_list() == pytest.approx([10, 0], abs=1)
    # stopped when of the ladder only the start had been run
    assert list(climbed(trials[trials["level"].isin([*OWN, "start"])]).against) == ["control", "tuned"]


@pytest.mark.parametrize("apart", [False, True], ids=["one part", "a part of its own"])
def test_a_rung_whose_trials_all_failed_costs_its_own_verdict_and_the_next_one_s(make_trials, apart):
    trials = make_trials([*OWN, *LADDER], effects={"step 3": 0.5}, sd=0.002)
    failed = trials["level"] == "step 1"
    result = climbed(trials.assign(error=np.where(failed, "x", None), tps=trials["tps"].mask(failed)), apart)
    table = rows(result)
    assert table.loc["step 3", "verdict"] == "faster"
    assert table.loc["step 3", "percent_change"] == pytest.approx(100 * np.expm1(0.5), abs=1)
    # the one that failed is shown as having nothing, the next one has lost what it is compared with
    assert (table.loc["step 1", "n"], table.loc["step 1", "verdict"]) == (0, "inconclusive")
    assert pd.isna(table.loc["step 2", "verdict"])
    assert levels_told(result, "no_reference") == ["step 2"]


@pytest.mark.parametrize(("lost", "code"), [("slow, 8", "no_reference"), ("control", "no_control")])
def test_a_reference_or_a_control_without_a_good_trial_costs_its_own_comparisons_alone(
    make_trials, lost, code
):
    trials = make_trials(LEVELS, effects={"fast, 4": 0.2})
    failed = trials["level"] == lost
    result = judged(trials.assign(error=np.where(failed, "timed out", None), tps=trials["tps"].mask(failed)))
    assert rows(result).loc["fast, 4", "verdict"] == "faster"
    assert code in {c.code for c in result.warnings}
    assert ("fast, 8" in result.against) == (lost == "control")


@pytest.mark.parametrize(
    ("run", "strata", "compared"),
    [
        (["slow, 4", "control", "fast, 4", "fast, 8"], ONE, ["control", "fast, 4"]),
        (["slow, 4", "control", "fast, 4", "slow, 8"], ONE, ["control", "fast, 4"]),
        (["slow, 4", "slow, 8", "fast, 8"], PARTS, ["fast, 8"]),
        (["slow, 4", "slow, 8"], PARTS, None),
    ],
)
def test_of_a_study_that_is_under_way_is_compared_what_has_its_reference(make_trials, run, strata, compared):
    trials = make_trials(run)
    if compared is None:
        with pytest.raises(InputError, match="nothing can be compared yet"):
            judged(trials, strata)
        return
    result = judged(trials, strata)
    assert list(result.against) == compared
    lost = {"fast, 8"} & {*run} - {*compared}
    assert levels_told(result, "no_reference") == [*lost]
    assert not lost & {*result.table["level"]}
