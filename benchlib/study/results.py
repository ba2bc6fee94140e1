"""Frames of a study's trials, always derived from raw files."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from benchlib.errors import InputError
from benchlib.host.telemetry import processors_share, transaction_costs
from benchlib.load.latency import read_latency
from benchlib.load.pgbench import LOADING
from benchlib.load.shared import measured_from, merged, split
from benchlib.load.tools import misfit, read
from benchlib.plan.level import Values, cores_of
from benchlib.plan.metrics import METRICS
from benchlib.plan.model import Measurement, Plan
from benchlib.plan.settings import quantity
from benchlib.plan.words import scrubbed, without_values
from benchlib.server.counters import server_counts
from benchlib.stats import validity
from benchlib.stats.limits import Concern
from benchlib.study.records import Counters, Flushes, ReplicaReadings, Samples, understood
from benchlib.study.store import TRANSACTION_LOG, StudyFolder

QUANTILES = ("latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "latency_p999_ms")
"""Metrics from the log of all transactions."""

REPORTED = (
    "tps", "speed", "new_orders_per_minute", "latency_average_ms", "latency_stddev_ms", "transactions", "failed_transactions",
    "retried_transactions", "init_s",
)  # fmt: skip
"""Figures of the load tool's summary; ``speed``: transactions or loaded rows per second."""

COSTS = tuple(name for name in METRICS if name not in (*REPORTED, *QUANTILES, "time_to_steady_s"))
"""Metrics of cost, not speed."""

TRIAL = ["level", "block"]
TRIAL_COLUMNS = (
    "trial", "block", "period", "host", "position", "level", "seed", "started_s",
    *REPORTED, *LOADING, *QUANTILES, "time_to_steady_s", "rate_tps", "skipped_transactions", "clients",
    "processors_share", "flushes_per_s", "data_bytes", "growth", "autovacuums", "checkpoint_cycles", *COSTS,
    "server_version", "error",
)  # fmt: skip

_SCRIPTS = [*TRIAL, "script", "transactions", "latency_average_ms", "latency_p95_ms"]
_COUNTS = ["transactions", "failed_transactions", "retried_transactions", "skipped_transactions"]
_AS_MEASURED = {"started_s", "server_version"}
_WHOLE = 0.05
"""Tolerance for a whole number of checkpoint cycles."""
_LATE_S = 0.5
"""Tolerance for the last reading (seconds)."""
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


@dataclass(frozen=True)
class Measured:
    """Frames of a study's trials, by ``level, block``.

    - ``trials``: :data:`TRIAL_COLUMNS`; ``error`` is null on success, missing figures are null
    - ``progress``: ``elapsed_s, tps`` per second
    - ``statements``: ``script, statement, latency_ms``
    - ``scripts``: ``script, transactions, latency_average_ms, latency_p95_ms``
    """

    trials: pd.DataFrame
    progress: pd.DataFrame
    statements: pd.DataFrame
    scripts: pd.DataFrame
    warnings: pd.DataFrame


def measured(folder: StudyFolder, plan: Plan, kept: Mapping[str, Measurement]) -> Measured:
    """Return the frames of a study's saved trials."""
    trials, progress, statements, scripts, warnings = [], *(list[Any]() for _ in range(4))
    for measurement in kept.values():
        trial, error = measurement.trial, measurement.error
        key, figures = {"level": trial.level, "block": trial.block}, dict[str, Any]()
        private = plan.level_workload(trial.level).private
        warnings += [{**key, "warning": _shown(warning, private)} for warning in measurement.warnings]
        if error is None:
            try:
                with understood(folder, trial.id):
                    report = _report(folder, plan, measurement)
                    figures = _figures(folder, plan, measurement, report)
                    # later readings cover only the last running transactions
                    end_s = plan.level_load(trial.level).duration_s + _LATE_S
                    progress += [{**key, **line} for line in report["progress"] if line["elapsed_s"] <= end_s]
                    statements += [{**key, **line} for line in report["statements"]]
                    p95 = figures.get("scripts_p95_ms", {})
                    for line in report.get("scripts") or [{**report, "script": 1}]:  # listed if several
                        scripts.append({**line, **key, "latency_p95_ms": p95.get(line["script"] - 1)})
            except InputError as reason:
                error = str(reason)
        about = {
            "trial": trial.id, "period": plan.period(trial.block), "host": measurement.ran_on,
            "error": error and _shown(error, private),
        }  # fmt: skip
        trials.append(measurement.model_dump(include=_AS_MEASURED) | asdict(trial) | about | figures)
    types = {"block": int, "elapsed_s": float, "tps": float}
    return Measured(
        pd.DataFrame(trials, columns=list(TRIAL_COLUMNS)),
        pd.DataFrame(progress, columns=["level", *types]).astype(types),
        pd.DataFrame(statements, columns=[*TRIAL, "script", "statement", "latency_ms"]),
        pd.DataFrame(scripts, columns=_SCRIPTS),
        pd.DataFrame(warnings, columns=[*TRIAL, "warning"]),
    )


