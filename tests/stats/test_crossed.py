import numpy as np
import pandas as pd
import pytest
from designs import full_factorial, screened

from benchlib.errors import InputError
from benchlib.stats.crossed import additivity, ladder, steepest
from benchlib.stats.effects import compare, screen


def run(design, log_effects, *, blocks=5, sd=0.01, seed=1):
    rng = np.random.default_rng(seed)
    value = sum(size * design[list(term)].prod(axis=1) / 2 for term, size in log_effects.items())
    trials = pd.DataFrame(
        [(b, level) for b in range(blocks) for level in design.index], columns=["block", "level"]
    )
    return trials.assign(tps=1000 * np.exp(trials["level"].map(value) + rng.normal(0, sd, len(trials))))


def test_effects_agree_with_statsmodels():
    ols = pytest.importorskip("statsmodels.formula.api").ols
    design = full_factorial(["a", "b"])
    trials = run(design, {("a",): 0.1}, sd=0.05)
    wide = trials.join(design, on="level").assign(y=np.log(trials["tps"]))
    theirs, ours = ols("y ~ C(block) + a * b", wide).fit(), screen(trials, design).set_index("level")
    for name in "ab":
        assert np.log1p(ours["percent_change"][name] / 100) == pytest.approx(
            2 * theirs.params[name], rel=1e-10
        )
        assert ours["p_value"][name] == pytest.approx(theirs.pvalues[name], rel=1e-9)


def test_a_screening_finds_the_few_large_effects():
    design = screened([f"f{i}" for i in range(9)])
    trials = run(design, {("f2",): 0.15, ("f7",): -0.1}, blocks=2, sd=0.02)
    frame = screen(trials, design)
    assert frame["level"].to_list()[:2] == ["f2", "f7"]
    assert frame["answer"].to_list() == ["f2", "f7", *[""] * 7]
    assert frame["verdict"].to_list() == ["faster", "slower", *["inconclusive"] * 7]
    assert frame["percent_change"][0] == pytest.approx(100 * np.expm1(0.15), abs=2)
    lost = trials.index[trials["level"].eq(design.index[1])][0]
    assert set(screen(trials.drop(lost), design)["n"]) == {1}, "one block lacks a level"
    assert frame["mean"][0] / frame["base"][0] == pytest.approx(np.exp(0.15), rel=0.02)
    assert screen(run(design, {("f1",): 0.0}, blocks=2), design)["answer"].ne("").tolist() == [
        True,
        *[False] * 8,
    ]
    with pytest.raises(InputError, match="cannot separate the changes"):
        screen(trials[trials["level"].isin(design.index[:8])], design)


def test_a_doubt_about_any_level_makes_a_screening_invalid_and_a_lost_level_does_not():
    design = screened([f"f{i}" for i in range(9)])
    trials = run(design, {("f2",): 0.15}, blocks=2, sd=0.02)
    reasons = trials["level"].map({design.index[3]: "the load tool was busy"}).astype(object)
    doubted = screen(trials.assign(doubt=reasons), design)
    assert {*doubted["verdict"]} == {"invalid"}
    assert not doubted["answer"].any()
    for name in (design.index[0], design.index[5]):
        failed = trials["level"].eq(name)
        without = screen(
            trials.assign(tps=trials["tps"].mask(failed), error=np.where(failed, "gone", None)), design
        )
        assert without.set_index("level").loc["f2", "verdict"] == "faster"
        assert without["ci_low"].notna().all()
        assert [w["level"] for w in without.attrs["warnings"] if w["code"] == "few_trials"] == [name]


