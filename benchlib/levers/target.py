"""``target``: a server that is not ours, instead of a cluster of our own."""

import re
from pathlib import Path

from benchlib.errors import PreflightError
from benchlib.levers.lever import Finding, Lever, Wish
from benchlib.plan.level import Level
from benchlib.plan.model import Plan
from benchlib.plan.words import unpublished
from benchlib.server.remote import Remote
from benchlib.server.rights import Target

_MAKES_SCHEMA = re.compile(r"\bCREATE\s+SCHEMA\b", re.IGNORECASE)


class TargetLever(Lever):
    """A connection service or a URI; what a study needs there, it asks before it changes anything."""

    key = "target"
    model = Target | None
    elsewhere = True
    of_server = False
    unchanged = "the study's own"

    def survey(self, scratch: Path) -> list[Finding]:
        """Nothing is known of a server that nobody has named."""
        note = "any server that a connection service or a URI reaches from here; a study looks first"
        return [Finding(self.key, None, note)]

    def check(self, wish: Wish) -> list[tuple[str, str]]:
        """Ask the server; its rows name its connection service."""
        target, plan = target_of(wish.level), wish.plan
        if target is None:
            return []
        if target.own_schema and _MAKES_SCHEMA.search(plan.level_workload(wish.name).load_sql):
            raise PreflightError("its workload makes schemas, which 'own_schema' cannot hold: leave that out")
        clients = plan.level_load(wish.name).clients + plan.level_workload(wish.name).clients_beside
        return Remote(target).preflight(
            clients=clients, settings=wish.level.settings, needs_mib=wish.data_mib
        )

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """The server; of a URI nothing but that it is one."""
        target, settings = target_of(plan.level(name)), plan.level(name).settings
        if target is None:
            return {}
        everybody = ", server-wide settings for everybody there" if target.server_wide and settings else ""
        return {"server": target_words(plan, target) + everybody}


def target_of(level: Level) -> Target | None:
    """The server that a level names; None where its server is ours."""
    return Target.model_validate(level.target) if level.target else None


def target_words(plan: Plan, target: Target) -> str:
    """A server that is not ours: its connection service; of a URI nothing but that it is one."""
    server = unpublished(plan).get(target.server, f"service {target.server}")
    return f"{server}, schema {target.own_schema}" if target.own_schema else server
