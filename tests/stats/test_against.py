"""Levels compared with others than the baseline, and studies in parts."""

import numpy as np
import pandas as pd
import pytest

import benchlib
from benchlib.errors import InputError
from benchlib.stats.dunnett import critical
from benchlib.stats.strata import analyze_strata

LEVELS = ["slow, 4", "control", "fast, 4", "slow, 8", "fast, 8"]
AGAINST = {"fast, 4": "slow, 4", "fast, 8": "slow, 8"}


def rows(analysis):
    return analysis.table.set_index("level")


def test_each_level_is_compared_with_its_own_reference(make_trials):
    effects = {"slow, 8": 0.5, "fast, 4": 0.2, "fast, 8": 0.6}
    trials = make_trials(LEVELS, effects=effects, blocks=6)
    analysis = benchlib.analyze(trials, baseline="slow, 4", controls=["control"], against=AGAINST)
    table = rows(analysis)
    logs = np.log(trials.pivot(index="block", columns="level", values="tps"))
    change = logs["fast, 8"] - logs["slow, 8"]
    assert table.loc["fast, 8", "percent_change"] == pytest.approx(100 * np.expm1(change.mean()))
    inside = analysis.differences.query("level == 'fast, 8'")["percent"]
    assert inside.to_numpy() == pytest.approx(100 * np.expm1(change.to_numpy()))
    both = logs["fast, 4"] - (logs["slow, 4"] + logs["control"]) / 2
    assert table.loc["fast, 4", "percent_change"] == pytest.approx(100 * np.expm1(both.mean()))
    assert table.loc[["slow, 4", "slow, 8"], "verdict"].isna().all()
    assert np.isnan(table.loc["slow, 8", "p_value"])
    assert analysis.against == {"control": "slow, 4", **AGAINST}
    assert analysis.asked == ["fast, 4", "fast, 8"]
    first, second = analysis.headline().split("; ")
    assert first.startswith("Against “slow, 4”: “fast, 4” +")
    assert second.startswith("against “slow, 8”: “fast, 8” +")


def test_without_a_reference_of_their_own_nothing_changes(make_trials):
    trials = make_trials(LEVELS, seed=4)
    plain = benchlib.analyze(trials, baseline="slow, 4", controls=["control"])
    same = benchlib.analyze(trials, baseline="slow, 4", controls=["control"], against={"slow, 8": "slow, 4"})
    pd.testing.assert_frame_equal(plain.table, same.table)
    strata = dict.fromkeys(LEVELS, "one")
    whole = analyze_strata(trials, strata, baseline="slow, 4", controls=["control"], against={})
    pd.testing.assert_frame_equal(plain.table, whole.table)


def test_parts_have_a_noise_of_their_own(make_trials):
    quiet = make_trials(["slow, 4", "control", "fast, 4"], sd=0.002, blocks=6, seed=1)
    loud = make_trials(["slow, 8", "fast, 8"], sd=0.3, blocks=6, seed=2, centre=20)
    strata = {name: "reads" if "4" in name or name == "control" else "sorts" for name in LEVELS}
    result = analyze_strata(
        pd.concat([quiet, loud]), strata, baseline="slow, 4", controls=["control"], against=AGAINST
    )
    table = rows(result)
    width = table["ci_high"] - table["ci_low"]
    assert width["fast, 4"] < 2
    assert width["fast, 8"] > 50
    assert list(table.index) == LEVELS
    assert "control_elsewhere" in {c.code for c in result.warnings}
    assert "no_control" not in {c.code for c in result.warnings}
    alone = benchlib.analyze(loud, baseline="slow, 8")
    wider = width["fast, 8"] / (rows(alone)["ci_high"] - rows(alone)["ci_low"])["fast, 8"]
    assert wider > 1.05  # the parts share the error rate
    assert table.loc["fast, 8", "p_adjusted"] >= rows(alone).loc["fast, 8", "p_adjusted"]


def test_a_control_that_differs_spoils_every_part(make_trials):
    quiet = make_trials(["slow, 4", "control", "fast, 4"], effects={"control": 0.3})
    loud = make_trials(["slow, 8", "fast, 8"], effects={"fast, 8": 0.5})
    strata = {name: "reads" if "4" in name or name == "control" else "sorts" for name in LEVELS}
    result = analyze_strata(
        pd.concat([quiet, loud]), strata, baseline="slow, 4", controls=["control"], against=AGAINST
    )
    assert set(rows(result)["verdict"].dropna()) == {"invalid"}
    assert "no verdict on “fast, 4”: the A/A control" in result.headline()
    assert [c.level for c in result.warnings if c.code == "control_differs"] == ["control"]


