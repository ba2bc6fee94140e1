"""What runs when the crash comes: sessions that commit and note what was acknowledged, and one that keeps pages dirty."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count
from random import Random
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

Step = Callable[[psycopg.Connection, Random, int], None]


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
        self._random = random
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(WRITERS + 1)
        self._sessions: list[Future[None]] = []

    def __enter__(self) -> Self:
        steps: list[Step] = [*(partial(self._commit, client) for client in range(WRITERS)), self._dirty]
        for step in steps:
            self._sessions.append(self._pool.submit(self._run, step, Random(self._random.random())))
        for _ in ticks(_FIRST_COMMITS_S):
            if all(self.acknowledged) or any(session.done() for session in self._sessions):
                return self
        self.__exit__()
        raise ServerError(f"a session did not commit anything within {_FIRST_COMMITS_S:.0f} s")

    def __exit__(self, *_: object) -> None:
        """Wait until every session has ended."""
        self._over.set()
        self._pool.shutdown()

    def over(self) -> None:
        """From now on a session that fails is no surprise.

        Raises:
            ServerError: one has failed before.

        """
        try:
            for session in self._sessions:
                if session.done():
                    session.result()
        except psycopg.Error as reason:
            raise ServerError(f"the load ended before the crash: {reason_of(reason)}") from reason
        self._over.set()

    def _run(self, step: Step, random: Random) -> None:
        with self._cluster.connect() as connection:
            for number in count():
                if self._over.is_set():
                    return
                step(connection, random, number)

    def _commit(self, client: int, connection: psycopg.Connection, random: Random, number: int) -> None:
        row = 2 * random.randint(1, PAGE_ROWS // 2)
        connection.execute(_COMMIT, (row, self._round, client, number), prepare=True)
        self.acknowledged[client].append(time.monotonic())

    def _dirty(self, connection: psycopg.Connection, random: Random, _number: int) -> None:
        connection.execute(_DIRTY, (random.randrange(10),))
        if self._checkpoints:
            connection.execute("CHECKPOINT")
