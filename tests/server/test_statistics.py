"""The server's counters as real servers of several versions give them."""

from collections.abc import Callable
from typing import Any

import pytest

from benchlib.errors import PreflightError, ServerError
from benchlib.server import statistics
from benchlib.server.cluster import Cluster
from benchlib.server.counters import server_counts
from benchlib.server.statistics import snapshot

pytestmark = pytest.mark.pg

OLDER = [pytest.param(version, marks=pytest.mark.long) for version in ("11", "13", "15", "17")]


@pytest.fixture
def started(new_cluster: Callable[[str], Cluster]) -> Callable[..., Cluster]:
    """A running server of a version, with the database that loads run in."""

    def make(version: str, settings: dict[str, Any]) -> Cluster:
        try:
            cluster = new_cluster(version)
        except PreflightError as reason:
            pytest.skip(f"PostgreSQL {version} has not been fetched: {reason}")
        cluster.configure(settings)
        try:
            cluster.start()
        except ServerError as reason:
            pytest.skip(str(reason))  # it has no such extension
        cluster.execute(f"CREATE DATABASE {cluster.database}", dbname="postgres")
        return cluster

    return make


def test_growth_is_told_by_the_rows_that_analyze_last_saw_though_a_vacuum_has_seen_more(
    started: Callable[..., Cluster],
) -> None:
    cluster = started("18", {"autovacuum": "off"})
    assert statistics.growth(cluster) is None  # there is no table
    rows = "SELECT generate_series(1, 1000) AS x"
    told = "SELECT pg_stat_force_next_flush()"  # else a session keeps its counts for a second
    cluster.execute(
        f"CREATE TABLE t AS {rows}", told, "ANALYZE t", f"INSERT INTO t {rows}", told, "VACUUM (FREEZE) t"
    )
    assert statistics.growth(cluster) == pytest.approx(2)
    cluster.execute("ANALYZE t")
    assert statistics.growth(cluster) == 1


@pytest.mark.parametrize("version", [*OLDER, "16", "18"])
def test_a_snapshot_holds_all_that_ended_sessions_did_until_a_reset(
    version: str, started: Callable[..., Cluster]
) -> None:
    cluster = started(version, {"work_mem": "64kB"})
    before = snapshot(cluster)
    cluster.execute(
        "CREATE TABLE t AS SELECT generate_series(1, 100000) AS x",
        "SELECT count(*) FROM (SELECT x FROM t ORDER BY -x) AS s",
        "CHECKPOINT",
    )
    after = snapshot(cluster)
    counted = server_counts(before, after)
    assert (counted["temp_bytes"] or 0) > 1_000_000
    assert (counted["wal_bytes"] or 0) > 1_000_000
    statistics.reset(cluster)
    anew = snapshot(cluster)
    assert after["database"]["tup_inserted"] >= 100_000 > anew["database"]["tup_inserted"]
    newer = anew["checkpointer"]
    assert (newer["num_requested"] if newer else anew["bgwriter"]["checkpoints_req"]) == 0
    # what was reset meanwhile is not known
    assert server_counts(after, anew)["checkpoints_requested"] is None
