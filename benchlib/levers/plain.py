"""The keys ``postgres``, ``initdb``, ``workload`` and ``load``."""

import re
from typing import Annotated

from pydantic import BeforeValidator

from benchlib.levers.lever import Lever, Wish
from benchlib.load import tools
from benchlib.plan.level import Level
from benchlib.plan.model import Plan
from benchlib.plan.words import rate_words, unpublished
from benchlib.server.installations import find_installation


def _version_text(value: object) -> object:
    """Convert 16 to text, but not 16.10, which is read as 16.1."""
    if isinstance(value, float):
        raise ValueError(f'write the version as text, "{value}": a number loses its last zeros')
    return str(value) if isinstance(value, int) else value


class Postgres(Lever):
    """An installation, by version or program directory."""

    key = "postgres"
    model = Annotated[str | None, BeforeValidator(_version_text)]

    def check(self, wish: Wish) -> None:
        """Check that the installation exists."""
        find_installation(wish.level.postgres)

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Return the version."""
        installation = plan.level(name).postgres
        return {"PostgreSQL": unpublished(plan).get(installation, installation)} if installation else {}


class Initdb(Lever):
    """Extra options."""

    key = "initdb"

    def conflict(self, level: Level) -> str | None:
        """Refuse another data directory."""
        if any(re.match(r"-[dgknNsSW]*D|--pg", option) for option in level.initdb):
            return "the data directory is benchlib's: leave -D out of the options of initdb, use 'storage'"
        return super().conflict(level)

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Return one line."""
        options = plan.level(name).initdb
        return {"initdb": " ".join(options)} if options else {}


class WorkloadLever(Lever):
    """Another workload than the study's."""

    key = "workload"
    elsewhere = True
    of_server = False

    def check(self, wish: Wish) -> None:
        """Check the load tool."""
        tools.check(wish.plan.level_workload(wish.name), wish.plan.level_load(wish.name))

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Return the title."""
        return {"workload": plan.level_workload(name).title} if plan.level(name).workload else {}

    def left_alone(self, plan: Plan, name: str, heading: str) -> str:
        """Return the study's workload."""
        return plan.workload.title


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
