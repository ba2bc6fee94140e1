"""``replication``: how many replicas stream from a level's server, and how many of them a commit waits for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from benchlib.errors import PreflightError
from benchlib.levers.lever import Finding, Lever, Needs, Site, Wish, no_server, refusal
from benchlib.levers.replicas import Replicas
from benchlib.plan.level import Level, Model, SettingValue, is_off
from benchlib.plan.model import Plan
from benchlib.server.installations import find_installation, find_program_for

_USUAL: dict[str, dict[str, Any]] = {
    "standalone": {"replicas": 0},
    "asynchronous": {},
    "synchronous": {"quorum": "FIRST 1"},
}


class Replication(Model):
    """How many replicas stream from the server, and how many a commit waits for.

    ``quorum`` is the head of ``synchronous_standby_names``, such as ``"FIRST 1"`` or ``"ANY 1"``;
    without one replication is asynchronous. What a commit waits for at each of them is the
    setting ``synchronous_commit``, as in PostgreSQL. The words ``"standalone"``,
    ``"asynchronous"`` and ``"synchronous"`` stand for none, one, and one with ``"FIRST 1"``.
    """

    replicas: Annotated[int, Field(ge=0, le=8)] = 1
    quorum: Annotated[str | None, Field(pattern=r"^(FIRST|ANY) [1-9]$")] = None

    @model_validator(mode="before")
    @classmethod
    def _word(cls, value: Any) -> Any:
        if isinstance(value, str):
            if value not in _USUAL:
                raise ValueError(f"{value!r} is not one of {', '.join(_USUAL)}")
            return _USUAL[value]
        return value

    @model_validator(mode="after")
    def _quorum_can_be_met(self) -> Self:
        if self.waits_for > self.replicas:
            raise ValueError(f"a quorum of {self.quorum} can never be met by {self.replicas} replica(s)")
        return self

    @property
    def waits_for(self) -> int:
        """How many replicas a commit waits for; 0 where replication is asynchronous."""
        return int(self.quorum.split()[1]) if self.quorum else 0

    def standby_names(self) -> str | None:
        """The value of ``synchronous_standby_names``; None where replication is asynchronous."""
        names = ", ".join(f"replica{n}" for n in range(1, self.replicas + 1))
        return f"{self.quorum} ({names})" if self.quorum else None


def replication_of(level: Level) -> Replication:
    """What a level asks for; without the key, no replica."""
    return Replication.model_validate(level.replication or "standalone")


class ReplicationLever(Lever):
    """Replicas of ours beside the primary; see :mod:`.replicas` for what is done with them."""

    key = "replication"
    model = Replication | None
    unchanged = "no replica"

    def conflict(self, level: Level) -> str | None:
        """Who is waited for has one place to be named in."""
        if level.replication and "synchronous_standby_names" in level.settings:
            return "'replication' decides synchronous_standby_names: leave it out of the settings"
        return super().conflict(level)

    def survey(self, scratch: Path) -> list[Finding]:
        """Replicas are copies that pg_basebackup makes."""
        lacking = no_server() or refusal(lambda: find_program_for(find_installation(), "pg_basebackup"))
        return [Finding(self.key, lacking)]

    def check(self, wish: Wish) -> list[tuple[str, str]]:
        """See whether the settings leave room for the replicas, and whether pg_basebackup is here.

        A copy takes two senders while it is made.
        """
        count, settings = replication_of(wish.level).replicas, wish.level.settings
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
        return Needs(so_far.scratch * (1 + replication_of(wish.level).replicas), so_far.memory)

    def settings(self, level: Level) -> dict[str, SettingValue]:
        """Which replicas a commit may wait for."""
        names = replication_of(level).standby_names()
        return {"synchronous_standby_names": names} if names else {}

    def after_start(self, site: Site) -> None:
        """Make the replicas, and wait until they stream."""
        asked = replication_of(site.level)
        if asked.replicas:
            program = site.program("pg_basebackup")
            site.replicas = Replicas.follow(site.cluster, asked.replicas, asked.waits_for, program)

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """How many replicas there are, and how many of them a commit waits for."""
        level = plan.level(name)
        return {"replication": _words(level)} if level.replication else {}


def _words(level: Level) -> str:
    asked = replication_of(level)
    count, quorum = asked.replicas, asked.quorum
    replicas = {0: "no replica", 1: "1 replica"}.get(count, f"{count} replicas")
    commit = level.settings.get("synchronous_commit")
    if not count:
        return replicas
    if not quorum:
        return f"{replicas}, asynchronous"
    if is_off(commit) or str(commit).lower() == "local":
        return f"{replicas}, a commit waits for none (synchronous_commit)"
    return f"{replicas}, a commit waits for {'it' if count == 1 else quorum}"
