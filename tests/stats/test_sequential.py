import numpy as np
import pytest
from scipy.stats import t

from benchlib.errors import InputError
from benchlib.stats import Concern
from benchlib.stats.sequential import decide, plan_looks


def test_cuts_of_the_paired_t_are_those_of_the_protocol():
    plan = plan_looks(2)
    assert plan.alphas == pytest.approx((0.0094, 0.0125, 0.0187, 0.0261), abs=0.0008)
    assert plan.alphas[0] == pytest.approx(0.05 * (3 / 9) ** 1.5, abs=0.0005)
    assert plan.cuts[0] == pytest.approx(t.isf(plan.alphas[0] / 2, 2))


def test_other_looks_and_designs():
    single = plan_looks(3, 1, looks=(5,))
    assert single.alphas == pytest.approx((0.05,), abs=0.001)
    many = plan_looks(5, 1, looks=(4, 8))
    assert many.alphas[0] == pytest.approx(0.05 / 2**1.5, abs=0.001)
    assert many.alphas[1] < 0.05


def test_looks_stop_at_a_clear_effect(make_trials):
    plan = plan_looks(3, 1)
    trials = make_trials(["base", "control", "x"], blocks=9, effects={"x": 0.3}, seed=1)

    def at(blocks):
        return decide(trials[trials.block <= blocks], plan, baseline="base", controls=["control"])

    assert at(1).next_look == 3
    assert not at(1).stop
    first = at(3)
    assert first.stop
    assert first.reason == "settled at 3 blocks"
    assert first.analysis.alpha == plan.alphas[0]
    assert not at(4).stop
    assert "between looks; the next is at 5" in at(4).reason


def test_looks_go_on_while_a_level_is_open_and_end(make_trials):
    plan = plan_looks(4, 1)
    trials = make_trials(["base", "control", "x", "y"], blocks=9, effects={"x": 0.3}, seed=3)
    arguments = {"baseline": "base", "controls": ["control"]}
    early = decide(trials[trials.block <= 3], plan, **arguments)
    assert (early.stop, early.next_look) == (False, 5)
    assert early.reason == "still open: y"
    assert decide(trials, plan, **arguments).reason == "the last look"
    grave = [Concern("client_bound", "busy", grave=True)]
    assert (
        decide(trials[trials.block <= 3], plan, concerns=grave, **arguments).reason == "invalid at 3 blocks"
    )


@pytest.mark.parametrize(
    ("levels", "controls", "options"),
    [(2, 0, {"looks": (2, 3)}), (2, 0, {"looks": (5, 3)}), (2, 2, {}), (1, 0, {}), (2, 0, {"alpha": 5})],
)
def test_refusals(levels, controls, options):
    with pytest.raises(InputError):
        plan_looks(levels, controls, **options)


def test_only_a_control_can_be_sequential_too():
    assert np.allclose(plan_looks(2, 1).alphas, plan_looks(2).alphas)
