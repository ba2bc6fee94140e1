"""Blocks that several hosts ran: what the verdicts are about, by closed forms, and how often they are wrong."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import f_oneway, t, ttest_1samp

import benchlib
from benchlib.errors import InputError
from benchlib.stats.assumptions import assumptions_seen
from benchlib.stats.block_model import fit_blocks, fit_complete, prior_df
from benchlib.stats.crossed import effects
from benchlib.stats.dunnett import complete_loadings, family_cut
from benchlib.stats.multiple import holm
from benchlib.stats.power import Plan
from benchlib.stats.sensitivity import sensitivity
from benchlib.stats.verdicts import BY_HOST

LEVELS = ["base", "x", "y"]
ENOUGH = 5


def spread(trials, hosts, *, sd=0.0, seed=0):
    """The blocks handed to hosts in equal runs; on each a level has an effect of its own of that deviation (log)."""
    names = [f"db{1 + host}" for host in range(hosts)]
    host = pd.Series(np.repeat(names, trials["block"].nunique() // hosts), sorted(trials["block"].unique()))
    where = trials["block"].map(host)
    rng = np.random.default_rng(seed)
    own = {pair: rng.normal(0, sd) for pair in sorted(set(zip(where, trials["level"], strict=True)))}
    more = [own[pair] for pair in zip(where, trials["level"], strict=True)]
    return trials.assign(host=where, tps=trials["tps"] * np.exp(more))


def rows(trials, **arguments):
    return benchlib.analyze(trials, baseline="base", **arguments).table.set_index("level")


def told(trials, code, **arguments):
    analysis = benchlib.analyze(trials, baseline="base", **arguments)
    return [warning for warning in analysis.warnings if warning.code == code]


def changes(trials, level):
    logs = np.log(trials.pivot(index="block", columns="level", values="tps"))
    return logs[level] - logs["base"], trials.groupby("block")["host"].first()


def test_one_host_changes_nothing(make_trials):
    trials = make_trials(LEVELS, blocks=6, effects={"x": 0.1})
    plain = benchlib.analyze(trials, baseline="base")
    for host in ("db1", None, ""):
        named = benchlib.analyze(trials.assign(host=host), baseline="base")
        pd.testing.assert_frame_equal(named.table, plain.table)
        assert named.warnings == plain.warnings


def test_a_claim_about_these_hosts_alone_is_made_where_it_is_asked_for(make_trials):
    trials = spread(make_trials(["base", "x"], blocks=9, effects={"x": 0.1}), 3, sd=0.1)
    change, hosts = changes(trials, "x")
    inside, df = change - change.groupby(hosts).transform("mean"), 9 - 3
    error = np.sqrt((inside**2).sum() / df / 9)
    row = rows(trials, fixed_hosts=True).loc["x"]
    assert row.percent_change == pytest.approx(100 * np.expm1(change.mean()), rel=1e-9)
    assert row.p_value == pytest.approx(2 * t.sf(abs(change.mean()) / error, df), rel=1e-9)
    assert row.ci_high == pytest.approx(100 * np.expm1(change.mean() + t.isf(0.025, df) * error), rel=1e-9)
    assert "these hosts only" in told(trials, "hosts", fixed_hosts=True)[0].message
    assert row.verdict != BY_HOST


def test_enough_hosts_stand_for_others_and_give_the_answer_of_a_mixed_model(make_trials):
    """In a balanced design the REML estimate of the mean's variance is that of the host means over their number."""
    trials = spread(make_trials(["base", "x"], blocks=3 * ENOUGH, effects={"x": 0.1}), ENOUGH, sd=0.05)
    change, hosts = changes(trials, "x")
    test = ttest_1samp(means := change.groupby(hosts).mean(), 0)
    row = rows(trials).loc["x"]
    assert row.p_value == pytest.approx(test.pvalue, rel=1e-9)
    assert row.percent_change == pytest.approx(100 * np.expm1(means.mean()), rel=1e-9)
    ends = 100 * np.expm1(test.confidence_interval(0.95))
    assert (row.ci_low, row.ci_high) == pytest.approx(tuple(ends), rel=1e-9)
    assert row.n == 3 * ENOUGH
    assert "hosts such as these" in told(trials, "hosts")[0].message


