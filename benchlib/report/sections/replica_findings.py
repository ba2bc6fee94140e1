"""Replication's own section: how far the replicas were behind, and what they were found to hold."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import pandas as pd

from benchlib.host.telemetry import processors_share
from benchlib.report.figures.frames import amount, known
from benchlib.report.figures.style import worded
from benchlib.report.figures.tables import Table, html_table
from benchlib.report.sections import NothingToShowError, records, section
from benchlib.study.experiment import Experiment
from benchlib.study.records import ReplicaReadings

_LAGS = ["replay_lag_s", "replay_lag_bytes", "write_lag_bytes"]


@section
def replica_lag(experiment: Experiment) -> Table:
    """How long after the primary its replicas showed what was committed while the load ran, and how much WAL that was.

    Raises:
        InputError: a file is damaged.

    """
    levels = _replicated(experiment)
    readings = _readings(records(experiment, ReplicaReadings))
    if readings.empty:
        raise NothingToShowError("Nothing was sampled of the replicas in these trials.")
    lags = readings.assign(ms=1000 * readings["replay_lag_s"], kib=readings["replay_lag_bytes"] / 1024)
    of_levels = lags.groupby("level")
    table = of_levels["ms"].describe(percentiles=[0.05, 0.5, 0.95])
    unknown = of_levels.size() - table["count"]
    table = table.assign(kib=of_levels["kib"].max(), unknown=unknown).reindex(list(levels))
    labels = {
        "50%": "median, ms",
        "5%": "5th percentile, ms",
        "95%": "95th percentile, ms",
        "max": "maximum, ms",
    }
    labels |= {"kib": "most WAL not replayed, KiB", "unknown": "readings not known"}
    note = "Of all readings and replicas. Not known: the primary shows no lag of a replica that has nothing left to replay."
    shown = table.reset_index(names="level")[["level", *labels]]
    return html_table(shown, "Replay lag", labels=labels, note=note)


@section
def replicas_verified(experiment: Experiment) -> Table:
    """What a commit waited for, what was found on the replicas after each trial, and what a failover would lose.

    Raises:
        InputError: a file is damaged.

    """
    levels = _replicated(experiment)
    kept, trials = records(experiment, ReplicaReadings), experiment.trials
    readings = _readings(kept)
    verified = pd.DataFrame(
        [{"level": level, "block": block, **of.verified} for level, block, of in kept if of.verified]
    )
    failed = trials[trials["error"].notna() & trials["level"].isin(list(levels))]
    if verified.empty:
        reason = f": {failed['error'].iloc[0]}" if len(failed) else " (run it first)"
        raise NothingToShowError(f"No trial of this study has verified its replicas{reason}.")
    rows = []
    for level, replication in levels.items():
        of_level, ran = verified[verified["level"] == level], trials[trials["level"] == level]
        promise = _promise(replication, of_level, readings[readings["level"] == level])
        row: dict[str, Any] = {"level": level, **promise, "trials verified": f"{len(of_level)} of {len(ran)}"}
        if len(of_level):
            held = of_level["held"].explode().dropna().value_counts().sort_index().items()
            counts = ", ".join(f"{name} in {count} of {len(of_level)} trials" for name, count in held)
            row["held at once"] = counts or "not asked"
            row["rows on each, all trials"] = of_level["count"].sum(skipna=False)
        rows.append(row | _away([of for name, _, of in kept if name == level]))
    note = "Held at once: the replica had our last commit already when the primary acknowledged it."
    for name, error in failed.groupby("level", sort=False)["error"].first().items():
        note += f" Failed, {name}: {error}."
    return html_table(pd.DataFrame(rows), "What the replicas were found to hold", note=note)


def _replicated(experiment: Experiment) -> dict[str, Mapping[str, Any]]:
    """The levels that have replicas, with what they name.

    Raises:
        NothingToShowError: there are none.

    """
    plan = experiment.plan
    named = {level: plan.level(level).part("replication") for level in plan.factor.levels}
    replicated = {level: wish for level, wish in named.items() if wish.get("replicas")}
    if not replicated:
        raise NothingToShowError("No level of this study has a replica.")
    return replicated


def _readings(kept: Sequence[tuple[str, int, ReplicaReadings]]) -> pd.DataFrame:
    """The lag: ``level, block, replica, second`` and :data:`_LAGS`.

    The first reading comes right before the load and tells of what was before it: it is where the seconds begin.
    """
    rows = [
        {**row, "level": level, "block": block, "second": round(row["at_s"] - record.lag[0]["at_s"])}
        for level, block, record in kept
        for row in record.lag
    ]
    frame = pd.DataFrame(rows, columns=["level", "block", "replica", "second", *_LAGS])
    return frame[frame["second"].gt(0)].astype(dict.fromkeys(_LAGS, float))


def _promise(
    replication: Mapping[str, Any], verified: pd.DataFrame, readings: pd.DataFrame
) -> dict[str, str | None]:
    """What a commit waited for, and what is lost with the primary: nothing, or as much as was not yet written elsewhere."""
    waits, lost = "a commit waits for", "lost with the primary"
    modes = verified["synchronous_commit"].unique()
    if len(modes) != 1:
        return {waits: None, lost: None}
    # the replica that has most of it is promoted
    most = readings.groupby(["block", "second"])["write_lag_bytes"].min().max()
    kib = f"{amount(most / 1024)} KiB of WAL not yet written there at the worst of the readings, one a second"
    behind = kib if known(most) else "how many is not known"
    lines = worded("promise", {**replication, "mode": modes[0], "behind": behind}).splitlines()
    return dict(zip((waits, lost), lines, strict=True))


def _away(kept: Sequence[ReplicaReadings]) -> dict[str, float]:
    """How far away replicas at other hosts are, and how busy those were; medians over trials."""
    hosts = [dict(away) for record in kept for away in record.elsewhere.values() if len(away.readings) > 1]
    trips = [1000 * host["round_trip_s"] for host in hosts]
    busy = [100 * processors_share(host) for host in hosts]
    return {"round trip, ms": median(trips), "their hosts busy, %": median(busy)} if hosts else {}
