import numpy as np
import pytest

from benchlib.stats import Concern
from benchlib.stats.sequential import decide, plan_looks


def test_cuts_of_the_paired_t_are_those_of_the_protocol():
    plan = plan_looks(2, 0)
    assert plan.alphas == pytest.approx((0.0094, 0.0125, 0.0187, 0.0261), abs=0.0008)
    assert plan.alphas[0] == pytest.approx(0.05 * (3 / 9) ** 1.5, abs=0.0005)


@pytest.fixture
def stop_at(make_trials):
    """Why a study with a clear and an unclear effect may stop after some blocks; None where it goes on."""
    trials = make_trials(["base", "control", "x", "y"], blocks=9, effects={"x": 0.3}, seed=3)

    def stop_at(blocks, levels=("base", "control", "x"), **arguments):
        rows = trials[(trials.block <= blocks) & trials.level.isin(levels)]
        return decide(rows, plan_looks(4, 1), baseline="base", controls=["control"], **arguments)[1]

    return stop_at


def test_looks_stop_at_a_clear_effect(stop_at):
    assert [stop_at(blocks) for blocks in (1, 3, 4)] == [None, "settled at 3 blocks", None]


def test_what_stops_early_says_so_by_the_study_s_margin_though_a_block_has_failed(make_trials):
    levels = ["base", "control", "x"]
    trials = make_trials(levels, blocks=5, effects={"x": 0.08}, sd=0.02, seed=3)
    trials.loc[trials.block == trials.block.min(), "tps"] = np.nan
    arguments = {"baseline": "base", "controls": ["control"]}
    told = []
    for margin in (0.001, 0.5):
        analysis, why = decide(trials, plan_looks(3, 1), margin=margin, **arguments)
        assert why == "settled at 5 blocks"
        told += [w.message for w in analysis.warnings if w.code == "stopped_early"]
    assert len(told) == 2
    assert told[0] != told[1]
    assert all(words.startswith("the study stopped after 5 of 9 blocks") for words in told)


def test_looks_go_on_while_a_level_is_open_and_end(stop_at):
    levels = ("base", "control", "x", "y")
    assert stop_at(3, levels) is None
    assert stop_at(9, levels) == "the last look"
    assert stop_at(3, levels, concerns=[Concern("client_bound", "busy", grave=True)]) == "invalid at 3 blocks"


def test_a_block_that_has_only_begun_is_no_look(make_trials):
    trials = make_trials(["base", "control", "x"], blocks=5, effects={"x": 0.3}, seed=3)
    begun = trials[(trials.block < 5) | (trials.level == "x")]
    analysis, why = decide(begun, plan_looks(3, 1), baseline="base", controls=["control"])
    assert why is None
    assert analysis.alpha == plan_looks(3, 1).alphas[0]
