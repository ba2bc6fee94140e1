"""The plans that servers made for the workload's statements: what they are, and what differs between levels.

A plan is the root node of the server's own JSON (``EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)``), times in
milliseconds. Source of the names of nodes: ``src/backend/commands/explain.c``.
"""

import re
from collections.abc import Iterator, Mapping
from difflib import ndiff
from typing import Any

import pandas as pd

from benchlib.report.figures.frames import MINUS
from benchlib.report.figures.style import TEMPLATES
from benchlib.report.figures.tables import Quiet, Table, html_table
from benchlib.report.sections import NothingToShowError, records, section
from benchlib.study.experiment import Experiment
from benchlib.study.records import Plans

Node = Mapping[str, Any]
"""A node of a plan, with its children in ``Plans``."""

_ERROR = 2
"""From this factor on, an estimate of rows counts as wrong."""
_STRATEGIES = {"Sorted": "Group", "Hashed": "Hash", "Mixed": "Mixed"}
_DETAILS = re.compile(r"Launched|^Sort (Method|Space)|Batches|Usage|(Hit|Read|Temp Written) Blocks$")


@section
def plans(experiment: Experiment) -> Table:
    """Each level's plan for each explained statement, from its median trial; folded the plans, and what differs from that of the level compared with.

    Raises:
        InputError: a file of plans is damaged.

    """
    references, rows, folded = experiment.plan.factor.pairs(), [], []
    for number, explained in _explained(experiment).groupby("statement"):
        typical = explained[explained["typical"]].set_index("level")
        typical = typical.assign(number=pd.factorize(typical["outline"])[0] + 1)
        for level, plan in typical.iterrows():
            outlines, ran = explained.loc[explained["level"] == level, "outline"], plan["plan"]
            row = {
                "level": level,
                "statement": str(number),
                "plan": str(plan["number"]),
                "trials that had it": f"{outlines.eq(plan['outline']).sum()} of {len(outlines)}",
                "execution, ms": ran["Execution Time"],
                "planning, ms": ran["Planning Time"],
                "temporary pages": ran["Plan"]["Temp Written Blocks"],
                "worst estimate": worst_estimate(ran["Plan"]),
            }
            rows.append(row)
        for of_plan, alike in typical.groupby("number"):
            shown, levels = alike.iloc[0], alike.index.tolist()
            against = references.get(levels[0])
            other = typical["outline"].get(against, shown["outline"])
            differs = f"Against {against}: {differences(shown['outline'], other)}"
            entry = {
                "statement": number,
                "number": of_plan,
                "levels": levels,
                "text": "; ".join(alike["text"].unique()),
            }
            entry["differs"] = differs if other != shown["outline"] else ""
            folded.append({**entry, "lines": plan_text(shown["plan"]["Plan"])})
    frame = pd.DataFrame(rows)
    if frame["statement"].nunique() == 1:
        frame = frame.drop(columns="statement")
    caption = "Plans of the workload's statements"
    note = "Times are of one execution under EXPLAIN ANALYZE, which takes time itself: for speed see the table of verdicts."
    plans_of_all = TEMPLATES.get_template("plans.html.j2").render(plans=folded)
    return Table(caption, html_table(frame, caption, note=note).html + plans_of_all)


def _explained(experiment: Experiment) -> pd.DataFrame:
    """What the good trials explained after the load: ``level, block, statement`` (its number), ``text, plan, outline, typical``.

    ``typical`` are those of a level's median trial by the study's metric. Controls are left out: their
    plans are the baseline's once more.
    """
    rows = [
        (level, block, number, row["statement"], row["plan"], outline(row["plan"]["Plan"]))
        for level, block, record in records(experiment, Plans)
        for number, row in enumerate(record.after, 1)
        if level not in experiment.plan.factor.controls
    ]
    if not rows:
        raise NothingToShowError("No plans were kept: the workload has no statements to explain.")
    frame = pd.DataFrame(rows, columns=["level", "block", "statement", "text", "plan", "outline"])
    metric = experiment.trials.set_index(["level", "block"])[experiment.plan.metric].rename("metric")
    trials = frame.join(metric, on=["level", "block"]).groupby(["level", "statement"])["metric"]
    frame["typical"] = trials.rank(method="first") == (trials.transform("size") + 1) // 2
    return frame


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
    changed = [line.replace("-", MINUS, 1) for line in lines if line[0] in "+-"]
    return "; ".join(changed) or "the same nodes, nested otherwise"


def worst_estimate(plan: Node) -> str | None:
    """By how much the planner erred most in a node's rows: ``40 × the rows expected: Hash Join``; None where nothing ran."""
    # the planner never expects fewer rows than one
    rows = [(max(float(node["Plan Rows"]), 1.0), max(float(node["Actual Rows"]), 1.0), node)
            for _, node in nodes(plan) if node["Actual Loops"]]  # fmt: skip
    if not rows:
        return None
    expected, actual, node = max(rows, key=lambda row: max(row[:2]) / min(row[:2]))
    error = max(expected, actual) / min(expected, actual)
    if error < _ERROR:
        return Quiet(f"below ×{_ERROR}")
    return f"{'' if actual > expected else '1/'}{error:,.3g} × the rows expected: {node_name(node)}"


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
