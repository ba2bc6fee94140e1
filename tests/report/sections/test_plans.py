"""Plans as servers explain them: what they are, where they vary, and what differs from the baseline's."""

from collections.abc import Callable
from typing import Any

import pytest
from benchlib.report.sections.query_plans import (
    differences,
    node_name,
    outline,
    plan_text,
    plans,
    worst_estimate,
)
from benchlib.report.view import View
from bs4 import BeautifulSoup
from page_parts import named

from benchlib.study.records import Plans


def node(
    kind: str, *children: dict[str, Any], ms: float = 1.0, rows: int = 10, **more: Any
) -> dict[str, Any]:
    """A node of a plan that ran once and got the rows that were expected."""
    ran = {"Node Type": kind, "Plan Rows": rows, "Actual Rows": rows, "Actual Loops": 1}
    return {**ran, "Actual Total Time": ms, "Temp Written Blocks": 0, **more, "Plans": list(children)}


def scan(relation: str, kind: str = "Seq Scan", **more: Any) -> dict[str, Any]:
    return node(kind, **{"Relation Name": relation, "Alias": relation, **more})


def sort(child: dict[str, Any], place: str = "Memory", **more: Any) -> dict[str, Any]:
    space = {"Sort Method": "quicksort", "Sort Space Type": place, "Sort Space Used": 2048}
    return node("Sort", child, **{**space, **more})


HASHED = node(
    "Hash Join", scan("sales"), node("Hash", scan("goods"), **{"Hash Batches": 1, "Peak Memory Usage": 9})
)
LOOPED = node("Nested Loop", scan("sales"), scan("goods", "Index Scan", **{"Index Name": "goods_pkey"}))


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ({"Node Type": "Aggregate", "Strategy": "Sorted", "Partial Mode": "Finalize"}, "Finalize GroupAggregate"),
        ({"Node Type": "Hash Join", "Join Type": "Left", "Parallel Aware": True}, "Parallel Hash Left Join"),
        ({"Node Type": "Nested Loop", "Join Type": "Anti"}, "Nested Loop Anti Join"),
        ({"Node Type": "ModifyTable", "Operation": "Update", "Relation Name": "t", "Alias": "t"}, "Update on t"),
        (
            {"Node Type": "Index Scan", "Scan Direction": "Backward", "Index Name": "i", "Relation Name": "t", "Alias": "a"},
            "Index Scan Backward using i on t a",
        ),
    ],
)  # fmt: skip
def test_nodes_are_named_as_psql_does(node, name):
    assert node_name(node) == name


@pytest.mark.parametrize(
    ("plan", "reference", "words"),
    [
        (LOOPED, HASHED, "− Hash Join; + Nested Loop; + Index Scan using goods_pkey on goods; − Hash; − Seq Scan on goods"),
        (sort(scan("t")), sort(scan("t"), "Disk"), "− Sort (on disk); + Sort"),
        (node("A", node("B", node("C"))), node("A", node("B"), node("C")), "the same nodes, nested otherwise"),
    ],
)  # fmt: skip
def test_what_differs_is_told_by_its_nodes(plan, reference, words):
    assert differences(outline(plan), outline(reference)) == words


def test_an_estimate_is_told_that_is_wrong_by_twice_or_more():
    assert worst_estimate(scan("t", **{"Actual Rows": 19.0})) == "below ×2"
    many = node("Hash Join", scan("t", **{"Actual Rows": 0.0}), **{"Plan Rows": 1, "Actual Rows": 40.0})
    assert worst_estimate(many) == "40 × the rows expected: Hash Join"
    assert worst_estimate(scan("t", **{"Actual Rows": 0.0})) == "1/10 × the rows expected: Seq Scan on t"
    assert worst_estimate(scan("t", **{"Actual Loops": 0})) is None


def test_a_plan_reads_as_psql_shows_it_with_the_servers_figures():
    inner = scan("t", **{"Actual Total Time": 6.0, "Actual Loops": 3, "Shared Hit Blocks": 1200})
    text = plan_text(node("Gather", inner, ms=8.0, **{"Workers Launched": 2}))
    assert text.splitlines() == [
        "Gather (rows=10) (actual time=8.0 rows=10 loops=1)",
        "    Workers Launched: 2",
        "  Seq Scan on t (rows=10) (actual time=6.0 rows=10 loops=3)",
        "      Shared Hit Blocks: 1200",
    ]
    assert "never executed" in plan_text(scan("t", **{"Actual Loops": 0}))


@pytest.fixture
def study(view_of) -> Callable[..., View]:
    """The view of a study whose trials kept these plans, by level and block; their times are the block's number."""

    def make(root: Callable[[str, int], dict[str, Any] | None], **changes: Any) -> View:
        def leaving(trial):
            plan = {
                "Plan": root(trial.level, trial.block),
                "Planning Time": 0.5,
                "Execution Time": float(trial.block),
            }
            rows = [{"statement": "SELECT '<i>'", "plan": plan}] if plan["Plan"] else []
            return {Plans.FILE: {"after": rows}}

        return view_of(lambda trial: 1000.0 + trial.block, leaving=leaving, **changes)

    return make


def parts(table):
    """The rows by level, and what is folded by its summary."""
    folded = BeautifulSoup(table.html, "html.parser")("details")
    return named(table), {each.summary.get_text(): each for each in folded}


def test_each_level_is_shown_by_its_median_trial_and_each_plan_once(study):
    spilt = sort(scan("t"), "Disk", **{"Temp Written Blocks": 1280})
    view = study(lambda level, block: sort(scan("t")) if level == "tuned" else spilt)
    rows, folded = parts(plans(view))
    assert list(rows) == ["defaults", "tuned"]
    assert [row["plan"] for row in rows.values()] == ["1", "2"]
    assert [row["temporary pages"] for row in rows.values()] == ["1,280", "0"]
    assert {row["execution, ms"] for row in rows.values()} == {"2"}
    assert list(folded) == ["The plans (2)", "Statement 1, plan 1: defaults", "Statement 1, plan 2: tuned"]
    assert "Against defaults: − Sort (on disk); + Sort" in folded["Statement 1, plan 2: tuned"].get_text()
    assert "Sort Space Type: Disk" in folded["Statement 1, plan 1: defaults"].pre.get_text()
    assert folded["Statement 1, plan 2: tuned"].code.get_text() == "SELECT '<i>'"
    assert "<i>" not in plans(view).html


def test_plans_that_vary_between_trials_are_counted(study):
    view = study(lambda level, block: LOOPED if (level, block) == ("tuned", 3) else HASHED)
    rows, folded = parts(plans(view))
    assert [(row["plan"], row["trials that had it"]) for row in rows.values()] == [
        ("1", "3 of 3"),
        ("1", "2 of 3"),
    ]
    assert list(folded)[1:] == ["Statement 1, plan 1: defaults, tuned"]


def test_a_level_without_plans_has_no_row_and_a_study_without_any_says_so(study):
    rows, _ = parts(plans(study(lambda level, block: None if level == "tuned" else HASHED)))
    assert list(rows) == ["defaults"]
    assert "No plans were kept" in str(plans(study(lambda level, block: None, name="none")))
