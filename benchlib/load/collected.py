"""A folder of outputs, as a shell loop leaves it, as trials: which level and which block each run is. Pure.

Names tell it where they can (``pg16/run3.txt``, ``clients=16-2.log``): the last number behind a word such as *run* is the
block, what is left of the path is the level. Runs that differ in clients, scale, script or protocol are different levels. Of what
pgbench-tools leaves (``SERVER/SET/TEST/results.txt``) server and set are the level, and the numbers of tests their order in time.
"""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from benchlib.errors import InputError, ParseError
from benchlib.load.parse import parse_runs
from benchlib.stats.descriptive import unseen_drift

COLUMNS = (
    *("block", "level", "tps", "latency_average_ms", "clients", "scale", "complete", "error"),
    *("file", "order"),
)
_CONDITIONS = {key: key for key in ("clients", "scale", "script", "rate")} | {
    "query_mode": "protocol", "server_version": "server",
}  # fmt: skip
"""What tells levels apart, as runs and as names have it."""
_BLOCK = re.compile(
    r"(?i)(?:^|[^a-z0-9])(?:run|trial|round|rep|repeat|iteration|iter|block|test|try|take|pass|r|n|#)[ _.=-]*(\d+)(?![\d.])"
)
_TRAILING = re.compile(r"[ _.-](\d{1,4})$")
_NOTHING = "no line of a known kind"
_TOOLS = re.compile(r"(?:(?P<level>.+)/)?(?P<test>\d+)/results\.txt")
_COPIED = 0.5
"""Files that were written in less of the time that their runs took were not written as the runs ended."""
NOTES = {
    "order": "the order in time is not known (the files were written closer together than the runs took, as by a copy)",
    "sequential": "all runs of one level came before those of another: a host that drifts looks like an effect of the level",
    "same_order": "levels ran in the same order each time, which nobody drew: what one leaves behind looks like an effect of the next",
    "drift": "runs of a level change by {:+.1f} % from first to last; an unknown drift of the host of {:.1f} % would be taken for an effect",
    "worst_drift": "if each level ran by itself, an unknown drift of the host of {1:.1f} % would be taken for an effect",
    "no_drift": "with fewer than 3 runs of a level any drift of the host would be taken for an effect",
    "by_time": "blocks are the order in time inside a level, not runs side by side: to pair them gains nothing",
    "rate": "some runs were under a rate, which their output does not tell: where it differed, name it with --level",
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
    sources = list(sources)
    tools = {source.name: match for source in sources if (match := _TOOLS.fullmatch(source.name))}
    for source in sorted(sources, key=lambda source: _when(source, tools)):
        if tools and source.name not in tools:  # what is beside them, such as charts and the host's figures
            passed_over.append(source.name)
            continue
        try:
            results = _runs(source.text)
        except ParseError as reason:
            if _NOTHING in str(reason) or "there is nothing in it" in str(reason):
                passed_over.append(source.name)
            else:
                errors.append(f"{source.name}: {reason}")
            continue
        runs += [{**one, "file": source.name, "of": len(results), "at_s": source.at_s} for one in results]
    if errors:
        more = f" (and {len(errors) - 3} more)" if len(errors) > 3 else ""
        raise InputError(
            f"{'; '.join(errors[:3])}{more}: mend or remove such files, since nothing is left out silently"
        )
    if not runs:
        raise InputError("no file holds the output of a pgbench or sysbench run")
    rows = [_row(run, order, level, block, tools) for order, run in enumerate(runs, 1)]
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
    return Collected(
        rows,
        passed_over,
        _notes(rows, runs, levels, by_time=by_time, in_order=bool(tools) or _in_order(runs)),
    )


def _when(source: Source, tools: Mapping[str, re.Match[str]]) -> tuple[Any, ...]:
    """What a file is sorted by: pgbench-tools counts its tests, other files tell when they were written."""
    test = tools.get(source.name)
    return (0, int(test["test"])) if test else (1, source.at_s, source.name)


def _in_order(runs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether files were written as far apart as runs that ended one after the other."""
    return all(
        one["file"] == other["file"] or other["at_s"] - one["at_s"] >= _COPIED * _seconds(other)
        for one, other in itertools.pairwise(runs)
    )


def _seconds(run: Mapping[str, Any]) -> float:
    return float(run.get("duration_s") or run["transactions"] / (run["tps"] or float("inf")))


def _runs(text: str) -> list[dict[str, Any]]:
    """The runs in one text; of another kind than a run none."""
    results = parse_runs(text)
    if (kind := results[0]["kind"]) not in ("pgbench_summary", "sysbench"):
        raise ParseError(f"{_NOTHING}: it is {kind}")
    for run in results:
        run["clients"] = run.get("clients") or run["threads"]  # as sysbench calls them
        run["script"] = PurePath(run.get("transaction_type") or "").name or None
        run["rate"] = "limited" if run.get("rate_lag_average_ms") is not None else None
    return results


def _row(
    run: Mapping[str, Any],
    order: int,
    level: str | None,
    block: str | None,
    tools: Mapping[str, re.Match[str]],
) -> dict[str, Any]:
    stem = re.sub(r"\.(?:txt|log|out|md|stdout|res)$", "", run["file"])
    if test := tools.get(run["file"]):
        counted, rest = None, test["level"] or ""
    else:
        counted = _found(block, stem, "--block") if block else (_BLOCK.search(stem) or _TRAILING.search(stem))
        rest = stem[: counted.start()] + stem[counted.end() :] if counted else stem
    named = _found(level, stem, "--level") if level else None
    name = named[named.lastindex or 0] if named else re.sub(r"[ _./-]+", " ", rest).strip()
    number = counted[counted.lastindex or 0] if counted and run["of"] == 1 else None
    complete = bool(run["complete"])
    return {
        "block": int(number) if number and number.isdecimal() else number,
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


def _same_order(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether levels ran in one order in all blocks, of which there are several."""
    orders = defaultdict[Any, list[str]](list)
    for row in rows:
        orders[row["block"]].append(row["level"])
    return len(orders) > 1 and len({tuple(order) for order in orders.values()}) == 1


def _notes(
    rows: Sequence[Mapping[str, Any]],
    runs: Sequence[Mapping[str, Any]],
    levels: Mapping[str, int],
    *,
    by_time: bool,
    in_order: bool,
) -> list[str]:
    places = {level: [row["order"] for row in rows if row["level"] == level] for level in levels}
    in_a_row = in_order and any(
        max(one) < min(other) and len(one) + len(other) > 2
        for one, other in itertools.permutations(places.values(), 2)
    )
    told = [row for row in rows if row["complete"] and row["tps"]]
    drift = unseen_drift([row["level"] for row in told], [row["tps"] for row in told], in_order=in_order)
    known = drift[0] == drift[0]
    said = {
        "order": not in_order,
        "sequential": in_a_row,
        "same_order": in_order and not in_a_row and _same_order(rows),
        "drift": in_order and known,
        "worst_drift": not in_order and known,
        "no_drift": (in_a_row or not in_order) and not known,
        "by_time": by_time,
        "rate": any(run["rate"] for run in runs),
        "no_control": True,
        "few": min(levels.values()) < 3,
    }
    return [NOTES[code].format(*drift) for code, holds in said.items() if holds]
