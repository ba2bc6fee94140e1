"""A server's plan as text: its nodes as psql names them, the server's figures for each, and what differs between two.

A plan is the root node of the server's own JSON (``EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)``), times in
milliseconds. Source of the names of nodes: ``src/backend/commands/explain.c``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import ndiff
from typing import Any

from benchlib.report.figures.frames import MINUS
from benchlib.report.figures.tables import Quiet

Node = Mapping[str, Any]
"""A node of a plan, with its children in ``Plans``."""

_ERROR = 2
"""From this factor on, an estimate of rows counts as wrong."""
_STRATEGIES = {"Sorted": "Group", "Hashed": "Hash", "Mixed": "Mixed"}
_DETAILS = (
    "Workers Launched",
    "Sort Method",
    "Sort Space Used",
    "Sort Space Type",
    "Hash Batches",
    "HashAgg Batches",
    "Peak Memory Usage",
    "Disk Usage",
    "Shared Hit Blocks",
    "Shared Read Blocks",
    "Temp Written Blocks",
)


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
    return " ".join(
        filter(
            None,
            (
                node["Partial Mode"] if node.get("Partial Mode") in ("Partial", "Finalize") else "",
                "Parallel" if node.get("Parallel Aware") else "",
                kind,
                "Backward" if node.get("Scan Direction") == "Backward" else "",
                f"{'using' if source else 'on'} {index}" if index else "",
                f"on {source}" if source else "",
                alias if alias != source else "",
            ),
        )
    )


def on_disk(node: Node) -> bool:
    """Whether a sort, a hash table or an aggregate had no room in memory, in one process or more."""
    batches = max(node.get("Hash Batches", 1), node.get("HashAgg Batches", 1))
    sorts = {process.get("Sort Space Type") for process in (node, *node.get("Workers", ()))}
    return batches > 1 or "Disk" in sorts


def outline(plan: Node) -> tuple[str, ...]:
    """The names of a plan's nodes, indented, those marked that went to disk: what a reader calls the same plan has the same."""
    return tuple(
        f"{'  ' * depth}{node_name(node)}{' (on disk)' if on_disk(node) else ''}"
        for depth, node in nodes(plan)
    )


def differences(plan: Node, reference: Node) -> str:
    """The nodes that only the reference's plan has (−) and those that only the plan has (+); nothing where they are alike."""
    if outline(plan) == outline(reference):
        return ""
    before, after = ([line.strip() for line in outline(root)] for root in (reference, plan))
    lines = ndiff(before, after)
    changed = [line.replace("-", MINUS, 1) for line in lines if line[0] in "+-"]
    return "; ".join(changed) or "the same nodes, nested otherwise"


def worst_estimate(plan: Node) -> str | None:
    """By how much the planner erred most in a node's rows: ``×40 more: Hash Join``; None where nothing ran."""
    # the planner never expects fewer rows than one
    rows = [(max(float(node["Plan Rows"]), 1.0), max(float(node["Actual Rows"]), 1.0), node)
            for _, node in nodes(plan) if node["Actual Loops"]]  # fmt: skip
    if not rows:
        return None
    expected, actual, node = max(rows, key=lambda row: max(row[:2]) / min(row[:2]))
    error = max(expected, actual) / min(expected, actual)
    if error < _ERROR:
        return Quiet(f"below ×{_ERROR}")
    return f"×{error:,.3g} {'more' if actual > expected else 'fewer'}: {node_name(node)}"


def plan_text(plan: Node) -> str:
    """The plan as psql shows it, with the server's figures of each node: rows of one loop, time with that of its children."""
    lines = []
    for depth, node in nodes(plan):
        name = ": ".join(filter(None, (node.get("Subplan Name"), node_name(node))))
        rows, loops = node["Actual Rows"], node["Actual Loops"]
        ran = (
            f"actual time={node['Actual Total Time']} rows={rows} loops={loops}"
            if loops
            else "never executed"
        )
        lines.append(f"{'  ' * depth}{name} (rows={node['Plan Rows']}) ({ran})")
        if details := ", ".join(f"{key}: {node[key]}" for key in _DETAILS if node.get(key)):
            lines.append(f"{'  ' * depth}    {details}")
    return "\n".join(lines)
