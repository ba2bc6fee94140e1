"""``target``: an external server instead of an embedded cluster."""

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
    """A connection service or a URI; rights are checked before anything changes."""

    key = "target"
    model = Target | None
    elsewhere = True
    of_server = False
    unchanged = "the study's own"

    def survey(self, scratch: Path) -> list[Finding]:
        """Return a note only."""
        note = "any server that a connection service or a URI reaches; a study checks it first"
        return [Finding(self.key, None, note)]

    def check(self, wish: Wish) -> list[tuple[str, str]]:
        """Check the server; return facts."""
        target, plan = target_of(wish.level), wish.plan
        if target is None:
            return []
        if target.own_schema and _MAKES_SCHEMA.search(plan.level_workload(wish.name).load_sql):
            raise PreflightError("the workload creates schemas: it cannot run with 'own_schema'")
        clients = plan.level_load(wish.name).clients + plan.level_workload(wish.name).clients_beside
        return Remote(target).preflight(
            clients=clients, settings=wish.level.settings, needs_mib=wish.data_mib
        )

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Return the external server."""
        target, settings = target_of(plan.level(name)), plan.level(name).settings
        if target is None:
            return {}
        note = ", server-wide settings for all its users" if target.server_wide and settings else ""
        return {"server": target_words(plan, target) + note}


def target_of(level: Level) -> Target | None:
    """Return a level's external server, or None."""
    return Target.model_validate(level.target) if level.target else None


def target_words(plan: Plan, target: Target) -> str:
    """Return the service name; of a URI only that it is one."""
    server = unpublished(plan).get(target.server, f"service {target.server}")
    return f"{server}, schema {target.own_schema}" if target.own_schema else server
