"""The key ``initdb``."""

import re

from benchlib.levers.lever import Lever
from benchlib.plan.level import Level
from benchlib.plan.model import Plan


class Initdb(Lever):
    """Extra options."""

    key = "initdb"

    def conflict(self, level: Level) -> str | None:
        """Refuse another data directory."""
        if any(re.match(r"-[dgknNsSW]*D|--pg", option) for option in level.initdb):
            return "the data directory is benchlib's: leave -D out of the options of initdb, use 'storage'"
        return super().conflict(level)

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Return one line."""
        options = plan.level(name).initdb
        return {"initdb": " ".join(options)} if options else {}
