"""Blocks that several hosts ran: what the verdicts are about, by closed forms, and how often they are wrong."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import f_oneway, t, ttest_1samp

import benchlib
from benchlib.stats.block_model import fit_blocks
from benchlib.stats.multiple import holm
from benchlib.stats.power import Plan
from benchlib.stats.verdicts import BY_HOST

LEVELS = ["base", "x", "y"]


@pytest.fixture
def spread(make_trials):
    """Trials whose blocks are handed to hosts in equal runs; on each a level has an effect of its own of that deviation (log)."""

    def make(levels, hosts, *, own=0.0, blocks=12, **options):
        trials = make_trials(levels, blocks=blocks, **options)
        trials["host"] = [f"db{1 + (block - 1) * hosts // blocks}" for block in trials["block"]]
        factors = np.exp(np.random.default_rng(0).normal(0, own, (hosts, len(levels))))
        places = zip(trials["host"].str[2:].astype(int) - 1, trials["level"].map(levels.index), strict=True)
        return trials.assign(tps=trials["tps"] * [factors[place] for place in places])

    return make


def rows(trials, **arguments):
    return benchlib.analyze(trials, baseline="base", **arguments).table.set_index("level")


def told(trials, code, **arguments):
    analysis = benchlib.analyze(trials, baseline="base", **arguments)
    return [warning for warning in analysis.warnings if warning.code == code]


def changes(trials, level):
    logs = np.log(trials.pivot(index="block", columns="level", values="tps"))
    return logs[level] - logs["base"], trials.groupby("block")["host"].first()


@pytest.mark.parametrize("host", ["db1", None, ""])
def test_one_host_changes_nothing(make_trials, host):
    trials = make_trials(LEVELS, blocks=6, effects={"x": 0.1})
    plain, named = (benchlib.analyze(each, baseline="base") for each in (trials, trials.assign(host=host)))
    pd.testing.assert_frame_equal(named.table, plain.table)
    assert named.warnings == plain.warnings


def test_a_claim_about_these_hosts_alone_is_made_where_it_is_asked_for(spread):
    trials = spread(["base", "x"], 3, blocks=9, effects={"x": 0.1}, own=0.1)
    change, hosts = changes(trials, "x")
    inside, df = change - change.groupby(hosts).transform("mean"), 9 - 3
    error = np.sqrt((inside**2).sum() / df / 9)
    row = rows(trials, fixed_hosts=True).loc["x"]
    assert row.percent_change == pytest.approx(100 * np.expm1(change.mean()), rel=1e-9)
    assert row.p_value == pytest.approx(2 * t.sf(abs(change.mean()) / error, df), rel=1e-9)
    assert row.ci_high == pytest.approx(100 * np.expm1(change.mean() + t.isf(0.025, df) * error), rel=1e-9)
    assert "these hosts only" in told(trials, "hosts", fixed_hosts=True)[0].value
    assert row.verdict != BY_HOST


def test_enough_hosts_stand_for_others_and_give_the_answer_of_a_mixed_model(spread):
    """In a balanced design the REML estimate of the mean's variance is that of the host means over their number."""
    trials = spread(["base", "x"], 5, blocks=15, effects={"x": 0.1}, own=0.05)
    change, hosts = changes(trials, "x")
    test = ttest_1samp(means := change.groupby(hosts).mean(), 0)
    row = rows(trials).loc["x"]
    assert row.p_value == pytest.approx(test.pvalue, rel=1e-9)
    ends = 100 * np.expm1([means.mean(), *test.confidence_interval(0.95)])
    assert [row.percent_change, row.ci_low, row.ci_high] == pytest.approx(ends, rel=1e-9)
    assert "hosts such as these" in told(trials, "hosts")[0].value


def test_effects_that_differ_from_host_to_host_are_told(spread):
    trials = spread(LEVELS, 3, effects={"x": 0.1}, sd=0.01)
    assert "no effect is seen to differ" in told(trials, "hosts")[0].value
    assert rows(trials)["verdict"]["x"] == "faster", "where hosts do not differ their blocks count"
    trials.loc[(trials["level"] == "x") & (trials["host"] == "db2"), "tps"] *= 0.8
    (concern,) = told(trials, "host_by_level")
    groups = [
        [part for _, part in change.groupby(hosts)] for change, hosts in (changes(trials, x) for x in "xy")
    ]
    p = holm([f_oneway(*parts).pvalue for parts in groups])
    assert (concern.level, concern.grave) == ("x", False)
    assert all(words in concern.value for words in (f"(p = {p[0]:.2g})", "% on db1", "% on db2", "% on db3"))
    verdicts = rows(trials)["verdict"]
    assert (verdicts["x"], verdicts["y"] == BY_HOST) == (BY_HOST, False)


@pytest.mark.parametrize("hosts", [2, 3])
def test_hosts_of_which_one_gains_what_the_other_loses_are_never_called_equivalent(spread, hosts):
    trials = spread(["base", "x"], hosts, blocks=4 * hosts, sd=0.005)
    change = trials["host"].map({"db1": 1.2, "db2": 0.8, "db3": 1.0})
    trials["tps"] *= np.where(trials["level"] == "x", change, 1.0)
    assert rows(trials).loc["x"].verdict == BY_HOST


