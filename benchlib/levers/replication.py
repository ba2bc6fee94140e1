"""The key ``replication``."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator

from benchlib.errors import PreflightError
from benchlib.levers.lever import Finding, Lever, Needs, Site, Wish, no_server, refusal
from benchlib.levers.replicas import Replicas
from benchlib.levers.storage import Storage, storage_of
from benchlib.plan.level import HostName, Level, Model, is_off
from benchlib.plan.model import Plan
from benchlib.server.installations import find_installation, find_program_for
from benchlib.server.replica import Replica, Source

_SHORTHANDS: dict[str, dict[str, Any]] = {
    "standalone": {"replicas": 0},
    "asynchronous": {},
    "synchronous": {"quorum": "FIRST 1"},
}

_OLDEST = 13
"""The first version whose replicas report their written WAL."""


class Replication(Model):
    """The replicas of a server.

    - ``quorum``: begins ``synchronous_standby_names``; default: asynchronous
    - ``storage``: for each, or one for all; default: the primary's
    - ``on``: a fleet host for each
    - ``delay_ms``: added network delay in each direction
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
            if value not in _SHORTHANDS:
                raise ValueError(f"{value!r} is not one of {', '.join(_SHORTHANDS)}")
            return _SHORTHANDS[value]
        if isinstance(value, dict) and isinstance(value.get("on"), list | tuple):
            return {"replicas": len(value["on"]), **value}
        return value

    @model_validator(mode="after")
    def _quorum_can_be_met(self) -> Self:
        if self.waits_for > self.replicas:
            raise ValueError(f"a quorum of {self.quorum} can never be met by {self.replicas} replica(s)")
        if self.storage is not None and len(self.storage) not in (1, self.replicas):
            raise ValueError(f"{self.replicas} replica(s) need a storage each, or one for all")
        if self.on is not None and len({*self.on}) != self.replicas:
            raise ValueError(f"{self.replicas} replica(s) need a host each, all different")
        return self

    @property
    def storages(self) -> tuple[Storage, ...]:
        """Return each replica's storage, if any."""
        each = self.storage or ()
        return each * (self.replicas // (len(each) or 1))

    @property
    def waits_for(self) -> int:
        """Return how many replicas a commit waits for."""
        return int(self.quorum.split()[1]) if self.quorum else 0

    @property
    def standby_names(self) -> str | None:
        """Return ``synchronous_standby_names``."""
        names = ", ".join(f"replica{n}" for n in range(1, self.replicas + 1))
        return f"{self.quorum} ({names})" if self.quorum else None


def replication_of(level: Level) -> Replication:
    """Return a level's replication."""
    return Replication.model_validate(level.replication or "standalone")


class ReplicationLever(Lever):
    """Replicas."""

    key = "replication"
    model = Replication | None
    unchanged = "not given"
    unchanged_of: ClassVar = {"replication": "no replica"}

    def conflict(self, level: Level) -> str | None:
        """Refuse ``synchronous_standby_names``."""
        if level.replication and "synchronous_standby_names" in level.settings:
            return "'replication' decides synchronous_standby_names: leave it out of the settings"
        return super().conflict(level)

    def survey(self, scratch: Path) -> list[Finding]:
        """Return whether pg_basebackup is installed."""
        lacking = no_server() or refusal(lambda: find_program_for(find_installation(), "pg_basebackup"))
        return [Finding(self.key, lacking)]

    def check(self, wish: Wish) -> None:
        """Check version, WAL settings and space."""
        wanted = replication_of(wish.level)
        if not wanted.replicas:
            return
        installation = find_installation(wish.level.postgres)
        if installation.major < _OLDEST:
            raise PreflightError(f"{installation.label}: replicas need PostgreSQL {_OLDEST} or later")
        find_program_for(installation, "pg_basebackup")
        given = wish.level.settings
        if str(given.get("wal_level", "")).lower() == "minimal":
            raise PreflightError("wal_level = minimal writes too little WAL for a replica: use replica")
        # copying a replica takes two connections; each earlier replica has one
        needed = {"max_wal_senders": wanted.replicas + 1, "max_replication_slots": wanted.replicas}
        for name, least in needed.items():
            if str(given.get(name, least)).isdecimal() and int(given.get(name, least)) < least:
                raise PreflightError(f"{name} = {given[name]}: {wanted.replicas} replica(s) need {least}")
        if wanted.on:  # checked on those hosts later
            return
        for storage in wanted.storages:
            storage.check(wish)
        if not wanted.storage:
            storage_of(wish.level).check(wish, copies=1 + wanted.replicas)

    def after_start(self, site: Site) -> None:
        """Create the replicas."""
        wanted, primary, members = replication_of(site.level), site.cluster, list[Replica]()
        source = Source(str(primary.sockets), primary.port, primary.wanted, wanted.delay_ms)
        for number in range(1, wanted.replicas + 1):
            if wanted.on:
                assert site.follower
                members.append(site.follower(site, number, wanted.on[number - 1]))
            else:
                members.append(replica_beside(site, number, source))
        if members:
            site.replicas = Replicas(primary, wanted.waits_for, members)
            site.replicas.follow()

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Return replicas, quorum and storage."""
        level = plan.level(name)
        cells = {self.key: _words(level)} if level.replication else {}
        for number, storage in enumerate(replication_of(level).storages, 1):
            cells |= {f"replica {number}: {heading}": cell for heading, cell in storage.words(plan).items()}
        return cells


def needs_of(wish: Wish) -> Needs:
    """Return the needs of a level's server and its local replicas."""
    wanted, own = replication_of(wish.level), storage_of(wish.level)
    each = [storage.needs(wish.data_mib) for storage in wanted.storages]
    each = each or [Needs(0 if own.data else wish.data_mib)] * wanted.replicas
    servers = [own.needs(wish.data_mib), *([] if wanted.on else each)]
    return Needs(sum(need.scratch for need in servers), sum(need.memory for need in servers))


def replica_beside(site: Site, number: int, source: Source) -> Replica:
    """Return a stopped replica, by default on the cluster's disk."""
    wanted, cluster = replication_of(site.level), site.cluster
    replica = Replica(cluster, number, source, site.program("pg_basebackup"))
    name = f"{site.name}-{replica.name}"
    if wanted.storages:
        storage = wanted.storages[number - 1]
        replica.places = storage.provide(name, site)
        replica.before_start = partial(storage.cap, replica, replica.places, name, site)
    elif (disk := cluster.placed.parent) != cluster.folder:
        # on the primary's disk, since the comparison is about one disk
        replica.places = {"data": cluster.shell.make_directory(disk / replica.folder.name)}
    return replica


def _words(level: Level) -> str:
    wanted, commit = replication_of(level), level.settings.get("synchronous_commit")
    replicas = {0: "no replica", 1: "1 replica"}.get(wanted.replicas, f"{wanted.replicas} replicas")
    replicas += f" on {', '.join(wanted.on)}" if wanted.on else ""
    replicas += f", {wanted.delay_ms:g}\u00a0ms longer each way" if wanted.delay_ms else ""
    if not wanted.quorum:
        return f"{replicas}, asynchronous" if wanted.replicas else replicas
    if is_off(commit) or str(commit).lower() == "local":
        return f"{replicas}, a commit waits for none (synchronous_commit)"
    return f"{replicas}, a commit waits for {'it' if wanted.replicas == 1 else wanted.quorum}"