def test_a_block_for_each_of_three_hosts_is_judged_over_hosts(make_trials):
    trials = make_trials(LEVELS, blocks=3, effects={"x": 0.2})
    over_hosts = spread(trials, 3)
    pd.testing.assert_frame_equal(rows(over_hosts), rows(trials))
    assert "cannot be seen" in told(over_hosts, "hosts")[0].message


def test_effects_that_differ_from_host_to_host_are_told(make_trials):
    trials = spread(make_trials(LEVELS, blocks=12, effects={"x": 0.1}, sd=0.01), 3)
    assert "no effect is seen to differ" in told(trials, "hosts")[0].message
    trials.loc[(trials["level"] == "x") & (trials["host"] == "db2"), "tps"] *= 0.8
    (concern,) = told(trials, "host_by_level")
    single = []
    for level in ("x", "y"):
        change, hosts = changes(trials, level)
        single.append(f_oneway(*(part for _, part in change.groupby(hosts))).pvalue)
    assert (concern.level, concern.grave) == ("x", False)
    assert f"(p = {holm(single)[0]:.2g})" in concern.message
    assert [f"% on db{n}" in concern.message for n in (1, 2, 3)] == [True] * 3
    assert rows(trials)["verdict"].to_dict() | {"base": ""} == {
        "base": "",
        "x": BY_HOST,
        "y": rows(trials).loc["y"].verdict,
    }


@pytest.mark.filterwarnings("ignore:The design matrix is rank-deficient")  # a host is the sum of its blocks
def test_incomplete_blocks_in_hosts_agree_with_statsmodels(make_trials):
    ols = pytest.importorskip("statsmodels.formula.api").ols
    trials = spread(make_trials(list("abcd"), blocks=8), 2, sd=0.1).drop(index=[1, 6, 17, 30])
    trials["block"] = 3 * trials["block"] % 17  # now the hosts take turns
    theirs = ols("y ~ C(block) + C(level) * C(host)", trials.assign(y=np.log(trials["tps"]))).fit()
    logs = np.log(trials.pivot(index="block", columns="level", values="tps"))
    ours = fit_blocks(logs, trials.groupby("block")["host"].first())
    residual = theirs.resid.set_axis(pd.MultiIndex.from_frame(trials[["block", "level"]])).unstack()
    assert ours.df == theirs.df_resid
    assert ours.residual_sd**2 == pytest.approx(theirs.mse_resid, rel=1e-10)
    assert ours.residual == pytest.approx(residual.to_numpy(), abs=1e-12, nan_ok=True)
    assert benchlib.analyze(trials, baseline="a").table["p_value"].iloc[1:].between(0, 1).all()


def test_clusters_that_stay_are_those_of_their_host(make_trials):
    """Both hosts count their periods from 1; with luck as large as this the periods' means are judged, inside hosts."""
    trials = spread(make_trials(["base", "x"], blocks=8, sd=0.001), 2)
    trials["period"] = (trials["block"] - 1) % 4 // 2
    luck = {key: np.exp(0.1 * n) for n, key in enumerate([("db1", 0), ("db1", 1), ("db2", 0), ("db2", 1)])}
    where = zip(trials["host"], trials["period"], strict=True)
    trials["tps"] *= np.where(trials["level"] == "x", [luck[place] for place in where], 1.0)
    change, hosts = changes(trials, "x")
    periods = change.groupby([hosts, trials.groupby("block")["period"].first()]).mean()
    inside = periods - periods.groupby(level=0).transform("mean")
    error = np.sqrt((inside**2).sum() / 2 / 4)
    row = rows(trials, fixed_hosts=True).loc["x"]
    assert row.p_value == pytest.approx(2 * t.sf(abs(periods.mean()) / error, 2), rel=1e-9)


