"""What runs when the crash comes: sessions that commit and note what was acknowledged, and one that keeps pages dirty."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import count
from random import Random
from types import TracebackType
from typing import Self

import psycopg

from benchlib.errors import ServerError
from benchlib.host.shell import ticks
from benchlib.plan.workload import Script, Workload
from benchlib.server.cluster import Cluster
from benchlib.server.server import reason_of

WRITERS = 4
PAGE_ROWS = 40_000
"""Rows of the table whose pages are kept dirty; eight to a page of 8 kB."""

WORKLOAD = Workload(
    name="crash",
    title="Acknowledged rows, and pages kept dirty",
    pgbench_tables=False,
    scripts=(Script(sql="SELECT 1;"),),  # unused: the sessions are ours, since pgbench does not tell what was acknowledged
    load_sql=f"""
CREATE TABLE acknowledged (round integer, client integer, number integer, PRIMARY KEY (round, client, number));
CREATE TABLE pages (id integer PRIMARY KEY, value integer NOT NULL, filler text NOT NULL) WITH (fillfactor = 50);
INSERT INTO pages SELECT id, 0, repeat('x', 400) FROM generate_series(1, {PAGE_ROWS}) id;
""",
    mib_per_scale=60,
)  # fmt: skip

# one statement, one transaction, one round trip; each adds a row and 1 to the values: after any crash both or neither
_COMMIT = "WITH counted AS (UPDATE pages SET value = value + 1 WHERE id = %s) INSERT INTO acknowledged VALUES (%s, %s, %s)"
# rows that no writer updates, in every tenth page
_DIRTY = "UPDATE pages SET filler = filler WHERE id %% 2 = 1 AND (id / 8) %% 10 = %s"
_FIRST_COMMITS_S = 30.0


class CrashLoad:
    """Runs while it is entered, from when each writer has committed; ``checkpoints`` has one checkpoint follow the other.

    ``acknowledged`` has for each writer when its commits were acknowledged: that of row ``number`` of its
    rows is at that place, in seconds of :func:`time.monotonic`.
    """

    def __init__(self, cluster: Cluster, number: int, random: Random, *, checkpoints: bool) -> None:
        self.acknowledged: list[list[float]] = [[] for _ in range(WRITERS)]
        self._cluster = cluster
        self._round = number
        self._checkpoints = checkpoints
        self._failures: list[str] = []
        self._over = threading.Event()
        sessions = [*map(self._writer, range(WRITERS)), self._dirtier()]
        seeds = [random.random() for _ in sessions]
        self._threads = [
            threading.Thread(target=self._run, args=(session, Random(seed)), daemon=True)
            for session, seed in zip(sessions, seeds, strict=True)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        for _ in ticks(_FIRST_COMMITS_S):
            if self._failures or all(self.acknowledged):
                return self
        self.end()
        raise ServerError(f"a session did not commit anything within {_FIRST_COMMITS_S:.0f} s")

    def __exit__(
        self, kind: type[BaseException] | None, reason: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def over(self) -> None:
        """From now on a session that fails is no surprise.

        Raises:
            ServerError: one has failed before.

        """
        self._over.set()
        if self._failures:
            raise ServerError(f"the load ended before the crash: {self._failures[0]}")

    def end(self) -> None:
        """Wait until every session has ended."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, session: Callable[[psycopg.Connection, Random, int], None], random: Random) -> None:
        try:
            with self._cluster.connect() as connection:
                for number in count():
                    if self._over.is_set():
                        return
                    session(connection, random, number)
        except psycopg.Error as reason:
            if not self._over.is_set():
                self._failures.append(reason_of(reason))

    def _writer(self, client: int) -> Callable[[psycopg.Connection, Random, int], None]:
        times = self.acknowledged[client]

        def commit(connection: psycopg.Connection, random: Random, number: int) -> None:
            row = 2 * random.randint(1, PAGE_ROWS // 2)
            connection.execute(_COMMIT, (row, self._round, client, number), prepare=True)
            times.append(time.monotonic())

        return commit

    def _dirtier(self) -> Callable[[psycopg.Connection, Random, int], None]:
        def dirty(connection: psycopg.Connection, random: Random, number: int) -> None:
            connection.execute(_DIRTY, (random.randrange(10),))
            if self._checkpoints:
                connection.execute("CHECKPOINT")

        return dirty
