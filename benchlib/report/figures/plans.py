"""The server's plans in words: their nodes, what differs between two of them, and a table with each plan folded below.

A plan is the root node of the server's own JSON (``EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)``), times in
milliseconds. Source of the names of nodes: ``src/backend/commands/explain.c``, so that they read as psql shows them.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from benchlib.plan.words import size_words
from benchlib.report.figures.frames import amount
from benchlib.report.figures.tables import Quiet, Table, html_table

Node = Mapping[str, Any]
"""A node of a plan, with its children in ``Plans``."""

Shape = tuple[Any, ...]
"""A plan without its numbers."""

_ERROR = 2  # from this factor on, an estimate of rows is told to be wrong
_STRATEGIES = {"Sorted": "Group", "Hashed": "Hash", "Mixed": "Mixed"}
_PART_OF_ANOTHER = ("Hash", "Bitmap Index Scan", "Subquery Scan")
_MEMORY_TOLD = {"Sort Space Type", "Hash Batches", "HashAgg Batches", "Workers"}
_NEED_MEMORY = {"Sort": "sort", "Hash": "hash table", "Aggregate": "aggregate"}


def nodes(plan: Node) -> Iterator[Node]:
    """A node and all below it, as they are shown."""
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def node_name(node: Node) -> str:
    """A node as psql names it: ``Parallel Hash Left Join``, ``Index Scan using sales_day_idx on sales sale``."""
    source, alias, index = _source(node), node.get("Alias"), node.get("Index Name")
    words = [_kind(node)]
    if index:
        words += ["using" if source else "on", index]
    if source:
        words += ["on", source, *([alias] if alias not in (None, source) else [])]
    return " ".join(words)


def on_disk(node: Node) -> bool:
    """Whether a sort, a hash table or an aggregate had no room in memory, in one process or more."""
    batches = max(node.get("Hash Batches", 1), node.get("HashAgg Batches", 1))
    sorts = {each.get("Sort Space Type") for each in (node, *node.get("Workers", ()))}
    return batches > 1 or "Disk" in sorts


def shape(plan: Node) -> Shape:
    """The names of a plan's nodes, and which of them went to disk: one shape is what a reader calls the same plan."""
    return node_name(plan), on_disk(plan), tuple(shape(child) for child in plan.get("Plans", ()))


def worst_estimate(plan: Node) -> str | None:
    """By how much the planner erred most in a node's rows: ``×40 more: Hash Join``; None where nothing ran."""
    ran = [node for node in nodes(plan) if node["Actual Loops"]]
    if not ran:
        return None
    worst = max(ran, key=_error)
    return (
        f"{_error_words(worst)}: {node_name(worst)}" if _error(worst) >= _ERROR else Quiet(f"below ×{_ERROR}")
    )


def differences(plan: Node, reference: Node) -> str:
    """What differs from the reference's plan, in words; nothing where they have one shape."""
    if shape(plan) == shape(reference):
        return ""
    (scans, others), (scans_there, others_there) = _parts(plan), _parts(reference)
    come, gone = _counted(others - others_there), _counted(others_there - others)
    words = []
    if come or gone:
        words.append(
            f"{come} instead of {gone}" if come and gone else f"{come} added" if come else f"no {gone}"
        )
    read: dict[str, list[str]] = {}
    for relation in sorted(scans.keys() & scans_there.keys()):
        if scans[relation] != scans_there[relation]:
            read.setdefault(f"{scans[relation]} instead of {scans_there[relation]}", []).append(relation)
    words += [f"{change} on {', '.join(relations)}" for change, relations in read.items()]
    for kind, name in _NEED_MEMORY.items():
        now, then = _places(plan, kind), _places(reference, kind)
        if now and then and now != then:
            words.append(f"{name} {now} instead of {then}")
    return "; ".join(words) or "the same nodes in another order, or by other indexes"


def tree(plan: Node) -> str:
    """The plan as text, its nodes indented below what reads their rows, each with its figures.

    The share of the time is a node's own, without its children's; what workers did at once counts as
    long as it took. Pages are with those of its children, as the server counts them.
    """
    total, lines = _elapsed_ms(plan, 1) or 1.0, []

    def add(node: Node, depth: int, processes: int) -> None:
        children = node.get("Plans", ())
        below = 1 + node["Workers Launched"] if "Workers Launched" in node else processes
        own = _elapsed_ms(node, processes) - sum(_elapsed_ms(child, below) for child in children)
        name = ": ".join(filter(None, (node.get("Subplan Name"), node_name(node))))
        lines.append("  " * depth + name)
        lines.extend("  " * depth + f"    {words}" for words in _figures(node, max(own, 0.0) / total))
        for child in children:
            add(child, depth + 1, below)

    add(plan, 0, 1)
    return "\n".join(lines)


