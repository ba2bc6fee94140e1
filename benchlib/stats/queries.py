"""Comparisons query by query."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from benchlib.plan.design import references
from benchlib.stats.effects import COLUMNS, compare

QUERIES = "queries"
"""The value of ``attrs["kind"]`` for frames of :func:`compare_queries`."""
METRIC = "latency_average_ms"
SHOWN = [
    "level", "against", "query", "share_percent", "base", "mean", "base_p95", "mean_p95", "percent_change", "ci_low",
    "ci_high", "p_adjusted", "verdict", "plan",
]  # fmt: skip
"""The columns of the frame that a table shows."""
SAME = "same"
_NAMED = 3
"""The largest number of plan nodes that are named on each side."""


def compare_queries(
    queries: pd.DataFrame,
    *,
    baseline: str,
    controls: Sequence[str] = (),
    against: Mapping[str, str] = MappingProxyType({}),
    answers: Collection[str] = (),
    looks: Sequence[int] = (),
    alpha: float = 0.05,
    **arguments: Any,
) -> pd.DataFrame:
    """Return the change of each query's mean latency, a row per comparison and query.

    ``queries`` is ``study.queries()``. Each query has its own noise; queries and ``looks`` share ``alpha``
    in each family.
    Columns, besides those of :func:`compare`:

    - ``query``; ``share_percent`` of the time of all transactions, at the reference
    - ``base, mean`` in ms; ``base_p95, mean_p95``: means of the trials' p95
    - ``limit``: why a comparison is invalid
    - ``plan``: ``same``, or ``changed: Seq Scan on t → Index Scan using i on t``

    Raises:
        InputError: invalid queries or arguments.
    """
    for name in ("metric", "concerns"):  # of the study's own comparison
        arguments.pop(name, None)
    usable, frames = queries.dropna(subset=METRIC), list[pd.DataFrame]()
    pairs = references(list(usable["level"].unique()), (baseline, *controls), against)
    compared = {level: other for level, other in pairs.items() if level not in controls}
    groups = dict[str, tuple[dict[str, str], pd.DataFrame]]()
    for query, rows in usable.groupby("query", sort=False):
        present = {*rows["level"]}
        if of_query := {level: other for level, other in compared.items() if {level, other} <= present}:
            groups[str(query)] = of_query, rows
    answering = {*answers} or {*compared}
    families = [
        sum(bool({*of_query} & of) for of_query, _ in groups.values())
        for of in (answering, {*compared} - answering)
    ]
    for query, (of_query, rows) in groups.items():
        first, arms = baseline, [name for name in controls if name in {*rows["level"]}]
        if baseline not in of_query.values():
            first, arms = next(name for name in of_query.values() if name not in of_query), []
        used = {first, *arms, *of_query, *of_query.values()}
        effects = compare(
            rows[rows["level"].isin(used)],
            baseline=first,
            controls=arms,
            against={level: other for level, other in of_query.items() if other != first},
            metric=METRIC,
            alpha=alpha / max(len(looks), 1),
            answers=[*answering],
            families=families,
            **arguments,
        )
        frames.append(_with_queries(effects[~effects["level"].isin(arms)], query, rows, arms))
    order = {level: number for number, level in enumerate(compared)}
    found = [row for frame in frames for row in frame.to_dict("records")]
    found.sort(key=lambda row: (order[row["level"]], -np.nan_to_num(row["share_percent"])))
    columns = [*SHOWN, "limit", *(name for name in COLUMNS if name not in (*SHOWN, "answer"))]
    joined = pd.DataFrame(found, columns=columns)
    facts = frames[0].attrs if frames else {}
    joined.attrs = facts | {"kind": QUERIES, "baseline": baseline, "controls": list(controls), "warnings": []}
    joined.attrs["blocks"] = max((frame.attrs["blocks"] for frame in frames), default=0)
    return joined


def _with_queries(effects: pd.DataFrame, query: str, rows: pd.DataFrame, arms: Sequence[str]) -> pd.DataFrame:
    means = rows.groupby("level")[["share_percent", "latency_p95_ms"]].mean()
    plans = rows.groupby("level")["plan"].first() if "plan" in rows else pd.Series(dtype=object)
    pairs = list(zip(effects["level"], effects["against"], strict=True))
    changes = [plan_change(plans.get(level), plans.get(other)) for level, other in pairs]
    grave = [warning for warning in effects.attrs["warnings"] if warning["grave"]]
    return effects.assign(
        query=query,
        limit=[next((w["text"] for w in grave if w["level"] in (None, *pair, *arms)), "") for pair in pairs],
        share_percent=effects["against"].map(means["share_percent"]),
        base_p95=effects["against"].map(means["latency_p95_ms"]),
        mean_p95=effects["level"].map(means["latency_p95_ms"]),
        plan=pd.Series(changes, effects.index, dtype=object),
    )


def plan_change(plan: str | None, reference: str | None) -> str | None:
    """Return how two plans' nodes differ; None if unknown."""
    if not isinstance(plan, str) or not isinstance(reference, str):
        return None
    if plan == reference:
        return SAME
    new, old = (Counter(line.strip() for line in text.splitlines()) for text in (plan, reference))
    sides = [_named(old - new), _named(new - old)]
    change = " → ".join(side or "none" for side in sides) if any(sides) else "order of the nodes"
    return f"changed: {change}"


def _named(nodes: Counter[str]) -> str:
    names = sorted(nodes, key=lambda name: " on " not in name and " using " not in name)
    return ", ".join(names[:_NAMED]) + ", …" * (len(names) > _NAMED)
