"""Which of a server's statements become scripts, and how much of its calls and time these cover. Pure."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from benchlib.errors import InputError

Row = Mapping[str, Any]
SAMPLES = 16
"""Executions of a statement that its script draws from."""
_HEAVIEST = 1_000_000
"""The largest weight of a script: pgbench's are integers of limited size."""
_READS = {"SELECT", "WITH", "VALUES", "TABLE"}
_WRITES = {"INSERT", "UPDATE", "DELETE", "MERGE"}
_CONSTANT = re.compile(
    r"""--[^\n]*|/\*(?:(?!/\*|\*/).|/\*(?:(?!/\*|\*/).)*(?:\*/|\Z))*(?:\*/|\Z)|"(?:[^"]|"")*"|(?<![\w$])[eE]'(?:[^'\\]|\\.|'')*(?:'|\Z)"""
    r"""|(?<![\w$])[bBxX]'[^']*(?:'|\Z)|'(?:[^']|'')*(?:'|\Z)|(?<![\w$])\$((?:[^\W\d]\w*)?)\$.*?(?:\$\1\$|\Z)|(?<![\w$."])[-+]?\d[\d.]*(?:[eE][-+]?\d+)?\b""",
    re.DOTALL,
)
_LIST = re.compile(r"\?(?:\s*,\s*\?)+")
_ROWS = re.compile(r"\(\?\)(?:\s*,\s*\(\?\))+")


def _replacement(found: re.Match[str]) -> str:
    return " " if found[0][:2] in ("--", "/*") else found[0] if found[0][0] == '"' else "?"


@lru_cache(256)
def normalised(sql: str) -> str:
    """Return a statement on one line, ``?`` for constants, without comments."""
    text = _CONSTANT.sub(_replacement, sql)
    return " ".join(_ROWS.sub("(?)", _LIST.sub("?", text)).split()).rstrip("; ")


def check_use(tokens: Iterable[tuple[str, str]], *, writes: bool) -> None:
    """Raise an InputError unless a statement reads rows, or writes some if it may."""
    words = [text.upper() for kind, text in tokens if kind == "word"]
    if not words or words[0] not in _READS | _WRITES:
        raise InputError("they neither read nor write rows")
    if not writes and (_WRITES | {"INTO", "NEXTVAL", "SETVAL"}).intersection(words):
        raise InputError("they write (--writes includes them)")


def chosen(
    rows: Iterable[Row], top: int, most: str, script: Callable[[Row], str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return scripts of the first ``top`` statements that can have one, and the coverage of each outcome.

    ``rows`` have ``query``, ``calls`` and percent: ``share_of_calls`` and ``share_of_time``.

    Raises:
        InputError: no statement can be run. From ``script``: why that statement has none.

    """
    scripts, outcomes = list[dict[str, Any]](), dict[str, list[Row]](taken=[])
    for row in rows:
        try:
            if len(scripts) == top:
                raise InputError(f"they are not among the {top} {most}")
            scripts.append({"title": normalised(row["query"])[:200], "sql": script(row)})
            outcomes["taken"].append(row)
        except InputError as reason:
            outcomes.setdefault(f"left out, since {reason}", []).append(row)
    lines = [_share(outcome, some) for outcome, some in outcomes.items() if some]
    if not scripts:
        raise InputError("; ".join(["no statement can be run", *lines]))
    unit = max(1, max(row["calls"] for row in outcomes["taken"]) / _HEAVIEST)
    for one, row in zip(scripts, outcomes["taken"], strict=True):
        one["weight"] = max(1, round(row["calls"] / unit))
    return scripts, lines


def _share(outcome: str, rows: Sequence[Row]) -> str:
    calls, time = (sum(row[key] for row in rows) for key in ("share_of_calls", "share_of_time"))
    first = normalised(rows[0]["query"])[:60]
    of_time = "the time is not known" if math.isnan(time) else f"{time:.3g} % of the time"
    return f"{outcome}: {len(rows)} ({first} …), {calls:.3g} % of the calls, {of_time}"
