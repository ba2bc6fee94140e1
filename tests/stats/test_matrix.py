"""What changed where: the first version at which a workload differs from the version before."""

import numpy as np
import pandas as pd

from benchlib.stats.matrix import first_changes, steps

VERSIONS = ["13", "14", "15", "16"]
TRUE = {"insert": [0, 0, 0.2, 0.2], "scan": [0, 0, 0, 0], "join": [0, -0.1, 0.1, 0.1]}
DESIGN = pd.DataFrame(
    [(f"{name}, {version}", name, version) for name in TRUE for version in VERSIONS],
    columns=["level", "workload", "version"],
).set_index("level")


def trials_of(blocks=8):
    rng = np.random.default_rng(3)
    rows = [
        (block, f"{name}, {version}", name, 1000 * np.exp(block / 9 + true + rng.normal(0, 0.005)))
        for block in range(blocks)
        for name, of in TRUE.items()
        for version, true in zip(VERSIONS, of, strict=True)
    ]
    twin = [
        (block, "control", "insert", 1000 * np.exp(block / 9 + rng.normal(0, 0.005)))
        for block in range(blocks)
    ]
    return pd.DataFrame(rows + twin, columns=["block", "level", "part", "tps"])


def test_each_workload_has_the_first_version_that_differs_from_the_one_before_it():
    stepped = steps(trials_of(), DESIGN, "version", baseline="insert, 13", controls=["control"])
    assert len(stepped) == 9 + 1  # with the control
    table = first_changes(stepped, DESIGN, "version").set_index("workload")
    assert table["changed_at"].to_dict() == {"insert": "15", "scan": "", "join": "14"}
    assert table["before"].to_dict() == {"insert": "14", "scan": "", "join": "13"}
    assert table["shown"].to_dict() == {"insert": 1, "scan": 0, "join": 2}
    insert = table.loc["insert"]
    assert insert["ci_low"] < 100 * np.expm1(0.2) < insert["ci_high"]
    assert insert["verdict"] == "faster"


def test_a_baseline_that_is_no_first_version_takes_part_as_a_step():
    stepped = steps(trials_of(), DESIGN, "version", baseline="insert, 15", controls=["control"])
    assert dict(zip(stepped["level"], stepped["against"], strict=True))["insert, 15"] == "insert, 14"
    assert "control" not in {*stepped["level"]}


def test_a_cell_without_a_good_trial_is_passed_over():
    trials = trials_of()
    trials["error"] = trials["level"].map({"insert, 13": "gone", "join, 14": "gone"})
    stepped = steps(trials, DESIGN, "version", baseline="insert, 14", controls=["control"])
    against = dict(zip(stepped["level"], stepped["against"], strict=True))
    assert (against["join, 15"], against["insert, 15"]) == ("join, 13", "insert, 14")
    assert not {"insert, 13", "join, 14"} & {*against, *against.values()}
    trials["error"] = "gone"
    assert steps(trials, DESIGN, "version", baseline="insert, 14").empty
