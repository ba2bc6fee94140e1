"""``cache``: what a trial's load finds in memory: nothing of the data (``cold``), or as much as there is room for (``warm``)."""

import sys
from functools import partial
from pathlib import Path
from typing import Literal

from benchlib.errors import PreflightError, SettingError
from benchlib.host import page_cache
from benchlib.levers.lever import Finding, Lever, Site, Wish, no_server
from benchlib.levers.replication import replication_of
from benchlib.levers.storage import storage_of
from benchlib.plan.level import Level
from benchlib.plan.model import Plan
from benchlib.server.cluster import Cluster
from benchlib.server.server import read_sql

_UNASKED = None if sys.platform == "linux" else "only Linux tells and drops what it has of a file in memory"
_LEFT = 0.01
"""The share of the data's pages that may stay in memory: such as those that the kernel is writing."""


class Cache(Lever):
    """Before the load the server is restarted either way, so that only what is in memory differs."""

    key = "cache"
    model = Literal["cold", "warm"] | None
    unchanged = "as the warm-up leaves it"

    def conflict(self, level: Level) -> str | None:
        """Replicas, and a cap on memory that would not count what is read into it."""
        if level.cache and replication_of(level).replicas:
            return "'cache' restarts the server, which its replicas would lose: leave 'replication' out"
        if level.cache == "warm" and storage_of(level).memory:
            return "the cap on memory would not count what 'cache: warm' reads into it: leave one of them out"
        return super().conflict(level)

    def survey(self, scratch: Path) -> list[Finding]:
        """Only Linux can be asked."""
        return [Finding(self.key, no_server() or _UNASKED)]

    def check(self, wish: Wish) -> list[tuple[str, str]]:
        """See whether the kernel can be asked, and nothing runs beside the load that a restart would end."""
        if wish.level.cache:
            if _UNASKED:
                raise PreflightError(_UNASKED)
            if wish.plan.level_workload(wish.name).beside:
                raise PreflightError(
                    "'cache' restarts the server, which ends what its workload runs beside the load"
                )
        return []

    def after_start(self, site: Site) -> None:
        """Have each load find the server so."""
        if site.level.cache:
            site.before_load.append(partial(_restart, site.cluster, cold=site.level.cache == "cold"))

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Cold or warm."""
        cache = plan.level(name).cache
        return {"cache": str(cache)} if cache else {}


def _restart(server: Cluster, *, cold: bool) -> dict[str, str]:
    """Restart a server with the data's files out of memory, or all of them in it and in shared_buffers."""
    server.stop()
    data = server.placed
    if cold:
        page_cache.evict(data)
        if (share := page_cache.resident_share(data)) > _LEFT:
            raise SettingError(f"cache: {share:.0%} of the data stay in memory after they were dropped")
        server.start()
        return {"cache": f"cold: less than {_LEFT:.0%} of the data's files in memory"}
    page_cache.fill(data)
    server.start()
    if not server.value("SELECT count(*) FROM pg_available_extensions WHERE name = 'pg_prewarm'"):
        return {"cache": "warm, by reading the files"}
    server.execute("CREATE EXTENSION IF NOT EXISTS pg_prewarm", read_sql("prewarm"))
    return {"cache": "warm, by pg_prewarm"}
