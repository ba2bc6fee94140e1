"""The key ``initdb``."""

from benchlib.levers.lever import Lever
from benchlib.plan.model import Plan


class Initdb(Lever):
    """Extra options."""

    key = "initdb"

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Return one line."""
        options = plan.level(name).initdb
        return {"initdb": " ".join(options)} if options else {}
