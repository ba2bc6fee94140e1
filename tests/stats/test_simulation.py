"""The protocol's promises, by simulation with fixed seeds; ``benchlib calibrate --simulate`` runs all situations."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

import benchlib
from benchlib.stats.block_model import fit_complete
from benchlib.stats.dunnett import complete_loadings, family_cut
from benchlib.stats.simulation import (
    Situation,
    power_by_blocks,
    simulate,
    simulate_logs,
    simulate_stopping,
    situations,
)


@pytest.mark.parametrize(("levels", "controls"), [(2, 0), (4, 1), (5, 2)])
def test_the_simulated_figures_are_those_of_analyze(levels, controls):
    names = [f"l{i}" for i in range(levels)]
    logs = simulate_logs(Situation(blocks=4, levels=levels), 8, np.random.default_rng(1))
    estimate, error, df, shared = fit_complete(logs, controls)
    cut = family_cut(0.05, complete_loadings(levels - 1 - controls, 1 + controls), df, shared=shared)
    for session, values in enumerate(logs):
        frame = pd.DataFrame(
            {"block": np.repeat(range(4), levels), "level": names * 4, "tps": np.exp(values).ravel()}
        )
        rows = benchlib.analyze(frame, baseline="l0", controls=names[1 : controls + 1]).table[1 + controls :]
        p = 2 * t.sf(np.abs(estimate / error)[session], df)
        assert p == pytest.approx(rows["p_value"].to_numpy(), rel=1e-9)
        ends = 100 * np.expm1(estimate[session] + cut * error[session])
        assert ends == pytest.approx(rows["ci_high"].to_numpy(), rel=1e-8)


def test_all_situations_of_the_protocol_are_there():
    everything = list(situations())
    assert len(everything) == len(set(everything)) == 498


@pytest.mark.parametrize(
    "situation",
    [
        Situation(blocks=3, levels=2),
        Situation(rho=0.95, blocks=5, levels=4, controls=1),
        Situation(rho=0.8, ramp=0.1, blocks=9, levels=6),
        Situation(drift=0.02, run_sd=0.0, blocks=5, levels=4),
    ],
)
def test_false_alarms_family_and_coverage(situation):
    rates = simulate(situation, sessions=40_000, seed=11)
    assert 0.046 <= rates["alarms"] <= 0.054
    assert rates["family"] <= 0.057
    assert 0.946 <= rates["coverage"] <= 0.954


@pytest.mark.parametrize(
    "untidy",
    [
        {"noisy": 1, "ratio": 10.0, "blocks": 3, "levels": 12},
        {"noisy": 1, "ratio": 10.0, "blocks": 7, "levels": 4},
        {"noisy": 2, "ratio": 3.0, "blocks": 9, "levels": 6},
        {"noisy": 10, "ratio": 10.0, "blocks": 5, "levels": 12},
        {"stalls": 0.1, "blocks": 5, "levels": 12},
    ],
)
def test_untidy_noise_finds_no_more_differences_than_promised(untidy):
    assert simulate(Situation(controls=1, **untidy), sessions=20_000, seed=3)["family"] <= 0.063


def test_clusters_that_stay_are_no_replicates():
    stay = {"blocks": 6, "levels": 4, "controls": 1, "luck": 1.0}
    rates = simulate(Situation(**stay, period=2), sessions=250, seed=3)
    assert rates["family"] <= 0.10  # 0.055 and three standard errors; the blocks alone give 0.17
    rebuilt = simulate(Situation(**stay), sessions=20_000, seed=3)
    assert rebuilt["family"] <= 0.06


@pytest.mark.parametrize(("blocks", "levels"), [(3, 2), (9, 4)])
def test_contaminated_situations_still_cover(blocks, levels):
    rates = simulate(Situation(contamination=0.1, blocks=blocks, levels=levels), sessions=20_000, seed=1)
    assert rates["coverage"] >= 0.92
    assert rates["family"] <= 0.056


def test_power_and_blocks_to_power():
    power = power_by_blocks(4, 0, sessions=40_000, seed=3).set_index("blocks")
    assert power["power"][5] >= 0.70
    assert power["over_oracle"][5] <= 1.4


@pytest.mark.parametrize(("levels", "controls"), [(2, 0), (4, 1)])
def test_false_alarms_and_power_of_early_stopping(levels, controls):
    rates = simulate_stopping(levels, controls, sessions=40_000, seed=2)
    assert rates["alarms"] <= 0.054
    assert rates["power"] >= 0.90
    assert rates["blocks"] <= 7.0
