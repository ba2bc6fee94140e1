"""Durability's own section: what crashes lost, and how often the WAL's device can flush."""

from itertools import product
from statistics import median
from typing import Any

import pandas as pd

from benchlib.report.figures.frames import amount, by_value, good, quoted
from benchlib.report.figures.style import worded
from benchlib.report.figures.tables import Quiet, Table, html_table, mean_words
from benchlib.report.sections import NothingToShowError, records, section
from benchlib.study.crashed import KINDS, POWER_CUT, kept_crashes, left_out
from benchlib.study.experiment import Experiment
from benchlib.study.records import Flushes

METHODS = ("open_datasync", "fdatasync", "fsync", "fsync_writethrough", "open_sync")
"""The values of ``wal_sync_method``. Source: PostgreSQL documentation."""


@section
def crashes(experiment: Experiment) -> Table:
    """What was found after the crashes, a row per level and a column per kind, beside what the level may lose.

    Raises:
        InputError: a kept crash is damaged.

    """
    kept, costs = kept_crashes(experiment.folder), experiment.study.crash_costs
    rows = []
    for level, kind in product(experiment.plan.factor.levels, KINDS):
        if of := [crash for crash in kept if (crash.level, crash.kind) == (level, kind)]:
            row = {
                "level": level,
                "kind": kind,
                "crashes": len(of),
                "harmed": sum(bool(crash.lost or crash.damage) for crash in of),
                # a killed server's writes are the kernel's to finish
                "may_lose": any(kind == POWER_CUT or not cost.startswith("a power cut") for cost in costs.get(level, ())),
                "outcome": "; ".join(worded("crashed", {"crashes": of}).splitlines()),
            }  # fmt: skip
            rows.append(row)
    if not rows:
        raise NothingToShowError("No level of this study was crashed.")
    found = pd.DataFrame(rows)
    levels, done = list(dict.fromkeys(found["level"])), [kind for kind in KINDS if kind in set(found["kind"])]
    table = found.pivot(index="level", columns="kind", values="outcome")
    frame = table.reindex(index=levels, columns=done).reset_index()
    frame["may cost"] = ["; ".join(costs.get(level, ())) or "nothing" for level in levels]
    spared = dict[str, list[str]]()
    for kind in done:
        for why, names in by_value(left_out(experiment.plan, kind)).items():
            spared.setdefault(f"{quoted(names)}: {why}", []).append(kind)
    absent = [f"{' and '.join(kinds)} of {what}" for what, kinds in spared.items()]
    excused = left_out(experiment.plan, POWER_CUT)
    why = "; ".join(dict.fromkeys(excused.values())) if len(excused) == len(costs) else ""
    note = " ".join(worded("crash_notes", {"rows": rows, "done": done, "why": why}).split())
    details = f"Left out: {'; '.join(absent)}." if absent else ""
    return html_table(frame, "What crashes cost, found by crashing", note=note, details=details)


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
    formats = dict.fromkeys(frame.columns.difference(["level"]), str)
    note = (
        "By pg_test_fsync, a page of 8 kB, once for each place of a WAL; muted: what commits do not wait for."
    )
    caption = "Flushes a second by method, and commits"
    return html_table(frame, caption, formats=formats, labels=labels, note=note)
