"""The keys of a level."""

from benchlib.levers.cache import Cache
from benchlib.levers.cpu import Cpu
from benchlib.levers.host import Host
from benchlib.levers.lever import Lever
from benchlib.levers.plain import Initdb, LoadLever, Postgres, WorkloadLever
from benchlib.levers.pooler import PoolerLever
from benchlib.levers.replication import ReplicationLever, replication_of
from benchlib.levers.settings import Settings
from benchlib.levers.sql import SqlLever
from benchlib.levers.storage import StorageLever
from benchlib.levers.target import TargetLever
from benchlib.plan.level import Level, SettingValue
from benchlib.plan.model import Plan, Study

LEVERS: tuple[Lever, ...] = (
    TargetLever(),
    Postgres(),
    Initdb(),
    WorkloadLever(),
    SqlLever(),
    LoadLever(),
    Settings(),
    Cpu(),
    StorageLever(),
    ReplicationLever(),
    Cache(),
    PoolerLever(),
    Host(),
)
"""All levers, in the order in which they are set and shown."""

BY_KEY: dict[str, Lever] = {lever.key: lever for lever in LEVERS}


def server_settings(level: Level) -> dict[str, SettingValue]:
    """Return a level's server parameters."""
    names = replication_of(level).standby_names
    return {**level.settings, **({"synchronous_standby_names": names} if names else {})}


def worded(study: Study) -> Study:
    """Return the study with levels in words."""
    plan = study.plan
    costs = {
        name: tuple(cost for lever in LEVERS for cost in lever.crash_costs(plan.level(name)))
        for name in plan.factor.levels
    }
    return study.model_copy(update={"levels_in_words": _in_words(plan), "crash_costs": costs})


def _in_words(plan: Plan) -> dict[str, dict[str, str]]:
    """Return each level's cells by row heading.

    Pages show them: no local path, no host name.
    """
    cells: dict[str, dict[str, str]] = {name: {} for name in plan.factor.levels}
    for lever in LEVERS:
        named = {name: lever.words(plan, name) for name in plan.factor.levels}
        for heading in dict.fromkeys(heading for words in named.values() for heading in words):
            for name, words in named.items():
                external = lever.of_server and plan.level(name).target  # its defaults are unknown
                unset = "server's own" if external else lever.left_alone(plan, name, heading)
                cells[name][heading] = words.get(heading, unset)
    return cells
