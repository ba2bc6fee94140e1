"""From raw files to frames: what the trials of a study show, derived anew each time.

Nothing derived is stored, so a mended parser needs no rerun.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import pandas as pd

from benchlib.errors import InputError
from benchlib.host.telemetry import processors_share, transaction_costs
from benchlib.load.latency import read_latency
from benchlib.load.pgbench import LOADING
from benchlib.load.shared import measured_from, merged, split
from benchlib.load.tools import misfit, read
from benchlib.plan.level import Values
from benchlib.plan.metrics import METRICS
from benchlib.plan.model import Measurement, Plan
from benchlib.plan.settings import quantity
from benchlib.plan.words import scrubbed
from benchlib.server.counters import server_counts
from benchlib.stats import Concern, validity
from benchlib.study.records import Counters, Flushes, ReplicaReadings, Samples, understood
from benchlib.study.store import TRANSACTION_LOG, StudyFolder

QUANTILES = ("latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "latency_p999_ms")
"""Metrics that come from the log of all transactions; missing where none was kept. (sysbench tells one itself.)"""

REPORTED = (
    "tps", "speed", "latency_average_ms", "latency_stddev_ms", "transactions", "failed_transactions",
    "retried_transactions", "init_s",
)  # fmt: skip
"""Figures of the load tool's own summary; ``speed`` counts transactions, of loading the rows of accounts, a second."""

COSTS = tuple(name for name in METRICS if name not in (*REPORTED, *QUANTILES, "time_to_steady_s"))
"""What a trial cost: the metrics that are not of its speed."""

TRIAL = ["level", "block"]
TRIAL_COLUMNS = (
    "trial", "block", "period", "host", "position", "level", "seed", "started_s",
    *REPORTED, *LOADING, *QUANTILES, "time_to_steady_s", "rate_tps", "skipped_transactions", "clients",
    "processors_share", "flushes_per_s", "data_bytes", "growth", "autovacuums", "checkpoint_cycles", *COSTS,
    "server_version", "error",
)  # fmt: skip

_WHOLE = 0.05
"""By so much of a cycle a trial may miss a whole number of them."""
_LATE_S = 0.5
"""So late a reading may come that is of the last second of a trial."""
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


@dataclass(frozen=True)
class Measured:
    """What the kept trials of a study told, as frames; all but ``trials`` begin with the columns ``level`` and ``block``.

    ``trials`` has a row per trial (:data:`TRIAL_COLUMNS`), in the order of the design; ``error`` is null where it succeeded.
    Units are in the columns' names; ``tps`` excludes the time to connect, ``started_s`` is seconds since the epoch. What
    a trial does not tell is missing, never 0. Of those that succeeded ``progress`` has ``elapsed_s`` and ``tps``, a row a
    second, and ``statements`` what each statement of the scripts took (``script``, counted from 1, ``statement``,
    ``latency_ms``) where the load tool told (``report_per_command``). ``warnings`` has each ``warning`` of the bench.
    """

    trials: pd.DataFrame
    progress: pd.DataFrame
    statements: pd.DataFrame
    warnings: pd.DataFrame


def measured(folder: StudyFolder, plan: Plan, kept: Mapping[str, Measurement]) -> Measured:
    """The frames of the ``kept`` trials of a study."""
    trials, progress, statements, warnings = [], list[Any](), list[Any](), list[Any]()
    for measurement in kept.values():
        trial = measurement.trial
        of = {"level": trial.level, "block": trial.block}
        row = {
            **measurement.model_dump(include={"started_s", "server_version", "error"}),
            **asdict(trial),
            **{"trial": trial.id, "period": plan.period(trial.block), "host": measurement.ran_on},
        }
        warnings += [{**of, "warning": warning} for warning in measurement.warnings]
        if measurement.error is None:
            try:
                with understood(folder, trial.id):
                    report = _report(folder, plan, measurement)
                    row |= _figures(folder, plan, measurement, report)
                    # what is told after its time is of the transactions under way then, the last of which end alone
                    end_s = plan.level_load(trial.level).duration_s + _LATE_S
                    progress += [{**of, **each} for each in report["progress"] if each["elapsed_s"] <= end_s]
                    statements += [{**of, **each} for each in report["statements"]]
            except InputError as reason:
                row["error"] = str(reason)
        row["error"] = row["error"] and scrubbed(row["error"])  # the raw output has it in full
        trials.append(row)
    types = {"block": int, "elapsed_s": float, "tps": float}
    return Measured(
        pd.DataFrame(trials, columns=list(TRIAL_COLUMNS)),
        pd.DataFrame(progress, columns=["level", *types]).astype(types),
        pd.DataFrame(statements, columns=[*TRIAL, "script", "statement", "latency_ms"]),
        pd.DataFrame(warnings, columns=[*TRIAL, "warning"]),
    )


