"""From raw files to frames: what the trials of a study show, derived anew each time.

Nothing derived is stored, so a mended parser needs no rerun.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from benchlib.errors import InputError, ParseError
from benchlib.load.latency import Latency, read_latency
from benchlib.load.tools import LOADING, read
from benchlib.plan.model import Measurement, Plan, Workload
from benchlib.stats import Concern, validity
from benchlib.study.records import Counters, Flushes
from benchlib.study.store import StudyFolder

QUANTILES = ("latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "latency_p999_ms")
"""Metrics that come from the log of all transactions; missing where none was kept."""

REPORTED = (
    "tps",
    "speed",
    "latency_average_ms",
    "latency_stddev_ms",
    "transactions",
    "failed_transactions",
    "retried_transactions",
    "init_s",
)
"""Figures of the load tool's own summary; ``speed`` counts transactions, of loading the rows of accounts, a second."""

SCHEDULED = {
    "schedule_lag_average_ms": "rate_lag_average_ms",
    "schedule_lag_max_ms": "rate_lag_max_ms",
    "skipped_transactions": "skipped_transactions",
}
"""What a load tool tells of a fixed rate, and its own name for it; missing where there was none."""

TRIAL_COLUMNS = (
    "block",
    "position",
    "level",
    "seed",
    "started_s",
    *REPORTED,
    *LOADING,
    *QUANTILES,
    "rate_tps",
    *SCHEDULED,
    "clients",
    "client_cpu_share",
    "flushes_per_s",
    "wal_bytes_per_transaction",
    "checkpoints",
    "server_version",
    "error",
)

_FIGURE = re.compile(r"\d+(?:[.,]\d+)*")


def trials_frame(folder: StudyFolder) -> pd.DataFrame:
    """One row per kept trial, in the order of the design; ``error`` is null where it succeeded.

    Units are in the columns' names; ``tps`` excludes the time to connect, ``started_s`` is
    seconds since the epoch. What a trial does not tell is missing, never 0.
    """
    plan = folder.read().plan
    rows = [_row(folder, plan, trial_id, m) for trial_id, m in folder.kept().items()]
    return pd.DataFrame(rows, columns=list(TRIAL_COLUMNS))


def progress_frame(folder: StudyFolder) -> pd.DataFrame:
    """tps over time inside the trials: columns ``level, block, elapsed_s, tps``, a row a second."""
    rows = [
        (m.trial.level, m.trial.block, row["elapsed_s"], row["tps"])
        for m, report in _reports(folder)
        for row in report["progress"]
    ]
    frame = pd.DataFrame(rows, columns=["level", "block", "elapsed_s", "tps"])
    return frame.astype({"block": int, "elapsed_s": float, "tps": float})


def statements_frame(folder: StudyFolder) -> pd.DataFrame:
    """What each statement of the scripts took, where the load tool told (``report_per_command``): a row per trial.

    Columns ``level, block, script, statement, latency_ms``; scripts are counted from 1.
    """
    rows = [
        (m.trial.level, m.trial.block, row["script"], row["statement"], row["latency_ms"])
        for m, report in _reports(folder)
        for row in report["statements"]
    ]
    return pd.DataFrame(rows, columns=["level", "block", "script", "statement", "latency_ms"])


def latencies(folder: StudyFolder, trials: pd.DataFrame) -> dict[tuple[str, int], Latency]:
    """The latencies of the good ones of ``trials``, by level and block, where the study keeps logs of all transactions."""
    good = set(trials.loc[trials["error"].isna(), ["level", "block"]].itertuples(index=False, name=None))
    found = {}
    for trial_id, measurement in folder.kept().items():
        trial = (measurement.trial.level, measurement.trial.block)
        path = folder.transaction_log(trial_id)
        if path and trial in good:
            found[trial] = _latency(path, path.stat().st_mtime_ns)
    return found


def warnings_frame(folder: StudyFolder) -> pd.DataFrame:
    """What the bench had to say of the trials: columns ``level, block, warning``, a row a warning."""
    rows = [(m.trial.level, m.trial.block, warning) for m in folder.kept().values() for warning in m.warnings]
    return pd.DataFrame(rows, columns=["level", "block", "warning"])


