"""``target``: a server that is not ours, instead of a cluster of our own."""

from __future__ import annotations

from pathlib import Path

from benchlib.levers.lever import Finding, Lever, Wish
from benchlib.plan.level import Target
from benchlib.plan.model import Plan
from benchlib.plan.words import unpublished
from benchlib.server.remote import Remote


class TargetLever(Lever):
    """A connection service or a URI; what a study needs there, it asks before it changes anything."""

    key = "target"
    elsewhere = True
    of_server = False
    unchanged = "the study's own"

    def survey(self, scratch: Path) -> list[Finding]:
        """Nothing is known of a server that nobody has named."""
        note = "any server that a connection service or a URI reaches from here; a study looks first"
        return [Finding(self.key, None, note)]

    def check(self, wish: Wish) -> list[tuple[str, str]]:
        """Ask the server; its rows name its connection service."""
        level, plan = wish.level, wish.plan
        if level.target is None:
            return []
        sizes = [
            Wish(plan, name, wish.scratch).data_mib
            for name in plan.factor.levels
            if (other := plan.level(name).target) and other.server == level.target.server
        ]
        return Remote(level.target).preflight(
            clients=plan.level_load(wish.name).clients,
            settings=level.settings,
            needs_mib=sum(sizes) if plan.arrangement == "standing" else max(sizes),
        )

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """The server; of a URI nothing but that it is one."""
        target = plan.level(name).target
        return {"server": target_words(plan, target)} if target else {}


def target_words(plan: Plan, target: Target) -> str:
    """A server that is not ours: its connection service; of a URI nothing but that it is one."""
    server = unpublished(plan).get(target.server, f"service {target.server}")
    return f"{server}, schema {target.own_schema}" if target.own_schema else server