def test_a_step_of_a_ladder_is_compared_with_the_one_before_and_is_the_reference_of_the_next(make_trials):
    steps = {"step 1": "start", "step 2": "step 1", "step 3": "step 2"}
    own, ladder = ["defaults", "control", "tuned"], ["start", *steps]
    effects = {"step 1": 0.1, "step 2": 0.1, "step 3": 0.5}
    trials = make_trials([*own, *ladder], effects=effects, sd=0.002)
    strata = dict.fromkeys(own, "inserts") | dict.fromkeys(ladder, "mixed")
    arguments = {"baseline": "defaults", "controls": ["control"], "against": {"tuned": "defaults", **steps}}
    result = analyze_strata(trials, strata, **arguments)
    assert result.against == {"control": "defaults", "tuned": "defaults", **steps}
    assert rows(result).loc["step 1", "percent_change"] == pytest.approx(10, abs=1)
    assert rows(result).loc["step 2", "percent_change"] == pytest.approx(0, abs=1)
    # stopped when of the ladder only the start had been run
    stopped = trials[trials["level"].isin([*own, "start"])]
    assert list(analyze_strata(stopped, strata, **arguments).against) == ["control", "tuned"]


def test_a_level_whose_reference_was_not_run_is_left_out(make_trials):
    trials = make_trials(["slow, 4", "control", "fast, 4", "fast, 8"])
    strata = dict.fromkeys(LEVELS, "one")
    result = analyze_strata(trials, strata, baseline="slow, 4", controls=["control"], against=AGAINST)
    assert "fast, 8" not in set(result.table["level"])
    assert [c.level for c in result.warnings if c.code == "no_reference"] == ["fast, 8"]


def test_a_reference_or_a_control_without_a_good_trial_costs_its_own_comparisons_alone(make_trials):
    trials = make_trials(LEVELS, effects={"fast, 4": 0.2})
    strata = {name: "reads" if "4" in name or name == "control" else "sorts" for name in LEVELS}
    arguments = {"baseline": "slow, 4", "controls": ["control"], "against": AGAINST}
    for lost, codes in (("slow, 8", {"no_reference"}), ("control", {"no_control"})):
        failed = trials.assign(error=np.where(trials["level"] == lost, "timed out", ""))
        failed.loc[failed["level"] == lost, "tps"] = np.nan
        failed = failed.assign(error=failed["error"].replace("", None))
        result = analyze_strata(failed, strata, **arguments)
        assert rows(result).loc["fast, 4", "verdict"] == "faster"
        assert codes <= {c.code for c in result.warnings}
        assert ("fast, 8" in result.against) == (lost == "control")


@pytest.mark.parametrize("apart", [False, True], ids=["one part", "a part of its own"])
def test_a_rung_whose_trials_all_failed_costs_its_own_verdict_and_the_next_one_s(make_trials, apart):
    steps = {"step 1": "start", "step 2": "step 1", "step 3": "step 2"}
    own, ladder = ["defaults", "control", "tuned"], ["start", *steps]
    trials = make_trials([*own, *ladder], effects={"step 3": 0.5}, sd=0.002)
    failed = trials["level"] == "step 1"
    trials = trials.assign(error=np.where(failed, "timed out", None)).astype({"tps": float})
    trials.loc[failed, "tps"] = np.nan
    strata = dict.fromkeys(own, "inserts") | dict.fromkeys(ladder, "mixed" if apart else "inserts")
    result = analyze_strata(trials, strata, baseline="defaults", controls=["control"], against=steps)
    table = rows(result)
    assert table.loc["step 3", "verdict"] == "faster"
    assert table.loc["step 3", "percent_change"] == pytest.approx(100 * np.expm1(0.5), abs=1)
    # the one that failed is shown as having nothing, the next one has lost what it is compared with
    assert (table.loc["step 1", "n"], table.loc["step 1", "verdict"]) == (0, "inconclusive")
    assert pd.isna(table.loc["step 2", "verdict"])
    assert [c.level for c in result.warnings if c.code == "no_reference"] == ["step 2"]


def test_a_reference_of_levels_that_were_not_run_is_not_compared_with_the_baseline(make_trials):
    strata = dict.fromkeys(LEVELS, "one")
    trials = make_trials(["slow, 4", "control", "fast, 4", "slow, 8"])
    result = analyze_strata(trials, strata, baseline="slow, 4", controls=["control"], against=AGAINST)
    assert list(result.against) == ["control", "fast, 4"]


def test_before_the_first_level_beside_the_baseline_has_run_the_other_parts_have_verdicts(make_trials):
    trials = make_trials(["slow, 4", "slow, 8", "fast, 8"], effects={"fast, 8": 0.3})
    strata = {name: "reads" if "4" in name else "sorts" for name in LEVELS}
    result = analyze_strata(trials, strata, baseline="slow, 4", against=AGAINST)
    assert list(result.against) == ["fast, 8"]
    with pytest.raises(InputError, match="nothing to compare yet"):
        analyze_strata(trials[trials["level"] != "fast, 8"], strata, baseline="slow, 4", against=AGAINST)


def test_false_alarms_of_many_references_stay_below_the_error_rate():
    """12 pairs, 5 blocks, nothing differs: at most 5 % of the studies may call a level faster or slower."""
    logs = np.random.default_rng(3).standard_normal((4000, 5, 24))
    centred = logs - logs.mean(axis=2, keepdims=True)
    mean, df = centred.mean(axis=1), 4 * 23
    error = np.sqrt(((centred - mean[:, None]) ** 2).sum(axis=(1, 2)) / df * 2 / 5)
    largest = np.abs(mean[:, ::2] - mean[:, 1::2]).max(axis=1) / error
    assert 0.035 < (largest > critical(0.05, (0.0,) * 12, df)).mean() < 0.056
