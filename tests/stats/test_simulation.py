"""The protocol's promises, by simulation with fixed seeds; ``make calibrate`` runs all situations."""

import numpy as np
import pandas as pd
import pytest
from simulation import (
    Situation,
    judge_by_period,
    power_by_blocks,
    simulate,
    simulate_families,
    simulate_logs,
    simulate_looks,
)

import benchlib
from benchlib.stats.sequential import EXTENSION, plan_looks


@pytest.mark.parametrize(("levels", "controls", "period"), [(2, 0, 1), (4, 1, 1), (5, 2, 1), (4, 1, 2)])
def test_the_simulated_figures_are_those_of_analyze(levels, controls, period):
    names = [f"l{i}" for i in range(levels)]
    situation = Situation(blocks=6, levels=levels, luck=0.7, period=period)
    logs = simulate_logs(situation, 8, np.random.default_rng(1))
    fit, twins = judge_by_period(logs, controls, period)
    for session, values in enumerate(logs):
        frame = pd.DataFrame(
            {"block": np.repeat(range(6), levels), "level": names * 6, "tps": np.exp(values).ravel()}
        ).assign(period=lambda rows: rows["block"] // period)
        rows = benchlib.analyze(frame, baseline="l0", controls=names[1 : controls + 1]).table[1 + controls :]
        ends = 100 * np.expm1(fit.estimate[session] + fit.family[session] * fit.error[session])
        assert ends == pytest.approx(rows["ci_high"].to_numpy(), rel=1e-8)
        invalid = controls == 1 and twins.different[session, 0]
        equivalent = fit.equivalent()[session] & ~fit.different[session] & ~invalid
        assert ((rows["verdict"] == "equivalent") == equivalent).all() or controls > 1
        assert (rows["verdict"] == "invalid").all() == invalid or controls > 1


@pytest.mark.parametrize("noisy", [0, 1, 2, 3])
@pytest.mark.parametrize("answers", [1, 2])
def test_neither_family_claims_something_false_more_often_than_promised(answers, noisy):
    situation = Situation(blocks=5, levels=2 + answers + 4, controls=1, noisy=noisy, ratio=10.0)
    rates = simulate_families(situation, answers, sessions=20_000, seed=5)
    assert (
        max(
            rates[f"{of}_{what}"] for of in ("answers", "exploratory") for what in ("different", "equivalent")
        )
        <= 0.063
    )


TIDY = {"alarms": (0.046, 0.054), "family": (0, 0.057), "coverage": (0.946, 0.954), "equivalent": (0, 0.054)}
UNTIDY = {"family": (0, 0.063), "equivalent": (0, 0.054), "invalid": (0, 0.013)}
STALLED = {"coverage": (0.92, 1), "family": (0, 0.056)}
STAY = {"family": (0, 0.06)}  # where clusters stay the blocks alone give 0.17


@pytest.mark.parametrize(
    ("situation", "promised"),
    [
        (Situation(blocks=3, levels=2), TIDY),
        (Situation(rho=0.95, blocks=5, levels=4, controls=1), TIDY),
        (Situation(rho=0.8, ramp=0.1, blocks=9, levels=6), TIDY),
        (Situation(drift=0.02, run_sd=0.0, blocks=5, levels=4), TIDY),
        (Situation(controls=1, noisy=1, ratio=10.0, blocks=3, levels=12), UNTIDY),
        (Situation(controls=1, noisy=1, ratio=10.0, blocks=7, levels=4), UNTIDY),
        (Situation(controls=1, noisy=2, ratio=3.0, blocks=9, levels=6), UNTIDY),
        (Situation(controls=1, noisy=10, ratio=10.0, blocks=5, levels=12), UNTIDY),
        (Situation(controls=1, stalls=0.1, blocks=5, levels=12), UNTIDY),
        (Situation(controls=1, tails=3, blocks=9, levels=12), UNTIDY),
        (Situation(blocks=6, levels=4, controls=1, luck=1.0, period=2), STAY),
        (Situation(blocks=6, levels=4, controls=1, luck=1.0), STAY),
        (Situation(contamination=0.1, blocks=3, levels=2), STALLED),
        (Situation(contamination=0.1, blocks=9, levels=4), STALLED),
    ],
)
def test_false_alarms_and_coverage_are_as_promised(situation, promised):
    rates = simulate(situation, sessions=40_000 if promised is TIDY else 20_000, seed=11)
    assert {
        name: rates[name] for name, (least, most) in promised.items() if not least <= rates[name] <= most
    } == {}


def test_power_of_the_verdict_and_blocks_to_power():
    power = power_by_blocks(4, 1, sessions=20_000, seed=3).set_index("blocks")
    assert (power["power"][[5, 9]] >= [0.70, 0.95]).all()
    assert power["over_oracle"][5] <= 1.4


@pytest.mark.parametrize("ratio", [1.0, 10.0])
@pytest.mark.parametrize(("levels", "controls"), [(3, 1), (4, 1)])
def test_looks_planned_or_not_spend_alpha_once(levels, controls, ratio):
    design = {"sessions": 20_000, "seed": 2, "ratio": ratio}
    planned = simulate_looks(plan_looks(levels, controls), levels, controls, **design)
    extended = {look: 0.05 * EXTENSION**n for n, look in enumerate((5, 7, 9, 11))}
    assert planned["alarms"] <= 0.056
    assert simulate_looks(extended, levels, controls, **design)["alarms"] <= 0.062
    assert ratio > 1 or planned["power"] >= 0.90
    assert ratio > 1 or levels > 3 or planned["blocks"] <= 7


@pytest.mark.statistics
@pytest.mark.parametrize("ratio", [1.0, 10.0])
def test_absent_trials_find_no_more_differences_than_promised(ratio):
    rng, sessions, found = np.random.default_rng(4), 2_000, 0
    names, sd = [f"l{number}" for number in range(4)], np.array([1.0, 1.0, 1.0, ratio]) * 0.03
    rows = pd.DataFrame({"block": np.repeat(range(5), 4), "level": names * 5})
    for _ in range(sessions):
        logs = rng.normal(0, sd, (5, 4)) + rng.normal(0, 0.1, (5, 1))
        trials = rows.assign(tps=np.exp(logs).ravel()).drop(rng.choice(20, 2, replace=False))
        # the family is of what is compared; the control is judged by itself
        verdicts = benchlib.analyze(trials, baseline="l0", controls=["l1"]).table["verdict"][2:]
        found += verdicts.isin(["faster", "slower"]).any()
    # 0.05, two and a half standard errors of 2,000, and what untidy noise costs
    assert found / sessions <= 0.07, found