def tunables(folder: StudyFolder) -> dict[str, dict[str, str]]:
    """What the kernel said of each tunable during the trials: the levels by their value, in words.

    ``{"vm.swappiness": {"60": "defaults, control", "0": "tuned"}}``
    """
    seen: dict[str, dict[str, list[str]]] = {}
    order = list(folder.read().plan.factor.levels)
    for m in sorted(folder.kept().values(), key=lambda m: order.index(m.trial.level)):
        for name, value in m.host.items():
            levels = seen.setdefault(name, {}).setdefault(value, [])
            if m.trial.level not in levels:
                levels.append(m.trial.level)
    return {name: {value: ", ".join(levels) for value, levels in by.items()} for name, by in seen.items()}


def concerns(trials: pd.DataFrame, progress: pd.DataFrame, warnings: pd.DataFrame) -> list[Concern]:
    """What the trials themselves give reason to doubt, level by level.

    Failed, retried or skipped transactions, a rate that was not held, commits that no flush could have made safe, a load tool that was the
    bottleneck, trials without a steady state, and what the bench itself warned of. The frames are those of this module.
    """
    good = trials[trials["error"].isna()]
    found: list[Concern | None] = []
    for level, rows in good.groupby("level", sort=False):
        if rows["transactions"].isna().all():  # loading has none
            continue
        counts = [
            int(rows[name].fillna(0).sum())
            for name in ("transactions", "failed_transactions", "retried_transactions")
        ]
        found.append(validity.failures(str(level), *counts))
        if rows["flushes_per_s"].notna().any():
            rates = rows["tps"].mean(), rows["flushes_per_s"].median()
            found.append(validity.implausible(str(level), *rates, int(rows["clients"].max())))
        skipped = int(rows["skipped_transactions"].fillna(0).sum())
        found.append(validity.skipped(str(level), counts[0], skipped))
        if rows["rate_tps"].notna().all():
            each = [rows[name].to_list() for name in ("transactions", "tps", "schedule_lag_average_ms")]
            found.append(validity.behind_schedule(str(level), rows["rate_tps"].iloc[0], *each))
    for level, rows in progress.groupby("level", sort=False):
        series = [readings["tps"].to_list() for _, readings in rows.groupby("block")]
        # the warm-up was a run of its own, so nothing of the series is to be cut
        found.append(validity.unsteady(str(level), series))
    for level, rows in good.groupby("level", sort=False):
        found.append(validity.client_bound(str(level), rows["client_cpu_share"].to_list()))
    return [concern for concern in found if concern] + _warned(trials, warnings)


def _warned(trials: pd.DataFrame, warnings: pd.DataFrame) -> list[Concern]:
    """A concern for each warning of a level, with the number of trials; those that differ in figures are one.

    What all trials of several levels have in common is said once, of the study.
    """
    found = []
    always: dict[str, list[str]] = {}
    alike = warnings["warning"].str.replace(_FIGURE, "#", regex=True)
    for (level, _), rows in warnings.groupby([warnings["level"], alike], sort=False):
        texts = rows["warning"].unique()
        counted, of = rows["block"].nunique(), (trials["level"] == level).sum()
        message = f"{counted} of {of} trials of {level!r}: {texts[0]}"
        if len(texts) > 1:
            message += " (the figures of the first; they differ)"
        elif counted == of:
            always.setdefault(texts[0], []).append(str(level))
        found.append(Concern("trial_warning", message, level=str(level)))
    for text, levels in always.items():
        if len(levels) > 1:
            found = [c for c in found if not (c.level in levels and c.message.endswith(f": {text}"))]
            found.append(Concern("trial_warning", f"all trials of {', '.join(map(repr, levels))}: {text}"))
    return found


def _reports(folder: StudyFolder) -> Iterator[tuple[Measurement, dict[str, Any]]]:
    """The good trials with what their load tools reported; of the others the frame of trials has the reason."""
    plan = folder.read().plan
    for trial_id, measurement in folder.kept().items():
        with contextlib.suppress(ParseError):
            report = _report(folder, plan, trial_id, measurement) if measurement.error is None else None
            if report and report["complete"]:
                yield measurement, report


