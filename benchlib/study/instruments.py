"""What the instruments of a study's trials recorded, as frames, and what held each level back by that: derived anew each time.

A trial that lacks a file, as older ones and those on a host that is not ours do, has no rows; one that
lacks a figure has a null there. Nothing missing becomes 0.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from benchlib.host.telemetry import DEVICE, HOST, ON_CPU, sessions, telemetry
from benchlib.plan.level import Level
from benchlib.plan.model import Plan
from benchlib.server.checkpoints import checkpoints
from benchlib.stats.validity import BUSY_CLIENT, FULL, RATE_HELD
from benchlib.study.records import SERVER_LOG, Samples, understood
from benchlib.study.results import TRIAL, good_ones
from benchlib.study.store import StudyFolder

_EACH = [*TRIAL, "second"]
SECONDS = (*_EACH, *HOST, *DEVICE)
_SERVER_SIDE = [name for name in (*HOST, *DEVICE) if name != "network_mib_s"]

WORKS, NO_STATEMENT = "on a processor", "load tool or a processor"
_CPU = ("server_cpu_ms_per_transaction", "tool_cpu_ms_per_transaction")
_DOING = dict.fromkeys(("Lock", "LWLock", "BufferPin", "Buffer"), "locks") | {"Client": NO_STATEMENT}
DISKS_CAP, _REPLICA = "disk's cap", "replica"
"""The bottlenecks that are a disk whose cap is used up, with what it is on behind these words, and replicas that commits wait for."""
_NEARLY_FULL = 0.8
"""From here on a session without a statement waits for a processor, for itself or for the load tool, rather than for the tool."""

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
    for level, block, name in good_ones(trials):
        with understood(folder, name):
            samples = Samples.read(folder, name)
            if samples is None or len(samples.readings) < 2:  # with one it ended before it could tell a rate
                continue
            raw = dict(samples)
            figures, end_s = telemetry(raw), raw["readings"][-1]["at_s"]
            if not samples.of_servers_host(plan.level(level)):
                figures[_SERVER_SIDE] = np.nan
            # a reading comes a moment after its second has ended
            seconds[level, block] = figures.assign(second=np.ceil(figures["at_s"] - raw["interval_s"] / 2))
            waits += [
                {**of, "level": level, "block": block, "second": second}
                for second, of in sessions(raw).items()
                if second <= end_s  # it is whole
            ]
            if (log := folder.raw(name, SERVER_LOG)) is not None:
                rows = checkpoints(log.decode(errors="replace"), raw["started"]["epoch_s"])
                touched = ~(rows["end_s"] < 0) & ~(rows["start_s"] > end_s)
                checkpointed[level, block] = rows[touched]  # those that touched the load
    means = _stacked(seconds, SECONDS[2:]).groupby(_EACH, sort=False)[[*HOST, *DEVICE]].mean()
    return Recorded(
        seconds=means.reset_index(),
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


# --- what held a level back ------------------------------------------------------------


def bottleneck(
    processors: float, tool: float, cap: float, sessions: Mapping[str, float], *, rate_held: bool = False
) -> str:
    """What held a level back: the replica, if most sessions wait for it, what was used up, or else what they did most (of :func:`doing`).

    ``processors``, ``tool`` and ``cap`` are shares: of all processors, of the load tool's threads, of the disk's cap; NaN
    where unknown. ``sessions`` are means by what they did. Where nothing was used up and a fixed rate held, it is the rate;
    where sessions mostly worked, or had nothing to do, and the processors were free, the clients were too few or too slow.
    """
    if 2 * sessions.get(_REPLICA, 0) > sum(sessions.values()):
        return _REPLICA
    for share, limit, name in (
        (tool, BUSY_CLIENT, "load tool"),
        (cap, FULL, DISKS_CAP),
        (processors, FULL, "processors"),
    ):
        if share >= limit:
            return name
    if rate_held:
        return "the rate that was set"
    most = max(sessions, key=lambda name: sessions[name], default="not known")
    if most in (WORKS, NO_STATEMENT) and math.isfinite(processors):
        return "processors" if processors >= _NEARLY_FULL else "too few clients"
    # which need not be used up
    return {"disk": "waits for the disk", "locks": "waits for locks"}.get(most, most)


def doing(event: str) -> str:
    """What a session does that is seen at a wait event: who waits for ``WALWrite`` waits for another's flush."""
    kind, _, name = event.partition(": ")
    if name == "SyncRep":
        return _REPLICA
    if kind == "IO" or name in ("WALWrite", "WALWriteLock"):
        return "disk"
    return "locks" if name == "SpinDelay" else _DOING.get(kind, WORKS if event == ON_CPU else "other waits")


def bottlenecks(plan: Plan, trials: pd.DataFrame, recorded: Recorded) -> pd.DataFrame:
    """A row per level: what held it back, and what that is read from; null where it was not recorded.

    ``processors_share`` is of all processors, ``server`` and ``load_tool`` are how many of them each used, ``cap_share`` is of
    the disk's cap (the median second), ``queue`` the requests in flight, ``sessions`` means by what they did.
    """
    good = trials[trials["error"].isna()].astype(dict.fromkeys(_CPU, float))
    waits = recorded.waits.groupby(TRIAL).mean().drop(columns="second").groupby("level").mean()
    sessions = waits.T.groupby(doing).sum()
    rows = []
    for level in plan.factor.levels:
        of, seconds = good[good["level"] == level], recorded.seconds[recorded.seconds["level"] == level]
        means = {str(name): float(mean) for name, mean in sessions.get(level, pd.Series(dtype=float)).items()}
        cap, capped = nearest_cap(plan.level(level), seconds)
        processors, tool = of["processors_share"].median(), of["client_cpu_share"].median()
        held = bool(len(of)) and bool((of["tps"] >= RATE_HELD * of["rate_tps"].astype(float)).all())
        name = bottleneck(processors, tool, cap, means, rate_held=held)
        name += f" on {capped}" if name == DISKS_CAP else ""
        used = [(of["tps"] * of[cost] / 1000).mean() for cost in _CPU]
        rows.append((level, name, processors, *used, cap, seconds["aqu_sz"].median(), means))
    used_of = ["processors_share", "server", "load_tool", "cap_share"]
    return pd.DataFrame(rows, columns=["level", "bottleneck", *used_of, "queue", "sessions"])


def nearest_cap(level: Level, seconds: pd.DataFrame) -> tuple[float, str]:
    """How much of the nearest cap was used in the median second, and what it is on; NaN where that is not known."""
    caps = level.part("storage")
    used = {
        cap: seconds[figure] * unit / caps[cap]
        for figure, unit, cap in (
            ("r_iops", 1, "read_iops"), ("w_iops", 1, "write_iops"),
            ("r_mib_s", 2**20, "read_bytes"), ("w_mib_s", 2**20, "write_bytes"),
        )
        if caps.get(cap)
    }  # fmt: skip
    shares = pd.DataFrame(used, dtype=float)
    if shares.empty or caps.get("wal"):  # figures are of both devices, a cap is of each
        return math.nan, ""
    nearest = str(shares.median().fillna(0.0).idxmax())
    return float(shares.max(axis=1).median()), "requests" if nearest.endswith("iops") else "bytes"