def good_ones(trials: pd.DataFrame) -> list[tuple[str, int, str]]:
    """The level, the block and the name of each good one of some trials."""
    good = trials.loc[trials["error"].isna(), [*TRIAL, "trial"]]
    return list(good.itertuples(index=False, name=None))


def tunables(plan: Plan, kept: Mapping[str, Measurement]) -> dict[str, dict[str, str]]:
    """What the kernel said of each tunable during the kept trials: the levels by their value, in words.

    ``{"vm.swappiness": {"60": "defaults, control", "0": "tuned"}}``
    """
    by_name = dict[str, dict[str, str]]()
    for level in plan.factor.levels:
        items = (item for m in kept.values() if m.trial.level == level for item in m.host.items())
        for name, value in dict.fromkeys(items):
            values = by_name.setdefault(name, {})
            values[value] = f"{values[value]}, {level}" if value in values else level
    return by_name


def concerns(frames: Measured, margin: float) -> list[Concern]:
    """What the trials themselves give reason to doubt, level by level.

    Failed, retried or skipped transactions, a rate that was not held, commits that no flush could have made safe, trials without a steady
    state (grave where the mean would change by more than ``margin``), processors that were used up, a load tool that was the
    bottleneck, and what the bench itself warned of.
    """
    good = frames.trials[frames.trials["error"].isna()].astype({"processors_share": float})
    doubts: list[Concern | None] = []
    readings, cycles, under_way = dict[str, list[list[float]]](), dict[str, int](), dict[str, float]()
    by_level = {str(name): rows for name, rows in good.groupby("level", sort=False)}
    for level, rows in by_level.items():
        if rows["transactions"].isna().all():  # loading has none
            continue
        counted = ["transactions", "failed_transactions", "retried_transactions", "skipped_transactions"]
        done, failed, retried, skipped = rows[counted].astype(float).fillna(0).sum().astype(int)
        doubts.append(validity.failures(level, done, failed, retried))
        if rows["flushes_per_s"].notna().any():
            rates = rows["tps"].mean(), rows["flushes_per_s"].median()
            doubts.append(validity.implausible(level, *rates, int(rows["clients"].max())))
        doubts.append(validity.skipped(level, done, skipped))
        if rows["rate_tps"].notna().all():
            each = [rows[column].to_list() for column in ("transactions", "tps", "schedule_lag_average_ms")]
            doubts.append(validity.behind_schedule(level, rows["rate_tps"].iloc[0], *each))
        of_level = frames.progress[frames.progress["level"] == level]
        # the warm-up was a run of its own, so nothing of the series is to be cut
        readings[level] = [trial.to_list() for _, trial in of_level.groupby("block")["tps"]]
        # those under way as a trial begins, or ends, are no transactions of that end
        under_way[level] = float(
            (rows["clients"].astype(float) / rows["transactions"].astype(float)).median()
        )
        if (whole := rows["checkpoint_cycles"].astype(float).median()) > 0:
            cycles[level] = round(whole)
    doubts += validity.unsteady(readings, margin, cycles, under_way)
    doubts += validity.ceilings({name: of["processors_share"].to_list() for name, of in by_level.items()})
    doubts += [validity.client_bound(name, of["client_cpu_share"].to_list()) for name, of in by_level.items()]
    return [doubt for doubt in doubts if doubt] + _warned(frames.trials, frames.warnings)


def _warned(trials: pd.DataFrame, warnings: pd.DataFrame) -> list[Concern]:
    """Return a concern for each warning of a level, with the number of trials; those that differ in numbers are one."""
    doubts, trials_of = list[Concern](), trials["level"].value_counts()
    kinds = warnings["warning"].str.replace(_NUMBER, "#", regex=True)
    for (_, level), rows in warnings.groupby([kinds, warnings["level"]], sort=False):
        value = f"{rows['warning'].iloc[0].rstrip('.')} ({rows['block'].nunique()} of {trials_of[str(level)]} trials)"
        doubts.append(Concern("trial_warning", value, level=str(level)))
    return doubts


