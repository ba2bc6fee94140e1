"""Replicas while a load runs: how far they lag, and whether they are still there."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg.rows import dict_row

from benchlib.errors import ServerError
from benchlib.server.server import Server, reason_of

if TYPE_CHECKING:
    from benchlib.levers.replicas import Replicas

_INTERVAL_S = 1.0
SILENCE_S = 8.0
"""A replica that has not streamed for so long is lost; until then it may be about to try again, which
it does every 5 s (``wal_retrieve_retry_interval``)."""

# A replica that is not connected has a row too, of nulls. What a replica has been sent, has written,
# flushed and replayed is compared with what the primary has written. The times are the server's own:
# those of the latest WAL that was confirmed, null when idle; one that stands still shows in the bytes
# alone. Source: documentation, "pg_stat_replication".
_LAG = """
SELECT extract(epoch FROM clock_timestamp())::float8 AS at_s, replica, pid, state, sync_state,
    pg_wal_lsn_diff(pg_current_wal_lsn(), sent_lsn)::int8 AS sent_lag_bytes,
    pg_wal_lsn_diff(pg_current_wal_lsn(), write_lsn)::int8 AS write_lag_bytes,
    pg_wal_lsn_diff(pg_current_wal_lsn(), flush_lsn)::int8 AS flush_lag_bytes,
    pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)::int8 AS replay_lag_bytes,
    extract(epoch FROM write_lag)::float8 AS write_lag_s,
    extract(epoch FROM flush_lag)::float8 AS flush_lag_s,
    extract(epoch FROM replay_lag)::float8 AS replay_lag_s
FROM unnest(%s::text[]) AS replica LEFT JOIN pg_stat_replication ON application_name = replica
ORDER BY replica
"""


def lag(primary: Server, names: Sequence[str]) -> list[dict[str, Any]]:
    """How far each replica lags now: a row each, in bytes of WAL and in seconds.

    Raises:
        ServerError: the primary is gone.

    """
    return primary.query(_LAG, primary.maintenance, [list(names)])


class LagSampler:
    """Collects :func:`lag` while its ``with`` block lasts, over one connection and in a thread.

    In a thread because a primary that no longer answers must not hold up who waits for the load.
    ``rows`` are the samples so far; ``failure`` says why there are no more.
    """

    def __init__(self, primary: Server, names: Sequence[str]) -> None:
        self.rows: list[dict[str, Any]] = []
        self.failure: str | None = None
        self._primary = primary
        self._names = list(names)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="lag of the replicas", daemon=True)

    def __enter__(self) -> Self:
        try:
            # before the load, which may take every connection there is
            self._connection = self._primary.connect(self._primary.maintenance)
        except psycopg.Error as reason:
            raise ServerError(f"the server refused or went away: {reason_of(reason)}") from reason
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(5)  # one that hangs ends with its server

    def _sample(self) -> None:
        try:
            with self._connection, self._connection.cursor(row_factory=dict_row) as cursor:
                while True:
                    self.rows += cursor.execute(_LAG, [self._names]).fetchall()
                    if self._over.wait(_INTERVAL_S):
                        return
        except psycopg.Error as reason:
            self.failure = f"the lag of the replicas was not sampled to the end: {reason_of(reason)}"

    def silent_s(self, name: str) -> float:
        """For how many seconds, as far as sampled, a replica has not been streaming."""
        since = latest = None
        for row in reversed(self.rows):
            if row["replica"] == name:
                if row["state"] == "streaming":
                    break
                since = row["at_s"]
                latest = latest or since
        return latest - since if latest and since else 0.0


class Watch:
    """Watches replicas while a load runs: enter it around the load, call it a few times a second.

    ``rows`` are the samples of the lag (see :func:`lag`), ``warnings`` what a reader
    of the trial has to know.
    """

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._sampler = LagSampler(replicas.primary, replicas.names)
        self._lost: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._waits = self._replicas.waits_for()[1] is not None
        self._started = time.monotonic()
        self._sampler.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._sampler.__exit__()
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

    def _note_losses(self) -> None:
        for replica in self._replicas.members:
            gone = not replica.running or self._sampler.silent_s(replica.name) >= SILENCE_S
            if gone and replica.name not in self._lost:
                self._lost[replica.name] = replica.loss()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The samples of the lag so far."""
        return self._sampler.rows

    @property
    def warnings(self) -> list[str]:
        """What went wrong, and yet the load went on."""
        words = [f"{lost} during the trial; the load went on" for lost in self._lost.values()]
        # another process of the primary serves it, or none did for a while
        words += [
            f"{name} lost its connection during the trial and came back"
            for name in self._replicas.names
            if name not in self._lost and len({row["pid"] for row in self.rows if row["replica"] == name}) > 1
        ]
        return words + ([self._sampler.failure] if self._sampler.failure else [])
