"""The plans that servers made for the workload's statements: what they are, and what differs between levels.

A plan is the root node of the server's own JSON (``EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)``), times in
milliseconds. Source of the names of nodes: ``src/backend/commands/explain.c``.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping
from difflib import ndiff
from string import ascii_uppercase
from typing import Any

import pandas as pd

from benchlib.report.figures.frames import MINUS
from benchlib.report.figures.tables import Quiet, Table, html_table
from benchlib.report.sections import NothingToShowError, records, section
from benchlib.study.experiment import Experiment
from benchlib.study.records import Plans

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


@section
def plans(experiment: Experiment) -> Table:
    """Each level's plan for each explained statement, from its median trial; folded the plans, and what differs from that of the level compared with.

    Raises:
        InputError: a file of plans is damaged.

    """
    explained = _explained(experiment)
    if explained.empty:
        raise NothingToShowError("No plans were kept: the workload has no statements to explain.")
    references, rows, folded = experiment.plan.factor.pairs(), [], []
    for number, of_all in explained.groupby("statement"):
        typical = of_all[of_all["typical"]].set_index("level")
        letters = _letters([*typical["outline"], *of_all["outline"]])
        for level, plan in typical.iterrows():
            outlines = of_all.loc[of_all["level"] == level, "outline"].map(letters)
            letter, ran = letters[plan["outline"]], plan["plan"]
            others = outlines[outlines != letter].value_counts().sort_index()
            vary = f" ({', '.join(f'{x} in {n}' for x, n in others.items())} of {len(outlines)})"
            rows.append(
                {
                    "level": level,
                    "statement": str(number),
                    "plan": letter + vary * bool(len(others)),
                    "execution, ms": ran["Execution Time"],
                    "planning, ms": ran["Planning Time"],
                    "temporary pages": ran["Plan"]["Temp Written Blocks"],
                    "worst estimate": worst_estimate(ran["Plan"]),
                }
            )
        for same_outline, letter in letters.items():
            levels = [str(level) for level in typical.index[typical["outline"] == same_outline]]
            alike = of_all[of_all["outline"] == same_outline]
            shown = alike.sort_values("typical", ascending=False, kind="stable").iloc[0]
            where = ", ".join(levels) or "in some trials alone"
            differs = _difference(typical, levels[0], references.get(levels[0])) if levels else ""
            folded.append(
                f"<details><summary>Statement {number}, plan {letter}: {html.escape(where)}</summary>"
                f"<p><code>{html.escape(shown['text'])}</code></p>{f'<p>{html.escape(differs)}</p>' * bool(differs)}"
                f'<pre tabindex="0">{html.escape(plan_text(shown["plan"]["Plan"]))}</pre></details>'
            )
    frame = pd.DataFrame(rows)
    if frame["statement"].nunique() == 1:
        frame = frame.drop(columns="statement")
    caption = "Plans of the workload's statements"
    nodes_of_all = (
        f'<details class="bl-long"><summary>The plans ({len(folded)})</summary>{"".join(folded)}</details>'
    )
    return Table(caption, html_table(frame, caption).html + nodes_of_all)


def _explained(experiment: Experiment) -> pd.DataFrame:
    """What the good trials explained after the load: ``level, statement`` (its number), ``text, plan, outline, typical``.

    ``typical`` are those of a level's median trial by the study's metric. Controls are left out: their plans are the
    baseline's once more.
    """
    controls = experiment.plan.factor.controls
    kept = [of for of in records(experiment, Plans) if of[2].after and of[0] not in controls]
    metric = experiment.trials.set_index(["level", "block"])[experiment.plan.metric]
    medians = {}
    for level in dict.fromkeys(level for level, *_ in kept):
        blocks = sorted((metric[level, block], block) for of, block, _ in kept if of == level)
        medians[level] = blocks[(len(blocks) - 1) // 2][1]
    rows = [
        (level, number, row["statement"], row["plan"], outline(row["plan"]["Plan"]), medians[level] == block)
        for level, block, record in kept
        for number, row in enumerate(record.after, 1)
    ]
    return pd.DataFrame(rows, columns=["level", "statement", "text", "plan", "outline", "typical"])


def _letters(outlines: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """A name for each distinct plan, in their order: A to Z, then A1."""
    names = (f"{letter}{turn or ''}" for turn in range(100) for letter in ascii_uppercase)
    return dict(zip(dict.fromkeys(outlines), names, strict=False))


def _difference(typical: pd.DataFrame, level: str, reference: str | None) -> str:
    """What differs between a level's plan and that of the level it is compared with."""
    if reference not in typical.index:
        return ""
    own, other = typical.loc[level], typical.loc[reference]
    text = differences(own["plan"]["Plan"], other["plan"]["Plan"])
    another = "another statement" if own["text"] != other["text"] else ""
    return f"Against {reference}: {'; '.join(filter(None, (another, text))) or 'the same'}"


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


def outline(plan: Node) -> tuple[str, ...]:
    """The names of a plan's nodes, indented, those marked that went to disk: what a reader calls the same plan has the same."""
    names = ((depth, node_name(node), " (on disk)" * on_disk(node)) for depth, node in nodes(plan))
    return tuple(f"{'  ' * depth}{name}{where}" for depth, name, where in names)


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
        ran = "never executed"
        if loops:
            ran = f"actual time={node['Actual Total Time']} rows={rows} loops={loops}"
        lines.append(f"{'  ' * depth}{name} (rows={node['Plan Rows']}) ({ran})")
        if details := ", ".join(f"{key}: {node[key]}" for key in _DETAILS if node.get(key)):
            lines.append(f"{'  ' * depth}    {details}")
    return "\n".join(lines)
