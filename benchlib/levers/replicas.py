"""The replicas of one primary: made, streaming, watched, and held to what they promise.

They are servers of our own beside the primary or at other hosts, with its settings, each with a replication slot, so that
no WAL that it needs is lost.
"""

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import psycopg
from psycopg.rows import dict_row

from benchlib.errors import InvariantError, ServerError
from benchlib.host.shell import ticks
from benchlib.server.cluster import Cluster
from benchlib.server.replica import Replica
from benchlib.server.server import asking, read_sql, reason_of

STREAM_LIMIT_S = 60.0
CATCH_UP_LIMIT_S = 300.0
ACKNOWLEDGE_LIMIT_S = 60.0
SILENCE_S = 8.0
"""A replica that has not streamed for so long is lost; until then it may be about to try again, which
it does every 5 s (``wal_retrieve_retry_interval``)."""
_INTERVAL_S = 1.0

# What synchronous_commit makes a commit wait for at each replica of the quorum, and how far a replica
# says itself that it has come with it. Source: documentation, "synchronous_commit".
_PROMISES = {
    "remote_write": ("written", "SELECT written_lsn FROM pg_stat_wal_receiver"),
    "on": ("flushed", "SELECT pg_last_wal_receive_lsn()"),
    "remote_apply": ("replayed", "SELECT pg_last_wal_replay_lsn()"),
}

_LAG = read_sql("lag")


@dataclass(frozen=True)
class Verified:
    """What the replicas were found to hold.

    ``held`` are those that had kept at once what ``synchronous_commit`` promises of a commit; ``count`` is the
    workload's count, the same everywhere.
    """

    synchronous_commit: str
    held: tuple[str, ...]
    count: int | None
    warnings: tuple[str, ...]


@dataclass
class Replicas:
    """The replicas of one primary, for ``quorum`` of which a commit waits; there may be none."""

    primary: Cluster
    quorum: int = 0
    members: list[Replica] = field(default_factory=list)

    def follow(self) -> None:
        """Have the replicas follow the running primary, until all of them stream.

        Raises:
            ServerError: one could not be made or does not stream in time; in its own words.
            SettingError: it cannot be capped, or one runs with other settings than the primary's.

        """
        slot = "SELECT pg_create_physical_replication_slot(%s, true)"
        for replica in self.members:
            self.primary.query(slot, self.primary.maintenance, [replica.name])
            replica.follow()
        for _ in ticks(STREAM_LIMIT_S):
            if (fault := self.check()) is None:
                return
        raise ServerError(f"not all replicas stream {STREAM_LIMIT_S:.0f} s after their start: {fault}")

    @property
    def names(self) -> list[str]:
        """The names that the primary knows the replicas by."""
        return [replica.name for replica in self.members]

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
        rows = self.primary.query(_LAG, self.primary.maintenance, [self.names])
        state = {row["replica"]: row["state"] for row in rows}
        faults = [
            replica.loss()
            for replica in self.members
            if not replica.running or state[replica.name] != "streaming"
        ]
        synchronous = sum(row["sync_state"] in ("sync", "quorum") for row in rows)
        if not faults and synchronous < self.quorum:
            faults.append(f"{synchronous} of {self.quorum} are synchronous")
        return "; ".join(faults) or None

    def settle(self) -> None:
        """Bring the replicas to the known state: everything replayed, nothing dirty.

        To be called after the primary's checkpoint, which the replicas then make theirs.

        Raises:
            ServerError: one is lost, or has not caught up within the limit.

        """
        if fault := self.check():
            raise ServerError(fault)
        self._catch_up(str(self.primary.value("SELECT pg_current_wal_flush_lsn()")), self.members)
        for replica in self.members:
            replica.execute("CHECKPOINT")

    def verify(self, count: str | None) -> Verified:
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
        if promise == "written" and self.primary.installation.major < 13:
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
        self._catch_up(position, living)
        wanted = None
        if count:
            wanted = int(self.primary.value(count))
            for replica in living:
                if (counted := int(replica.value(count))) != wanted:
                    raise InvariantError(f"{replica.name} holds {counted} rows, the primary {wanted}")
        return Verified(mode, held, wanted, tuple(warnings))

    def _acknowledged(self, living: Sequence[Replica], how_far: str | None) -> tuple[str, tuple[str, ...]]:
        """The position of a commit of ours, and who was past it when it was acknowledged.

        Raises:
            ServerError: it was not acknowledged in time, or a server is gone.

        """
        with asking(), contextlib.ExitStack() as stack:
            # connected beforehand, so that the answers come at once
            replicas = {replica.name: stack.enter_context(replica.connect()) for replica in living}
            primary = stack.enter_context(self.primary.connect())
            # no statement_timeout holds for a commit that waits, and cancelled it ends with a mere warning
            started, timer = time.monotonic(), threading.Timer(ACKNOWLEDGE_LIMIT_S, primary.cancel)
            timer.start()
            stack.callback(timer.join)
            stack.callback(timer.cancel)
            last = "SELECT pg_logical_emit_message(true, 'benchlib', 'last')::text"
            [(position,)] = primary.execute(last).fetchall()
            if time.monotonic() - started >= ACKNOWLEDGE_LIMIT_S:
                raise ServerError(f"no replica confirmed a commit within {ACKNOWLEDGE_LIMIT_S:.0f} s")
            past = f"SELECT ({how_far}) >= '{position}'"
            asked = replicas.items() if how_far else ()
            return position, tuple(name for name, c in asked if c.execute(past).fetchall() == [(True,)])

    def _catch_up(self, position: str, living: Sequence[Replica]) -> None:
        for replica in living:
            behind = f"SELECT pg_wal_lsn_diff('{position}', pg_last_wal_replay_lsn())::int8"
            for _ in ticks(CATCH_UP_LIMIT_S):
                if (missing := replica.value(behind)) <= 0:
                    break
            else:
                raise ServerError(
                    f"{replica.name} is {missing:,} bytes of WAL behind {CATCH_UP_LIMIT_S:g} s after the load"
                )

    def stop(self) -> None:
        """Stop all at once."""
        for replica in self.members:
            replica.stop(immediately=True)


