"""What held each level back, from what was sampled while its trials ran."""

import math
from collections.abc import Mapping

import pandas as pd

from benchlib.host.telemetry import ON_CPU
from benchlib.plan.level import Level
from benchlib.plan.model import Plan
from benchlib.stats.validity import BUSY_CLIENT, FULL, RATE_HELD
from benchlib.study.instruments import Recorded
from benchlib.study.results import TRIAL

WORKS, NO_STATEMENT = "on a processor", "load tool or a processor"
_CPU = ("server_cpu_ms_per_transaction", "tool_cpu_ms_per_transaction")
_DOING = dict.fromkeys(("Lock", "LWLock", "BufferPin", "Buffer"), "locks") | {"Client": NO_STATEMENT}
_NEARLY_FULL = 0.8
"""From here on a session without a statement waits for a processor, for itself or for the load tool, rather than for the tool."""


def bottleneck(
    processors: float, tool: float, cap: float, sessions: Mapping[str, float], *, rate_held: bool = False
) -> str:
    """What held a level back: what was used up, or else what its sessions did most (of :func:`doing`).

    ``processors``, ``tool`` and ``cap`` are shares: of all processors, of the load tool's threads, of the disk's cap; NaN
    where unknown. ``sessions`` are means by what they did. Where nothing was used up and a fixed rate held, it is the rate;
    where sessions mostly worked, or had nothing to do, and the processors were free, the clients were too few or too slow.
    """
    for share, limit, name in (
        (tool, BUSY_CLIENT, "load tool"),
        (cap, FULL, "disk's cap"),
        (processors, FULL, "processors"),
    ):
        if share >= limit:
            return name
    if rate_held:
        return "the rate that was set"
    most = max(sessions, key=lambda name: sessions[name], default="not known")
    if most in (WORKS, NO_STATEMENT) and math.isfinite(processors):
        return "processors" if processors >= _NEARLY_FULL else "clients"
    return most


def doing(event: str) -> str:
    """What a session does that is seen at a wait event: who waits for ``WALWrite`` waits for another's flush."""
    kind, _, name = event.partition(": ")
    if name == "SyncRep":
        return "replica"
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
        cap = cap_share(plan.level(level), seconds)
        processors, tool = of["processors_share"].median(), of["client_cpu_share"].median()
        held = bool(len(of)) and bool((of["tps"] >= RATE_HELD * of["rate_tps"].astype(float)).all())
        name = bottleneck(processors, tool, cap, means, rate_held=held)
        used = [(of["tps"] * of[cost] / 1000).mean() for cost in _CPU]
        rows.append((level, name, processors, *used, cap, seconds["aqu_sz"].median(), means))
    used_of = ["processors_share", "server", "load_tool", "cap_share"]
    return pd.DataFrame(rows, columns=["level", "bottleneck", *used_of, "queue", "sessions"])


def cap_share(level: Level, seconds: pd.DataFrame) -> float:
    """How much of the cap that is nearest was used in the median second; NaN where none is set, or nothing is known."""
    caps = level.part("storage")
    used = [
        seconds[figure] * unit / caps[cap]
        for figure, unit, cap in (
            ("r_iops", 1, "read_iops"), ("w_iops", 1, "write_iops"),
            ("r_mib_s", 2**20, "read_bytes"), ("w_mib_s", 2**20, "write_bytes"),
        )
        if caps.get(cap)
    ]  # fmt: skip
    return float(pd.concat(used, axis=1).max(axis=1).median()) if used else float("nan")
