"""The key ``cache``."""

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

_UNSUPPORTED = None if sys.platform == "linux" else "the page cache can be read and dropped only on Linux"
_LEFT = 0.01
"""Largest share of the data's pages that may stay in memory, such as pages under writeback."""


class Cache(Lever):
    """The page cache before each load."""

    key = "cache"
    model = Literal["cold", "warm"] | None
    unchanged = "as the warm-up leaves it"

    def conflict(self, level: Level) -> str | None:
        """Refuse replicas, and ``warm`` with a memory cap."""
        if level.cache and replication_of(level).replicas:
            return "'cache' restarts the server, which disconnects its replicas: leave 'replication' out"
        if level.cache == "warm" and storage_of(level).memory:
            return "the cap on memory does not count the pages of 'cache: warm': use only one of them"
        return super().conflict(level)

    def survey(self, scratch: Path) -> list[Finding]:
        """Return whether pages can be dropped."""
        return [Finding(self.key, no_server() or _UNSUPPORTED)]

    def check(self, wish: Wish) -> None:
        """Refuse a background load."""
        if wish.level.cache and _UNSUPPORTED:
            raise PreflightError(_UNSUPPORTED)
        if wish.level.cache and wish.plan.level_workload(wish.name).beside:
            raise PreflightError("'cache' restarts the server, which would end the background load")

    def after_start(self, site: Site) -> None:
        """Register the restart."""
        if site.level.cache:
            site.before_load.append(partial(_restart, site.cluster, cold=site.level.cache == "cold"))

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Return the value."""
        cache = plan.level(name).cache
        return {"cache": str(cache)} if cache else {}


def _restart(server: Cluster, *, cold: bool) -> dict[str, str]:
    server.stop()
    data = server.placed
    if cold:
        page_cache.evict(data)
        if (share := page_cache.resident_share(data)) > _LEFT:
            raise SettingError(f"cache: {share:.0%} of the data are still in memory after dropping them")
        server.start()
        return {"cache": f"cold: less than {_LEFT:.0%} of the data's files in memory"}
    page_cache.fill(data)
    server.start()
    if not server.value("SELECT count(*) FROM pg_available_extensions WHERE name = 'pg_prewarm'"):
        return {"cache": "warm, by reading the files"}
    server.execute("CREATE EXTENSION IF NOT EXISTS pg_prewarm", read_sql("prewarm"))
    return {"cache": "warm, by pg_prewarm"}
