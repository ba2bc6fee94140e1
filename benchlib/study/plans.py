"""Query plans of the workload's statements.

A plan is the root node of ``EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)``. Source of the node names:
``src/backend/commands/explain.c``.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from benchlib.study.records import Plans
from benchlib.study.results import TRIAL

Node = Mapping[str, Any]
"""A plan node; children in ``Plans``."""

_STRATEGIES = {"Sorted": "Group", "Hashed": "Hash", "Mixed": "Mixed"}
_BY = ["level", "statement"]
_FIGURES = ["execution_ms", "planning_ms", "temp_blocks", "worst_estimate", "explain"]
PLANNED = [*TRIAL, "statement", "text", "outline", *_FIGURES]
"""Columns of :func:`statements`, with the trial's."""
_DETAILS = re.compile(r"Launched|^Sort (Method|Space)|Batches|Usage|(Hit|Read|Temp Written) Blocks$")


def statements(record: Plans) -> list[dict[str, Any]]:
    """Return a trial's statements with the figures of their plans."""
    return [
        {
            "statement": number, "text": row["statement"], "outline": outline(plan),
            "execution_ms": row["plan"]["Execution Time"], "planning_ms": row["plan"]["Planning Time"],
            "temp_blocks": plan["Temp Written Blocks"], "worst_estimate": worst_estimate(plan), "explain": plan_text(plan),
        }
        for number, row in enumerate(record.after, 1)
        for plan in [row["plan"]["Plan"]]
    ]  # fmt: skip


def explained(trials: pd.DataFrame, planned: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return a row per statement and level, from its median trial by the metric.

    ``planned`` has the columns of :data:`PLANNED`; of the result:

    - ``statement, text``: number and SQL
    - ``plan, outline``: plans numbered by equal outlines
    - ``trials, same``: number of trials, and of those with this plan
    - ``execution_ms, planning_ms, temp_blocks, worst_estimate``
    - ``explain``: see :func:`plan_text`
    """
    ranked = planned.merge(trials[[*TRIAL, metric]], on=TRIAL)
    groups, alike = (ranked.groupby([*_BY, *more], sort=False) for more in ((), ("outline",)))
    middle = groups[metric].rank(method="first") == (groups[metric].transform("count") + 1) // 2
    counts = {"same": alike["block"].transform("size"), "trials": groups["block"].transform("size")}
    typical = ranked.assign(**counts)[middle]
    numbers = typical.groupby("statement")["outline"].transform(lambda texts: pd.factorize(texts)[0] + 1)
    columns = [*_BY, "text", "outline", *counts, "plan", *_FIGURES]
    return typical.assign(plan=numbers)[columns].sort_values("statement", kind="stable", ignore_index=True)


# --- a plan as text ------------------------------------------------------------------


def nodes(plan: Node, depth: int = 0) -> Iterator[tuple[int, Node]]:
    """Yield all nodes and depths in display order."""
    yield depth, plan
    for child in plan.get("Plans", ()):
        yield from nodes(child, depth + 1)


def node_name(node: Node) -> str:
    """Return a node's name as in psql, such as ``Index Scan using i on t``."""
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
    """Return whether a node spilled to disk in any process."""
    batches = max(node.get("Hash Batches", 1), node.get("HashAgg Batches", 1))
    sorts = {process.get("Sort Space Type") for process in (node, *node.get("Workers", ()))}
    return batches > 1 or "Disk" in sorts


def outline(plan: Node) -> str:
    """Return the node names, one per line, with spills marked."""
    names = ((depth, node_name(node), " (on disk)" * on_disk(node)) for depth, node in nodes(plan))
    return "\n".join(f"{'  ' * depth}{name}{where}" for depth, name, where in names)


def worst_estimate(plan: Node) -> float:
    """Return the worst ratio of actual to estimated rows; NaN if nothing ran."""
    # the planner's minimum is one row
    ratios = [
        max(float(node["Actual Rows"]), 1.0) / max(float(node["Plan Rows"]), 1.0)
        for _, node in nodes(plan)
        if node["Actual Loops"]
    ]
    return max(ratios, key=lambda ratio: max(ratio, 1 / ratio), default=float("nan"))


def plan_text(plan: Node) -> str:
    """Return the plan as psql shows it: rows per loop, time including children."""
    lines = []
    for depth, node in nodes(plan):
        name = ": ".join(filter(None, (node.get("Subplan Name"), node_name(node))))
        rows, loops = node["Actual Rows"], node["Actual Loops"]
        ran = "never executed"
        if loops:
            ran = f"actual time={node['Actual Total Time']} rows={rows} loops={loops}"
        lines.append(f"{'  ' * depth}{name} (rows={node['Plan Rows']}) ({ran})")
        if details := ", ".join(
            f"{key}: {what}" for key, what in node.items() if what and _DETAILS.search(key)
        ):
            lines.append(f"{'  ' * depth}    {details}")
    return "\n".join(lines)
