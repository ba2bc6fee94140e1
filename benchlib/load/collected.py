"""Converts a directory of outputs to trials. Pure.

In a path (``pg16/run3.txt``) a number after a word such as *run* is the block, the rest the level.
In pgbench-tools' ``SERVER/SET/TEST`` the test is no block.
"""

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import pandas as pd

from benchlib.errors import InputError, ParseError, UnknownOutputError
from benchlib.load.parse import parse_runs
from benchlib.stats.descriptive import unseen_drift

COLUMNS = (
    *("block", "level", "tps", "latency_average_ms", "clients", "scale"),
    *("failed_transactions", "skipped_transactions", "complete", "error", "file", "order"),
)
_CONDITIONS = {key: key for key in ("clients", "scale", "script", "rate")} | {
    "query_mode": "protocol", "server_version": "server",
}  # fmt: skip
"""Conditions that split a level: keys of a run, and their names in a level."""
_UNDONE = ["failed_transactions", "skipped_transactions"]
_BLOCKS = (
    r"(?i)(?:^|[^a-z0-9])(?:run|trial|round|rep|repeat|iteration|iter|block|try|take|pass)[ _.=-]*(\d+)(?![\d.])",
    r"(?i)(?:^|[^a-z0-9])(?:test|r|n|#)[ _.=-]*(\d+)(?![\d.])|[ _.-](\d{1,4})$",
)
"""Patterns of a run's number in a path; the second applies where the first finds nothing."""
_TYPE = re.compile(r"\.(?:txt|log|out|md|stdout|res)$")
_TEST = re.compile(r"/\d+/results$")
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
    "counted": "runs left out: {counted}, since their version counts skipped transactions as processed, in tps too",
    "undone": "transactions failed or were skipped, most in '{worst}' ({undone:,}): tps does not count their work",
    "no_control": "no A/A control: the noise between identical levels is unknown (analyze --control LEVEL)",
    "few": "a level with fewer than 3 runs cannot be judged",
}
"""Limits of such data."""


@dataclass(frozen=True)
class Source:
    """A file: relative path, text, modification time."""

    name: str
    text: str
    at_s: float


@dataclass(frozen=True)
class Collected:
    """Runs as rows of :data:`COLUMNS`, files without runs, limits."""

    rows: list[dict[str, Any]]
    passed_over: list[str]
    notes: list[str]


def collect(sources: Iterable[Source], level: str | None = None, block: str | None = None) -> Collected:
    """Return the runs as trials; ``level`` and ``block`` are patterns for paths.

    Raises:
        InputError: an unreadable run, or unclear levels.
    """
    runs, passed_over, errors = list[dict[str, Any]](), list[str](), list[str]()
    for source in sorted(sources, key=lambda source: (source.at_s, _natural(source.name))):
        try:
            results = parse_runs(source.text)
        except UnknownOutputError:
            results = []
        except ParseError as reason:
            errors.append(f"{source.name}: {reason}")
            continue
        if not results or results[0]["kind"] not in ("pgbench_summary", "sysbench"):
            passed_over.append(source.name)
            continue
        name, number = _level_and_block(source.name, level, block)
        number = number if len(results) == 1 else None
        runs += [
            {**_trial(run), "file": source.name, "at_s": source.at_s, "level": name, "block": number}
            for run in results
        ]
    if errors:
        raise InputError(f"{len(errors)} unreadable runs, such as {errors[0]}: repair or remove these files")
    if not runs:
        raise InputError("no file holds the output of a pgbench or sysbench run")
    frame = pd.DataFrame(runs, dtype=object)
    frame["order"] = range(1, len(frame) + 1)
    frame["level"] = _by_conditions(frame)
    by_time = bool(frame["block"].isna().any())
    if by_time:
        frame["block"] = frame.groupby("level").cumcount() + 1
    first = frame.iloc[0]
    if frame["level"].nunique() < 2:
        raise InputError(
            f"all {len(frame)} runs have one level ('{first['level']}'): give the part of the path that names the level in "
            f"'{first['file']}', such as --level '([^/]+)/' or --level 'pg(\\d+)'"
        )
    for row in frame[frame.duplicated(["level", "block"])].to_dict("records"):
        raise InputError(
            f"level '{row['level']}' has block {row['block']} twice: give the part of the path that numbers the runs in "
            f"'{first['file']}', such as --block 'run(\\d+)'"
        )
    rows: list[dict[str, Any]] = frame[[*COLUMNS]].to_dict("records")  # type: ignore[assignment]
    return Collected(rows, passed_over, _notes(frame, by_time=by_time))


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _trial(run: Mapping[str, Any]) -> dict[str, Any]:
    complete = bool(run["complete"])
    return {
        **{
            key: run.get(key)
            for key in ("tps", "latency_average_ms", "scale", "query_mode", "server_version", *_UNDONE)
        },
        "clients": run.get("clients") or run["threads"],  # as sysbench calls them
        "script": PurePath(run.get("transaction_type") or "").name or None,
        "rate": "limited" if run.get("rate_lag_average_ms") is not None else None,
        "seconds": float(run.get("duration_s") or run["transactions"] / (run["tps"] or float("inf"))),
        "complete": complete,
        # a note says that its tps is not comparable
        "error": "; ".join(run.get("notes", ())) or None if complete else "the run is not complete",
    }


