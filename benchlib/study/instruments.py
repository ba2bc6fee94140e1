"""What the instruments of a study's trials recorded, as frames: derived anew each time from the raw files.

A trial that lacks a file, as older ones and those on a host that is not ours do, has no rows; one that
lacks a figure has a null there. Nothing missing becomes 0.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from benchlib.host.telemetry import DEVICE, HOST, Raw, sessions, telemetry
from benchlib.plan.model import Plan
from benchlib.server.checkpoints import checkpoints
from benchlib.study.records import SERVER_LOG, Samples, understood
from benchlib.study.results import TRIAL
from benchlib.study.store import StudyFolder

_EACH = [*TRIAL, "second"]
SECONDS = (*_EACH, *HOST, *DEVICE)
_SERVER_SIDE = [name for name in (*HOST, *DEVICE) if name != "network_mib_s"]

Frames = dict[tuple[str, int], pd.DataFrame]
"""Frames by trial: its level and its block."""


@dataclass(frozen=True)
class Recorded:
    """The frames of a study's good trials; each begins with the columns ``level`` and ``block``.

    ``seconds`` has a row per ``second`` (which ended then, counted from the load's start) with the figures of
    :data:`benchlib.host.telemetry.HOST`, and of :data:`~benchlib.host.telemetry.DEVICE` for the devices of data and WAL together.
    ``waits`` has a row per ``second`` and a column per wait event, the most frequent first: how many of the load's
    sessions waited for it on average; ``CPU`` are those that waited for nothing.
    ``checkpoints`` are those of :func:`benchlib.server.checkpoints.checkpoints` that touched the load, ``start_s`` and ``end_s``
    in seconds from its start; None where no log of a server was kept.
    """

    seconds: pd.DataFrame
    waits: pd.DataFrame
    checkpoints: pd.DataFrame | None


def recorded(folder: StudyFolder, plan: Plan, trials: pd.DataFrame) -> Recorded:
    """What was recorded in the good ones of ``trials`` (:class:`benchlib.study.results.Measured`).

    Raises:
        InputError: a file is damaged.

    """
    seconds, checkpointed, waits = Frames(), Frames(), list[dict[str, Any]]()
    for row in trials[trials["error"].isna()].itertuples():
        trial = (row.level, row.block)
        with understood(folder, row.trial):
            samples = Samples.read(folder, row.trial)
            if samples is None or len(samples.readings) < 2:  # with one it ended before it could tell a rate
                continue
            raw = dict(samples)
            figures = telemetry(raw)
            if not samples.of_servers_host(plan.level(row.level)):
                figures[_SERVER_SIDE] = np.nan
            # a reading comes a moment after its second has ended
            seconds[trial] = figures.assign(second=np.ceil(figures["at_s"] - raw["interval_s"] / 2))
            waits += [
                {**of, "level": row.level, "block": row.block, "second": second}
                for second, of in sessions(raw).items()
                if second <= raw["readings"][-1]["at_s"]  # it is whole
            ]
            if (log := folder.raw(row.trial, SERVER_LOG)) is not None:
                checkpointed[trial] = _inside(log.decode(errors="replace"), raw)
    return Recorded(
        seconds=_stacked(seconds, SECONDS[2:]).groupby(_EACH, sort=False)[[*HOST, *DEVICE]].mean().reset_index(),
        waits=_frequent_first(pd.DataFrame(waits, columns=None if waits else _EACH)),
        checkpoints=_stacked(checkpointed, ("start_s", "end_s", "kind")) if checkpointed else None,
    )


def _stacked(frames: Frames, columns: tuple[str, ...]) -> pd.DataFrame:
    """The frames of all trials as one that says whose each row is."""
    filled = {trial: frame for trial, frame in frames.items() if len(frame)}
    if filled:
        return pd.concat(filled, names=TRIAL).reset_index(TRIAL).reset_index(drop=True)
    types = {name: object if name in ("level", "kind") else float for name in (*TRIAL, *columns)}
    return pd.DataFrame(columns=list(types)).astype({**types, "block": int})


def _inside(log: str, raw: Raw) -> pd.DataFrame:
    """The checkpoints that touched the load."""
    rows = checkpoints(log, raw["started"]["epoch_s"])
    touched = ~(rows["end_s"] < 0) & ~(rows["start_s"] > raw["readings"][-1]["at_s"])
    inside: pd.DataFrame = rows.loc[touched, ["start_s", "end_s", "kind"]]
    return inside


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
    """What nobody waited for in a trial was waited for by none; of events as frequent the one that sorts first."""
    events = _one_name_each(waits.drop(columns=_EACH).sort_index(axis=1).astype(float).fillna(0.0))
    order = events.mean().sort_values(ascending=False, kind="stable").index
    return pd.concat([waits[_EACH].astype({"block": int, "second": float}), events[order]], axis=1)
