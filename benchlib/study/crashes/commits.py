"""Load of a crash test, and checks after recovery."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import psycopg

from benchlib.errors import ServerError
from benchlib.host.shell import ticks
from benchlib.plan.workload import Script, Workload
from benchlib.server.cluster import Cluster
from benchlib.server.server import reason_of

WRITERS = 4
PAGE_ROWS = 40_000
"""Rows of the table with dirty pages; eight per 8 kB page."""

WORKLOAD = Workload(
    name="crash",
    title="Acknowledged rows, and pages kept dirty",
    pgbench_tables=False,
    scripts=(Script(sql="SELECT 1;"),),  # unused: pgbench does not report each acknowledgement
    load_sql=f"""
CREATE TABLE acknowledged (client integer, number integer, PRIMARY KEY (client, number));
CREATE TABLE pages (id integer PRIMARY KEY, value integer NOT NULL, filler text NOT NULL) WITH (fillfactor = 50);
INSERT INTO pages SELECT id, 0, repeat('x', 400) FROM generate_series(1, {PAGE_ROWS}) id;
""",
    mib_per_scale=60,
)  # fmt: skip

# one transaction, one round trip: a row and +1 on a value, both or neither after a crash
_COMMIT = "WITH counted AS (UPDATE pages SET value = value + 1 WHERE id = %s) INSERT INTO acknowledged VALUES (%s, %s)"
# rows without writers, in every tenth page
_DIRTY = "UPDATE pages SET filler = filler WHERE id %% 2 = 1 AND (id / 8) %% 10 = %s"
_FIRST_COMMITS_S = 30.0


@contextlib.contextmanager
def crash_load(
    cluster: Cluster, random: Random, *, checkpoints: bool
) -> Iterator[tuple[list[list[float]], Callable[[], None]]]:
    """Run a round's load; ``checkpoints`` repeats CHECKPOINT.

    Yields the acknowledgement times per writer and row (:func:`time.monotonic`), and a function for the crash.

    Raises:
        ServerError: a session does not commit, or fails before the crash.

    """
    acknowledged, over = [list[float]() for _ in range(WRITERS)], threading.Event()

    def commit(client: int, random: Random) -> None:
        with cluster.connect() as connection:
            while not over.is_set():
                row = 2 * random.randint(1, PAGE_ROWS // 2)
                connection.execute(_COMMIT, (row, client, len(acknowledged[client])), prepare=True)
                acknowledged[client].append(time.monotonic())

    def dirty(random: Random) -> None:
        with cluster.connect() as connection:
            while not over.is_set():
                connection.execute(_DIRTY, (random.randrange(10),))
                if checkpoints:
                    connection.execute("CHECKPOINT")

    def end() -> None:
        try:
            for session in sessions:
                if session.done():
                    session.result()
        except psycopg.Error as reason:
            raise ServerError(f"the load ended before the crash: {reason_of(reason)}") from reason
        over.set()

    with ThreadPoolExecutor(WRITERS + 1) as pool:
        try:
            sessions = [pool.submit(commit, client, Random(random.random())) for client in range(WRITERS)]
            sessions.append(pool.submit(dirty, Random(random.random())))
            for _ in ticks(_FIRST_COMMITS_S):
                if all(acknowledged) or any(session.done() for session in sessions):
                    break
            else:
                raise ServerError(f"a session did not commit anything within {_FIRST_COMMITS_S:.0f} s")
            yield acknowledged, end
        finally:
            over.set()


_SEQUENTIAL = """
SET max_parallel_workers_per_gather = 0;
SET enable_seqscan = on;
SET enable_bitmapscan = off;
SET enable_indexonlyscan = off;
SET enable_indexscan = off
"""
_BY_INDEX = "SET enable_seqscan = off; SET enable_indexscan = on"
_TABLES = "SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 't', 'm') ORDER BY 1"
_ROWS, _PAGES = "SELECT count(*) FROM acknowledged", "SELECT count(*) FROM pages"
_COUNTS = (
    ("rows of acknowledged, by sequential scan and by index", _ROWS, f"{_ROWS} WHERE client >= 0"),
    ("rows of pages, by sequential scan and by index", _PAGES, f"{_PAGES} WHERE id > 0"),
    ("rows of pages, now and when loaded", _PAGES, f"SELECT {PAGE_ROWS}"),
    ("commits, by their rows and by the values that they raised", _ROWS, "SELECT sum(value) FROM pages"),
)
"""Counts that must be equal; the second one uses an index."""
_MOST = 5
"""Maximum number of reported messages; the others follow from them."""

Row = tuple[int, int]
"""Writer and row number."""


def examine(cluster: Cluster) -> tuple[set[Row] | None, tuple[str, ...]]:
    """Return the acknowledged rows (None if unreadable) and messages of damage.

    Scans every table, which checks checksums, and compares counts by scan and index.
    """
    damage = list[str]()
    rows: set[Row] | None = None

    def read(sql: str) -> list[Any] | None:
        try:
            return connection.execute(sql).fetchall()
        except psycopg.Error as reason:
            if connection.broken:
                raise  # the server is gone
            table = sql.rpartition(" FROM ")[2].partition(" ")[0]
            damage.append(f"{table}: {reason_of(reason)}")
            return None

    try:
        with cluster.connect() as connection:
            connection.execute(_SEQUENTIAL)
            for (table,) in read(_TABLES) or ():
                read(f"SELECT count(*) FROM {table}")
            if (answer := read("SELECT client, number FROM acknowledged")) is not None:
                rows = set(answer)
            for what, by_scan, by_index in _COUNTS:
                connection.execute(_SEQUENTIAL)
                first = read(by_scan)
                connection.execute(_BY_INDEX)
                second = read(by_index)
                if first and second and first != second:
                    damage.append(f"{what}: {first[0][0]:,} and {second[0][0]:,}")
    except psycopg.Error as reason:
        damage.append(reason_of(reason))
    return rows, tuple(dict.fromkeys(damage))[:_MOST]