def _level_and_block(file: str, level: str | None, block: str | None) -> tuple[str, int | str | None]:
    stem = _TYPE.sub("", file)
    of_names = next(filter(None, ([*re.finditer(pattern, stem)] for pattern in _BLOCKS)), [])
    counted = [_found(block, stem, "--block")] if block else of_names
    number, *others = {match[match.lastindex or 0] for match in counted} or [None]
    if others:
        raise InputError(
            f"'{file}' has several numbers that may be the block: name one, such as --block 'run(\\d+)'"
        )
    if level:
        named = _found(level, stem, "--level")
        name = named[named.lastindex or 0]
    else:
        rest = stem if counted else _TEST.sub("", stem)
        for match in reversed(counted):
            rest = rest[: match.start()] + rest[match.end() :]
        name = re.sub(r"[ _./-]+", " ", rest).strip()
    return name or "all", int(number) if number and number.isdecimal() else number


def _found(pattern: str, path: str, option: str) -> re.Match[str]:
    try:
        match = re.search(pattern, path)
    except re.error as reason:
        raise InputError(f"{option}: {reason}") from None
    if match is None:
        raise InputError(f"{option} '{pattern}' matches nothing in '{path}'")
    return match


def _by_conditions(frame: pd.DataFrame) -> "pd.Series[str]":
    """Return the levels, split by conditions."""
    names = frame["level"].where(frame["level"] != "all", "")
    for key, title in _CONDITIONS.items():
        differ = frame.groupby("level")[key].transform("nunique", dropna=False) > 1
        names = names.where(~differ, names + f" {title}=" + frame[key].map(str))
    return names.str.strip().replace("", "all")


def _notes(frame: pd.DataFrame, *, by_time: bool) -> list[str]:
    times = frame.drop_duplicates("file")
    # the last run of a file ends when the file was written
    in_order = all(times["at_s"].diff().iloc[1:] >= _COPIED * times["seconds"].iloc[1:])
    levels = frame.groupby("level")["order"].agg(["min", "max", "size"])
    in_a_row = in_order and any(
        one["max"] < other["min"] and one["size"] + other["size"] > 2
        for one, other in itertools.permutations(levels.to_dict("records"), 2)
    )
    orders = frame.groupby("block")["level"].agg(tuple)
    valid = frame[frame["error"].isna() & frame["tps"].astype(bool)]
    undone = valid[_UNDONE].astype(float).sum(axis=1)
    worst = valid["file"].iloc[int(undone.argmax())] if len(undone) else ""
    counted = int((frame["complete"].astype(bool) & frame["error"].notna()).sum())
    values: dict[str, Any] = {
        "worst": worst,
        "undone": int(undone.max() if len(undone) else 0),
        "counted": counted,
    }
    drift = unseen_drift([*valid["level"]], [*valid["tps"]], in_order=in_order)
    known = drift[0] == drift[0]
    applies = {
        "order": not in_order,
        "sequential": in_a_row,
        "same_order": in_order and not in_a_row and len(orders) > 1 and orders.nunique() == 1,
        "drift": in_order and known,
        "worst_drift": not in_order and known,
        "no_drift": (in_a_row or not in_order) and not known,
        "by_time": by_time,
        "rate": frame["rate"].notna().any(),
        "counted": values["counted"],
        "undone": values["undone"],
        "no_control": True,
        "few": levels["size"].min() < 3,
    }
    return [NOTES[code].format(*drift, **values) for code, holds in applies.items() if holds]
