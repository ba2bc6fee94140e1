"""What the instruments of a study's trials recorded, as frames: derived anew each time from the raw files.

A trial that lacks a file, as older ones and those on a host that is not ours do, has no rows; one that
lacks a figure has a null there. Nothing missing becomes 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from benchlib.host.telemetry import (
    DEVICE,
    HOST,
    ON_CPU,
    Figures,
    Raw,
    Telemetry,
    telemetry,
    transaction_costs,
)
from benchlib.server.checkpoints import checkpoints
from benchlib.study.records import SERVER_LOG, Counters, ReplicaReadings, Samples
from benchlib.study.store import StudyFolder

TRIAL = ("level", "block")
SECONDS = (*TRIAL, "second", *HOST, *DEVICE)
COSTS = (
    "server_cpu_ms_per_transaction",
    "tool_cpu_ms_per_transaction",
    "client_cpu_share",
    "context_switches_per_transaction",
    "read_kib_per_transaction",
    "written_kib_per_transaction",
    "flushes_per_transaction",
    "wal_bytes_per_transaction",
    "full_page_images_per_transaction",
    "buffers_by_checkpointer_per_transaction",
    "buffers_by_bgwriter_per_transaction",
    "buffers_by_backends_per_transaction",
    "blocks_read_per_transaction",
    "temp_bytes_per_transaction",
    "checkpoints",
    "replay_lag_ms",
    "schedule_lag_average_ms",
    "schedule_lag_max_ms",
)
"""What a trial cost: metrics of :mod:`benchlib.plan.metrics`."""

_OF_HOST = (
    "server_cpu_ms_per_transaction",
    "context_switches_per_transaction",
    "read_kib_per_transaction",
    "written_kib_per_transaction",
    "flushes_per_transaction",
)
_PER_TRANSACTION = {
    "full_page_images_per_transaction": "wal_full_page_images",
    "buffers_by_checkpointer_per_transaction": "buffers_by_checkpointer",
    "buffers_by_bgwriter_per_transaction": "buffers_by_bgwriter",
    "buffers_by_backends_per_transaction": "buffers_by_backends",
    "blocks_read_per_transaction": "blocks_read",
    "temp_bytes_per_transaction": "temp_bytes",
}


@dataclass(frozen=True)
class Recorded:
    """The frames of a study's good trials; each begins with the columns ``level`` and ``block``.

    ``seconds`` has a row per ``second`` (which ended then, counted from the load's start) with the figures of
    :data:`benchlib.host.telemetry.HOST`, and of :data:`~benchlib.host.telemetry.DEVICE` for the devices of data and WAL together.
    ``waits`` has a row per ``second`` and a column per wait event, the most frequent first: how many of the load's
    sessions waited for it on average; ``CPU`` are those that waited for nothing.
    ``checkpoints`` are those of :func:`benchlib.server.checkpoints.checkpoints` that touched the load, ``start_s`` and ``end_s``
    in seconds from its start. ``logged`` are the trials, as (level, block), whose logs would tell of one.
    ``costs`` has a row per trial: :data:`COSTS`. Of the host of a server that is not ours all is null.
    """

    seconds: pd.DataFrame
    waits: pd.DataFrame
    checkpoints: pd.DataFrame
    logged: frozenset[tuple[str, int]]
    costs: pd.DataFrame


def recorded(folder: StudyFolder, trials: pd.DataFrame) -> Recorded:
    """What was recorded in the good ones of ``trials`` (:func:`benchlib.study.results.trials_frame`).

    Raises:
        InputError: a file is damaged.

    """
    rows = trials[trials["error"].isna()].to_dict("records")
    plan = folder.read().plan
    elsewhere = {level: plan.level(level).target is not None for level in plan.factor.levels}
    good: dict[tuple[str, int], dict[Any, Any]] = {(row["level"], row["block"]): row for row in rows}
    hosts: list[pd.DataFrame] = []
    devices: list[pd.DataFrame] = []
    waits, checkpointed, costs = [], [], []
    logged = set()
    for trial_id, measurement in folder.kept().items():
        trial = (measurement.trial.level, measurement.trial.block)
        if trial not in good:
            continue
        samples = Samples.read(folder, trial_id)
        # with one reading it ended before it could tell a rate
        raw = dict(samples) if samples and len(samples.readings) > 1 else None
        if raw:
            sampled = telemetry(raw)
            late = raw["interval_s"] / 2  # a reading comes a moment after its second has ended
            for kept, read in ((hosts, sampled.host), (devices, sampled.devices)):
                second = np.ceil(read["at_s"] - late)
                kept.append(read.assign(level=trial[0], block=trial[1], second=second))
            waits.append(_of(trial, _waits(sampled, raw)))
        if raw and (log := folder.raw(trial_id, SERVER_LOG)) is not None:
            logged.add(trial)
            checkpointed.append(_of(trial, _inside(log.decode(errors="replace"), raw)))
        told = {name: good[trial].get(name) for name in COSTS}
        done = good[trial]["transactions"]
        transactions = int(done) if pd.notna(done) else None  # loading has none
        found = _costs(folder, trial_id, raw, measurement.load_cpu_s, transactions)
        if elsewhere[trial[0]]:
            found |= dict.fromkeys(_OF_HOST)
        costs.append({"level": trial[0], "block": trial[1], **told, **found})
    seconds = _seconds(_concat(hosts, SECONDS), _concat(devices, SECONDS))
    # the host of the load tool tells nothing of the server's
    seconds.loc[seconds["level"].map(elsewhere).eq(True), [*HOST, *DEVICE]] = np.nan
    return Recorded(
        seconds=seconds,
        waits=_frequent_first(_concat(waits, (*TRIAL, "second"))),
        checkpoints=_concat(checkpointed, (*TRIAL, "start_s", "end_s", "kind")),
        logged=frozenset(logged),
        costs=pd.DataFrame(costs, columns=[*TRIAL, *COSTS]).astype(dict.fromkeys(COSTS, float)),
    )


def _seconds(hosts: pd.DataFrame, devices: pd.DataFrame) -> pd.DataFrame:
    """Host and devices of all trials, second by second."""
    means = hosts.groupby([*TRIAL, "second"], sort=False)[list(HOST)].mean()
    return means.join(_together(devices)).reset_index()[list(SECONDS)]


def _together(devices: pd.DataFrame) -> pd.DataFrame:
    """The figures of several devices as if they were one, by trial and second; null if one of them does not tell.

    What one request took is the mean of all requests.
    """
    figures = devices[list(SECONDS[:3]) + list(DEVICE)].copy()
    for way in "rw":
        requests, took = figures[f"{way}_iops"], figures[f"{way}_await_ms"]
        figures[f"{way}_await_ms"] = (took * requests).where(requests.ne(0), 0.0)
    by_second = figures.groupby([*TRIAL, "second"])
    total = by_second.sum().where(by_second.count().eq(by_second.size(), axis=0))
    for way in "rw":
        total[f"{way}_await_ms"] /= total[f"{way}_iops"].where(total[f"{way}_iops"].ne(0))
    return total


def _waits(found: Telemetry, raw: Raw) -> pd.DataFrame:
    """The mean sessions by wait event in each whole second; a second without a sample has no row."""
    at = [second for sample in raw["waits"] or () for second in _seconds_of(sample)]
    samples = pd.Series(at, dtype=float)
    whole = samples[samples.le(math.floor(raw["readings"][-1]["at_s"]))].value_counts().sort_index()
    events = found.waits
    kind, event = events["wait_event_type"], events["wait_event"]
    names = event.where(kind == ON_CPU, kind + ": " + event)
    counts = events.groupby([np.ceil(events["at_s"]), names])["n"].sum().unstack(fill_value=0)
    whole.index.name = "second"
    counts.columns.name = None
    means: pd.DataFrame = counts.reindex(whole.index, fill_value=0).div(whole, axis=0)
    return means.reset_index()


def _seconds_of(sample: Raw) -> list[int]:
    """The second of a sample; several times where a trial was trimmed, and its samples are one per second."""
    return [math.ceil(sample["at_s"])] * sample.get("samples", 1)


def _inside(log: str, raw: Raw) -> pd.DataFrame:
    """The checkpoints that touched the load."""
    found = checkpoints(log, raw["started"]["epoch_s"])
    touched = ~(found["end_s"] < 0) & ~(found["start_s"] > raw["readings"][-1]["at_s"])
    inside: pd.DataFrame = found.loc[touched, ["start_s", "end_s", "kind"]]
    return inside


def _costs(
    folder: StudyFolder, trial_id: str, raw: Raw | None, tool_cpu_s: float | None, n: int | None
) -> Figures:
    """What the host's and the server's counters say of each of ``n`` transactions, and what replicas lagged behind."""
    figures = transaction_costs(raw, n) if raw else {}
    figures["tool_cpu_ms_per_transaction"] = _each(tool_cpu_s and 1000 * tool_cpu_s, n)
    if counters := Counters.read(folder, trial_id):
        counts = counters.during_load()
        figures |= {name: _each(counts[count], n) for name, count in _PER_TRANSACTION.items()}
    replicas = ReplicaReadings.read(folder, trial_id)
    readings = replicas.lag if replicas else []
    before = min((row["at_s"] for row in readings), default=0)  # right before the load: of what was before it
    lags = [
        row["replay_lag_s"] for row in readings if row["at_s"] > before and row["replay_lag_s"] is not None
    ]
    return {**figures, "replay_lag_ms": 1000 * sum(lags) / len(lags) if lags else None}


def _each(count: float | None, transactions: int | None) -> float | None:
    return count / transactions if count is not None and transactions else None


def _of(trial: tuple[str, int], frame: pd.DataFrame) -> pd.DataFrame:
    """A frame that says whose it is."""
    return pd.concat(
        [pd.DataFrame([trial] * len(frame), columns=[*TRIAL]), frame.reset_index(drop=True)], axis=1
    )


def _concat(frames: list[pd.DataFrame], columns: tuple[str, ...]) -> pd.DataFrame:
    told = [frame for frame in frames if len(frame)]
    if told:
        return pd.concat(told, ignore_index=True)
    types = {name: float for name in columns if name not in ("level", "kind")} | {"block": int}
    return pd.DataFrame(columns=list(columns)).astype(types)


def _one_name_each(events: pd.DataFrame) -> pd.DataFrame:
    """Wait events that versions spell differently as one, in the spelling that sorts first: capitals do.

    13 made ``WALWrite`` of ``WALWriteLock`` and ``LockManager`` of ``lock_manager``, 17 made ``WalSync`` of ``WALSync``.
    """

    def alike(event: str) -> str:
        kind, _, name = event.partition(": ")
        bare = name.lower().replace("_", "")
        return f"{kind}: {bare.removesuffix('lock') if kind == 'LWLock' else bare}"

    spelt = {alike(event): event for event in sorted(map(str, events), reverse=True)}
    return events.rename(columns=lambda event: spelt[alike(event)]).T.groupby(level=0, sort=False).sum().T


def _frequent_first(waits: pd.DataFrame) -> pd.DataFrame:
    """What nobody waited for in a trial was waited for by none."""
    events = _one_name_each(waits.drop(columns=[*TRIAL, "second"]).astype(float).fillna(0.0))
    order = events.mean().sort_values(ascending=False, kind="stable").index
    return pd.concat([waits[[*TRIAL, "second"]], events[order]], axis=1)
