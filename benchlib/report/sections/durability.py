"""Durability's own section: what crashes lost, and how often the WAL's device can flush."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import pandas as pd

from benchlib.report.figures.frames import amount, by_value, good, quoted
from benchlib.report.figures.tables import Quiet, Table, html_table, mean_words
from benchlib.report.sections import NothingToShowError, records, section
from benchlib.study.crashed import KILLED, KINDS, POWER_CUT, Crash, kept_crashes, left_out
from benchlib.study.experiment import Experiment
from benchlib.study.records import Flushes

METHODS = ("open_datasync", "fdatasync", "fsync", "fsync_writethrough", "open_sync")
"""The values of ``wal_sync_method``. Source: PostgreSQL documentation."""

_NOT_DONE = {KILLED: "No server was killed.", POWER_CUT: "No power was cut: that takes root."}


@section
def crashes(experiment: Experiment) -> Table:
    """What was found after the crashes, a row per level and a column per kind, beside what the level may lose.

    Raises:
        InputError: a kept crash is damaged.

    """
    kept = kept_crashes(experiment.folder)
    if not kept:
        raise NothingToShowError("No level of this study was crashed.")
    done = [kind for kind in KINDS if any(crash.kind == kind for crash in kept)]
    rows, notes, harmless = [], list[str](), list[int]()
    for name in experiment.plan.factor.levels:
        costs = experiment.study.crash_costs.get(name, ())
        cells: dict[str, str] = {}
        for kind in done:
            if of_level := [crash for crash in kept if (crash.level, crash.kind) == (name, kind)]:
                cells[kind] = _outcome(of_level)
                notes.append(_contradiction(name, costs, of_level))
                harmless += [] if any(map(_harmed, of_level)) else [len(of_level)]
        if cells:
            rows.append({"level": name, **cells, "may cost": "; ".join(costs) or "nothing"})
    if harmless:
        notes.append(_bound(min(harmless)))
    notes += [_NOT_DONE[kind] for kind in KINDS if kind not in done]
    absent = {
        f"{quoted(names)}: {reason}"
        for kind in done
        for reason, names in by_value(left_out(experiment.plan, kind)).items()
    }
    frame = pd.DataFrame(rows, columns=["level", *done, "may cost"], dtype=object)
    return html_table(
        frame, "What crashes cost, found by crashing", note=" ".join(filter(None, notes)),
        details=f"Not crashed: {'; '.join(sorted(absent))}." if absent else "",
    )  # fmt: skip


def _outcome(crashes: Sequence[Crash]) -> str:
    """What the crashes of one level and kind came to; what cannot be read is not counted."""
    readable = [crash for crash in crashes if crash.lost is not None]
    lost, acknowledged = sum(c.lost or 0 for c in readable), sum(c.acknowledged for c in readable)
    ages = [crash.oldest_lost_ms for crash in readable if crash.oldest_lost_ms is not None]
    parts = [f"{lost:,} of {acknowledged:,} lost"] if readable else []
    if lost:
        losing = sum(bool(crash.lost) for crash in readable)
        age = f", up to {amount(max(ages))} ms old" if ages else ""
        parts.append(f"in {losing} of {len(readable)} crashes{age}")
    dead = [crash for crash in crashes if crash.recovery_s is None]
    damaged = [crash for crash in crashes if crash.damage and crash.recovery_s is not None]
    for harm, of in (("did not start", dead), ("damaged", damaged)):
        parts += [f"{len(of)} of {len(crashes)} {harm}: {' '.join(of[0].damage[:1])}"] if of else []
    return "; ".join(parts)


def _contradiction(name: str, costs: Sequence[str], crashes: Sequence[Crash]) -> str:
    """A sentence where a level did worse than it promises, or where it may lose and nothing was lost."""
    kind, harmed, count = crashes[0].kind, sum(map(_harmed, crashes)), len(crashes)
    # a killed server's writes are the kernel's to finish
    may_lose = any(kind == POWER_CUT or not cost.startswith("a power cut") for cost in costs)
    if harmed and not may_lose:
        return f"“{name}” promises to lose nothing, but {harmed} of {count} crashes ({kind}) cost something."
    if may_lose and not harmed:
        return f"“{name}” may lose something ({kind}) and lost nothing in {count} of {count} crashes: luck, not a promise."
    return ""


def _harmed(crash: Crash) -> bool:
    return bool(crash.lost or crash.damage)


def _bound(harmless: int) -> str:
    """What so many crashes that cost nothing leave open. Source: the exact interval (Clopper and Pearson, 1934) at no event."""
    share = 100 * (1 - 0.05 ** (1 / harmless))
    where = f"where {harmless} of {harmless} crashes cost nothing, up to {share:.0f} % may cost something"
    return f"Nothing lost is no proof: {where} (upper 95 % bound)."


@section
def flushes(experiment: Experiment) -> Table:
    """``pg_test_fsync`` by method where each level's WAL lies, and the level's commits a second; muted is what commits do not wait for.

    Raises:
        InputError: a file is damaged.

    """
    kept = [(level, record) for level, _, record in records(experiment, Flushes)]
    if not kept:
        raise NothingToShowError(
            "pg_test_fsync was not run: fsync_test = True among a profile's sizes has it run."
        )
    trials, rows = good(experiment.by_level(), "tps"), []
    for level in dict.fromkeys(level for level, _ in kept):
        tests = [record for name, record in kept if name == level]
        of_level = trials[trials["level"] == level]
        waits = of_level["flushes_per_s"].notna().any()
        row: dict[str, Any] = {"level": level}
        for method in METHODS:
            rates = [rate for test in tests if (rate := test.per_s(method)) is not None]
            cell = amount(median(rates)) if rates else None
            used = waits and any(test.durability.get("wal_sync_method") == method for test in tests)
            row[method] = cell if used or cell is None else Quiet(cell)
        row["commits a second"] = mean_words(of_level["tps"].mean(), of_level["tps"].std())
        rows.append(row)
    frame = pd.DataFrame(rows, dtype=object).dropna(axis=1, how="all")
    labels = dict(zip(METHODS, METHODS, strict=True))
    note = "By pg_test_fsync, a page of 8 kB where the WAL lies; muted: what commits do not wait for."
    return html_table(frame, "Flushes a second by method, and commits", labels=labels, note=note)