def _shown(text: str, private: bool) -> str:
    """Return a message for pages; the raw output has the full text."""
    return scrubbed(without_values(text) if private else text)


def good_ones(trials: pd.DataFrame) -> list[tuple[str, int, str]]:
    """Return level, block and trial id of each successful trial."""
    good = trials.loc[trials["error"].isna(), [*TRIAL, "trial"]]
    return list(good.itertuples(index=False, name=None))


def concerns(frames: Measured, margin: float) -> list[Concern]:
    """Return the trials' limits; no steady state is grave beyond ``margin``."""
    numbers = [*_COUNTS, "clients", "checkpoint_cycles", "processors_share", "client_cpu_share"]
    good = frames.trials[frames.trials["error"].isna()].astype(dict.fromkeys(numbers, float))
    # no cut: the warm-up was a separate run
    readings = frames.progress.groupby(TRIAL)["tps"].agg(list).groupby("level").agg(list)
    # transactions in flight at the start and end of a quarter are not counted there
    good["in_flight"] = good["clients"] / good["transactions"]
    levels = good.groupby("level", sort=False)
    cycles, in_flight = levels["checkpoint_cycles"].median(), levels["in_flight"].median()
    transacting = {str(name): rows for name, rows in levels if rows["transactions"].notna().any()}
    doubts: list[Concern | None] = []
    for level, rows in transacting.items():
        done, failed, retried, skipped = rows[_COUNTS].sum().astype(int)
        doubts.append(validity.failures(level, done, failed, retried))
        if rows["flushes_per_s"].notna().any():
            rates = rows["tps"].mean(), rows["flushes_per_s"].median()
            doubts.append(validity.implausible(level, *rates, int(rows["clients"].max())))
        doubts.append(validity.skipped(level, done, skipped))
        if rows["rate_tps"].notna().all():
            lists = [rows[column].to_list() for column in ("transactions", "tps", "schedule_lag_average_ms")]
            doubts.append(validity.behind_schedule(level, rows["rate_tps"].iloc[0], *lists))
    series = {level: readings.get(level, []) for level in transacting}
    whole = {str(level): round(count) for level, count in cycles.items() if count > 0}
    under_way = {str(level): share for level, share in in_flight.items()}
    doubts += validity.unsteady(series, margin, whole, under_way)
    doubts += validity.ceilings({str(name): of.to_list() for name, of in levels["processors_share"]})
    doubts += [validity.client_bound(str(name), of.to_list()) for name, of in levels["client_cpu_share"]]
    return [doubt for doubt in doubts if doubt] + _warned(frames.trials, frames.warnings)


def _warned(trials: pd.DataFrame, warnings: pd.DataFrame) -> list[Concern]:
    planned, concerns = trials["level"].value_counts(), list[Concern]()
    kinds = warnings["warning"].str.replace(_NUMBER, "#", regex=True)
    for (_, level), rows in warnings.groupby([kinds, warnings["level"]], sort=False):
        count = f"{rows['block'].nunique()} of {planned[str(level)]} trials"
        text = f"{rows['warning'].iloc[0].rstrip('.')} ({count})"
        concerns.append(Concern("trial_warning", text, level=str(level)))
    return concerns


