"""``replication``: how many replicas stream from a level's server, and how many of them a commit waits for."""

from __future__ import annotations

from pathlib import Path

from benchlib.errors import BenchlibError, PreflightError
from benchlib.levers.lever import Finding, Lever, Needs, Site, Wish, no_server
from benchlib.levers.replicas import Replicas
from benchlib.plan.level import Level, SettingValue, is_off
from benchlib.plan.model import Plan
from benchlib.server.installations import default_installation, find_installation, find_program_for


class ReplicationLever(Lever):
    """Replicas of ours beside the primary; see :mod:`.replicas` for what is done with them."""

    key = "replication"
    unchanged = "no replica"

    def survey(self, scratch: Path) -> list[Finding]:
        """Replicas are copies that pg_basebackup makes."""
        why_not = no_server()
        if why_not is None:
            try:
                find_program_for(default_installation(), "pg_basebackup")
            except BenchlibError as reason:
                why_not = str(reason)
        return [Finding(self.key, why_not)]

    def check(self, wish: Wish) -> list[tuple[str, str]]:
        """See whether the settings leave room for the replicas, and whether pg_basebackup is here.

        A copy takes two senders while it is made.
        """
        count, settings = _replicas(wish.level), wish.level.settings
        if not count:
            return []
        if str(settings.get("wal_level", "")).lower() == "minimal":
            raise PreflightError(
                "wal_level = minimal writes too little WAL for a replica: replica or logical does"
            )
        for name, needed in (("max_wal_senders", count + 1), ("max_replication_slots", count)):
            given = str(settings.get(name, ""))
            if given.isdigit() and int(given) < needed:
                raise PreflightError(f"{name} = {given} is too few for {count} replica(s): it takes {needed}")
        find_program_for(find_installation(wish.level.postgres), "pg_basebackup")
        return []

    def needs(self, wish: Wish, so_far: Needs) -> Needs:
        """A copy of the data for each replica, beside the primary's."""
        return Needs(so_far.scratch * (1 + _replicas(wish.level)), so_far.memory)

    def settings(self, level: Level) -> dict[str, SettingValue]:
        """Which replicas a commit may wait for."""
        names = level.replication.standby_names() if level.replication else None
        return {"synchronous_standby_names": names} if names else {}

    def after_start(self, site: Site) -> None:
        """Make the replicas, and wait until they stream."""
        if site.level.replication and _replicas(site.level):
            program = site.program("pg_basebackup")
            site.replicas = Replicas.follow(site.cluster, site.level.replication, program)

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """How many replicas there are, and how many of them a commit waits for."""
        level = plan.level(name)
        return {"replication": _words(level)} if level.replication else {}


def _replicas(level: Level) -> int:
    return level.replication.replicas if level.replication else 0


def _words(level: Level) -> str:
    assert level.replication is not None
    count, quorum = level.replication.replicas, level.replication.quorum
    replicas = {0: "no replica", 1: "1 replica"}.get(count, f"{count} replicas")
    commit = level.settings.get("synchronous_commit")
    if not count:
        return replicas
    if not quorum:
        return f"{replicas}, asynchronous"
    if is_off(commit) or str(commit).lower() == "local":
        return f"{replicas}, a commit waits for none (synchronous_commit)"
    return f"{replicas}, a commit waits for {'it' if count == 1 else quorum}"
