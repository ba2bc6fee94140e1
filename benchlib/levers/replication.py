"""``replication``: how many replicas stream from a level's server, how many of them a commit waits for, and where they are."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from benchlib.errors import PreflightError
from benchlib.levers.lever import Finding, Lever, Needs, Site, Wish, no_server, refusal
from benchlib.levers.replicas import Replicas
from benchlib.levers.storage import Storage, storage_of
from benchlib.plan.level import HostName, Level, Model, SettingValue, is_off
from benchlib.plan.model import Plan
from benchlib.server.installations import find_installation, find_program_for
from benchlib.server.replica import Replica, Source

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

    ``storage`` has places and caps of each replica's own, as the key ``storage`` has the primary's; one stands for all.
    Without it replicas share the primary's disk and caps. ``on`` names a host of a fleet for each replica: it lives there, on
    that host's processors and its disk or storage. What primary and replicas say to each other arrives ``delay_ms`` later,
    each way: a round trip takes twice that longer.
    """

    replicas: Annotated[int, Field(ge=0, le=8)] = 1
    quorum: Annotated[str | None, Field(pattern=r"^(FIRST|ANY) [1-9]$")] = None
    storage: Annotated[
        tuple[Storage, ...] | None,
        BeforeValidator(lambda value: [value] if isinstance(value, dict) else value),
    ] = None
    delay_ms: Annotated[float, Field(gt=0, le=1000)] | None = None
    on: Annotated[tuple[HostName, ...], Field(min_length=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _word(cls, value: Any) -> Any:
        if isinstance(value, str):
            if value not in _USUAL:
                raise ValueError(f"{value!r} is not one of {', '.join(_USUAL)}")
            return _USUAL[value]
        if isinstance(value, dict) and isinstance(value.get("on"), list | tuple):
            return {"replicas": len(value["on"]), **value}
        return value

    @model_validator(mode="after")
    def _quorum_can_be_met(self) -> Self:
        if self.waits_for > self.replicas:
            raise ValueError(f"a quorum of {self.quorum} can never be met by {self.replicas} replica(s)")
        if self.storage is not None and len(self.storage) not in (1, self.replicas):
            raise ValueError(f"{self.replicas} replica(s) want a storage each, or one for all")
        if self.on is not None and len({*self.on}) != self.replicas:
            raise ValueError(f"{self.replicas} replica(s) want a host each, which has one of them")
        return self

    @property
    def storages(self) -> tuple[Storage, ...]:
        """What each replica has of its own; nothing where they share the primary's."""
        each = self.storage or ()
        return each * (self.replicas // (len(each) or 1))

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
        """See whether replicas get what they need of WAL, whether their places have room for the data, and whether pg_basebackup is here."""
        asked = replication_of(wish.level)
        if not asked.replicas:
            return []
        if str(wish.level.settings.get("wal_level", "")).lower() == "minimal":
            raise PreflightError("wal_level = minimal writes too little WAL for a replica: replica does")
        # to copy a replica takes two connections, while those before it have one each
        needed = {"max_wal_senders": asked.replicas + 1, "max_replication_slots": asked.replicas}
        for name, least in needed.items():
            given = str(wish.level.settings.get(name, least))
            if given.isdecimal() and int(given) < least:
                raise PreflightError(f"{name} = {given}: {asked.replicas} replica(s) take {least}")
        find_program_for(find_installation(wish.level.postgres), "pg_basebackup")
        if asked.on:  # which say so themselves when they are to have it
            return []
        if not asked.storage:
            return storage_of(wish.level).check(wish, copies=1 + asked.replicas)
        return [remark for storage in asked.storages for remark in storage.check(wish)]

    def needs(self, wish: Wish, so_far: Needs) -> Needs:
        """A copy of the data for each replica that is here, beside the primary's or in places of its own."""
        asked, beside = replication_of(wish.level), 0 if storage_of(wish.level).data else wish.data_mib
        if asked.on:
            return so_far
        each = [storage.needs(wish.data_mib) for storage in asked.storages]
        each = [so_far, *(each or [Needs(beside)] * asked.replicas)]
        return Needs(sum(need.scratch for need in each), sum(need.memory for need in each))

    def settings(self, level: Level) -> dict[str, SettingValue]:
        """Which replicas a commit may wait for."""
        names = replication_of(level).standby_names()
        return {"synchronous_standby_names": names} if names else {}

    def after_start(self, site: Site) -> None:
        """Make the replicas, and wait until they stream."""
        asked, primary, members = replication_of(site.level), site.cluster, list[Replica]()
        source = Source(str(primary.sockets), primary.port, primary.wanted, asked.delay_ms)
        for number in range(1, asked.replicas + 1):
            if asked.on:
                assert site.follower
                members.append(site.follower(site, number, asked.on[number - 1]))
            else:
                members.append(replica_beside(site, number, source))
        if members:
            site.replicas = Replicas(primary, asked.waits_for, members)
            site.replicas.follow()

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """How many replicas there are, how many of them a commit waits for, and what each has of its own."""
        level = plan.level(name)
        cells = {self.key: _words(level)} if level.replication else {}
        for number, storage in enumerate(replication_of(level).storages, 1):
            cells |= {f"replica {number}: {heading}": cell for heading, cell in storage.words(plan).items()}
        return cells

    def left_alone(self, plan: Plan, name: str, heading: str) -> str:
        """That it has no replica; what replicas have that are not asked to have it of their own depends on where they are."""
        return self.unchanged if heading == self.key else "not given"


def replica_beside(site: Site, number: int, source: Source) -> Replica:
    """A replica with the places and caps that the site's level asks for, or on the disk and in the groups of the site's cluster.

    Nothing of it runs yet. At another host than the primary's the cluster is one that is never made.
    """
    asked, beside = replication_of(site.level), site.cluster
    replica = Replica(beside, number, source, site.program("pg_basebackup"))
    name = f"{site.name}-{replica.name}"
    if asked.storages:
        storage = asked.storages[number - 1]
        replica.places = storage.provide(name, site)
        replica.before_start = partial(storage.cap, replica, replica.places, name, site)
    elif (disk := beside.placed.parent) != beside.folder:
        # the primary's data lies elsewhere: so do the replica's, since one disk is compared
        replica.places = {"data": beside.shell.make_directory(disk / replica.folder.name)}
    return replica


def _words(level: Level) -> str:
    asked, commit = replication_of(level), level.settings.get("synchronous_commit")
    replicas = {0: "no replica", 1: "1 replica"}.get(asked.replicas, f"{asked.replicas} replicas")
    replicas += f" on {', '.join(asked.on)}" if asked.on else ""
    replicas += f", {asked.delay_ms:g}\u00a0ms longer each way" if asked.delay_ms else ""
    if not asked.quorum:
        return f"{replicas}, asynchronous" if asked.replicas else replicas
    if is_off(commit) or str(commit).lower() == "local":
        return f"{replicas}, a commit waits for none (synchronous_commit)"
    return f"{replicas}, a commit waits for {'it' if asked.replicas == 1 else asked.quorum}"
