"""``initdb``: extra options for initdb."""

from benchlib.levers.lever import Lever
from benchlib.plan.model import Plan


class Initdb(Lever):
    """Options of initdb's command line; initdb refuses unknown ones."""

    key = "initdb"

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Return the options in one line."""
        options = plan.level(name).initdb
        return {"initdb": " ".join(options)} if options else {}
