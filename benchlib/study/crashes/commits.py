"""What is lost and damaged: sessions that commit until the crash comes, and what the server holds of it afterwards.

The sessions note what was acknowledged, and one keeps pages dirty; every sign of damage is told in the server's own words.
"""

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


@contextlib.contextmanager
def crash_load(
    cluster: Cluster, number: int, random: Random, *, checkpoints: bool
) -> Iterator[tuple[list[list[float]], Callable[[], None]]]:
    """The load of a round, from when each writer has committed; ``checkpoints`` has one checkpoint follow the other.

    What is given has for each writer when its commits were acknowledged, that of row ``n`` of its rows at that place, in
    seconds of :func:`time.monotonic`; and what is called when the crash comes: from then on a session that fails is no
    surprise, and before it is a ServerError.

    Raises:
        ServerError: a session does not commit.

    """
    acknowledged, over = [list[float]() for _ in range(WRITERS)], threading.Event()

    def commit(client: int, random: Random) -> None:
        with cluster.connect() as connection:
            while not over.is_set():
                row = 2 * random.randint(1, PAGE_ROWS // 2)
                connection.execute(_COMMIT, (row, number, client, len(acknowledged[client])), prepare=True)
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
SET enable_bitmapscan = off;
SET enable_indexonlyscan = off;
SET enable_indexscan = off
"""
_BY_INDEX = "SET enable_seqscan = off; SET enable_indexscan = on"
_TABLES = "SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 't', 'm') ORDER BY 1"
_MOST = 5
"""Of the signs of damage; behind them the rest follows."""

Row = tuple[int, int]
"""A writer and the number of its row."""


def examine(cluster: Cluster, number: int) -> tuple[set[Row] | None, tuple[str, ...]]:
    """The rows of a round, None where they cannot be read; and what is damaged, in the server's words.

    Every table of the load's database is read whole, ours by their indexes too, and the counts are compared. A read checks each page's header, and its checksum where the cluster has checksums.
    """
    rows: set[Row] | None = None
    damage: list[str] = []
    try:
        with cluster.connect() as connection:
            rows = _read(connection, number, damage)
    except psycopg.Error as reason:
        damage.append(reason_of(reason))
    return rows, tuple(dict.fromkeys(damage))[:_MOST]


def _read(connection: psycopg.Connection[Any], number: int, damage: list[str]) -> set[Row] | None:
    def ask(what: str, sql: str) -> list[Any]:
        try:
            return connection.execute(sql).fetchall()
        except psycopg.Error as reason:
            if connection.broken:
                raise  # the server is gone
            damage.append(f"{what}: {reason_of(reason)}")
            return []

    connection.execute(_SEQUENTIAL)
    for (table,) in ask("the catalogue", _TABLES):
        ask(table, f"SELECT count(*) FROM {table}")
    rows = ask("acknowledged", f"SELECT client, number FROM acknowledged WHERE round = {number}")
    held = ask("acknowledged", "SELECT count(*) FROM acknowledged")
    pages = ask("pages", "SELECT count(*) FROM pages")
    raised = ask("pages", "SELECT coalesce(sum(value), 0) FROM pages")
    connection.execute(_BY_INDEX)
    held_by_index = ask("acknowledged, by its index", "SELECT count(*) FROM acknowledged WHERE round >= 0")
    pages_by_index = ask("pages, by its index", "SELECT count(*) FROM pages WHERE id > 0")
    for what, first, second in (
        ("rows of acknowledged, by sequential scan and by index", held, held_by_index),
        ("rows of pages, by sequential scan and by index", pages, pages_by_index),
        ("rows of pages, now and when loaded", pages, [(PAGE_ROWS,)]),
        ("commits, by their rows and by the values that they raised", held, raised),
    ):
        if first and second and first != second:
            damage.append(f"{what}: {first[0][0]:,} and {second[0][0]:,}")
    unread = any(sign.startswith("acknowledged: ") for sign in damage)
    return None if unread else {(client, of) for client, of in rows}
