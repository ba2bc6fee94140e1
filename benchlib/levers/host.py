"""``host``: kernel tunables, set for each trial and restored by the journal."""

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from benchlib.host.facts import block_devices, existing
from benchlib.host.journal import Scope
from benchlib.levers import tunables
from benchlib.levers.lever import Finding, Lever, Site, Wish
from benchlib.levers.storage import storage_of
from benchlib.plan.model import Plan


class Host(Lever):
    """Tunables by name, see :mod:`.tunables`."""

    key = "host"
    model = Annotated[
        dict[Annotated[str, Field(pattern=r"^[a-z0-9_.-]+\??$")], int | str],
        BeforeValidator(lambda value: value or {}),
    ]
    unchanged = "as found"

    def survey(self, scratch: Path) -> list[Finding]:
        """Return whether any tunable can be set, and a row for each published one."""
        parts = tunables.survey(block_devices(existing(scratch)))
        none_works = "no tunable can be set: see the rows below" if all(why for _, why in parts) else None
        return [Finding(self.key, none_works), *(Finding(f"host: {name}", why) for name, why in parts)]

    def check(self, wish: Wish) -> list[tuple[str, str]]:
        """Check each value; return remarks on those left out."""
        remarks = tunables.check(wish.level.host, storage_of(wish.level).devices(wish.scratch))
        return [("remark", remark) for remark in remarks]

    def before_files(self, site: Site) -> None:
        """Add remarks on tunables left out."""
        site.remarks += tunables.check(site.level.host, site.devices)

    def before_trial(self, site: Site, scope: Scope) -> dict[str, str]:
        """Set the tunables and read them back."""
        return tunables.apply(site.level.host, site.devices, scope)

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Return each value, marked if it is optional."""
        return {
            key.removesuffix("?"): f"{value}, if it can be set" if key.endswith("?") else str(value)
            for key, value in plan.level(name).host.items()
        }