def _report(
    folder: StudyFolder, plan: Plan, trial_id: str, measurement: Measurement
) -> dict[str, Any] | None:
    stdout = folder.raw(trial_id, "stdout")
    if stdout is None:
        return None
    text = b"\n".join([stdout, folder.raw(trial_id, "stderr") or b""]).decode(errors="replace")
    return read(plan.level_workload(measurement.trial.level).tool, text, measurement.load_argv)


def _quantiles(folder: StudyFolder, trial_id: str) -> dict[str, float | None]:
    """The latency quantiles of a trial, from its transaction log; none where no log was kept."""
    path = folder.transaction_log(trial_id)
    if path is None:
        return {}
    latency = _latency(path, path.stat().st_mtime_ns).quantiles_ms
    return {name: latency[name.split("_")[1]] for name in QUANTILES}


@lru_cache(maxsize=512)
def _latency(path: Path, _modified_ns: int) -> Latency:
    """A log of millions is read once: for the figures of its trial, again after each block, and for the charts."""
    return read_latency(path)


def _row(folder: StudyFolder, plan: Plan, trial_id: str, measurement: Measurement) -> dict[str, Any]:
    trial = measurement.trial
    row: dict[str, Any] = {
        "block": trial.block,
        "position": trial.position,
        "level": trial.level,
        "seed": trial.seed,
        "started_s": measurement.started_s,
        "server_version": measurement.server_version,
        "error": measurement.error,
    }
    if measurement.error is not None:
        return row
    try:
        report = _report(folder, plan, trial_id, measurement)
        costs = _costs(folder, trial_id, report["transactions"]) if report else {}
        quantiles = _quantiles(folder, trial_id)
        flushes = _flushes(folder, plan.level_workload(trial.level), trial_id)
    except InputError as reason:
        return {**row, "error": str(reason)}
    if report is None:
        return {**row, "error": "the trial's output is not there"}
    if not report["complete"]:
        return {**row, "error": f"the load did not run to its end: {' '.join(report['errors'][:1])}"}
    row |= {name: report[name] for name in REPORTED}
    row["latency_p95_ms"] = report.get("latency_p95_ms")  # sysbench tells it itself
    row |= {name: report.get(told) for name, told in SCHEDULED.items()}
    row |= {name: report.get(name) for name in LOADING}
    row |= {"clients": report["clients"], "flushes_per_s": flushes}
    row["rate_tps"] = _rate(measurement.load_argv)
    if measurement.load_cpu_s is not None and measurement.load_wall_s and report["threads"]:
        row["client_cpu_share"] = measurement.load_cpu_s / (measurement.load_wall_s * report["threads"])
    return {**row, **quantiles, **costs}


def _flushes(folder: StudyFolder, workload: Workload, trial_id: str) -> float | None:
    """How often a second the WAL's place was flushed for commits in a test; None where not every transaction writes."""
    flushes = Flushes.read(folder, trial_id)
    return flushes.used_per_s() if flushes and workload.writes_always else None


def _rate(argv: tuple[str, ...]) -> float | None:
    """How many transactions a second the load tool was to begin; None where there was no limit."""
    rates = (float(word.removeprefix("--rate=")) for word in argv if word.startswith("--rate="))
    return next(rates, None) or None  # sysbench is told 0 for no limit


def _costs(folder: StudyFolder, trial_id: str, transactions: int | None) -> dict[str, float]:
    """What the server's counters say that a trial cost; a counter that went backwards says nothing."""
    counters = Counters.read(folder, trial_id)
    if counters is None:
        return {}
    counts = counters.during_load()
    costs: dict[str, float] = {}
    if transactions and counts["wal_bytes"] is not None:
        costs["wal_bytes_per_transaction"] = counts["wal_bytes"] / transactions
    timed, requested = counts["checkpoints_timed"], counts["checkpoints_requested"]
    if timed is not None and requested is not None:
        costs["checkpoints"] = timed + requested
    return costs
