"""The key ``postgres``."""

from typing import Annotated

from pydantic import BeforeValidator

from benchlib.levers.lever import Lever, Wish
from benchlib.plan.model import Plan
from benchlib.plan.words import unpublished
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

    def check(self, wish: Wish) -> list[tuple[str, str]]:
        """Check that the installation exists."""
        find_installation(wish.level.postgres)
        return []

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Return the version."""
        installation = plan.level(name).postgres
        return {"PostgreSQL": unpublished(plan).get(installation, installation)} if installation else {}
