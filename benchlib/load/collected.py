"""Converts a directory of outputs to trials. Pure.

In a path (``pg16/run3.txt``) a number after a word such as *run* is the block, the rest the level.
Different clients, scale, script or protocol are different levels. pgbench-tools: ``SERVER/SET`` is the
level, ``TEST`` the order.
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
"""Below this share of the runs' duration, file times are those of a copy."""
NOTES = {
    "order": "the order of the runs is unknown: the file times are closer together than the runs took, as after a copy",
    "sequential": "all runs of one level came before those of another: drift of the host looks like an effect",
    "same_order": "the levels always ran in the same order: after-effects of one level look like an effect of the next",
    "drift": "runs of a level change by {:+.1f} % from first to last; a drift of {:.1f} % would look like an effect",
    "worst_drift": "if the levels ran one after the other, a drift of {1:.1f} % would look like an effect",
    "no_drift": "with fewer than 3 runs of a level any drift of the host would look like an effect",
    "by_time": "blocks only number the runs of each level in time, so pairing them gains nothing",
    "rate": "some runs had a rate limit, which the output does not show: if limits differ, name them with --level",
    "no_control": "no A/A control: the noise between identical levels is unknown (analyze --control LEVEL)",
    "few": "a level with fewer than 3 runs cannot be judged",
}
"""Limits of such data."""


@dataclass(frozen=True)
class Source:
    """A file: relative path, text, modification time (seconds)."""

    name: str
    text: str
    at_s: float


@dataclass(frozen=True)
class Collected:
    """Runs as rows of :data:`COLUMNS`, files without runs, and limits of the data."""

    rows: list[dict[str, Any]]
    passed_over: list[str]
    notes: list[str]


def collect(sources: Iterable[Source], level: str | None = None, block: str | None = None) -> Collected:
    """Return the runs as trials; the first groups of ``level`` and ``block`` match paths.

    Raises:
        InputError: an unreadable run, a pattern without match, or unclear levels.

    """
    runs, passed_over, errors = list[dict[str, Any]](), list[str](), list[str]()
    sources = list(sources)
    tools = {source.name: match for source in sources if (match := _TOOLS.fullmatch(source.name))}
    for source in sorted(sources, key=lambda source: _when(source, tools)):
        if tools and source.name not in tools:  # such as charts and host statistics
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
        raise InputError(f"{'; '.join(errors[:3])}{more}: repair or remove these files")
    if not runs:
        raise InputError("no file holds the output of a pgbench or sysbench run")
    rows = [_row(run, order, level, block, tools) for order, run in enumerate(runs, 1)]
    _by_conditions(rows, runs)
    by_time = _number_blocks(rows)
    levels = Counter(row["level"] for row in rows)
    if len(levels) < 2:
        raise InputError(
            f"all {len(rows)} runs have one level ('{rows[0]['level']}'): give the part of the path that names the level in "
            f"'{rows[0]['file']}', such as --level '([^/]+)/' or --level 'pg(\\d+)'"
        )
    if twice := [
        key for key, times in Counter((row["level"], row["block"]) for row in rows).items() if times > 1
    ]:
        raise InputError(
            f"level '{twice[0][0]}' has block {twice[0][1]} twice: give the part of the path that numbers the runs in "
            f"'{rows[0]['file']}', such as --block 'run(\\d+)'"
        )
    return Collected(
        rows,
        passed_over,
        _notes(rows, runs, levels, by_time=by_time, in_order=bool(tools) or _in_order(runs)),
    )


def _when(source: Source, tools: Mapping[str, re.Match[str]]) -> tuple[Any, ...]:
    """Return the sort key: the test's number, or the modification time."""
    test = tools.get(source.name)
    return (0, int(test["test"])) if test else (1, source.at_s, source.name)


def _in_order(runs: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether file times fit runs that ended one after the other."""
    return all(
        one["file"] == other["file"] or other["at_s"] - one["at_s"] >= _COPIED * _seconds(other)
        for one, other in itertools.pairwise(runs)
    )


def _seconds(run: Mapping[str, Any]) -> float:
    return float(run.get("duration_s") or run["transactions"] / (run["tps"] or float("inf")))


def _runs(text: str) -> list[dict[str, Any]]:
    """Return the runs in a text."""
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
    """Split levels whose runs differ in conditions."""
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
    """Number the runs of each level by time if a name has no number; return whether it did."""
    by_level = defaultdict(list)
    for row in rows:
        by_level[row["level"]].append(row)
    needed = any(row["block"] is None for row in rows)
    if needed:
        for level_rows in by_level.values():
            for number, row in enumerate(level_rows, 1):
                row["block"] = number
    return needed


def _same_order(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether levels ran in the same order in several blocks."""
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
    valid = [row for row in rows if row["complete"] and row["tps"]]
    drift = unseen_drift([row["level"] for row in valid], [row["tps"] for row in valid], in_order=in_order)
    known = drift[0] == drift[0]
    applies = {
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
    return [NOTES[code].format(*drift) for code, holds in applies.items() if holds]
