"""Random values distributed as in ``pg_stats``. Pure.

An expression valid in pgbench and SQL gives a number, which SQL converts to the value. Large counts
grow with ``:scale``. A column is a row of ``server/statements/columns.sql``.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from benchlib.load.workloads.sql import literal

_PARTS = 100
"""Values rarer than one in this many rows are not drawn separately."""
_BUCKETS = 10
_MANY = 1000
_INSTANTS = 1_000_000
_INTEGER = re.compile(r"-?\d{1,18}")
_WHOLE = ("smallint", "integer", "bigint")
_TEXTS = ("text", "character varying", "character", "uuid", "bytea")
"""Types that accept an MD5 sum."""


def can_draw(column: Mapping[str, Any]) -> bool:
    """Return whether the values are known."""
    made = column["is_unique"] and column["type"].startswith((*_WHOLE, *_TEXTS))
    return bool(made or column["common"] or column["bounds"])


def drawn(column: Mapping[str, Any], scales: int, row_number: str = "") -> tuple[str, str]:
    """Return an expression for a number, and SQL for the value (last ``{}``: the number)."""
    base, bounds, unique = re.sub(r"\(.*?\)", "", column["type"]), column["bounds"], column["is_unique"]
    rows = max(1, column["rows"])
    count = rows if unique else column["count"]
    row_number = row_number or f"random(0, {_scaled(count, scales)} - 1)"
    if (unique or count > _MANY) and base in _TEXTS:
        return row_number, "md5(CAST({} AS text))"
    whole = base in _WHOLE or (
        base == "numeric" and all(map(_INTEGER.fullmatch, [*bounds, *column["common"]]))
    )
    many = unique or (count > _MANY and not column["common"])
    finite = [bound for bound in bounds if "inf" not in bound]
    if base.startswith(("date", "timestamp")) and many and len(finite) > 1:
        begin, end = (f"CAST({literal(bound)} AS timestamptz)" for bound in (finite[0], finite[-1]))
        number, instants = (row_number, rows) if unique else (f"random(0, {_INSTANTS})", _INSTANTS)
        return number, f"{begin} + ({end} - {begin}) * ({{}} / {float(instants)})"
    if unique and whole:
        first, last = (int(bounds[0]), int(bounds[-1])) if bounds else (1, rows)
        return f"{first} + {max(1, (last - first + 1) // rows)} * ({row_number})", "{}"
    # beside bounds a rare value counts among the others
    known = (1 - column["nulls"]) or 1.0  # pg_stats counts nulls too
    parts = [
        max(round(_PARTS * frequency / known), 0 if bounds else 1) for frequency in column["frequencies"]
    ]
    rest = max(_PARTS - sum(parts), 0)
    buckets = min(_BUCKETS, rest, len(bounds) - 1)
    common = [*zip(parts, column["common"], strict=True)]
    if not whole or buckets < 1:
        values = [value for times, value in common for _ in range(times)]
        values += [bounds[i * len(bounds) // rest] for i in range(rest) if bounds]
        return f"random(1, {len(values)})", f"(ARRAY[{', '.join(map(literal, values))}])[{{}}]"
    choices = [(times, str(int(value))) for times, value in common]
    cuts = [int(bounds[i * (len(bounds) - 1) // buckets]) for i in range(buckets + 1)]
    first = cuts[0]
    ends = [_end(first, cut, scales) if count > _MANY else f"{cut}" for cut in cuts]
    choices += [(rest // buckets, f"random({low}, {high})") for low, high in pairwise(ends)]
    return _choice(choices), "{}"


def value_of(number: str, value: str, type_: str) -> str:
    """Return SQL from the result of :func:`drawn`."""
    return f"CAST({number.join(value.rpartition('{}')[::2])} AS {type_})"


def filled(columns: Sequence[Mapping[str, Any]], scales: int) -> str:
    """Return SQL that fills a table; unknown columns are null."""
    values = []
    for column in columns:
        is_text = column["type"].startswith(("text", "character")) and not column["type"].endswith("[]")
        number, value = (str(column["width"]), "repeat('x', {})") if is_text else ("", "NULL")
        if can_draw(column):
            number, value = drawn(column, scales, "n - 1" if column["is_unique"] else "")
        text = value_of(_in_sql(number), value, column["type"])
        nulls = column["nulls"]
        values.append(f"CASE WHEN random() >= {nulls:.3g} THEN {text} END" if nulls else text)
    table, names = columns[0]["table"], ", ".join(column["name"] for column in columns)
    rows = f"generate_series(1, CAST({_in_sql(_scaled(columns[0]['rows'], scales))} AS bigint)) AS n"
    return f"INSERT INTO {table} ({names}) SELECT {', '.join(values)} FROM {rows} ON CONFLICT DO NOTHING;"


def _scaled(count: int, scales: int) -> str:
    """Return ``count`` at ``:scale``."""
    return f"greatest(1, {count} * :scale / {scales})" if count > _MANY else f"{max(1, count)}"


def _end(first: int, cut: int, scales: int) -> str:
    """Return a histogram bound at ``:scale``."""
    span = cut - first
    if span >= 2**60:
        return f"{cut}"
    return (
        f"{first} + {span // scales} * :scale" if span >= 2**40 else f"{first} + {span} * :scale / {scales}"
    )


def _in_sql(number: str) -> str:
    return number.replace("random(", "benchlib_random(").replace(":scale", "CAST(:scale AS bigint)")


def _choice(choices: Sequence[tuple[int, str]]) -> str:
    left, branches = sum(times for times, _ in choices), ""
    for times, expression in choices[:-1]:
        branches += f"WHEN random(1, {left}) <= {times} THEN {expression} " if times else ""
        left -= times
    last = choices[-1][1]
    return f"CASE {branches}ELSE {last} END" if branches else last
