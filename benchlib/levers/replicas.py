"""The replicas of one primary."""

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
"""A replica silent for longer is lost; it retries every 5 s (``wal_retrieve_retry_interval``)."""
_INTERVAL_S = 1.0

# by synchronous_commit: the event a commit waits for, and a replica's query for its position
# Source: PostgreSQL documentation, "synchronous_commit".
_PROMISES = {
    "remote_write": ("written", "SELECT written_lsn FROM pg_stat_wal_receiver"),
    "on": ("flushed", "SELECT pg_last_wal_receive_lsn()"),
    "remote_apply": ("replayed", "SELECT pg_last_wal_replay_lsn()"),
}

_LAG = read_sql("lag")


@dataclass(frozen=True)
class Verified:
    """The result of :meth:`Replicas.verify`; ``held``: replicas with the final commit."""

    synchronous_commit: str
    held: tuple[str, ...]
    count: int | None
    warnings: tuple[str, ...]


@dataclass
class Replicas:
    """Replicas, each with a slot; a commit waits for ``quorum`` of them."""

    primary: Cluster
    quorum: int = 0
    members: list[Replica] = field(default_factory=list)

    def follow(self) -> None:
        """Start the replicas and wait until all stream.

        Raises:
            ServerError: one failed or is too slow.
            SettingError: a limit or setting did not take effect.
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
        """Return the replicas' names."""
        return [replica.name for replica in self.members]

    def waits_for(self) -> tuple[str, str | None]:
        """Return ``synchronous_commit``, and the event it waits for."""
        mode = str(self.primary.value("SHOW synchronous_commit"))
        return mode, _PROMISES[mode][0] if self.quorum and mode in _PROMISES else None

    def check(self) -> str | None:
        """Return the current fault, or None."""
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
        """Replay all WAL and checkpoint the replicas.

        Raises:
            ServerError: one is lost or too slow.
        """
        if fault := self.check():
            raise ServerError(fault)
        self._catch_up(str(self.primary.value("SELECT pg_current_wal_flush_lsn()")), self.members)
        for replica in self.members:
            replica.execute("CHECKPOINT")

    def verify(self, count: str | None) -> Verified:
        """Verify ``synchronous_commit`` and the data right after a load; ``count`` is a query.

        When a final commit returns, ``quorum`` replicas must have it. Then all running replicas must return
        the primary's count.

        Raises:
            InvariantError: the guarantee was broken, or counts differ.
            ServerError: the commit or a replica took too long.
        """
        mode, promise = self.waits_for()
        living = [replica for replica in self.members if replica.running]
        warnings = []
        if self.quorum and promise is None:
            warnings.append(f"synchronous_commit = {mode} waits for no replica, so the quorum has no effect")
        if promise and len(living) < self.quorum:
            raise ServerError(f"{self.check()}: too few replicas are left for a commit to be acknowledged")
        position, held = self._acknowledged(living, _PROMISES[mode][1] if promise else None)
        if promise and len(held) < self.quorum:
            raise InvariantError(f"{len(held)} replica(s) {promise} a commit, {mode} promises {self.quorum}")
        self._catch_up(position, living)
        wanted = None
        if count:
            wanted = int(self.primary.value(count, as_load=True))
            for replica in living:
                if (counted := int(replica.value(count, as_load=True))) != wanted:
                    raise InvariantError(f"{replica.name} holds {counted} rows, the primary {wanted}")
        return Verified(mode, held, wanted, tuple(warnings))

    def _acknowledged(self, living: Sequence[Replica], how_far: str | None) -> tuple[str, tuple[str, ...]]:
        """Return a test commit's position, and the replicas that had reached it on return."""
        with asking(), contextlib.ExitStack() as stack:
            # connect first, so that the answers come at once
            replicas = {replica.name: stack.enter_context(replica.connect()) for replica in living}
            primary = stack.enter_context(self.primary.connect())
            # statement_timeout does not apply to a waiting commit; a cancelled one returns with a warning
            started, timer = time.monotonic(), threading.Timer(ACKNOWLEDGE_LIMIT_S, primary.cancel)
            timer.start()
            stack.callback(timer.join)
            stack.callback(timer.cancel)
            last = "SELECT pg_logical_emit_message(true, 'benchlib', 'last')::text"
            [(position,)] = primary.execute(last).fetchall()
            if time.monotonic() - started >= ACKNOWLEDGE_LIMIT_S:
                raise ServerError(f"no replica confirmed a commit within {ACKNOWLEDGE_LIMIT_S:.0f} s")
            past = f"SELECT ({how_far}) > '{position}'"  # the end of the message; its commit follows
            queried = replicas.items() if how_far else ()
            return position, tuple(name for name, c in queried if c.execute(past).fetchall() == [(True,)])

    def _catch_up(self, position: str, living: Sequence[Replica]) -> None:
        for replica in living:
            behind = f"SELECT pg_wal_lsn_diff('{position}', pg_last_wal_replay_lsn())::int8"
            for _ in ticks(CATCH_UP_LIMIT_S):
                if (missing := replica.value(behind)) <= 0:
                    break
            else:
                raise ServerError(f"{replica.name} is {missing:,} bytes of WAL behind")

    def stop(self) -> None:
        """Stop all immediately."""
        for replica in self.members:
            replica.stop(immediately=True)


class Watch:
    """A monitor of replicas: enter it around the load, call it repeatedly.

    ``lag``: rows in bytes of WAL and seconds.
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
        with asking():  # first, since the load may use all connections
            self._connection = primary.connect(primary.maintenance)
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._sampler.join(5)  # one that hangs ends with its server
        self._note_losses()

    def __call__(self) -> None:
        """Record lost replicas.

        Raises:
            ServerError: too few are left: commits would wait for ever.
        """
        self._note_losses()
        left = len(self._replicas.members) - len(self._lost)
        if self._waits and left < self._replicas.quorum:
            raise ServerError(f"{'; '.join(self._lost.values())}: commits wait for {self._replicas.quorum}")

    def _sample(self) -> None:
        try:
            with self._connection, self._connection.cursor(row_factory=dict_row) as cursor:
                while True:
                    self.lag += cursor.execute(_LAG, [self._replicas.names]).fetchall()
                    if self._over.wait(_INTERVAL_S):
                        return
        except psycopg.Error as reason:
            self._failures.append(f"sampling of the replicas' lag stopped early: {reason_of(reason)}")

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
        """Return warnings about the trial."""
        losses = [f"{loss} during the trial; the load continued" for loss in self._lost.values()]
        # a new walsender, or none for a while
        interruptions = [
            f"{name} lost its connection during the trial and reconnected"
            for name in self._replicas.names
            if name not in self._lost and len({row["pid"] for row in self.lag if row["replica"] == name}) > 1
        ]
        return losses + interruptions + self._failures
