"""Saved crashes, ``crashes/<id>.json``."""

from typing import Literal

from pydantic import PositiveInt, ValidationError

from benchlib.errors import InputError
from benchlib.plan.level import Model
from benchlib.plan.model import Plan
from benchlib.study.store import StudyFolder

Kind = Literal["killed server", "power cut"]
KILLED: Kind = "killed server"
POWER_CUT: Kind = "power cut"
KINDS = (KILLED, POWER_CUT)


class Round(Model):
    """One crash; ``number`` counts from 1 per level and kind."""

    level: str
    kind: Kind
    number: PositiveInt


class Crash(Round):
    """The result of a crash; counts are None if the rows cannot be read.

    - ``after_s``: seconds of load before it
    - ``acknowledged``: commits; ``lost``: missing ones; ``oldest_lost_ms``: age of the oldest
    - ``unacknowledged``: commits that survived, which is harmless
    - ``recovery_s``: until the first connection; None if the server did not start
    """

    after_s: float
    server_version: str
    acknowledged: int
    lost: int | None
    oldest_lost_ms: float | None
    unacknowledged: int | None
    recovery_s: float | None
    damage: tuple[str, ...]


def keep_crash(folder: StudyFolder, crash: Crash) -> None:
    """Save a crash atomically; StudyError if the disk refuses."""
    index = list(folder.read().plan.factor.levels).index(crash.level)
    crash_id = f"{crash.kind.replace(' ', '-')}-{index:02d}-{crash.number:03d}"
    folder.put(f"crashes/{crash_id}.json", (crash.model_dump_json(indent=2) + "\n").encode())


def kept_crashes(folder: StudyFolder) -> list[Crash]:
    """Return the saved crashes; InputError if one is damaged."""
    crashes = []
    for path in sorted(folder.path.glob("crashes/[!.]*.json")):
        try:
            crashes.append(Crash.model_validate_json(folder.stored(f"crashes/{path.name}") or b""))
        except ValidationError as reason:
            why = "is damaged: restore it from a copy, or move it away to repeat the crash"
            raise InputError(f"{folder.name}: crashes/{path.name} {why}") from reason
    return crashes


def left_out(plan: Plan, kind: Kind) -> dict[str, str]:
    """Return the levels that cannot be crashed, with reasons."""
    reasons: dict[str, str] = {}
    first: dict[str, str] = {}
    for name in plan.factor.levels:
        level = plan.level(name).without_load()
        data, wal = (level.part("storage").get(name) for name in ("data", "wal"))
        plain = not data or (isinstance(data, dict) and data.get("file_system") == "ext4")
        same = first.setdefault(level.model_dump_json(), name)
        if level.target:
            reasons[name] = "it has an external server, which benchlib does not crash"
        elif level.part("replication").get("replicas"):
            reasons[name] = "its rows are also on replicas, which each trial verifies"
        elif same != name:
            reasons[name] = f"it has the same server as “{same}”"
        elif kind == POWER_CUT and (wal or not plain):
            reasons[name] = (
                "its WAL has its own device, or its data are not on ext4; a power cut needs one ext4 disk"
            )
    return reasons