def _figures(folder: StudyFolder, plan: Plan, measurement: Measurement, report: Values) -> dict[str, Any]:
    trial_id, level, done = measurement.trial.id, measurement.trial.level, report["transactions"]
    workload, rate = plan.level_workload(level), plan.level_load(level).rate
    # with background load, costs are not the transactions' alone; a load of data has no transactions
    alone = None if workload.beside else done
    reported = (*REPORTED, *LOADING, "skipped_transactions", "clients", "latency_p95_ms")
    figures = {name: report.get(name) for name in reported} | {
        "rate_tps": rate if isinstance(rate, float) else None,
        "schedule_lag_average_ms": report.get("rate_lag_average_ms"),
        "schedule_lag_max_ms": report.get("rate_lag_max_ms"),
        "time_to_steady_s": time_to_steady([(row["elapsed_s"], row["tps"]) for row in report["progress"]]),
    }
    if counted := workload.counted:  # pgbench reports scripts only if there are several
        row = (report["scripts"] or [report])[counted.script - 1]
        figures[counted.metric] = None if row["tps"] is None else 60 * row["tps"]
    if (cpu_s := measurement.load_cpu_s) is not None:
        figures["client_cpu_share"] = _client_cpu_share(plan, measurement, report["threads"])
        figures["tool_cpu_ms_per_transaction"] = 1000 * cpu_s / done if done else None
    samples = Samples.read(folder, trial_id)
    if samples and len(samples.readings) > 1 and samples.of_servers_host(plan.level(level)):
        raw = dict(samples)
        figures |= {"processors_share": processors_share(raw), **transaction_costs(raw, alone)}
    if log := folder.transaction_log(trial_id):
        latency = read_latency(log)
        if latency.transactions != done:
            why = f"it is not of this trial: {latency.transactions} transactions, the summary has {done}"
            raise folder.damaged(trial_id, TRANSACTION_LOG, why)
        figures |= {name: latency.quantiles_ms[name.split("_")[1]] for name in QUANTILES}
        figures["scripts_p95_ms"] = latency.scripts_p95_ms
    # flushes limit the rate only if every transaction writes
    flushes = Flushes.read(folder, trial_id)
    if flushes and workload.writes_always:
        figures["flushes_per_s"] = flushes.used_per_s()
    if counters := Counters.read(folder, trial_id):
        counts = server_counts(counters.before, counters.after)
        if alone:
            figures |= {f"{name}_per_transaction": n / alone for name, n in counts.items() if n is not None}
        timed, requested = counts["checkpoints_timed"], counts["checkpoints_requested"]
        if timed is not None and requested is not None:
            figures["checkpoints"] = timed + requested
            figures["checkpoint_cycles"] = _cycles(measurement, plan, timed + requested)
        tables, later = (moment.get("tables") or {} for moment in (counters.before, counters.after))
        sizes = {"data_bytes": counters.before.get("database_bytes"), "growth": tables.get("growth")}
        figures |= {name: float(size) for name, size in sizes.items() if size is not None}
        if tables and later:
            figures["autovacuums"] = later["autovacuums"] - tables["autovacuums"]
    if replicas := ReplicaReadings.read(folder, trial_id):
        # the first reading precedes the load
        lag = pd.DataFrame(replicas.lag, columns=["at_s", "replay_lag_s"], dtype=float)
        figures["replay_lag_ms"] = 1000 * lag.loc[lag["at_s"] > lag["at_s"].min(), "replay_lag_s"].mean()
    return figures


def _client_cpu_share(plan: Plan, measurement: Measurement, threads: int) -> float | None:
    """Return the busy share of tool threads, or cores, on the busiest host."""
    cores = plan.level(measurement.trial.level).part("cpu").get("load")
    most = min(threads, len(cores_of(cores))) if cores else threads
    uses = [(measurement.load_cpu_s, measurement.load_wall_s, most)]
    if measurement.generators:
        parts = split(plan.level_load(measurement.trial.level), measurement.trial.seed)
        used = (one for one in measurement.generators if one.host in parts)
        uses = [(one.load_cpu_s, one.load_wall_s, parts[one.host][0].threads) for one in used]
    shares = (
        cpu_s / (wall_s * count) for cpu_s, wall_s, count in uses if cpu_s is not None and wall_s and count
    )
    return max(shares, default=None)


def _cycles(measurement: Measurement, plan: Plan, checkpoints: float) -> int | None:
    """Return the ``checkpoint_timeout`` periods; None if not whole or confirmed."""
    timeout_s, unit = quantity(measurement.settings.get("checkpoint_timeout", "")) or (0.0, "")
    count = plan.level_load(measurement.trial.level).duration_s / timeout_s if unit == "s" else 0.0
    whole = round(count)
    seen = whole > 0 and abs(count - whole) <= _WHOLE and abs(checkpoints - whole) <= 1
    return whole if seen else None


def time_to_steady(readings: Sequence[tuple[float, float]]) -> float | None:
    """Return the seconds until the rate reaches 95 % of the second half's mean.

    ``readings``: seconds and tps; one of the next two must confirm it.
    """
    if len(readings) < 8:
        return None
    ends_s, tps = np.array(readings, dtype=float).T
    confirmed = np.minimum(tps[:-2], np.maximum(tps[1:-1], tps[2:]))
    reached = np.flatnonzero(confirmed >= 0.95 * tps[len(tps) // 2 :].mean())
    return float(ends_s[reached[0]]) if len(reached) else None


def _report(folder: StudyFolder, plan: Plan, measurement: Measurement) -> dict[str, Any]:
    trial = measurement.trial
    tool = plan.level_workload(trial.level).tool
    parts = {f".{one.host}": one.load_argv for one in measurement.generators} or {"": measurement.load_argv}
    reports = []
    for part, argv in parts.items():
        stdout = folder.raw(trial.id, f"stdout{part}")
        if stdout is None:
            raise InputError("the trial's output is missing")
        text = b"\n".join([stdout, folder.raw(trial.id, f"stderr{part}") or b""]).decode(errors="replace")
        reports.append(read(tool, text, argv))
    began_s = [one.began_s for one in measurement.generators]
    report = merged(reports, measured_from(began_s, reports)) if began_s else reports[0]
    if not report["complete"]:
        raise InputError(f"the load did not run to its end: {' '.join(report['errors'][:1])}")
    if why := misfit(plan, trial, measurement.load_argv, report):
        raise InputError(f"{folder.name}: trials/{trial.id}: its output is not of this trial: {why}")
    return report
