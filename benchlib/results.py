"""From raw files to frames: what the trials of a study show, derived anew each time.

Nothing derived is stored, so a mended parser needs no rerun.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from benchlib.errors import InputError, ParseError
from benchlib.latency import read_latency
from benchlib.model import Measurement
from benchlib.parse import parse_text
from benchlib.stats import Concern, validity
from benchlib.store import TRANSACTION_LOG, StudyFolder

QUANTILES = ("latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "latency_p999_ms")
"""Metrics that come from the log of all transactions; missing where none was kept."""

REPORTED = (
    "tps",
    "latency_average_ms",
    "latency_stddev_ms",
    "transactions",
    "failed_transactions",
    "retried_transactions",
)
"""Figures of pgbench's own summary."""

TRIAL_COLUMNS = (
    "block",
    "position",
    "level",
    "seed",
    "started_s",
    *REPORTED,
    *QUANTILES,
    "client_cpu_share",
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
    rows = [_row(folder, trial_id, m) for trial_id, m in folder.kept().items()]
    return pd.DataFrame(rows, columns=list(TRIAL_COLUMNS))


def progress_frame(folder: StudyFolder) -> pd.DataFrame:
    """tps over time inside the trials: columns ``level, block, elapsed_s, tps``, a row a second."""
    rows = []
    for trial_id, measurement in folder.kept().items():
        try:
            report = _report(folder, trial_id, measurement) if measurement.error is None else None
        except ParseError:  # the frame of trials has the reason
            continue
        if report and report["complete"]:
            rows += [
                {
                    "level": measurement.trial.level,
                    "block": measurement.trial.block,
                    "elapsed_s": row["elapsed_s"],
                    "tps": row["tps"],
                }
                for row in report["progress"]
            ]
    return pd.DataFrame(rows, columns=["level", "block", "elapsed_s", "tps"])


def warnings_frame(folder: StudyFolder) -> pd.DataFrame:
    """What the bench had to say of the trials: columns ``level, block, warning``, a row a warning."""
    rows = [(m.trial.level, m.trial.block, warning) for m in folder.kept().values() for warning in m.warnings]
    return pd.DataFrame(rows, columns=["level", "block", "warning"])


def tunables(folder: StudyFolder) -> dict[str, dict[str, str]]:
    """What the kernel said of each tunable during the trials: the levels by their value, in words.

    ``{"vm.swappiness": {"60": "defaults, control", "0": "tuned"}}``
    """
    seen: dict[str, dict[str, list[str]]] = {}
    for m in folder.kept().values():
        for name, value in m.host.items():
            levels = seen.setdefault(name, {}).setdefault(value, [])
            if m.trial.level not in levels:
                levels.append(m.trial.level)
    return {name: {value: ", ".join(levels) for value, levels in by.items()} for name, by in seen.items()}


def concerns(trials: pd.DataFrame, progress: pd.DataFrame, warnings: pd.DataFrame) -> list[Concern]:
    """What the trials themselves give reason to doubt, level by level.

    Failed or retried transactions, a load tool that was the bottleneck, trials without a steady
    state, and what the bench itself warned of. The frames are those of this module.
    """
    good = trials[trials["error"].isna()]
    found: list[Concern | None] = []
    for level, rows in good.groupby("level", sort=False):
        counts = [
            int(rows[name].fillna(0).sum())
            for name in ("transactions", "failed_transactions", "retried_transactions")
        ]
        found.append(validity.failures(str(level), *counts))
    for level, rows in progress.groupby("level", sort=False):
        series = [readings["tps"].to_list() for _, readings in rows.groupby("block")]
        # the warm-up was a run of its own, so nothing of the series is to be cut
        found.append(validity.unsteady(str(level), [validity.steadiness(s, warmup_s=0) for s in series]))
    shares = {
        str(level): rows["client_cpu_share"].to_list() for level, rows in good.groupby("level", sort=False)
    }
    found += validity.client_bound(shares)
    return [concern for concern in found if concern] + _warned(trials, warnings)


def _warned(trials: pd.DataFrame, warnings: pd.DataFrame) -> list[Concern]:
    """A concern for each warning of a level, with the number of trials; those that differ in figures are one."""
    found = []
    alike = warnings["warning"].str.replace(_FIGURE, "#", regex=True)
    for (level, _), rows in warnings.groupby([warnings["level"], alike], sort=False):
        texts = rows["warning"].unique()
        message = (
            f"{rows['block'].nunique()} of {(trials['level'] == level).sum()} trials of {level!r}: {texts[0]}"
        )
        if len(texts) > 1:
            message += " (the figures of the first; they differ)"
        found.append(Concern("trial_warning", message, level=str(level)))
    return found


def _report(folder: StudyFolder, trial_id: str, measurement: Measurement) -> dict[str, Any] | None:
    stdout = folder.raw(trial_id, "stdout")
    if stdout is None:
        return None
    text = f"{stdout}\n{folder.raw(trial_id, 'stderr') or ''}"
    return parse_text(text, kind="pgbench_summary", argv=list(measurement.load_argv) or None)


def _quantiles(folder: StudyFolder, trial_id: str) -> dict[str, float | None]:
    """The latency quantiles of a trial, from its transaction log; none where no log was kept."""
    path = folder.raw_path(trial_id, TRANSACTION_LOG)
    if path is None:
        return {}
    latency = read_latency(path).quantiles_ms
    return {name: latency[name.split("_")[1]] for name in QUANTILES}


def _row(folder: StudyFolder, trial_id: str, measurement: Measurement) -> dict[str, Any]:
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
        report = _report(folder, trial_id, measurement)
        costs = _costs(folder, trial_id, report["transactions"]) if report else {}
        quantiles = _quantiles(folder, trial_id)
    except InputError as reason:
        return {**row, "error": str(reason)}
    if report is None:
        return {**row, "error": "the trial's output is not there"}
    if not report["complete"]:
        return {**row, "error": f"pgbench did not run to its end: {' '.join(report['errors'][:1])}"}
    row |= {name: report[name] for name in REPORTED}
    if measurement.load_cpu_s is not None and measurement.load_wall_s and report["threads"]:
        row["client_cpu_share"] = measurement.load_cpu_s / (measurement.load_wall_s * report["threads"])
    return {**row, **quantiles, **costs}


def _costs(folder: StudyFolder, trial_id: str, transactions: int | None) -> dict[str, float]:
    """What the server's counters say that a trial cost; a counter that went backwards says nothing."""
    counters: Any = folder.raw_json(trial_id, "statistics.json")
    if counters is None:
        return {}
    costs: dict[str, float] = {}
    try:
        before, after = counters["before"], counters["after"]
        told = before["lsn"] is not None and after["lsn"] is not None  # some managed servers do not
        written = lsn_bytes(after["lsn"]) - lsn_bytes(before["lsn"]) if told else None
        seen = checkpoints(before), checkpoints(after)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError(f"{trial_id}/statistics.json is damaged") from None
    if transactions and written is not None and written >= 0:
        costs["wal_bytes_per_transaction"] = written / transactions
    if seen[0] is not None and seen[1] is not None and seen[1] >= seen[0]:
        costs["checkpoints"] = seen[1] - seen[0]
    return costs


def lsn_bytes(lsn: str) -> int:
    """A WAL position such as ``0/16B3740`` as a number of bytes.

    Source: PostgreSQL documentation, ``pg_lsn`` type.
    """
    high, _, low = lsn.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def checkpoints(snapshot: Mapping[str, Any]) -> int | None:
    """How many checkpoints a snapshot has counted, timed and requested; None if it does not say."""
    newer, older = snapshot.get("checkpointer"), snapshot.get("bgwriter")
    if newer:
        return int(newer["num_timed"]) + int(newer["num_requested"])
    if older and "checkpoints_timed" in older:
        return int(older["checkpoints_timed"]) + int(older["checkpoints_req"])
    return None
