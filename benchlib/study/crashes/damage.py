"""What a server holds after a crash: the rows of a round, and every sign of damage in the server's own words."""

from __future__ import annotations

from typing import Any

import psycopg

from benchlib.server.cluster import Cluster
from benchlib.server.server import error_lines, reason_of
from benchlib.study.crashes.load import PAGE_ROWS

_SEQUENTIAL = (
    "SET max_parallel_workers_per_gather = 0",
    "SET enable_bitmapscan = off",
    "SET enable_indexonlyscan = off",
    "SET enable_indexscan = off",
)
_BY_INDEX = ("SET enable_seqscan = off", "SET enable_indexscan = on")
_TABLES = "SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 't', 'm') ORDER BY 1"
_MOST = 5
"""Of the signs of damage; behind them the rest follows."""
_USUAL = ("the database system is", "terminating connection", "the database system was")

Row = tuple[int, int]
"""A writer and the number of its row."""


def examine(cluster: Cluster, number: int) -> tuple[set[Row] | None, tuple[str, ...]]:
    """The rows of a round, None where they cannot be read; and what is damaged, in the server's words.

    Every table of the load's database is read whole, ours by their indexes too, and the counts are compared. A read checks each page's header, and its checksum where the cluster has checksums.
    """
    damage: list[str] = []
    try:
        with cluster.connect() as connection:
            rows = _read(connection, number, damage)
    except psycopg.Error as reason:
        return None, tuple(dict.fromkeys([*damage, reason_of(reason)]))
    return rows, tuple(dict.fromkeys(damage))[:_MOST]


def _read(connection: psycopg.Connection[Any], number: int, damage: list[str]) -> set[Row] | None:
    def ask(what: str, sql: str) -> list[Any]:
        try:
            return connection.execute(sql).fetchall()
        except psycopg.OperationalError:
            raise  # the server is gone
        except psycopg.Error as reason:
            damage.append(f"{what}: {reason_of(reason)}")
            return []

    def one(what: str, sql: str) -> int | None:
        answer = ask(what, sql)
        return answer[0][0] if answer else None

    for statement in _SEQUENTIAL:
        connection.execute(statement)
    for (table,) in ask("the catalogue", _TABLES):
        one(table, f"SELECT count(*) FROM {table}")
    rows = ask("acknowledged", f"SELECT client, number FROM acknowledged WHERE round = {number}")
    held = one("acknowledged", "SELECT count(*) FROM acknowledged")
    pages = one("pages", "SELECT count(*) FROM pages")
    raised = one("pages", "SELECT sum(value) FROM pages")
    for statement in _BY_INDEX:
        connection.execute(statement)
    held_by_index = one("acknowledged, by its index", "SELECT count(*) FROM acknowledged WHERE round >= 0")
    pages_by_index = one("pages, by its index", "SELECT count(*) FROM pages WHERE id > 0")
    for what, first, second in (
        ("rows of acknowledged, by sequential scan and by index", held, held_by_index),
        ("rows of pages, by sequential scan and by index", pages, pages_by_index),
        ("rows of pages, now and when loaded", pages, PAGE_ROWS),
        ("commits, by their rows and by the values that they raised", held, raised),
    ):
        if None not in (first, second) and first != second:
            damage.append(f"{what}: {first:,} and {second:,}")
    unread = any(sign.startswith("acknowledged: ") for sign in damage)
    return None if unread else {(client, of) for client, of in rows}


def last_cries(cluster: Cluster, offset: int = 0) -> str:
    """Why a server did not come up again, from what it has logged since."""
    lines = error_lines(cluster.log_text(offset).splitlines())
    telling = [line for line in lines if not any(usual in line for usual in _USUAL)]
    return (telling or ["it did not say why"])[0]