def test_ladder_steps_and_totals(make_trials):
    steps = ["start", "plus memory", "plus wal", "plus sync"]
    true = {"plus memory": 0.1, "plus wal": 0.1, "plus sync": 0.4}
    trials = make_trials([*steps, "twin"], effects=true, blocks=6, sd=0.01)
    frame = ladder(trials, steps, controls=["twin"]).set_index("level")
    assert frame["step_percent"].to_numpy() == pytest.approx([10.5, 0.0, 35.0], abs=2.5)
    assert frame["total_percent"].to_numpy() == pytest.approx([10.5, 10.5, 49.2], abs=2.5)
    assert frame["step_verdict"].eq("faster").tolist() == [True, False, True]
    assert frame["total_verdict"].eq("faster").all()
    assert ((frame["step_low"] < frame["step_percent"]) & (frame["step_percent"] < frame["step_high"])).all()
    assert ladder(trials[trials.block == 1], steps)["step_verdict"].eq("inconclusive").all()
    with pytest.raises(InputError, match="unknown level 'nowhere'"):
        ladder(trials, ["start", "nowhere"])


def test_gains_that_do_not_add_up_are_told():
    design, product = full_factorial(["a", "b"]), "as measured, against that product"
    apart = additivity(run(design, {("a",): 0.2, ("b",): 0.1}, blocks=8), design).set_index("what")
    assert apart.loc["a", "percent"] == pytest.approx(100 * np.expm1(0.2), abs=1)
    assert apart.loc[product, "p_value"] > 0.05
    assert apart.loc["all, as measured", "percent"] == pytest.approx(100 * np.expm1(0.3), abs=2)
    # each alone brings 0.2, but the second one brings nothing on top of the first
    trials = run(design, {("a",): 0.1, ("b",): 0.1, ("a", "b"): -0.1}, blocks=8)
    row = additivity(trials, design).set_index("what").loc[product]
    assert row["percent"] == pytest.approx(100 * np.expm1(-0.2), abs=2)
    assert row["ci_low"] < row["percent"] < row["ci_high"] < 0
    assert row["p_value"] < 0.001
    logs = np.log(trials.pivot(index="block", columns="level", values="tps")).mean()
    exact = logs["a + b"] - logs["a"] - logs["b"] + logs["none"]
    assert row["percent"] == pytest.approx(100 * np.expm1(exact))


def test_a_metric_whose_direction_is_unclear_is_not_guessed():
    design = full_factorial(["a", "b"])
    trials = run(design, {("a",): 0.2}).rename(columns={"tps": "score"})
    for ask in (screen, additivity):
        with pytest.raises(InputError, match="more or less may be better"):
            ask(trials, design, metric="score")


def test_a_longer_latency_is_slower_and_a_level_without_trials_is_no_gain():
    design = full_factorial(["a", "b"])
    trials = run(design, {("a",): 0.2, ("b",): -0.1}).rename(columns={"tps": "latency_p99_ms"})
    sums = additivity(trials, design, metric="latency_p99_ms").set_index("what")
    assert sums.loc[["a", "b"], "verdict"].to_list() == ["slower", "faster"]
    trials.loc[trials["level"].isin(["a", "b"]), "latency_p99_ms"] = np.nan
    effects = compare(trials, baseline="none", metric="latency_p99_ms")
    assert steepest(effects, design)[::2] == ["none", "a + b"]


@pytest.mark.parametrize(("told", "least", "most"), [(True, 0, 12), (False, 30, 120)])
def test_effects_are_judged_by_periods_where_clusters_stay(told, least, most):
    """Clusters that stay three blocks keep their luck: nine blocks of them are three. Of 120 effects none is real."""
    design, flagged = full_factorial(["a", "b"]), 0
    for seed in range(60):
        trials = run(design, {("a",): 0.0}, blocks=9, seed=seed)
        trials["period"] = trials["block"] // 3
        luck = np.random.default_rng([7, seed]).normal(0, 0.03, (3, 4)).repeat(3, axis=0).ravel()
        trials["tps"] *= np.exp(luck)
        frame = screen(trials if told else trials.drop(columns="period"), design)
        flagged += int((frame["p_value"] < 0.05).sum())
    assert least <= flagged <= most
