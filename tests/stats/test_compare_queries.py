"""Query by query: which rows are compared, that all queries share alpha, and how a change of plan is named."""

import pandas as pd
import pytest

from benchlib.stats.effects import compare
from benchlib.stats.queries import SHOWN, compare_queries, plan_change

ONE = {"baseline": "base", "controls": ["control"]}
LEVELS = ["base", "control", "x"]


@pytest.fixture
def make_queries(make_trials):
    """Latencies of queries, each with its effects by level."""

    def make(**effects):
        frames = [
            make_trials(LEVELS, effects=of, metric="latency_average_ms", centre=5.0, seed=seed).assign(
                query=query, share_percent=10.0 * seed, latency_p95_ms=None, plan=None
            )
            for seed, (query, of) in enumerate(effects.items(), 1)
        ]
        return pd.concat(frames, ignore_index=True)

    return make


def test_each_query_is_compared_with_itself_and_all_share_alpha(make_queries):
    queries = make_queries(fine={"x": -0.3}, worse={"x": 0.3}, same={})
    found = compare_queries(queries, **ONE, metric="tps", answers={"x": "the change"})
    assert found.columns.to_list()[: len(SHOWN)] == SHOWN
    assert found["query"].to_list() == ["same", "worse", "fine"], "the largest share first"
    verdicts = dict(zip(found["query"], found["verdict"], strict=True))
    assert (verdicts["fine"], verdicts["worse"]) == ("faster", "slower")
    alone = compare(queries[queries["query"].eq("worse")], **ONE, metric="latency_average_ms").iloc[0]
    (row,) = found[found["query"].eq("worse")].to_dict("records")
    assert row["percent_change"] == pytest.approx(alone["percent_change"])
    assert row["p_adjusted"] > alone["p_adjusted"]
    assert row["ci_high"] - row["ci_low"] > alone["ci_high"] - alone["ci_low"]
    assert found.attrs["kind"] == "queries"
    assert found.attrs["higher_is_better"] is False


def test_a_query_that_one_side_lacks_is_not_compared(make_queries):
    queries = make_queries(both={}, new={})
    without = queries[~(queries["query"].eq("new") & queries["level"].ne("x"))]
    assert compare_queries(without, **ONE)["query"].to_list() == ["both"]
    assert compare_queries(without.head(0), **ONE).columns.to_list()[: len(SHOWN)] == SHOWN


def test_levels_of_another_workload_are_compared_with_their_own_reference(make_queries):
    queries = make_queries(ours={}, theirs={"x": 0.5})
    theirs = queries["query"].eq("theirs")
    names = queries["level"].where(~theirs, "their " + queries["level"])
    queries = queries.assign(level=names, part=queries["query"])
    found = compare_queries(queries, **ONE, against={"their x": "their base", "their control": "their base"})
    compared = found[["level", "against", "query"]].values.tolist()
    assert compared[0] == ["x", "base", "ours"]
    assert ["their x", "their base", "theirs"] in compared
    assert len(compared) == 3


def test_a_query_whose_control_differs_is_invalid_and_says_why(make_queries):
    found = compare_queries(make_queries(fine={}, odd={"control": 0.4, "x": 0.3}), **ONE).set_index("query")
    assert found.loc["odd", "verdict"] == "invalid"
    assert "“control” differs from the baseline" in found.loc["odd", "limit"]
    assert found.loc["fine", "limit"] == ""


@pytest.mark.parametrize(
    ("plan", "reference", "words"),
    [
        ("Seq Scan on t", "Seq Scan on t", "same"),
        ("Sort\n  Index Scan using i on t", "Seq Scan on t", "changed: Seq Scan on t → Index Scan using i on t, Sort"),
        ("Memoize\n  Seq Scan on t", "Seq Scan on t", "changed: none → Memoize"),
        ("Join\n  Scan on a\n  Scan on b", "Join\n  Scan on b\n  Scan on a", "changed: order of the nodes"),
        (None, "Seq Scan on t", None),
    ],
)  # fmt: skip
def test_a_change_of_plan_names_the_nodes(plan, reference, words):
    assert plan_change(plan, reference) == words
