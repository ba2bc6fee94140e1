import numpy as np
import pandas as pd
import pytest
from designs import full_factorial, screened

from benchlib.errors import InputError
from benchlib.stats.crossed import additivity, effects, ladder


def run(design, log_effects, *, blocks=5, sd=0.01, seed=1):
    rng = np.random.default_rng(seed)
    value = sum(size * design[list(term)].prod(axis=1) / 2 for term, size in log_effects.items())
    rows = [
        (block, level, 1000 * np.exp(value[level] + rng.normal(0, sd)))
        for block in range(blocks)
        for level in design.index
    ]
    return pd.DataFrame(rows, columns=["block", "level", "tps"])


def test_effects_and_interactions_are_found():
    design = full_factorial(["a", "b", "c"])
    trials = run(design, {("a",): 0.10, ("a", "b"): 0.06})
    frame = effects(trials, design)
    assert frame["effect"].tolist()[:2] == ["a", "a × b"]
    assert frame["percent"][0] == pytest.approx(100 * np.expm1(0.10), abs=1.0)
    assert (frame["p_holm"] < 0.01).tolist() == [True, True, *[False] * 4]
    assert ((frame["ci_low"] < frame["percent"]) & (frame["percent"] < frame["ci_high"])).all()
    assert frame["noise"].is_monotonic_decreasing


def test_effects_agree_with_statsmodels():
    ols = pytest.importorskip("statsmodels.formula.api").ols
    design = full_factorial(["a", "b"])
    trials = run(design, {("a",): 0.1}, sd=0.05)
    wide = trials.join(design, on="level").assign(y=np.log(trials["tps"]))
    theirs = ols("y ~ C(block) + a * b", wide).fit()
    ours = effects(trials, design).set_index("effect")
    for name, other in (("a", "a"), ("b", "b"), ("a × b", "a:b")):
        assert np.log1p(ours["percent"][name] / 100) == pytest.approx(2 * theirs.params[other], rel=1e-10)
        assert ours["p_value"][name] == pytest.approx(theirs.pvalues[other], rel=1e-9)


def test_screening_finds_the_few():
    design = screened([f"f{i}" for i in range(9)])
    frame = effects(run(design, {("f2",): 0.15, ("f7",): -0.1}, blocks=2, sd=0.02), design, order=1)
    assert set(frame["effect"][:2]) == {"f2", "f7"}
    assert frame["p_holm"][1] < 0.01
    assert frame["p_holm"][2] > 0.05


def test_factorial_refusals():
    design = screened([f"f{i}" for i in range(11)])
    trials = run(design, {("f1",): 0.1}, blocks=1)
    with pytest.raises(InputError, match="cannot be told apart"):
        effects(trials, design)


def test_ladder_steps_and_totals(make_trials):
    steps = ["start", "plus memory", "plus wal", "plus sync"]
    true = {"plus memory": 0.1, "plus wal": 0.1, "plus sync": 0.4}
    trials = make_trials([*steps, "twin"], effects=true, blocks=6, sd=0.01)
    frame = ladder(trials, steps, controls=["twin"]).set_index("level")
    assert frame["step_percent"].to_numpy() == pytest.approx([10.5, 0.0, 35.0], abs=2.5)
    assert frame["total_percent"].to_numpy() == pytest.approx([10.5, 10.5, 49.2], abs=2.5)
    assert frame["step_verdict"].tolist()[::2] == ["faster", "faster"]
    assert frame["step_verdict"].iloc[1] in ("equivalent", "inconclusive")
    assert frame["total_verdict"].eq("faster").all()
    assert ((frame["step_low"] < frame["step_percent"]) & (frame["step_percent"] < frame["step_high"])).all()
    assert ladder(trials[trials.block == 1], steps)["step_verdict"].eq("inconclusive").all()
    with pytest.raises(InputError, match="unknown level 'nowhere'"):
        ladder(trials, ["start", "nowhere"])


def test_gains_that_do_not_add_up_are_told():
    design = full_factorial(["a", "b"])
    apart = additivity(run(design, {("a",): 0.2, ("b",): 0.1}, blocks=8), design).set_index("what")
    assert apart.loc["a", "percent"] == pytest.approx(100 * np.expm1(0.2), abs=1)
    assert apart.loc["as measured, against that product", "p_value"] > 0.05
    assert apart.loc["all, as measured", "percent"] == pytest.approx(100 * np.expm1(0.3), abs=2)
    # each alone brings 0.2, but the second one brings nothing on top of the first
    trials = run(design, {("a",): 0.1, ("b",): 0.1, ("a", "b"): -0.1}, blocks=8)
    overlap = additivity(trials, design).set_index("what")
    row = overlap.loc["as measured, against that product"]
    assert row["percent"] == pytest.approx(100 * np.expm1(-0.2), abs=2)
    assert row["ci_low"] < row["percent"] < row["ci_high"] < 0
    assert row["p_value"] < 0.001
    logs = np.log(trials.pivot(index="block", columns="level", values="tps")).mean()
    exact = logs["a + b"] - logs["a"] - logs["b"] + logs["none"]
    assert row["percent"] == pytest.approx(100 * np.expm1(exact))


def test_effects_are_judged_by_periods_where_clusters_stay():
    """Clusters that stay three blocks keep their luck: nine blocks of them are three."""
    design = full_factorial(["a", "b"])
    rng, flagged = np.random.default_rng(7), {True: 0, False: 0}
    for _ in range(60):
        luck = rng.normal(0, 0.03, (3, len(design)))
        rows = [
            (block, level, 1000 * np.exp(luck[block // 3, place] + rng.normal(0, 0.01)), block // 3)
            for block in range(9)
            for place, level in enumerate(design.index)
        ]
        trials = pd.DataFrame(rows, columns=["block", "level", "tps", "period"])
        for told in flagged:
            frame = effects(trials if told else trials.drop(columns="period"), design, order=1)
            flagged[told] += int((frame["p_value"] < 0.05).sum())
    assert flagged[True] <= 12  # 120 effects, none real
    assert flagged[False] >= 30
