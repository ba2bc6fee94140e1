"""The replicas of one primary: made, streaming, watched, and held to what they promise.

They are servers of our own beside the primary, with its settings, on its file system and in its
control groups, each with a replication slot, so that no WAL that it needs is lost.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psycopg

from benchlib.errors import InvariantError, ServerError
from benchlib.host.shell import ticks
from benchlib.levers.lag import Watch, lag
from benchlib.plan.level import Level, Replication
from benchlib.server.cluster import Cluster
from benchlib.server.replica import Replica
from benchlib.server.server import reason_of

STREAM_LIMIT_S = 60.0
CATCH_UP_LIMIT_S = 300.0
ACKNOWLEDGE_LIMIT_S = 60.0

# What synchronous_commit makes a commit wait for at each replica of the quorum, and how far a replica
# says itself that it has come with it. Source: documentation, "synchronous_commit".
_PROMISES = {
    "remote_write": ("written", "SELECT written_lsn FROM pg_stat_wal_receiver"),
    "on": ("flushed", "SELECT pg_last_wal_receive_lsn()"),
    "remote_apply": ("replayed", "SELECT pg_last_wal_replay_lsn()"),
}
_WRITTEN_SINCE = 13


def refusal(level: Level) -> str | None:
    """Why a level's server could not have the replicas that the level names; None if it can.

    Raises nothing; asks only the level. A copy takes two senders while it is made.
    """
    count = level.replication.replicas if level.replication else 0
    if not count:
        return None
    if str(level.settings.get("wal_level", "")).lower() == "minimal":
        return "wal_level = minimal writes too little WAL for a replica: replica or logical does"
    for name, needed in (("max_wal_senders", count + 1), ("max_replication_slots", count)):
        given = str(level.settings.get(name, ""))
        if given.isdigit() and int(given) < needed:
            return f"{name} = {given} is too few for {count} replica(s): it takes {needed}"
    return None


@dataclass(frozen=True)
class Verified:
    """What the replicas had promised of each commit, and what was found on them.

    ``promise`` in words, None if nothing was; ``held`` the replicas that had kept it at once;
    ``caught_up_s`` how long after the load until all had replayed everything; ``count`` the
    workload's count, the same everywhere.
    """

    synchronous_commit: str
    promise: str | None
    held: tuple[str, ...]
    caught_up_s: float
    count: int | None
    warnings: tuple[str, ...]


@dataclass
class Replicas:
    """The replicas of one primary. Get them from :meth:`follow`; there may be none."""

    primary: Cluster
    replication: Replication
    members: list[Replica] = field(default_factory=list)

    @classmethod
    def follow(cls, primary: Cluster, replication: Replication, basebackup: Path) -> Self:
        """The replicas of a running primary, in folders inside its own, all of them streaming.

        ``basebackup`` is the program pg_basebackup, of the primary's major or a newer one.

        Raises:
            ServerError: one could not be made or does not stream in time; in its own words.
            SettingError: one runs with other settings than the primary's.

        """
        replicas = cls(primary, replication)
        try:
            for number in range(1, replication.replicas + 1):
                replica = Replica(primary, number)
                replicas.members.append(replica)
                replica.copy_primary(basebackup)
                replica.follow()
            for _ in ticks(STREAM_LIMIT_S):
                if (wrong := replicas.check()) is None:
                    return replicas
            raise ServerError(f"not all replicas stream {STREAM_LIMIT_S:.0f} s after their start: {wrong}")
        except BaseException:
            replicas.stop()
            raise

    @property
    def names(self) -> list[str]:
        """The names that the primary knows the replicas by."""
        return [replica.name for replica in self.members]

    @property
    def quorum(self) -> int:
        """How many replicas a commit waits for; 0 where replication is asynchronous."""
        return int(self.replication.quorum.split()[1]) if self.replication.quorum else 0

    def waits_for(self) -> tuple[str, str | None]:
        """``synchronous_commit`` as the load's sessions have it, and what a commit so waits for.

        Raises:
            ServerError: the primary is gone.

        """
        mode = str(self.primary.value("SHOW synchronous_commit"))
        return mode, _PROMISES[mode][0] if self.quorum and mode in _PROMISES else None

    def check(self) -> str | None:
        """What is wrong with a replica now, in words; None if all stream and the quorum is met.

        Raises:
            ServerError: the primary is gone.

        """
        rows = {row["replica"]: row for row in lag(self.primary, self.names)}
        lost = [
            replica.loss()
            for replica in self.members
            if not replica.running or rows[replica.name]["state"] != "streaming"
        ]
        synchronous = [name for name, row in rows.items() if row["sync_state"] in ("sync", "quorum")]
        if not lost and len(synchronous) < self.quorum:
            lost.append(f"{len(synchronous)} of {self.quorum} are synchronous")
        return "; ".join(lost) or None

    def settle(self, limit_s: float = CATCH_UP_LIMIT_S) -> None:
        """Bring the replicas to the known state: everything replayed, nothing dirty.

        To be called after the primary's checkpoint, which the replicas then make theirs.

        Raises:
            ServerError: one is lost, or has not caught up within the limit.

        """
        if wrong := self.check():
            raise ServerError(wrong)
        self._catch_up(str(self.primary.value("SELECT pg_current_wal_flush_lsn()")), self.members, limit_s)
        for replica in self.members:
            replica.execute("CHECKPOINT")

    def watch(self) -> Watch:
        """What to enter around a load and to call while it runs."""
        return Watch(self)

    def verify(self, count: str | None, limit_s: float = CATCH_UP_LIMIT_S) -> Verified:
        """Hold the replicas to what they promise, right after a load; ``count`` is a query for a number.

        A commit of our own, with the load's ``synchronous_commit``, comes last in the WAL: a
        replica that holds it holds every commit before it. As soon as it is acknowledged, each
        replica is asked how far it has come; as many as the quorum demands must be past it.
        Then all that live catch up, and must count what the primary counts.

        Raises:
            InvariantError: the promise was broken, or a replica counts other than the primary.
            ServerError: the commit was not acknowledged, or a replica does not catch up, in time.

        """
        mode, promise = self.waits_for()
        living = [replica for replica in self.members if replica.running]
        warnings = []
        if self.quorum and promise is None:
            warnings.append(f"synchronous_commit = {mode} waits for no replica, whatever the quorum")
        if promise == "written" and self.primary.installation.major < _WRITTEN_SINCE:
            warnings.append("before PostgreSQL 13 no replica tells what it has written: checked later only")
            promise = None
        if promise and len(living) < self.quorum:
            raise ServerError(f"{self.check()}: too few replicas are left for a commit to be acknowledged")
        position, held = self._acknowledged(living, _PROMISES[mode][1] if promise else None)
        if promise and len(held) < self.quorum:
            raise InvariantError(
                f"{len(held)} replica(s) had {promise} a commit when it was acknowledged, "
                f"synchronous_commit = {mode} promises {self.quorum}"
            )
        started = time.monotonic()
        self._catch_up(position, living, limit_s)
        caught_up_s = time.monotonic() - started
        words = f"{self.quorum} replica(s) have {promise} each commit" if promise else None
        counted = self._same_everywhere(count, living) if count else None
        return Verified(mode, words, held, caught_up_s, counted, tuple(warnings))

    def _same_everywhere(self, count: str, living: Sequence[Replica]) -> int:
        counted = int(self.primary.value(count))
        for replica in living:
            if (found := int(replica.value(count))) != counted:
                raise InvariantError(f"{replica.name} holds {found} rows, the primary {counted}")
        return counted

    def _acknowledged(self, living: Sequence[Replica], how_far: str | None) -> tuple[str, tuple[str, ...]]:
        """The position of a commit of ours, and who was past it when it was acknowledged.

        Raises:
            ServerError: it was not acknowledged in time, or a server is gone.

        """
        try:
            with contextlib.ExitStack() as stack:
                # connected beforehand: what they are asked comes at once
                asked = {replica.name: stack.enter_context(replica.connect()) for replica in living}
                primary = stack.enter_context(self.primary.connect())
                stalled = stack.enter_context(_cancelled_after(primary, ACKNOWLEDGE_LIMIT_S))
                position = str(_one(primary, "SELECT pg_logical_emit_message(true, 'benchlib', 'last')"))
                if stalled.is_set():
                    raise ServerError(f"no replica confirmed a commit within {ACKNOWLEDGE_LIMIT_S:.0f} s")
                past = f"SELECT ({how_far}) >= '{position}'"
                return position, tuple(name for name, c in asked.items() if how_far and _one(c, past))
        except psycopg.Error as reason:
            raise ServerError(f"a server refused or went away: {reason_of(reason)}") from reason

    def _catch_up(self, position: str, living: Sequence[Replica], limit_s: float) -> None:
        end = time.monotonic() + limit_s
        for replica in living:
            behind = f"SELECT pg_wal_lsn_diff('{position}', pg_last_wal_replay_lsn())::int8"
            while (missing := replica.value(behind)) > 0:
                if time.monotonic() > end:
                    raise ServerError(
                        f"{replica.name} is {missing:,} bytes of WAL behind {limit_s:g} s after the load"
                    )
                time.sleep(0.05)

    def stop(self) -> None:
        """Stop all at once. Their files lie in the primary's folder."""
        for replica in self.members:
            replica.stop(immediately=True)


@contextlib.contextmanager
def _cancelled_after(connection: psycopg.Connection[Any], limit_s: float) -> Iterator[threading.Event]:
    """Cancels what runs on a connection when it takes too long; the event tells that it did.

    For a commit that waits: no ``statement_timeout`` holds then, and it ends with a mere warning.
    """
    stalled = threading.Event()

    def give_up() -> None:
        stalled.set()
        connection.cancel()

    timer = threading.Timer(limit_s, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield stalled
    finally:
        timer.cancel()
        timer.join()


def _one(connection: psycopg.Connection[Any], sql: str) -> Any:
    row = connection.execute(sql).fetchone()
    assert row is not None
    return row[0]
