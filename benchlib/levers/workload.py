"""``workload``: another workload than the study's, by name."""

from benchlib.levers.lever import Lever, Wish
from benchlib.load import tools
from benchlib.plan.model import Plan


class WorkloadLever(Lever):
    """A workload by name; it brings its own data."""

    key = "workload"
    elsewhere = True
    of_server = False

    def check(self, wish: Wish) -> list[tuple[str, str]]:
        """See whether the workload's tool is here and can do what the load asks for."""
        tools.check(wish.plan.level_workload(wish.name), wish.plan.level_load(wish.name))
        return []

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """The workload's title."""
        return {"workload": plan.level_workload(name).title} if plan.level(name).workload else {}

    def left_alone(self, plan: Plan, name: str, heading: str) -> str:
        """The study's workload."""
        return plan.workload.title