def _figures(folder: StudyFolder, plan: Plan, measurement: Measurement, report: Values) -> dict[str, Any]:
    """The figures of a trial whose load tool reported a whole run.

    Raises:
        InputError: a file of the trial is damaged.

    """
    trial_id, level, done = measurement.trial.id, measurement.trial.level, report["transactions"]
    workload, rate = plan.level_workload(level), plan.level_load(level).rate
    # where something ran beside them, transactions are not all that the costs were for; loading has none
    alone = None if workload.beside else done
    told = (*REPORTED, *LOADING, "skipped_transactions", "clients", "latency_p95_ms")
    readings = [(row["elapsed_s"], row["tps"]) for row in report["progress"]]
    figures = {name: report.get(name) for name in told} | {
        "rate_tps": rate if isinstance(rate, float) else None,
        "schedule_lag_average_ms": report.get("rate_lag_average_ms"),
        "schedule_lag_max_ms": report.get("rate_lag_max_ms"),
        "time_to_steady_s": time_to_steady(readings),
    }
    if (cpu_s := measurement.load_cpu_s) is not None:
        threads = report["threads"]
        uses = [(cpu_s, measurement.load_wall_s, threads)]
        if measurement.generators:  # one that is used up holds all of them back
            of = split(plan.level_load(level), measurement.trial.seed)
            each = [one for one in measurement.generators if one.host in of]
            uses = [(one.load_cpu_s, one.load_wall_s, of[one.host][0].threads) for one in each]
        if shares := [used_s / (wall_s * own) for used_s, wall_s, own in uses if wall_s and threads]:
            figures["client_cpu_share"] = max(shares)
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
    # where not every transaction writes, the rate of flushes bounds nothing
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
        # the first reading comes before the load and tells nothing of it
        lag = pd.DataFrame(replicas.lag, columns=["at_s", "replay_lag_s"], dtype=float)
        figures["replay_lag_ms"] = 1000 * lag.loc[lag["at_s"] > lag["at_s"].min(), "replay_lag_s"].mean()
    return figures


def _cycles(measurement: Measurement, plan: Plan, checkpoints: float) -> int | None:
    """From how many checkpoints by the clock to the next a trial runs; None where that is no whole number, or is not seen in their count.

    The clock is set by the checkpoint before the trial, so a trial begins at the same point of a cycle as its level's others.
    """
    timeout_s, unit = quantity(measurement.settings.get("checkpoint_timeout", "")) or (0.0, "")
    count = plan.level_load(measurement.trial.level).duration_s / timeout_s if unit == "s" else 0.0
    whole = round(count)
    seen = whole > 0 and abs(count - whole) <= _WHOLE and abs(checkpoints - whole) <= 1
    return whole if seen else None


def time_to_steady(readings: Sequence[tuple[float, float]]) -> float | None:
    """After how many seconds the rate came up to 95 % of the steady one, which is the mean of the second half.

    ``readings`` are pairs of seconds gone and transactions a second. One that is lucky is none: one of the two after it has to
    reach as much. None where there are fewer than eight, or none does.
    """
    rates = [tps for _, tps in readings]
    steady = 0.95 * fmean(rates[len(rates) // 2 :]) if len(rates) >= 8 else float("inf")
    reached = (
        end_s
        for at, (end_s, tps) in enumerate(readings[:-2])
        if min(tps, max(rates[at + 1 : at + 3])) >= steady
    )
    return next(reached, None)


def _report(folder: StudyFolder, plan: Plan, measurement: Measurement) -> dict[str, Any]:
    """What the load tool reported of a whole run.

    Raises:
        InputError: its output is not there, cannot be trusted, or is not of a whole run.

    """
    trial = measurement.trial
    tool = plan.level_workload(trial.level).tool
    parts = {f".{one.host}": one.load_argv for one in measurement.generators} or {"": measurement.load_argv}
    reports = []
    for part, argv in parts.items():
        stdout = folder.raw(trial.id, f"stdout{part}")
        if stdout is None:
            raise InputError("the trial's output is not there")
        text = b"\n".join([stdout, folder.raw(trial.id, f"stderr{part}") or b""]).decode(errors="replace")
        reports.append(read(tool, text, argv))
    began_s = [one.began_s for one in measurement.generators]
    report = merged(reports, measured_from(began_s, reports)) if began_s else reports[0]
    if not report["complete"]:
        raise InputError(f"the load did not run to its end: {' '.join(report['errors'][:1])}")
    if why := misfit(plan, trial, measurement.load_argv, report):
        raise InputError(f"{folder.name}: trials/{trial.id}: its output is not of this trial: {why}")
    return report
