"""Schema changes of a level: what they cost, limits, and errors that name the statement."""

import pytest

from benchlib.errors import LoadError
from benchlib.server import schema
from benchlib.server.schema import change_schema

pytestmark = pytest.mark.pg

TABLE = "CREATE TABLE t AS SELECT i, i % 9 AS j FROM generate_series(1, 20000) AS i"
ANALYZED = "SELECT count(*) FROM pg_stats WHERE tablename = 't'"


@pytest.fixture
def server(started):
    cluster = started(autovacuum="off")
    cluster.execute(TABLE, "VACUUM t")  # which ends the table after its last row
    return cluster


def change(server, sql):
    return change_schema(server, server.shell, sql)


def test_a_change_costs_time_size_and_wal_and_statistics_are_new(server):
    assert server.value(ANALYZED) == 0
    sql = "CREATE INDEX CONCURRENTLY a ON t (i); VACUUM t;\nCREATE STATISTICS s ON i, j FROM t;"
    cost = change(server, sql)
    size = server.value("SELECT pg_relation_size('a')")
    assert (cost.seconds > 0, cost.size_bytes >= size, cost.wal_bytes > size / 2) == (True, True, True)
    assert server.value(ANALYZED) == 2
    assert server.value("SELECT count(*) FROM pg_statistic_ext_data") == 1
    assert change(server, "DROP INDEX a;").size_bytes < 0


FAILS = {
    "SELECT 1;": "changes nothing in the database",
    "CREATE INDEX a ON t (i); CREATE INDEX ON t (no);": r"statement: CREATE INDEX ON t \(no\);$",
    "SELECT pg_sleep(60);": r"statement timeout; statement: SELECT pg_sleep\(60\);$",
    "BEGIN; CREATE INDEX ON t (i);": "begins a transaction that it does not commit",
    "CREATE INDEX ON t (i)": "fails: .*syntax error",
    "SELECT 1 \\g /var/tmp/benchlib-test-pwned": "backslash commands are restricted",
}


@pytest.mark.parametrize("sql", FAILS)
def test_a_change_that_fails_is_one_line_with_its_statement(sql, server, monkeypatch):
    monkeypatch.setattr(schema, "LIMIT_S", 1)
    with pytest.raises(LoadError, match=FAILS[sql]) as reason:
        change(server, sql)
    assert "\n" not in str(reason.value)


def test_a_change_waits_for_a_lock_only_so_long(server, monkeypatch):
    monkeypatch.setattr(schema, "_LOCK_LIMIT_S", 1)
    with server.connect() as connection, connection.transaction():
        connection.execute("SELECT * FROM t LIMIT 1")
        with pytest.raises(LoadError, match=r"lock timeout; statement: ALTER TABLE t ADD k int;$"):
            change(server, "ALTER TABLE t ADD k int;")


@pytest.mark.parametrize("more", [{}, {"own_schema": "own"}])
def test_a_change_on_an_external_server_is_in_benchlib_s_tables(more, place, foreign):
    remote = place("boss", **more)
    remote.execute(TABLE)
    cost = change_schema(remote, remote.shell(), "CREATE INDEX own_index ON t (i);")
    assert cost.wal_bytes > 0
    assert remote.value("SELECT indexdef FROM pg_indexes WHERE indexname = 'own_index'")
    assert foreign.rows("SELECT schemaname FROM pg_indexes WHERE indexname = 'own_index'") == (
        [(remote.value("SELECT current_schema()"),)] if more else []
    )
