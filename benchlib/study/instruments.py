"""Samples of a study's trials; a missing figure is null, never 0."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from benchlib.host.telemetry import DEVICE, HOST, ON_CPU, sessions, telemetry
from benchlib.host.telemetry import samples as samples_of
from benchlib.plan.level import Level, cores_of
from benchlib.plan.model import Plan
from benchlib.server.checkpoints import checkpoints
from benchlib.stats.validity import BUSY_CLIENT, FULL, RATE_HELD
from benchlib.study.records import SERVER_LOG, Samples, understood
from benchlib.study.results import TRIAL, good_ones
from benchlib.study.store import StudyFolder

_EACH = [*TRIAL, "second"]
SECONDS = (*_EACH, *HOST, *DEVICE)
CHECKPOINTS = [*TRIAL, "start_s", "end_s", "kind"]
_SERVER_SIDE = [name for name in (*HOST, *DEVICE) if name != "network_mib_s"]

WORKS, NO_STATEMENT = "on a processor", "load tool or a processor"
_CPU = ("server_cpu_ms_per_transaction", "tool_cpu_ms_per_transaction")
_DOING = dict.fromkeys(("Lock", "LWLock", "BufferPin", "Buffer"), "locks") | {"Client": NO_STATEMENT}
DISKS_CAP, _REPLICA = "disk's cap", "replica"
"""Bottlenecks: the disk's cap (followed by its kind), and replicas that commits wait for."""
_NEARLY_FULL = 0.8
"""CPU share above which idle sessions count as waiting for a processor."""


@dataclass(frozen=True)
class Recorded:
    """Samples of successful trials, by ``level, block``.

    - ``seconds``: :data:`benchlib.host.telemetry.HOST`, ``DEVICE`` and the plan's ``samples`` per ``second``
    - ``waits``: mean sessions per ``second`` and wait event (columns), or ``CPU``
    - ``checkpoints``: ``start_s, end_s`` from the load's start; None without a log
    """

    seconds: pd.DataFrame
    waits: pd.DataFrame
    checkpoints: pd.DataFrame | None


def recorded(folder: StudyFolder, plan: Plan, trials: pd.DataFrame) -> Recorded:
    """Return the samples of the successful ``trials``."""
    counters = {name for name, sample in plan.samples.items() if sample.kind == "counter"}
    seconds, checkpointed, waits = list[pd.DataFrame](), list[pd.DataFrame](), list[dict[str, Any]]()
    for level, block, name in good_ones(trials):
        of_trial: dict[str, Any] = {"level": level, "block": block}
        with understood(folder, name):
            samples = Samples.read(folder, name)
            if samples is None or len(samples.readings) < 2:  # one reading gives no rate
                continue
            raw = dict(samples)
            figures, end_s = telemetry(raw), raw["readings"][-1]["at_s"]
            if not samples.of_servers_host(plan.level(level)):
                figures[_SERVER_SIDE] = np.nan
            own = samples_of(raw, counters)
            # readings come shortly after the second
            figures, own = (
                frame.assign(second=np.ceil(frame["at_s"] - raw["interval_s"] / 2))
                for frame in (figures, own)
            )
            own = own.drop(columns="at_s").groupby("second").mean()
            seconds.append(figures.merge(own, how="left", on="second").assign(**of_trial))
            # complete seconds only
            waits += [{**at, **of_trial, "second": s} for s, at in sessions(raw).items() if s <= end_s]
            if (log := folder.raw(name, SERVER_LOG)) is not None:
                rows = checkpoints(log.decode(errors="replace"), raw["started"]["epoch_s"])
                touched = ~(rows["end_s"] < 0) & ~(rows["start_s"] > end_s)
                checkpointed.append(rows[touched].assign(**of_trial))
    stacked = _stacked(seconds, SECONDS)
    own_names = [name for name in stacked if "." in str(name)]
    return Recorded(
        stacked.groupby(_EACH, sort=False)[[*HOST, *DEVICE, *own_names]].mean().reset_index(),
        _frequent_first(pd.DataFrame(waits, columns=None if waits else _EACH)),
        _stacked(checkpointed, CHECKPOINTS)[CHECKPOINTS] if checkpointed else None,
    )


