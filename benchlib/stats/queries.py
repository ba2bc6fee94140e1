"""Query by query: each script of a level compared with the same script of its reference."""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pandas as pd

from benchlib.errors import InputError
from benchlib.stats.effects import compare
from benchlib.stats.verdicts import references

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
    looks: Sequence[int] = (),
    alpha: float = 0.05,
    **arguments: Any,
) -> pd.DataFrame:
    """Return the change of each query's mean latency, a row per comparison and query.

    ``queries`` is the frame ``study.queries()``; the arguments are those of :func:`compare`. Each query has noise of its
    own; all queries share ``alpha``. Planned ``looks`` share it too. Columns, besides those of :func:`compare`:

    - ``query``; ``share_percent``: its share of the time of all transactions, at the reference
    - ``base, mean``: mean latency in ms; ``base_p95, mean_p95``: means of the trials' p95, null if unknown
    - ``plan``: ``same``, ``changed: Seq Scan on t → Index Scan using i on t``, null if unknown

    Raises:
        InputError: the frame or an argument is invalid, or nothing can be compared.
    """
    for name in ("metric", "answers", "concerns"):  # of the study's own comparison
        arguments.pop(name, None)
    usable = queries.dropna(subset=METRIC)
    pairs = references(list(usable["level"].unique()), (baseline, *controls), against)
    compared = {level: other for level, other in pairs.items() if level not in controls}
    frames, groups = [], dict[str, tuple[dict[str, str], pd.DataFrame]]()
    for query, rows in usable.groupby("query", sort=False):
        present = {*rows["level"]}
        of_query = {level: other for level, other in compared.items() if {level, other} <= present}
        if of_query:
            groups[str(query)] = of_query, rows
    if not groups:
        raise InputError("there is no query that a level and its reference both ran")
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
            families=len(groups),
            **arguments,
        )
        effects = effects[~effects["level"].isin(arms)]
        frames.append(_with_queries(effects, query, rows))
    attrs = frames[0].attrs | {
        "baseline": baseline,
        "controls": list(controls),
        "kind": QUERIES,
        "warnings": [],
    }
    attrs["blocks"] = max(frame.attrs["blocks"] for frame in frames)
    for frame in frames:
        frame.attrs = {}
    order = {level: number for number, level in enumerate(compared)}
    joined = pd.concat(frames, ignore_index=True)
    joined = joined.sort_values("share_percent", ascending=False, kind="stable")
    joined = joined.sort_values("level", key=lambda names: names.map(order), kind="stable")
    joined = joined[[*SHOWN, *(name for name in joined if name not in (*SHOWN, "answer"))]].reset_index(
        drop=True
    )
    joined.attrs = attrs
    return joined


def _with_queries(effects: pd.DataFrame, query: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the effects of one query with its shares, p95 and plans."""
    means = rows.groupby("level")[["share_percent", "latency_p95_ms"]].mean()
    plans = rows.groupby("level")["plan"].first() if "plan" in rows else pd.Series(dtype=object)
    changes = [
        plan_change(plans.get(level), plans.get(other))
        for level, other in zip(effects["level"], effects["against"], strict=True)
    ]
    return effects.assign(
        query=query,
        share_percent=effects["against"].map(means["share_percent"]),
        base_p95=effects["against"].map(means["latency_p95_ms"]),
        mean_p95=effects["level"].map(means["latency_p95_ms"]),
        plan=pd.Series(changes, effects.index, dtype=object),
    )


def plan_change(plan: str | None, reference: str | None) -> str | None:
    """Return how a plan differs from its reference, by the names of its nodes; None if one is unknown."""
    if not isinstance(plan, str) or not isinstance(reference, str):
        return None
    if plan == reference:
        return SAME
    new, old = (Counter(line.strip() for line in text.splitlines()) for text in (plan, reference))
    sides = [_named(old - new), _named(new - old)]
    return (
        f"changed: {' → '.join(side or 'none' for side in sides)}"
        if any(sides)
        else "changed: order of the nodes"
    )


def _named(nodes: Counter[str]) -> str:
    """Return names of nodes, those of tables and indexes first."""
    names = sorted(nodes, key=lambda name: " on " not in name and " using " not in name)
    return ", ".join(names[:_NAMED]) + ", …" * (len(names) > _NAMED)
