"""The key ``workload``."""

from benchlib.levers.lever import Lever, Wish
from benchlib.load import tools
from benchlib.plan.model import Plan


class WorkloadLever(Lever):
    """Another workload than the study's."""

    key = "workload"
    elsewhere = True
    of_server = False

    def check(self, wish: Wish) -> list[tuple[str, str]]:
        """Check the load tool."""
        tools.check(wish.plan.level_workload(wish.name), wish.plan.level_load(wish.name))
        return []

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Return the title."""
        return {"workload": plan.level_workload(name).title} if plan.level(name).workload else {}

    def left_alone(self, plan: Plan, name: str, heading: str) -> str:
        """Return the study's workload."""
        return plan.workload.title