def _stacked(frames: list[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    if filled := [frame for frame in frames if len(frame)]:
        return pd.concat(filled, ignore_index=True)
    types = {name: object if name in ("level", "kind") else float for name in columns}
    return pd.DataFrame(columns=list(columns)).astype({**types, "block": int})


def _one_name_each(events: pd.DataFrame) -> pd.DataFrame:
    """Merge spellings of wait events.

    PostgreSQL 13 renamed ``WALWriteLock`` and ``lock_manager``, 17 ``WALSync``.
    """

    def canonical(event: str) -> str:
        kind, _, name = event.partition(": ")
        bare = name.lower().replace("_", "")
        return f"{kind}: {bare.removesuffix('lock') if kind == 'LWLock' else bare}"

    spelling = {canonical(event): event for event in sorted(map(str, events), reverse=True)}
    return (
        events.rename(columns=lambda event: spelling[canonical(event)]).T.groupby(level=0, sort=False).sum().T
    )


def _frequent_first(waits: pd.DataFrame) -> pd.DataFrame:
    events = _one_name_each(waits.drop(columns=_EACH).sort_index(axis=1).astype(float).fillna(0.0))
    order = events.mean().sort_values(ascending=False, kind="stable").index
    return pd.concat([waits[_EACH].astype({"block": int, "second": float}), events[order]], axis=1)


# --- bottlenecks ------------------------------------------------------------


def bottleneck(
    processors: float, tool: float, cap: float, sessions: Mapping[str, float], *, rate_held: bool = False
) -> str:
    """Return the bottleneck: replica, saturated resource, or main activity of sessions.

    - ``processors, tool, cap``: shares in use; NaN if unknown
    - ``sessions``: mean number by :func:`activity`
    - ``rate_held``: a fixed rate is the bottleneck if no resource is saturated
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
    # not necessarily saturated
    return {"disk": "waits for the disk", "locks": "waits for locks"}.get(most, most)


def activity(event: str) -> str:
    """Return a session's activity; ``WALWrite`` waits for another session's flush."""
    kind, _, name = event.partition(": ")
    if name == "SyncRep":
        return _REPLICA
    if kind == "IO" or name in ("WALWrite", "WALWriteLock"):
        return "disk"
    return "locks" if name == "SpinDelay" else _DOING.get(kind, WORKS if event == ON_CPU else "other waits")


def bottlenecks(plan: Plan, trials: pd.DataFrame, recorded: Recorded) -> pd.DataFrame:
    """Return each level's bottleneck and evidence; null if not recorded.

    - ``processors_share``: of all; ``server, load_tool``: processors used
    - ``cap_share``: median share; ``queue``: requests in flight
    - ``sessions``: mean number by activity
    """
    good = trials[trials["error"].isna()].astype(dict.fromkeys(_CPU, float))
    waits = recorded.waits.groupby(TRIAL).mean().drop(columns="second").groupby("level").mean()
    sessions = waits.T.groupby(activity).sum()
    rows = []
    for level in plan.factor.levels:
        group, seconds = (good[good["level"] == level], recorded.seconds[recorded.seconds["level"] == level])
        means = {str(name): float(mean) for name, mean in sessions.get(level, pd.Series(dtype=float)).items()}
        cap, capped = nearest_cap(plan.level(level), seconds)
        processors, tool = (group["processors_share"].median(), group["client_cpu_share"].median())
        used = [(group["tps"] * group[cost] / 1000).mean() for cost in _CPU]
        # its own cores can be full while others are idle
        if cores := plan.level(level).part("cpu").get("server"):
            processors = np.fmax(processors, used[0] / len(cores_of(cores)))
        held = bool(len(group)) and bool((group["tps"] >= RATE_HELD * group["rate_tps"].astype(float)).all())
        name = bottleneck(processors, tool, cap, means, rate_held=held)
        name += f" on {capped}" if name == DISKS_CAP else ""
        rows.append((level, name, processors, *used, cap, seconds["aqu_sz"].median(), means))
    used_of = ["processors_share", "server", "load_tool", "cap_share"]
    return pd.DataFrame(rows, columns=["level", "bottleneck", *used_of, "queue", "sessions"])


def nearest_cap(level: Level, seconds: pd.DataFrame) -> tuple[float, str]:
    """Return the nearest disk cap: median share (NaN if unknown) and kind."""
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
    if shares.empty or caps.get("wal"):  # figures are sums, caps are per device
        return math.nan, ""
    nearest = str(shares.median().fillna(0.0).idxmax())
    return float(shares.max(axis=1).median()), "requests" if nearest.endswith("iops") else "bytes"
