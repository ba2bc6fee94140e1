"""What real servers of several versions tell of a trial: counters, plans, and what a flush takes."""

import pytest

from benchlib.host.shell import Shell, server_user
from benchlib.plan.workload import Script, Workload
from benchlib.server import statistics
from benchlib.server.counters import server_counts
from benchlib.study.plans import outline, plan_text

pytestmark = pytest.mark.pg

OLDER = [pytest.param(version, marks=pytest.mark.long) for version in ("11", "13", "15", "17")]


def test_growth_counts_from_the_last_analyze_despite_a_later_vacuum(started):
    cluster = started(autovacuum="off")
    assert statistics.growth(cluster) is None  # there is no table
    rows = "SELECT generate_series(1, 1000) AS x"
    flush = "SELECT pg_stat_force_next_flush()"  # else a session keeps its counts for a second
    more = (f"INSERT INTO t {rows}", flush, "VACUUM (FREEZE) t")
    cluster.execute(f"CREATE TABLE t AS {rows}", flush, "ANALYZE t", *more)
    assert statistics.growth(cluster) == pytest.approx(2)
    cluster.execute("ANALYZE t")
    assert statistics.growth(cluster) == 1


@pytest.mark.parametrize("version", [*OLDER, "16", "18"])
def test_a_snapshot_holds_all_that_ended_sessions_did_until_a_reset(version, started):
    cluster = started(version, work_mem="64kB")
    before = statistics.snapshot(cluster)
    cluster.execute(
        "CREATE TABLE t AS SELECT generate_series(1, 100000) AS x",
        "SELECT count(*) FROM (SELECT x FROM t ORDER BY -x) AS s",
        "CHECKPOINT",
    )
    after = statistics.snapshot(cluster)
    counted = server_counts(before, after)
    assert (counted["temp_bytes"] or 0) > 1_000_000
    assert (counted["wal_bytes"] or 0) > 1_000_000
    statistics.reset(cluster)
    anew = statistics.snapshot(cluster)
    assert after["database"]["tup_inserted"] >= 100_000 > anew["database"]["tup_inserted"]
    newer = anew["checkpointer"]
    assert (newer["num_requested"] if newer else anew["bgwriter"]["checkpoints_req"]) == 0
    # what was reset meanwhile is not known
    assert server_counts(after, anew)["checkpoints_requested"] is None


@pytest.mark.parametrize("version", [pytest.param("16", marks=pytest.mark.long), "18"])
def test_a_real_servers_plans_are_read_as_pages_show_them(version, started):
    cluster = started(version, max_parallel_workers_per_gather=0)
    load = "CREATE TABLE t AS SELECT n % 20000 AS x, n AS y FROM generate_series(1, 40000) AS n"
    cluster.execute(load, "ANALYZE t")
    sql = "SELECT x, sum(y) FROM t GROUP BY x ORDER BY sum(y)"
    sorting = Workload(name="sorting", title="A sort", scripts=(Script(sql="SELECT 1;\n"),), explain=(sql,))

    def plan(work_mem):
        cluster.execute(f"ALTER DATABASE {cluster.database} SET work_mem = '{work_mem}'")
        return statistics.explained(cluster, sorting, 1)[0]["plan"]["Plan"]

    spilt, fitting = plan("64kB"), plan("64MB")
    assert "(on disk)" in outline(spilt)
    assert "(on disk)" not in outline(fitting)
    assert "Sort Space Type: Disk" in plan_text(spilt)
    assert "Seq Scan on t (rows=40000)" in plan_text(fitting)


@pytest.mark.long
def test_a_folder_s_device_is_measured_and_nothing_is_left(installed, scratch):
    shell, program = Shell(server_user()), installed("18").program("pg_test_fsync")
    folder = shell.make_directory(scratch / "here")
    rates = statistics.fsync_rates(shell, program, folder)
    assert (rates["complete"], rates["seconds_per_test"]) == (True, 1)
    assert any(row["method"] == "fdatasync" and row["ops_per_s"] > 1 for row in rates["methods"])
    assert list(folder.iterdir()) == []
