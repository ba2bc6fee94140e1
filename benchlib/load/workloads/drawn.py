"""Values drawn as those of a column are, by what ``pg_stats`` says of it, for scripts and for rows alike. Pure.

A value is a number, drawn by an expression that pgbench and SQL read alike, and SQL that makes the value of it. Common values
come by their frequencies; other whole numbers evenly between the bounds of the histogram, and of other types those bounds
themselves, or times between the first and the last. Tables of many rows, and what has many values, grow with ``:scale``; a text that has is an MD5.

A column is a row of ``server/statements/columns.sql``; its table was so at the scale ``scales``.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from benchlib.load.workloads.sql import literal

_PARTS = 100
"""What is rarer than once in so many rows counts among the others."""
_BUCKETS = 10
_MANY = 1000
_INSTANTS = 1_000_000
_INTEGER = re.compile(r"-?\d{1,18}")
_WHOLE = ("smallint", "integer", "bigint")
_TEXTS = ("text", "character varying", "character", "uuid", "bytea")
"""Types of which an MD5 is a value."""


def can_draw(column: Mapping[str, Any]) -> bool:
    """Whether there is anything to draw a column's values from."""
    made = column["is_unique"] and column["type"].startswith((*_WHOLE, *_TEXTS))
    return bool(made or column["common"] or column["bounds"])


def drawn(column: Mapping[str, Any], scales: int, place: str = "") -> tuple[str, str]:
    """An expression for a number, and SQL of a column's value, in which the last ``{}`` stands for the number.

    ``place`` is an expression for which of its values one has that are all different, from 0; without it, for any.
    """
    base, bounds, unique = re.sub(r"\(.*?\)", "", column["type"]), column["bounds"], column["is_unique"]
    rows = max(1, column["rows"])
    count = rows if unique else column["count"]
    place = place or f"random(0, {_grown(count, scales)} - 1)"
    if (unique or count > _MANY) and base in _TEXTS:
        return place, "md5(CAST({} AS text))"
    whole = base in _WHOLE or (
        base == "numeric" and all(map(_INTEGER.fullmatch, [*bounds, *column["common"]]))
    )
    many = unique or (count > _MANY and not column["common"])
    if base.startswith(("date", "timestamp")) and many and len(bounds) > 1 and "inf" not in bounds[-1]:
        begin, end = (f"CAST({literal(bound)} AS timestamptz)" for bound in (bounds[0], bounds[-1]))
        number, instants = (place, rows) if unique else (f"random(0, {_INSTANTS})", _INSTANTS)
        return number, f"{begin} + ({end} - {begin}) * ({{}} / {float(instants)})"
    if unique and whole:
        first, last = (int(bounds[0]), int(bounds[-1])) if bounds else (1, rows)
        return f"{first} + {max(1, (last - first + 1) // rows)} * ({place})", "{}"
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
    """The SQL of a value of a type, from what :func:`drawn` gave."""
    return f"CAST({number.join(value.rpartition('{}')[::2])} AS {type_})"


def filled(columns: Sequence[Mapping[str, Any]], scales: int) -> str:
    """SQL that fills a table, each column by itself; one of which nothing is known is as wide where it is text, else null."""
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
    rows = f"generate_series(1, CAST({_in_sql(_grown(columns[0]['rows'], scales))} AS bigint)) AS n"
    return f"INSERT INTO {table} ({names}) SELECT {', '.join(values)} FROM {rows} ON CONFLICT DO NOTHING;"


def _grown(count: int, scales: int) -> str:
    """How much there is at a scale of what is ``count`` at the scale ``scales``, as an expression."""
    return f"greatest(1, {count} * :scale / {scales})" if count > _MANY else f"{max(1, count)}"


def _end(first: int, cut: int, scales: int) -> str:
    """Where a part that ends at ``cut`` does so at a scale, as an expression of whole numbers of 64 bits."""
    span = cut - first
    if span >= 2**60:
        return f"{cut}"
    return (
        f"{first} + {span // scales} * :scale" if span >= 2**40 else f"{first} + {span} * :scale / {scales}"
    )


def _in_sql(number: str) -> str:
    """An expression of pgbench's whose numbers are as large in SQL."""
    return number.replace("random(", "benchlib_random(").replace(":scale", "CAST(:scale AS bigint)")


def _choice(choices: Sequence[tuple[int, str]]) -> str:
    """One of several expressions, each so many times as often as another."""
    left, branches = sum(times for times, _ in choices), ""
    for times, expression in choices[:-1]:
        branches += f"WHEN random(1, {left}) <= {times} THEN {expression} " if times else ""
        left -= times
    last = choices[-1][1]
    return f"CASE {branches}ELSE {last} END" if branches else last
