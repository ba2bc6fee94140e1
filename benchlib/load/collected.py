"""A folder of outputs, as a shell loop leaves it, as trials: which level and which block each run is. Pure.

Names tell it where they can (``pg16/run3.txt``, ``clients=16-2.log``): the last number behind a word such as *run* is the
block, what is left of the path is the level. Runs that differ in clients, scale or protocol are different levels.
"""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchlib.errors import InputError, ParseError
from benchlib.load.parse import parse_runs, parse_text
from benchlib.load.parse.text import Text

COLUMNS = (
    "block",
    "level",
    "tps",
    "latency_average_ms",
    "clients",
    "scale",
    "complete",
    "error",
    "file",
    "order",
)
_CONDITIONS = {"clients": "clients", "scale": "scale", "query_mode": "protocol", "server_version": "server"}
_BLOCK = re.compile(
    r"(?i)(?:^|[^a-z0-9])(?:run|trial|round|rep|repeat|iteration|iter|block|test|try|take|pass|r|n|#)[ _.=-]*(\d+)(?![\d.])"
)
_TRAILING = re.compile(r"[ _.-](\d{1,4})$")
_NOTHING = "no line of a known kind"
NOTES = {
    "sequential": "all runs of one level came before those of the next: a host that drifts looks like an effect of the level",
    "by_time": "blocks are the order in time inside a level, not runs side by side: to pair them gains nothing",
    "no_control": "no level is there twice: how far two identical ones differ here is not known (give one with --control to analyze)",
    "few": "with fewer than 3 runs of a level nothing can be said of it",
}
"""What such data cannot tell."""


@dataclass(frozen=True)
class Source:
    """A file: its path below the folder, its text, and when it was last written (seconds)."""

    name: str
    text: str
    at_s: float


@dataclass(frozen=True)
class Collected:
    """The runs that were understood, as rows of :data:`COLUMNS`; files that hold none; and what the data cannot tell."""

    rows: list[dict[str, Any]]
    passed_over: list[str]
    notes: list[str]


def collect(sources: Iterable[Source], level: str | None = None, block: str | None = None) -> Collected:
    """Return the runs in files as trials. ``level`` and ``block`` are regular expressions for a path, whose first group counts.

    Raises:
        InputError: a file holds a run that cannot be read, a pattern matches nothing, or names do not tell the levels.

    """
    runs, passed_over, errors = list[dict[str, Any]](), list[str](), list[str]()
    for source in sorted(sources, key=lambda source: (source.at_s, source.name)):
        try:
            results = _runs(source.text)
        except ParseError as reason:
            if _NOTHING in str(reason) or "there is nothing in it" in str(reason):
                passed_over.append(source.name)
            else:
                errors.append(f"{source.name}: {reason}")
            continue
        runs += [
            {"file": source.name, "number": n, "of": len(results), **one} for n, one in enumerate(results, 1)
        ]
    if errors:
        more = f" (and {len(errors) - 3} more)" if len(errors) > 3 else ""
        raise InputError(
            f"{'; '.join(errors[:3])}{more}: mend or remove such files, since nothing is left out silently"
        )
    if not runs:
        raise InputError("no file holds the output of a pgbench or sysbench run")
    rows = [_row(run, order, level, block) for order, run in enumerate(runs, 1)]
    _by_conditions(rows, runs)
    by_time = _number_blocks(rows)
    levels = Counter(row["level"] for row in rows)
    if len(levels) < 2:
        raise InputError(
            f"all {len(rows)} runs are taken for one level ('{rows[0]['level']}'): say what tells levels apart in "
            f"'{rows[0]['file']}', such as --level '([^/]+)/' or --level 'pg(\\d+)'"
        )
    if twice := [
        key for key, times in Counter((row["level"], row["block"]) for row in rows).items() if times > 1
    ]:
        raise InputError(
            f"level '{twice[0][0]}' has block {twice[0][1]} twice: say what counts the runs in "
            f"'{rows[0]['file']}', such as --block 'run(\\d+)'"
        )
    return Collected(rows, passed_over, _notes(rows, levels, by_time=by_time))


def _runs(text: str) -> list[dict[str, Any]]:
    """The runs in one text; of another kind than a run none."""
    if sum(line.startswith("transaction type: ") for line in Text(text).lines) > 1:
        return parse_runs(text)
    result = parse_text(text)
    if result["kind"] not in ("pgbench_summary", "sysbench"):
        raise ParseError(f"{_NOTHING}: it is {result['kind']}")
    return [result]


def _row(run: Mapping[str, Any], order: int, level: str | None, block: str | None) -> dict[str, Any]:
    stem = re.sub(r"\.(?:txt|log|out|md|stdout|res)$", "", run["file"])
    counted = _found(block, stem, "--block") if block else (_BLOCK.search(stem) or _TRAILING.search(stem))
    number = counted[counted.lastindex or 0] if counted else None
    rest = stem[: counted.start()] + stem[counted.end() :] if counted else stem
    named = _found(level, stem, "--level") if level else None
    name = named[named.lastindex or 0] if named else re.sub(r"[ _./-]+", " ", rest).strip()
    complete = bool(run["complete"])
    return {
        "block": int(number)
        if number and number.isdecimal() and run["of"] == 1
        else number
        if run["of"] == 1
        else None,
        "level": name or "all",
        **{key: run.get(key) for key in ("tps", "latency_average_ms", "clients", "scale")},
        "complete": complete,
        "error": None if complete else "the run is not complete",
        "file": run["file"],
        "order": order,
    }


def _found(pattern: str, path: str, option: str) -> re.Match[str]:
    try:
        match = re.search(pattern, path)
    except re.error as reason:
        raise InputError(f"{option}: {reason}") from None
    if match is None:
        raise InputError(f"{option} '{pattern}' matches nothing in '{path}'")
    return match


def _by_conditions(rows: Sequence[dict[str, Any]], runs: Sequence[Mapping[str, Any]]) -> None:
    """Tell levels apart by the conditions of their runs, where these differ inside one."""
    for key, title in _CONDITIONS.items():
        values = defaultdict(set)
        for row, run in zip(rows, runs, strict=True):
            values[row["level"]].add(run.get(key))
        for row, run in zip(rows, runs, strict=True):
            if len(values[row["level"]]) > 1:
                row["condition"] = f"{row.get('condition', '')} {title}={run.get(key)}"
    for row in rows:
        condition = row.pop("condition", "").strip()
        row["level"] = (
            condition if row["level"] == "all" and condition else f"{row['level']} {condition}".strip()
        )


def _number_blocks(rows: Sequence[dict[str, Any]]) -> bool:
    """Number the runs of a level in their order where no name does, or names do not number each once; whether that was needed."""
    by_level = defaultdict(list)
    for row in rows:
        by_level[row["level"]].append(row)
    needed = any(row["block"] is None for row in rows)
    if needed:
        for own in by_level.values():
            for number, row in enumerate(own, 1):
                row["block"] = number
    return needed


def _notes(rows: Sequence[Mapping[str, Any]], levels: Mapping[str, int], *, by_time: bool) -> list[str]:
    sequence = [row["level"] for row in rows]
    changes = sum(one != other for one, other in itertools.pairwise(sequence))
    said = {
        "sequential": changes == len(levels) - 1 and max(levels.values()) > 1,
        "by_time": by_time,
        "no_control": True,
        "few": min(levels.values()) < 3,
    }
    return [NOTES[code] for code, holds in said.items() if holds]
