"""``postgres``: which installation a level's server runs from."""

from typing import Annotated

from pydantic import Field

from benchlib.levers.lever import Lever, Wish
from benchlib.plan.model import Plan
from benchlib.plan.words import unpublished
from benchlib.server.installations import find_installation


class Postgres(Lever):
    """An installation, by its version such as ``"16"`` or by the folder of its programs."""

    key = "postgres"
    model = Annotated[str, Field(coerce_numbers_to_str=True)] | None

    def check(self, wish: Wish) -> list[tuple[str, str]]:
        """See whether the installation is there."""
        find_installation(wish.level.postgres)
        return []

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """The version, or that it is one in a folder."""
        installation = plan.level(name).postgres
        return {"PostgreSQL": unpublished(plan).get(installation, installation)} if installation else {}
