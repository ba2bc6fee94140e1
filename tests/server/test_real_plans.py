"""Plans of real servers of several versions, read as pages show them."""

from collections.abc import Callable

import pytest

from benchlib.plan.workload import Script, Workload
from benchlib.report.sections.query_plans import differences, outline, plan_text
from benchlib.server.cluster import Cluster
from benchlib.server.statistics import explained

SORTING = Workload(
    name="sorting",
    title="A sort",
    scripts=(Script(sql="SELECT 1;\n"),),
    explain=("SELECT x, sum(y) FROM t GROUP BY x ORDER BY sum(y)",),
)
LOAD = "CREATE TABLE t AS SELECT n % 20000 AS x, n AS y FROM generate_series(1, 40000) AS n"


@pytest.mark.pg
@pytest.mark.parametrize("version", [pytest.param("16", marks=pytest.mark.long), "18"])
def test_a_real_servers_plans(version: str, new_cluster: Callable[[str], Cluster]) -> None:
    cluster = new_cluster(version)
    plans = {}
    cluster.configure({"max_parallel_workers_per_gather": 0})
    cluster.start()
    cluster.execute(f"CREATE DATABASE {cluster.database}", dbname="postgres")
    cluster.execute(LOAD, "ANALYZE t")
    for work_mem in ("64kB", "64MB"):
        cluster.execute(f"ALTER DATABASE {cluster.database} SET work_mem = '{work_mem}'")
        plans[work_mem] = explained(cluster, SORTING, 1)[0]["plan"]["Plan"]
    spilt, fitting = plans["64kB"], plans["64MB"]
    assert "(on disk)" in outline(spilt)
    assert "(on disk)" not in outline(fitting)
    assert "Sort (on disk)" in differences(outline(fitting), outline(spilt))
    assert "Sort Space Type: Disk" in plan_text(spilt)
    assert "Seq Scan on t (rows=40000)" in plan_text(fitting)
