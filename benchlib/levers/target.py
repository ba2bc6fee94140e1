"""The key ``target``."""

import re
from pathlib import Path

from benchlib.errors import PreflightError
from benchlib.levers.lever import Finding, Lever, Wish
from benchlib.load.workloads.sql import unsafe_part
from benchlib.plan.level import CALLS, CAPACITY, Level, share_of
from benchlib.plan.model import Plan
from benchlib.plan.words import unpublished
from benchlib.plan.workload import Script, Workload
from benchlib.server.remote import Remote
from benchlib.server.rights import Target

_MAKES_SCHEMA = re.compile(r"\bCREATE\s+SCHEMA\b", re.IGNORECASE)


class TargetLever(Lever):
    """An external server: a connection service or a URI."""

    key = "target"
    model = Target | None
    elsewhere = True
    of_server = False
    unchanged = "the study's own"

    def survey(self, scratch: Path) -> list[Finding]:
        """Return a note."""
        note = "any server that a connection service or a URI reaches; a study checks it first"
        return [Finding(self.key, None, note)]

    def check(self, wish: Wish) -> None:
        """Check the server."""
        target, plan = target_of(wish.level), wish.plan
        workload = plan.level_workload(wish.name)
        if reason := _unfit(plan, wish.name, target, workload):
            raise PreflightError(reason)
        if target is None:
            return
        if target.own_schema and _MAKES_SCHEMA.search(workload.load_sql):
            raise PreflightError("the workload creates schemas: it cannot run with 'own_schema'")
        clients = plan.level_load(wish.name).clients + workload.clients_beside
        wish.found += Remote(target).preflight(
            clients=clients, settings=wish.level.settings, needs_mib=wish.data_mib, template=workload.template
        )

    def conflict(self, level: Level) -> str | None:
        """Refuse a schema change in place."""
        return "'sql' changes a database, 'in_place' only reads it" if level.in_place and level.sql else None

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Return the server."""
        target, settings = target_of(plan.level(name)), plan.level(name).settings
        if target is None:
            return {}
        note = ", server-wide settings for all its users" if target.server_wide and settings else ""
        return {"server": target_words(plan, target) + note}


def target_of(level: Level) -> Target | None:
    """Return a level's external server."""
    return Target.model_validate(level.target) if level.target else None


def _unfit(plan: Plan, name: str, target: Target | None, workload: Workload) -> str | None:
    """Return why a level is impossible."""
    rate, template = plan.asked_rate(name), workload.template
    if target and target.in_place:
        if share_of(CAPACITY, rate):
            return "the capacity of a server in use is not measured: give a rate per second, or “5 % of its calls”"
        return _not_only_reading(plan, name, workload)
    if share_of(CALLS, rate):
        return f"the rate “{rate}” needs a target with 'in_place'"
    if template and (not target or target.own_schema):
        return f"the data set is a database of an external server, “{template}”: give a target without 'own_schema'"
    return None


def _not_only_reading(plan: Plan, name: str, workload: Workload) -> str | None:
    """Return why a workload may write."""
    if workload.tool != "pgbench" or workload.beside:
        return "in place, pgbench runs scripts at a limited rate: use a workload without background clients"
    load = plan.level_load(name)
    statements = (*workload.explain, *(f"SELECT {value}" for value in load.variables.values()))
    scripts = (*workload.scripts, *(Script(sql=statement) for statement in statements))
    for number, script in enumerate(scripts, 1):
        if script.builtin and script.builtin != "select-only":
            return f"in place, a workload only reads: {script.builtin} writes"
        if part := unsafe_part(script.sql or ""):
            return f"in place, a workload only reads: script {number} of “{workload.name}” has {part}"
        if load.protocol == "simple" and re.search(r"(?i)\\[ga]set\b", script.sql or ""):
            return "in place, \\gset needs the protocol extended or prepared: else rows become statements"
    return None


def target_words(plan: Plan, target: Target) -> str:
    """Return the service name; of a URI only that it is one."""
    server = unpublished(plan).get(target.server, f"service {target.server}")
    if target.in_place:
        return f"{server}, in place"
    return f"{server}, schema {target.own_schema}" if target.own_schema else server
