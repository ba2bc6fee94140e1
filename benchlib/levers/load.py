"""The key ``load``."""

from benchlib.levers.lever import Lever
from benchlib.plan.model import Plan
from benchlib.plan.words import rate_words


class LoadLever(Lever):
    """Changes of the study's load."""

    key = "load"
    elsewhere = True
    of_server = False

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Return the changes."""
        patch, cells = plan.level(name).load.model_dump(exclude_none=True), _cells(plan, name)
        changed = {*patch, *(heading for heading in cells if heading[0] == ":" and "variables" in patch)}
        return {heading: cell for heading, cell in cells.items() if heading in changed}

    def left_alone(self, plan: Plan, name: str, heading: str) -> str:
        """Return the study's value."""
        return _cells(plan, name).get(heading, "not given")


def _cells(plan: Plan, name: str) -> dict[str, str]:
    load = plan.level_load(name)
    return {
        "clients": str(load.clients),
        "threads": str(load.threads),
        "protocol": load.protocol,
        "rate": rate_words(plan, name),
        "connect_per_transaction": "yes" if load.connect_per_transaction else "no",
        "generators": ", ".join(load.generators) or "the server's host",
        **{f":{variable}": str(value) for variable, value in load.variables.items()},
    }