def plans_table(
    rows: pd.DataFrame, trees: Sequence[tuple[str, str, str]], *, caption: str, note: str
) -> Table:
    """A table of the levels' plans, and below it each distinct plan, folded.

    ``rows``: texts and numbers as they are shown, ``temporary_files`` in bytes; ``trees`` are (heading, statement,
    :func:`tree`).
    """
    table = html_table(rows, caption, formats={"temporary_files": size_words}, note=note)
    folded = "".join(
        f"<details><summary>{html.escape(heading)}</summary>"
        f'<p><code>{html.escape(statement)}</code></p><pre tabindex="0">{html.escape(text)}</pre></details>'
        for heading, statement, text in trees
    )
    return Table(caption, table.html + folded)


def _kind(node: Node) -> str:
    """A node's name without what it reads, and by which index."""
    kind, join = str(node["Node Type"]), node.get("Join Type", "Inner")
    if kind == "Aggregate":
        kind = f"{_STRATEGIES.get(str(node.get('Strategy')), '')}Aggregate"
    elif kind == "ModifyTable":
        kind = str(node["Operation"])
    if join != "Inner":
        kind = f"{kind.removesuffix(' Join')} {join} Join"
    before = [word for word in (node.get("Partial Mode"),) if word in ("Partial", "Finalize")]
    before += ["Parallel"] if node.get("Parallel Aware") else []
    after = ["Backward"] if node.get("Scan Direction") == "Backward" else []
    return " ".join([*before, kind, *after])


def _source(node: Node) -> str | None:
    """What a scan reads."""
    return next((node[key] for key in ("Relation Name", "Function Name", "CTE Name") if key in node), None)


def _parts(plan: Node) -> tuple[dict[str, str], Counter[str]]:
    """How a plan reads each relation, by its alias; and its other nodes, without those that belong to one above."""
    scans: dict[str, list[str]] = {}
    others: Counter[str] = Counter()
    for node in nodes(plan):
        if source := _source(node):
            scans.setdefault(str(node.get("Alias", source)), []).append(_kind(node))
        elif node["Node Type"] not in _PART_OF_ANOTHER:
            others[_kind(node)] += 1
    return {relation: " and ".join(sorted(how)) for relation, how in scans.items()}, others


def _counted(found: Counter[str]) -> str:
    return ", ".join(name if n == 1 else f"{n} × {name}" for name, n in sorted(found.items()))


def _places(plan: Node, kind: str) -> str:
    """Where the nodes of a kind had what they work on; nothing where there is none, or the server does not tell."""
    found = [
        on_disk(node)
        for node in nodes(plan)
        if node["Node Type"] == kind and not _MEMORY_TOLD.isdisjoint(node)
    ]
    if not found:
        return ""
    return "in memory" if not any(found) else "on disk" if all(found) else f"on disk {sum(found)} times"


def _elapsed_ms(node: Node, processes: int) -> float:
    """How long a node took in all its loops, which ran in so many processes at once."""
    return float(node["Actual Total Time"] * node["Actual Loops"]) / processes


def _error(node: Node) -> float:
    """The larger by the smaller of the rows that came and those expected; the planner never expects fewer than one."""
    rows = sorted(max(float(node[which]), 1.0) for which in ("Plan Rows", "Actual Rows"))
    return rows[1] / rows[0]


def _error_words(node: Node) -> str:
    return f"×{_error(node):,.3g} {'more' if node['Actual Rows'] > node['Plan Rows'] else 'fewer'}"


def _figures(node: Node, share: float) -> list[str]:
    """A node's figures, a line each; rows are those of one loop, as the server counts them."""
    if not node["Actual Loops"]:
        return [f"never run; {node['Plan Rows']:,} rows expected"]
    rows = f"{amount(node['Plan Rows'])} rows expected, {amount(node['Actual Rows'])} came"
    words = [f"{100 * share:.0f} % of the time", rows]
    if _error(node) >= _ERROR:
        words[-1] += f" ({_error_words(node)})"
    if node["Actual Loops"] > 1:
        words.append(f"in each of {node['Actual Loops']:,} loops")
    lines = ["; ".join(words)]
    hit, read = node.get("Shared Hit Blocks", 0), node.get("Shared Read Blocks", 0)
    if hit or read:
        lines.append(f"pages: {hit:,} hit, {read:,} read")
    if "Sort Method" in node:
        where = str(node["Sort Space Type"]).lower()
        lines.append(f"{node['Sort Method']}, {size_words(1024 * node['Sort Space Used'])} of {where}")
    for batches in (key for key in ("Hash Batches", "HashAgg Batches") if key in node):
        used = [f"batches: {node[batches]}", f"{size_words(1024 * node['Peak Memory Usage'])} of memory"]
        used += [f"{size_words(1024 * node['Disk Usage'])} of disk"] if node.get("Disk Usage") else []
        lines.append(", ".join(used))
    return lines