class Watch:
    """Watches replicas while a load runs: enter it around the load, call it a few times a second.

    ``lag`` holds the samples so far, a row for each replica and second: how far it is behind, in bytes of WAL
    and in seconds. They are taken in a thread, because a primary that no longer answers must not hold up who
    waits for the load.
    """

    def __init__(self, replicas: Replicas) -> None:
        self.lag: list[dict[str, Any]] = []
        self._replicas = replicas
        self._lost: dict[str, str] = {}
        self._failures: list[str] = []
        self._over = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="lag of the replicas", daemon=True)

    def __enter__(self) -> Self:
        primary = self._replicas.primary
        self._waits = self._replicas.waits_for()[1] is not None
        self._started = time.monotonic()
        with asking():  # before the load, which may take every connection there is
            self._connection = primary.connect(primary.maintenance)
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._sampler.join(5)  # one that hangs ends with its server
        self._note_losses()

    def __call__(self) -> None:
        """Note a replica that is lost; where replication is asynchronous the load goes on.

        Raises:
            ServerError: too few are left for the quorum, so every commit waits for ever.

        """
        self._note_losses()
        left = len(self._replicas.members) - len(self._lost)
        if self._waits and left < self._replicas.quorum:
            raise ServerError(
                f"{'; '.join(self._lost.values())}: commits wait for {self._replicas.quorum} replica(s) "
                f"and {left} are left; the load was stopped after {time.monotonic() - self._started:.0f} s"
            )

    def _sample(self) -> None:
        try:
            with self._connection, self._connection.cursor(row_factory=dict_row) as cursor:
                while True:
                    self.lag += cursor.execute(_LAG, [self._replicas.names]).fetchall()
                    if self._over.wait(_INTERVAL_S):
                        return
        except psycopg.Error as reason:
            self._failures.append(f"the lag of the replicas was not sampled to the end: {reason_of(reason)}")

    def _note_losses(self) -> None:
        for replica in self._replicas.members:
            rows = [row for row in self.lag if row["replica"] == replica.name]
            streaming = [row for row in rows if row["state"] == "streaming"]
            since = streaming[-1:] or rows[:1]
            silent = bool(rows) and rows[-1]["at_s"] - since[0]["at_s"] >= SILENCE_S
            if (silent or not replica.running) and replica.name not in self._lost:
                self._lost[replica.name] = replica.loss()

    @property
    def warnings(self) -> list[str]:
        """What went wrong, and yet the load went on: what a reader of the trial has to know."""
        losses = [f"{loss} during the trial; the load went on" for loss in self._lost.values()]
        # another process of the primary serves it, or none did for a while
        interruptions = [
            f"{name} lost its connection during the trial and came back"
            for name in self._replicas.names
            if name not in self._lost and len({row["pid"] for row in self.lag if row["replica"] == name}) > 1
        ]
        return losses + interruptions + self._failures
