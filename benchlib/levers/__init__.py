"""What a level can turn: one file for each of its keys, and here all of them in their order."""

from benchlib.levers.cache import Cache
from benchlib.levers.host import Host
from benchlib.levers.initdb import Initdb
from benchlib.levers.lever import Lever
from benchlib.levers.load import LoadLever
from benchlib.levers.pooler import PoolerLever
from benchlib.levers.postgres import Postgres
from benchlib.levers.replication import ReplicationLever
from benchlib.levers.settings import Settings
from benchlib.levers.storage import StorageLever
from benchlib.levers.target import TargetLever
from benchlib.levers.workload import WorkloadLever
from benchlib.plan.level import Level, SettingValue
from benchlib.plan.model import Plan, Study

LEVERS: tuple[Lever, ...] = (
    TargetLever(),
    Postgres(),
    Initdb(),
    WorkloadLever(),
    LoadLever(),
    Settings(),
    StorageLever(),
    ReplicationLever(),
    Cache(),
    PoolerLever(),
    Host(),
)
"""All there are, in the order in which they are set and shown."""

BY_KEY: dict[str, Lever] = {lever.key: lever for lever in LEVERS}


def server_settings(level: Level) -> dict[str, SettingValue]:
    """The parameters that a level's server runs with: its own, and what other levers ask for."""
    return {name: value for lever in LEVERS for name, value in lever.settings(level).items()}


def worded(study: Study) -> Study:
    """A study with its levels in words and what a crash may cost at each, so that its pages need no lever."""
    plan = study.plan
    costs = {
        name: tuple(cost for lever in LEVERS for cost in lever.crash_costs(plan.level(name)))
        for name in plan.factor.levels
    }
    return study.model_copy(update={"levels_in_words": _in_words(plan), "crash_costs": costs})


def _in_words(plan: Plan) -> dict[str, dict[str, str]]:
    """What each level runs with, base included, by the heading of a table's row; all have the same headings.

    Without a path of this machine or the host of a server: pages show it.
    """
    cells: dict[str, dict[str, str]] = {name: {} for name in plan.factor.levels}
    for lever in LEVERS:
        named = {name: lever.words(plan, name) for name in plan.factor.levels}
        for heading in dict.fromkeys(heading for words in named.values() for heading in words):
            for name, words in named.items():
                # of a server that is not ours nobody here knows what it has by default
                theirs = lever.of_server and plan.level(name).target
                left_alone = "as it is there" if theirs else lever.left_alone(plan, name, heading)
                cells[name][heading] = words.get(heading, left_alone)
    return cells
