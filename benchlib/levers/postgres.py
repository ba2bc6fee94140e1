"""``postgres``: which installation a level's server runs from."""

from typing import Annotated

from pydantic import BeforeValidator

from benchlib.levers.lever import Lever, Wish
from benchlib.plan.model import Plan
from benchlib.plan.words import unpublished
from benchlib.server.installations import find_installation


def _version_text(value: object) -> object:
    """A major version may be a number; 16.10 as a number is 16.1, so a decimal one is refused."""
    if isinstance(value, float):
        raise ValueError(f'write the version as text, "{value}": as a number its last zeros are lost')
    return str(value) if isinstance(value, int) else value


class Postgres(Lever):
    """An installation, by its version such as ``"16"`` or by the folder of its programs."""

    key = "postgres"
    model = Annotated[str | None, BeforeValidator(_version_text)]

    def check(self, wish: Wish) -> list[tuple[str, str]]:
        """See whether the installation is there."""
        find_installation(wish.level.postgres)
        return []

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """The version, or that it is one in a folder."""
        installation = plan.level(name).postgres
        return {"PostgreSQL": unpublished(plan).get(installation, installation)} if installation else {}
