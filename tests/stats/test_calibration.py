"""The protocol's promises, by simulation with fixed seeds; ``calibrate()`` runs all the cells."""

import numpy as np
import pandas as pd
import pytest

import benchlib
from benchlib.stats.calibration import (
    Cell,
    blocks_to_power,
    calibrate,
    calibrate_sequential,
    protocol_cells,
    simulate_logs,
)
from benchlib.stats.simulate import analyze_sessions


@pytest.mark.parametrize(("levels", "controls"), [(2, 0), (4, 0), (4, 1), (5, 2)])
def test_the_vectorised_path_is_analyze(levels, controls):
    names = [f"l{i}" for i in range(levels)]
    logs = simulate_logs(Cell(blocks=4, levels=levels), 12, np.random.default_rng(1))
    fast = analyze_sessions(logs, controls=controls)
    for session, values in enumerate(logs):
        frame = pd.DataFrame(
            {"block": np.repeat(range(4), levels), "level": names * 4, "tps": np.exp(values).ravel()}
        )
        slow = benchlib.analyze(frame, baseline="l0", controls=names[1 : controls + 1])
        rows = slow.table.iloc[controls + 1 :]
        assert fast.p[session] == pytest.approx(rows["p_value"].to_numpy(), rel=1e-9)
        ends = 100 * np.expm1(fast.estimate[session] + fast.family[session])
        assert ends == pytest.approx(rows["ci_high"].to_numpy(), rel=1e-8)
        assert fast.differs[session].tolist() == rows["verdict"].isin(["faster", "slower"]).tolist()
        assert fast.invalid[session] == (rows["verdict"] == "invalid").all()
        inside = slow.equivalence["equivalent"].to_numpy()[controls:]
        assert fast.equivalent()[session].tolist() == (inside & ~fast.invalid[session]).tolist()


def test_all_cells_of_the_protocol_are_there():
    cells = list(protocol_cells())
    assert len(cells) == len(set(cells)) == 324


def test_false_alarms_family_and_coverage_in_sample_cells():
    cells = [
        Cell(blocks=3, levels=2),
        Cell(rho=0.95, blocks=5, levels=4, controls=1),
        Cell(rho=0.8, ramp=0.1, blocks=9, levels=6),
        Cell(drift=0.02, run_sd=0.0, blocks=5, levels=4),
    ]
    found = calibrate(cells, sessions=40_000, seed=11)
    assert found["alarms"].between(0.046, 0.054).all()
    assert (found["family"] <= 0.0535).all()
    assert found["coverage"].between(0.946, 0.954).all()
    assert found["invalid"][1] == pytest.approx(0.05, abs=0.004)


def test_contaminated_cells_still_cover():
    found = calibrate(
        [Cell(contamination=0.1, blocks=n, levels=k) for n in (3, 9) for k in (2, 4)], sessions=20_000
    )
    assert (found["coverage"] >= 0.92).all()
    assert (found["family"] <= 0.056).all()


def test_power_and_blocks_to_power():
    found = blocks_to_power(4)
    assert found.set_index("blocks")["power"][5] >= 0.77
    assert found["over_oracle"][0] <= 1.3


def test_sequential_false_alarms_and_power():
    found = calibrate_sequential(((2, 0), (4, 1)), sessions=60_000)
    assert (found["alarms"] <= 0.053).all()
    assert (found["power"] >= 0.90).all()
    assert (found["blocks"] <= 7.0).all()
