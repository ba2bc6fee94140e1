import pytest

from benchlib.plan.design import LOOKS
from benchlib.stats.limits import Concern
from benchlib.stats.sequential import decide, plan_looks


def test_cuts_of_the_paired_t_are_those_of_the_protocol():
    alphas = tuple(plan_looks(2, 0).values())
    assert alphas == pytest.approx((0.0094, 0.0125, 0.0187, 0.0261), abs=0.0008)
    assert alphas[0] == pytest.approx(0.05 * (3 / 9) ** 1.5, abs=0.0005)


CLEAR, OPEN = ["base", "control", "x"], ["base", "control", "x", "y"]
GRAVE = [Concern("client_bound", "busy", grave=True)]


@pytest.mark.parametrize(
    ("blocks", "levels", "concerns", "why"),
    [
        (1, CLEAR, [], None),
        (3, CLEAR, [], "settled at 3 blocks"),
        (4, CLEAR, [], None),
        (3, OPEN, [], None),
        (9, OPEN, [], "the last look"),
        (3, OPEN, GRAVE, "invalid at 3 blocks"),
        (5, CLEAR, [], "settled at 5 blocks"),
        (4.5, CLEAR, [], None),  # a block that has only begun is no look
    ],
)
def test_a_study_stops_at_a_look_where_all_is_settled(make_trials, blocks, levels, concerns, why):
    trials = make_trials(OPEN, blocks=9, effects={"x": 0.3}, seed=3)
    begun = (trials.block < blocks + 1) & (trials.level == "x")
    rows = trials[(trials.level.isin(levels) & (trials.block <= blocks)) | begun]
    analysis, reason = decide(rows, LOOKS, baseline="base", controls=["control"], concerns=concerns)
    assert reason == why
    plan = plan_looks(rows["level"].nunique(), 1)
    assert analysis.alpha == plan[max([look for look in LOOKS if look <= blocks], default=LOOKS[0])]


def test_a_study_that_stops_early_says_so_even_if_a_block_failed(make_trials):
    trials = make_trials(CLEAR, blocks=5, effects={"x": 0.3}, seed=3)
    trials.loc[trials.block == 1, "tps"] = float("nan")
    analysis, why = decide(trials, LOOKS, baseline="base", controls=["control"])
    assert why == "settled at 5 blocks"
    assert [w.value for w in analysis.warnings if w.code == "stopped_early"] == ["5 of 9 blocks"]