def test_hosts_that_differ_in_speed_or_effect_do_not_drift(make_trials):
    trials = spread(make_trials(["base", "x"], blocks=12, sd=0.005, mood=0.005), 2)
    second = trials["host"] == "db2"
    trials["tps"] *= np.where(second, 2.0, 1.0) * np.where(second & (trials["level"] == "x"), 1.3, 1.0)
    analysis = benchlib.analyze(trials, baseline="base")
    assert {w.code for w in analysis.warnings} == {"no_control", "hosts", "host_by_level"}
    degrading = np.exp(-0.03 * ((trials["block"] - 1) % 6))
    trials["tps"] *= np.where(trials["level"] == "x", degrading, 1.0)
    assert told(trials, "effect_drift")[0].grave
    assert benchlib.analyze(trials, baseline="base").residual_sd < 0.05


@pytest.mark.parametrize(
    ("host", "says"),
    [
        (["a"] * 5 + ["b"] * 4, "block 2 has two hosts, a and b"),
        (["a"] * 6 + [None] * 3, "block 3 has no host"),
    ],
)
def test_a_block_lies_on_one_host(make_trials, host, says):
    with pytest.raises(InputError, match=says):
        benchlib.analyze(make_trials(LEVELS, blocks=3).assign(host=host), baseline="base")


def test_methods_that_know_no_hosts_stay_silent_and_figures_are_of_trials_inside_hosts(make_trials):
    trials = spread(make_trials(LEVELS, blocks=12, sd=0.01), 2, sd=0.2)
    assert sensitivity(benchlib.analyze(trials, baseline="base")).empty
    design = pd.DataFrame({"a": [-1, 1, 1], "b": [-1, -1, 1]}, LEVELS)
    pooled = effects(trials.drop(columns="host"), design, order=1)
    assert (effects(trials, design, order=1)["p_value"] < pooled["p_value"]).all()
    trials = trials.assign(position=trials.groupby("block").cumcount(), period=trials["block"])
    assert assumptions_seen(trials, "tps", dict.fromkeys(LEVELS, ""))["noise"] == pytest.approx(0.01, rel=0.3)


def test_the_blocks_still_needed_are_of_these_hosts():
    assert Plan(0.05, 1, 0.0, hosts=3).df(9) == 6
    assert Plan(0.05, 4, 0.0, hosts=3).df(9) == Plan(0.05, 4, 0.0).df(7)