@pytest.mark.filterwarnings("ignore:The design matrix is rank-deficient")  # a host is the sum of its blocks
def test_incomplete_blocks_in_hosts_agree_with_statsmodels(spread):
    ols = pytest.importorskip("statsmodels.formula.api").ols
    trials = spread(list("abcd"), 2, blocks=8, own=0.1).drop(index=[1, 6, 17, 30])
    trials["block"] = 3 * trials["block"] % 17  # now the hosts take turns
    theirs = ols("y ~ C(block) + C(level) * C(host)", trials.assign(y=np.log(trials["tps"]))).fit()
    logs = np.log(trials.pivot(index="block", columns="level", values="tps"))
    ours = fit_blocks(logs, trials.groupby("block")["host"].first())
    residual = theirs.resid.set_axis(pd.MultiIndex.from_frame(trials[["block", "level"]])).unstack()
    assert ours.df == theirs.df_resid
    assert ours.residual_sd**2 == pytest.approx(theirs.mse_resid, rel=1e-10)
    assert ours.residual == pytest.approx(residual.to_numpy(), abs=1e-12, nan_ok=True)
    assert benchlib.analyze(trials, baseline="a").table["p_value"].iloc[1:].between(0, 1).all()


def test_clusters_that_stay_are_those_of_their_host(spread):
    """Both hosts count their periods from 1; with luck as large as this the periods' means are judged, inside hosts."""
    trials = spread(["base", "x"], 2, blocks=8, sd=0.001)
    trials["period"] = (trials["block"] - 1) % 4 // 2
    place = 2 * (trials["host"] == "db2") + trials["period"]
    trials["tps"] *= np.exp(0.1 * place * (trials["level"] == "x"))
    change, hosts = changes(trials, "x")
    periods = change.groupby([hosts, trials.groupby("block")["period"].first()]).mean()
    inside = periods - periods.groupby(level=0).transform("mean")
    error = np.sqrt((inside**2).sum() / 2 / 4)
    row = rows(trials, fixed_hosts=True).loc["x"]
    assert row.p_value == pytest.approx(2 * t.sf(abs(periods.mean()) / error, 2), rel=1e-9)


def test_hosts_that_differ_in_speed_or_effect_do_not_drift(spread):
    trials = spread(["base", "x"], 2, sd=0.005, mood=0.005)
    second = trials["host"] == "db2"
    trials["tps"] *= np.where(second, 2.0, 1.0) * np.where(second & (trials["level"] == "x"), 1.3, 1.0)
    analysis = benchlib.analyze(trials, baseline="base")
    assert {w.code for w in analysis.warnings} == {"no_control", "hosts", "host_by_level"}
    degrading = np.exp(-0.03 * ((trials["block"] - 1) % 6))
    trials["tps"] *= np.where(trials["level"] == "x", degrading, 1.0)
    assert told(trials, "effect_drift")[0].grave
    assert benchlib.analyze(trials, baseline="base").residual_sd < 0.05


def test_the_blocks_still_needed_are_of_these_hosts():
    assert Plan(0.05, 1, 0.0, hosts=3).df(9) == 6
    assert Plan(0.05, 4, 0.0, hosts=3).df(9) == Plan(0.05, 4, 0.0).df(7)


def as_trials(logs):
    """One study's log tps (hosts, blocks of each, levels) as trials of the levels l0, l1 and so on."""
    hosts, blocks, levels = logs.shape
    frame = pd.DataFrame({"block": np.repeat(range(hosts * blocks), levels), "tps": np.exp(logs).ravel()})
    names = [f"l{place}" for place in range(levels)] * hosts * blocks
    return frame.assign(level=names, host=frame["block"] // blocks)


def wrong_claims(hosts, blocks, deviation, fixed):
    """How many of 200 studies call one of two levels, without an effect on average, faster or slower; one noise of 2 %."""
    rng, wrong = np.random.default_rng(8), 0
    for _ in range(200):
        own = np.concatenate([np.zeros((hosts, 1, 2)), rng.normal(0, deviation, (hosts, 1, 2))], axis=2)
        own -= own.mean(axis=0) * fixed  # the average is that over these hosts, or over all such hosts
        logs = rng.normal(0, 0.02, (hosts, blocks, 4)) + rng.normal(0, 0.1, (hosts, blocks, 1)) + own
        table = benchlib.analyze(as_trials(logs), baseline="l0", controls=["l1"], fixed_hosts=fixed).table
        wrong += table["verdict"][2:].isin(["faster", "slower"]).any()
    return wrong


RARE = 200 * (0.06 + 3 * np.sqrt(0.06 * 0.94 / 200))
"""Three standard errors of a rate of 6 %."""


FEW_WRONG = [(hosts, 4 - hosts // 10, sd, False) for hosts in (2, 3, 5, 10) for sd in (0.0, 0.01, 0.03, 0.1)]


THESE_HOSTS = [(2, 3, 0.1, True), (4, 2, 0.1, True)]
SUCH_HOSTS = [pytest.param(*each, marks=pytest.mark.statistics) for each in FEW_WRONG]


@pytest.mark.statistics
@pytest.mark.parametrize(("hosts", "blocks", "deviation", "fixed"), [*THESE_HOSTS, *SUCH_HOSTS])
def test_wrong_claims_about_hosts_are_rare(hosts, blocks, deviation, fixed):
    assert wrong_claims(hosts, blocks, deviation, fixed) <= RARE
