"""Replication's own section: how far the replicas were behind, and what they were found to hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from benchlib.plan.design import Trial
from benchlib.plan.level import Replication
from benchlib.report.figures import Figure
from benchlib.report.figures.frames import amount, known
from benchlib.report.figures.lag import STAGES, lag_over_time
from benchlib.report.figures.tables import Table, html_table
from benchlib.report.view import Statement, View
from benchlib.study.experiment import Experiment
from benchlib.study.records import ReplicaReadings

_LAGS = [f"{stage}_lag_{unit}" for stage in STAGES for unit in ("s", "bytes")]

# What a commit waits for, and what is lost with the primary. Source: PostgreSQL documentation, "synchronous_commit".
_PROMISES = {
    "remote_write": ("written", "nothing acknowledged, unless the replica's machine crashes with it"),
    "on": ("flushed", "nothing acknowledged, even if the replica's machine crashes with it"),
    "remote_apply": ("replayed", "nothing acknowledged, and the replica shows each commit at once"),
}


def replica_lag(view: View) -> Figure | Statement:
    """How far the replicas were behind while the load ran: written, flushed and replayed, in time and in WAL.

    Raises:
        InputError: a file is damaged.

    """
    experiment = view.experiment
    levels = _replicated(experiment)
    if not levels:
        return Statement("No level of this study has a replica, so there is no lag.")
    readings = _readings(experiment)
    if readings.empty:
        return Statement("Nothing was sampled of the replicas in these trials, so their lag is not known.")
    return lag_over_time(readings, list(levels))


def replicas_verified(view: View) -> Table | Statement:
    """What a commit waited for, what was found on the replicas after each trial, and what a failover would lose.

    Raises:
        InputError: a file is damaged.

    """
    experiment = view.experiment
    levels = _replicated(experiment)
    if not levels:
        return Statement("No level of this study has a replica, so there is nothing to fail over to.")
    verified = {
        (trial.level, trial.block): found.verified
        for trial, found in _kept(experiment)
        if found.verified is not None
    }
    trials, readings = experiment.trials, _readings(experiment)
    failed = trials[trials["error"].notna() & trials["level"].isin(list(levels))]
    if not verified:
        why = f": {failed['error'].iloc[0]}" if len(failed) else " (run it first)"
        return Statement(f"No trial of this study has verified its replicas{why}.")
    rows = []
    for level, replication in levels.items():
        found = {block: each for (of, block), each in verified.items() if of == level}
        ran = trials[trials["level"] == level]
        rows.append(
            {
                "level": level,
                **_promise(replication, found, readings[readings["level"] == level]),
                "trials verified": f"{len(found)} of {len(ran)}",
                **_holdings(found, ran),
            }
        )
    note = (
        "Held at once: the replicas that were past a last commit of ours when it was acknowledged, and in how many trials; asked "
        "where a commit waits for them. Then all caught up, and the rows that the workload counts, the warm-up's among them, were counted on "
        "the primary and on each replica: verified are the trials where they are equal. Lags are read once a second: "
        "what is lost is the most of any reading."
    )
    for name, error in failed.groupby("level", sort=False)["error"].first().items():
        note += f" Failed, {name}: {error}."
    return html_table(pd.DataFrame(rows), "What the replicas were found to hold", note=note)


def _replicated(experiment: Experiment) -> dict[str, Replication]:
    """The levels that have replicas, with what they name."""
    named = {name: experiment.plan.level(name).replication for name in experiment.plan.factor.levels}
    return {name: replication for name, replication in named.items() if replication and replication.replicas}


def _kept(experiment: Experiment) -> Iterator[tuple[Trial, ReplicaReadings]]:
    """What is kept of the replicas, trial by trial."""
    for trial_id, measurement in experiment.folder.kept().items():
        found = ReplicaReadings.read(experiment.folder, trial_id)
        if found is not None:
            yield measurement.trial, found


def _readings(experiment: Experiment) -> pd.DataFrame:
    """The lag in the good trials: ``level, block, replica, second`` and :data:`_LAGS`.

    The first reading comes right before the load and tells of what was before it: it is where the seconds begin.
    """
    good = experiment.trials[experiment.trials["error"].isna()]
    trials = set(good[["level", "block"]].itertuples(index=False, name=None))
    rows = [
        {
            **row,
            "level": trial.level,
            "block": trial.block,
            "second": round(row["at_s"] - found.lag[0]["at_s"]),
        }
        for trial, found in _kept(experiment)
        if (trial.level, trial.block) in trials
        for row in found.lag
    ]
    frame = pd.DataFrame(rows, columns=["level", "block", "replica", "second", *_LAGS])
    return frame[frame["second"].gt(0)].astype(dict.fromkeys(_LAGS, float))


def _promise(
    replication: Replication, found: Mapping[int, Mapping[str, Any]], readings: pd.DataFrame
) -> dict[str, str | None]:
    """What a commit waited for, and what is lost with the primary: nothing, or as much as was not yet written elsewhere."""
    columns = ("a commit waits for", "lost with the primary")
    modes = {each["synchronous_commit"] for each in found.values()}
    if len(modes) != 1:
        return dict.fromkeys(columns)
    (mode,) = modes
    if replication.quorum is None or mode not in _PROMISES:
        # the replica that has most of it is promoted
        most = readings.groupby(["block", "second"])["write_lag_bytes"].min().max()
        behind = f"up to {amount(most / 1024)} KiB of WAL" if known(most) else "how many is not known"
        return dict(zip(columns, ("none of them", f"the latest commits: {behind}"), strict=True))
    done, kept = _PROMISES[mode]
    if int(replication.quorum.split()[1]) < replication.replicas:
        kept += ", if the replica furthest ahead is promoted"
    return dict(
        zip(columns, (f"{replication.quorum} of {replication.replicas}: {done} ({mode})", kept), strict=True)
    )


def _holdings(found: Mapping[int, Mapping[str, Any]], ran: pd.DataFrame) -> dict[str, Any]:
    """What was acknowledged and found, over the trials of a level that were verified."""
    if not found:
        return {}
    names = sorted({name for each in found.values() for name in each["held"]})
    held = [f"{name} in {sum(name in each['held'] for each in found.values())}" for name in names]
    counts = [each["count"] for each in found.values()]
    return {
        "held at once": ", ".join(held) or "not asked",
        "transactions acknowledged": ran.loc[ran["block"].isin(list(found)), "transactions"].sum(min_count=1),
        "rows on each": None if None in counts else sum(counts),
        "caught up after, s": max(each["caught_up_s"] for each in found.values()),
    }
