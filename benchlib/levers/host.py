"""``host``: kernel tunables by the names that the studies use, set for each trial and restored by the journal."""

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from benchlib.host.facts import block_devices, existing
from benchlib.host.journal import Chapter
from benchlib.levers import tunables
from benchlib.levers.lever import Finding, Lever, Site, Wish
from benchlib.levers.storage import storage_of
from benchlib.plan.model import Plan


class Host(Lever):
    """Tunables; one whose name ends with a ``?`` is left out where the kernel lacks it. See :mod:`.tunables`."""

    key = "host"
    model = Annotated[
        dict[Annotated[str, Field(pattern=r"^[a-z0-9_.-]+\??$")], int | str],
        BeforeValidator(lambda value: value or {}),
    ]
    unchanged = "as found"

    def survey(self, scratch: Path) -> list[Finding]:
        """Whether any can be set, and each of those that the published studies set."""
        parts = tunables.survey(block_devices(existing(scratch)))
        none_works = "no tunable can be set: see each of them below" if all(why for _, why in parts) else None
        return [Finding(self.key, none_works), *(Finding(f"host: {name}", why) for name, why in parts)]

    def check(self, wish: Wish) -> list[tuple[str, str]]:
        """See whether each can be set to its value; a remark on each optional one that is left out."""
        remarks = tunables.check(wish.level.host, storage_of(wish.level).devices(wish.scratch))
        return [("remark", remark) for remark in remarks]

    def before_files(self, site: Site) -> None:
        """Remark on what is left out, for whoever reads the trials."""
        site.remarks += tunables.check(site.level.host, site.devices)

    def before_trial(self, site: Site, chapter: Chapter) -> dict[str, str]:
        """Set them, and read them back."""
        return tunables.apply(site.level.host, site.devices, chapter)

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Each value; of one that is optional, the trials say whether it was in force."""
        return {
            key.removesuffix("?"): f"{value}, where it can be set" if key.endswith("?") else str(value)
            for key, value in plan.level(name).host.items()
        }
