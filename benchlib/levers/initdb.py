"""``initdb``: further options of initdb, which decide what a cluster is made like."""

from benchlib.levers.lever import Lever
from benchlib.plan.model import Plan


class Initdb(Lever):
    """Options as on initdb's command line; initdb itself refuses those that it does not know."""

    key = "initdb"

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """The options in a row."""
        options = plan.level(name).initdb
        return {"initdb": " ".join(options)} if options else {}
