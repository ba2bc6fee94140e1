"""The plans that servers chose for the workload's statements.

A plan is the root node of the server's own JSON (``EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)``), times in milliseconds.
Source of the names of nodes: ``src/backend/commands/explain.c``.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import ndiff
from typing import Any

import pandas as pd

from benchlib.study.records import Plans

Node = Mapping[str, Any]
"""A node of a plan, with its children in ``Plans``."""

_STRATEGIES = {"Sorted": "Group", "Hashed": "Hash", "Mixed": "Mixed"}
_DETAILS = re.compile(r"Launched|^Sort (Method|Space)|Batches|Usage|(Hit|Read|Temp Written) Blocks$")


def explained(
    trials: pd.DataFrame, records: Iterable[tuple[str, int, Plans]], metric: str, controls: Sequence[str]
) -> pd.DataFrame:
    """Return a row a statement and level, from its median trial by the metric.

    Columns: ``level, statement`` (its number), ``text, plan`` (numbered by equal outlines), ``outline, trials, same`` (in how
    many trials the plan was the same), ``execution_ms, planning_ms, temp_blocks, worst_estimate`` (actual rows over expected
    rows where they differ most), ``explain`` (the plan as psql shows it).
    """
    rows = [
        (level, block, number, row["statement"], row["plan"], outline(row["plan"]["Plan"]))
        for level, block, record in records
        for number, row in enumerate(record.after, 1)
        if level not in controls
    ]
    frame = pd.DataFrame(rows, columns=["level", "block", "statement", "text", "json", "outline"])
    ranked = frame.merge(trials[["level", "block", metric]], on=["level", "block"])
    groups = ranked.groupby(["level", "statement"], sort=False)
    middle = groups[metric].rank(method="first") == (groups[metric].transform("size") + 1) // 2
    same = (
        ranked["outline"].groupby([ranked["level"], ranked["statement"], ranked["outline"]]).transform("size")
    )
    typical = ranked.assign(same=same, trials=groups["outline"].transform("size"))[middle]
    typical = typical.assign(
        plan=typical.groupby("statement")["outline"].transform(lambda texts: pd.factorize(texts)[0] + 1),
        execution_ms=[plan["Execution Time"] for plan in typical["json"]],
        planning_ms=[plan["Planning Time"] for plan in typical["json"]],
        temp_blocks=[plan["Plan"]["Temp Written Blocks"] for plan in typical["json"]],
        worst_estimate=[worst_estimate(plan["Plan"]) for plan in typical["json"]],
        explain=[plan_text(plan["Plan"]) for plan in typical["json"]],
    )
    return (
        typical.drop(columns=["json", "block", metric])
        .sort_values("statement", kind="stable")
        .reset_index(drop=True)
    )


# --- a plan as text ------------------------------------------------------------------


def nodes(plan: Node, depth: int = 0) -> Iterator[tuple[int, Node]]:
    """A node and all below it, as they are shown, each with its depth."""
    yield depth, plan
    for child in plan.get("Plans", ()):
        yield from nodes(child, depth + 1)


def node_name(node: Node) -> str:
    """A node as psql names it: ``Parallel Hash Left Join``, ``Index Scan using sales_day_idx on sales sale``."""
    kind, join = str(node["Node Type"]), node.get("Join Type", "Inner")
    if kind == "Aggregate":
        kind = f"{_STRATEGIES.get(str(node.get('Strategy')), '')}Aggregate"
    elif kind == "ModifyTable":
        kind = str(node["Operation"])
    if join != "Inner":
        kind = f"{kind.removesuffix(' Join')} {join} Join"
    source = next((node[key] for key in ("Relation Name", "Function Name", "CTE Name") if key in node), "")
    alias, index = node.get("Alias", source), node.get("Index Name")
    partial = node.get("Partial Mode") in ("Partial", "Finalize")
    words = (
        node["Partial Mode"] if partial else "",
        "Parallel" if node.get("Parallel Aware") else "",
        kind,
        "Backward" if node.get("Scan Direction") == "Backward" else "",
        f"{'using' if source else 'on'} {index}" if index else "",
        f"on {source}" if source else "",
        alias if alias != source else "",
    )
    return " ".join(filter(None, words))


def on_disk(node: Node) -> bool:
    """Whether a sort, a hash table or an aggregate had no room in memory, in one process or more."""
    batches = max(node.get("Hash Batches", 1), node.get("HashAgg Batches", 1))
    sorts = {process.get("Sort Space Type") for process in (node, *node.get("Workers", ()))}
    return batches > 1 or "Disk" in sorts


def outline(plan: Node) -> str:
    """The names of a plan's nodes, a line each, those marked that went to disk: what a reader calls the same plan has the same."""
    names = ((depth, node_name(node), " (on disk)" * on_disk(node)) for depth, node in nodes(plan))
    return "\n".join(f"{'  ' * depth}{name}{where}" for depth, name, where in names)


def differences(plan: str, reference: str) -> str:
    """The nodes that only the reference's outline has (−) and those that only the plan's has (+)."""
    before, after = ([line.strip() for line in text.splitlines()] for text in (reference, plan))
    lines = ndiff(before, after)
    changed = [line.replace("-", "−", 1) for line in lines if line[0] in "+-"]
    return "; ".join(changed) or "the same nodes, nested otherwise"


def worst_estimate(plan: Node) -> float:
    """Return actual over expected rows of the node whose rows the planner misjudged most; NaN where nothing ran."""
    # the planner never expects fewer rows than one
    ratios = [
        max(float(node["Actual Rows"]), 1.0) / max(float(node["Plan Rows"]), 1.0)
        for _, node in nodes(plan)
        if node["Actual Loops"]
    ]
    return max(ratios, key=lambda ratio: max(ratio, 1 / ratio), default=float("nan"))


def plan_text(plan: Node) -> str:
    """The plan as psql shows it, with the server's figures of each node: rows of one loop, time with that of its children."""
    lines = []
    for depth, node in nodes(plan):
        name = ": ".join(filter(None, (node.get("Subplan Name"), node_name(node))))
        rows, loops = node["Actual Rows"], node["Actual Loops"]
        ran = "never executed"
        if loops:
            ran = f"actual time={node['Actual Total Time']} rows={rows} loops={loops}"
        lines.append(f"{'  ' * depth}{name} (rows={node['Plan Rows']}) ({ran})")
        if details := ", ".join(f"{key}: {of}" for key, of in node.items() if of and _DETAILS.search(key)):
            lines.append(f"{'  ' * depth}    {details}")
    return "\n".join(lines)
