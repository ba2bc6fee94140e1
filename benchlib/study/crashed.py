"""What the crashes of a study's levels left: ``crashes/<id>.json``, a file for each, written by :mod:`benchlib.study.crashes`."""

from typing import Literal

from pydantic import PositiveInt, ValidationError

from benchlib.errors import InputError, os_errors_as
from benchlib.host.files import open_plain
from benchlib.plan.level import Model
from benchlib.plan.model import Plan
from benchlib.study.store import StudyFolder

Kind = Literal["killed server", "power cut"]
KILLED: Kind = "killed server"
POWER_CUT: Kind = "power cut"
KINDS = (KILLED, POWER_CUT)


class Round(Model):
    """One crash of one level; ``number`` counts those of a kind at a level from 1."""

    level: str
    kind: Kind
    number: PositiveInt


class Crash(Round):
    """What one crash left.

    ``after_s`` is when it came, in seconds of load; ``acknowledged`` counts the commits up to then, ``lost`` those of them
    that are gone, and ``oldest_lost_ms`` is how long before the crash the first of them was acknowledged.
    ``unacknowledged`` commits are there although nobody was told, which does no harm. All three are None where the rows
    cannot be read, and ``recovery_s``, from the start until the server answered, where it did not start. ``damage``
    is in the server's own words.
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
    """Keep a crash of a study's level, whole or not at all.

    Raises:
        StudyError: the disk refused; what was kept before is safe.

    """
    place = list(folder.read().plan.factor.levels).index(crash.level)
    crash_id = f"{crash.kind.replace(' ', '-')}-{place:02d}-{crash.number:03d}"
    folder.put(f"crashes/{crash_id}.json", (crash.model_dump_json(indent=2) + "\n").encode())


def kept_crashes(folder: StudyFolder) -> list[Crash]:
    """All crashes of a study's levels, by kind, level and number.

    Raises:
        InputError: a file is damaged.

    """
    crashes = []
    for path in sorted(folder.path.glob("crashes/[!.]*.json")):
        name = f"{folder.name}: crashes/{path.name}"
        try:
            with (
                os_errors_as(InputError, f"{name} cannot be read"),
                open(path, "rb", opener=open_plain) as file,
            ):
                crashes.append(Crash.model_validate_json(file.read()))
        except ValidationError as reason:
            why = "is damaged: bring it back from a copy; moved elsewhere, the level is crashed again"
            raise InputError(f"{name} {why}") from reason
    return crashes


def left_out(plan: Plan, kind: Kind) -> dict[str, str]:
    """The levels that are not crashed, each with the reason."""
    reasons: dict[str, str] = {}
    first: dict[str, str] = {}
    for name in plan.factor.levels:
        level = plan.level(name).without_load()
        data, wal = (level.part("storage").get(name) for name in ("data", "wal"))
        plain = not data or (isinstance(data, dict) and data.get("file_system") == "ext4")
        alike = first.setdefault(level.model_dump_json(), name)
        if level.target:
            reasons[name] = "its server is not ours to crash"
        elif level.part("replication").get("replicas"):
            reasons[name] = "its rows are on replicas too, which each trial holds to their promise"
        elif alike != name:
            reasons[name] = f"its server is that of “{alike}”"
        elif kind == POWER_CUT and (wal or not plain):
            reasons[name] = (
                "its WAL has a place of its own, or its data lie on no ext4: one such disk loses power here"
            )
    return reasons
