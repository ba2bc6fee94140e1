"""``settings``: the parameters of a level's server."""

from __future__ import annotations

from benchlib.levers.lever import Lever
from benchlib.plan.level import Level, SettingValue, is_off
from benchlib.plan.model import Plan

_CRASH_COSTS = {
    "fsync": "a power cut can corrupt the whole cluster (fsync = off)",
    "full_page_writes": "a power cut can leave torn pages (full_page_writes = off)",
    "synchronous_commit": "a crash loses the latest acknowledged commits (synchronous_commit = off)",
}


class Settings(Lever):
    """Server parameters by name. The stand writes them to a file, and reads them back before each trial."""

    key = "settings"
    elsewhere = True

    def settings(self, level: Level) -> dict[str, SettingValue]:
        """The level's own."""
        return dict(level.settings)

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Each parameter's value as PostgreSQL spells it."""
        return {
            parameter: ("on" if value else "off") if isinstance(value, bool) else str(value)
            for parameter, value in plan.level(name).settings.items()
        }

    def crash_costs(self, level: Level) -> list[str]:
        """What is given up by switching off what makes commits durable."""
        return [cost for name, cost in _CRASH_COSTS.items() if is_off(level.settings.get(name, "on"))]