def as_trials(logs):
    """One study's log tps (hosts, blocks of each, levels) as trials of the levels l0, l1 and so on."""
    hosts, blocks, levels = logs.shape
    frame = pd.DataFrame({"block": np.repeat(range(hosts * blocks), levels), "tps": np.exp(logs).ravel()})
    names = [f"l{place}" for place in range(levels)] * hosts * blocks
    return frame.assign(level=names, host=frame["block"] // blocks)


@pytest.mark.parametrize(("sd", "power"), [(0.0, 0.9), (1.0, 0.45), (3.0, 0.08)])
@pytest.mark.parametrize(("levels", "noisy"), [(2, 1.0), (4, 1.0), (4, 3.0), (6, 10.0)])
def test_false_alarms_and_power_of_a_claim_about_such_hosts(levels, noisy, sd, power):
    """A level's effect on a host strays by ``sd`` times a trial's deviation, the last level ``noisy`` times as much in all."""
    rng, controls = np.random.default_rng(4), int(levels > 2)
    own = sd * rng.standard_normal((20_000, ENOUGH, 1, levels))
    scale = np.where(np.arange(levels) == levels - 1, noisy, 1.0)
    logs = 0.025 * scale * (own + rng.standard_normal((20_000, ENOUGH, 3, levels)))
    estimate, error, df, shared = fit_complete(logs.mean(axis=2), controls)
    lam = complete_loadings(estimate.shape[1], 1 + controls)
    reach = family_cut(0.05, lam, df, shared=shared) * error
    assert (np.abs(estimate) > reach).any(axis=1).mean() <= 0.06
    if noisy == 1:
        assert (estimate[:, 0] + np.log1p(0.05) > reach[:, 0]).mean() >= power
    if not sd:  # then the blocks are judged as if of one host
        return
    table = benchlib.analyze(as_trials(logs[0]), baseline="l0", controls=["l1"][:controls]).table
    ends = 100 * np.expm1(estimate[0] + reach[0])
    assert table["ci_high"][1 + controls :].to_numpy() == pytest.approx(ends, rel=1e-8)


@pytest.mark.parametrize(("hosts", "blocks"), [(2, 3), (3, 3), (4, 2)])
def test_false_alarms_of_a_claim_about_these_hosts(hosts, blocks):
    """What is true is the mean over these hosts, on each of which a level has an effect of its own."""
    rng = np.random.default_rng(5)
    noise = 0.025 * rng.standard_normal((20_000, hosts, blocks, 4))
    own = 0.1 * rng.standard_normal((hosts, 1, 4))
    change = noise[..., 2:] - noise[..., :2].mean(axis=3, keepdims=True)
    off, inside = change.mean(axis=(1, 2)), change - change.mean(axis=2, keepdims=True)
    squares, df = (inside**2).sum(axis=(1, 2)), hosts * (blocks - 1)
    prior = prior_df(df + 1, 2)
    variance = (squares + prior * squares.mean(axis=1, keepdims=True) / df) / (df + prior)
    cut = family_cut(0.05, complete_loadings(2, 2), df + prior, shared=prior > 0)
    reach = cut * np.sqrt(variance / (hosts * blocks))
    assert (np.abs(off) > reach).any(axis=1).mean() <= 0.06
    truth = (own[..., 2:] - own[..., :2].mean(axis=2, keepdims=True)).mean(axis=(0, 1))
    trials = as_trials(noise[0] + own)
    table = benchlib.analyze(trials, baseline="l0", controls=["l1"], fixed_hosts=True).table
    ends = 100 * np.expm1(truth + off[0] + reach[0])
    assert table["ci_high"][2:].to_numpy() == pytest.approx(ends, rel=1e-8)


@pytest.mark.parametrize("hosts", [2, 3])
def test_hosts_of_which_one_gains_what_the_other_loses_are_never_called_equivalent(make_trials, hosts):
    trials = spread(make_trials(["base", "x"], blocks=4 * hosts, sd=0.005), hosts)
    change = trials["host"].map({"db1": 1.2, "db2": 0.8, "db3": 1.0})
    trials["tps"] *= np.where(trials["level"] == "x", change, 1.0)
    assert rows(trials).loc["x"].verdict == BY_HOST


def test_where_hosts_do_not_differ_their_blocks_count(make_trials):
    trials = make_trials(["base", "x"], blocks=12, effects={"x": 0.05}, sd=0.01)
    assert rows(spread(trials, 3)).loc["x"].verdict == "faster"


@pytest.mark.statistics
@pytest.mark.parametrize("deviation", [0.0, 0.01, 0.03, 0.1])
@pytest.mark.parametrize(("hosts", "blocks"), [(2, 4), (3, 4), (5, 4), (10, 3)])
def test_wrong_claims_about_such_hosts_are_rare(hosts, blocks, deviation):
    """Two levels without an effect on average, and one noise of 2 %: faster or slower of either is wrong."""
    rng, studies = np.random.default_rng(8), 200
    wrong = 0
    for _ in range(studies):
        own = np.concatenate([np.zeros((hosts, 1, 2)), rng.normal(0, deviation, (hosts, 1, 2))], axis=2)
        logs = rng.normal(0, 0.02, (hosts, blocks, 4)) + rng.normal(0, 0.1, (hosts, blocks, 1)) + own
        table = benchlib.analyze(as_trials(logs), baseline="l0", controls=["l1"]).table
        wrong += table["verdict"][2:].isin(["faster", "slower"]).any()
    # three standard errors of a rate of 6 %
    assert wrong / studies <= 0.06 + 3 * np.sqrt(0.06 * 0.94 / studies)
