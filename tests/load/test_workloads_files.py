"""The workloads of micro-benchmarks, YCSB, time series and TPC-C-like, on the oldest and the newest server."""

import os
import signal

import pytest
from clusters import eventually

from benchlib.errors import InvariantError, ServerError
from benchlib.load.pgbench import Pgbench
from benchlib.load.tool import Job
from benchlib.load.workloads import load_workload, workload_paths
from benchlib.plan.model import Load
from benchlib.server.installations import find_pgbench, installations
from benchlib.server.templates import load
from benchlib.study.bench import check_invariant
from benchlib.study.environment import written
from benchlib.study.workload_check import try_scripts

FAMILIES = ("micro-", "ycsb-", "timeseries", "tpcc-like")
NAMES = sorted(name for name in workload_paths() if name.startswith(FAMILIES))
BROKEN = {
    "the first": "UPDATE warehouse SET w_ytd = w_ytd + 1",
    "the second": "UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_id = 3",
    "the second, of new orders": "DELETE FROM new_order WHERE no_o_id = 3000 AND no_d_id = 3",
    "the third": "DELETE FROM new_order WHERE no_o_id = 2500 AND no_d_id = 3",
    "the fourth": "DELETE FROM order_line WHERE ol_o_id = 17 AND ol_d_id = 3 AND ol_number = 1",
    "the fourth, of a whole district": "DELETE FROM order_line WHERE ol_d_id = 3",
}
"""Changes that break one of TPC-C's consistency conditions each (clauses 3.3.2.1 to 3.3.2.4)."""


@pytest.mark.pg
@pytest.mark.long
@pytest.mark.usefixtures("unguarded", "scratch")
@pytest.mark.parametrize("name", NAMES)
def test_each_runs_on_the_oldest_and_on_the_newest_server(name):
    by_version = sorted(installations(), key=lambda one: one.major)
    for installation in (by_version[0], by_version[-1]):
        workload = load_workload(name)
        for error, plans in try_scripts(workload, str(installation.bindir), lambda _: None):
            assert (error, bool(plans) or "copy" in name) == ("", True)


@pytest.fixture
def warehouses(new_cluster):
    """A loaded server that flushes its commits; what runs the transactions, and their count before."""
    cluster, workload = new_cluster(), load_workload("tpcc-like")
    cluster.configure({"fsync": "on"})
    cluster.start()
    cluster.execute(f"CREATE DATABASE {cluster.database}", dbname="postgres")
    load(cluster, workload, 1, cluster.shell, find_pgbench().program("pgbench"))
    return cluster, workload


@pytest.mark.pg
def test_each_consistency_condition_of_tpcc_is_checked(warehouses):
    cluster, workload = warehouses
    report = {"transactions": 0, "scripts": [{"transactions": 0}] * 5}
    check_invariant(cluster, workload, int(cluster.value(workload.invariant.count)), report)
    for which, change in BROKEN.items():
        with cluster.connect() as connection, connection.transaction(force_rollback=True):
            connection.execute(change)
            (violations,) = connection.execute(workload.invariant.violations).fetchone()
            assert violations > 0, which
    cluster.execute(BROKEN["the first"])
    with pytest.raises(InvariantError, match="violate"):
        check_invariant(cluster, workload, None, report)


@pytest.mark.pg
@pytest.mark.long
def test_tpcc_is_consistent_after_the_server_was_killed(warehouses, scratch, installed):
    cluster, workload = warehouses
    pgbench = installed(find_pgbench().version).program("pgbench")
    its_load, before = Load(clients=4, threads=1, duration_s=60), cluster.value(workload.invariant.count)
    scripts = written(workload, scratch, cluster.shell)
    argv = Pgbench(pgbench).argv(Job(cluster.connection, workload, its_load, 1, 7, scripts))
    client = cluster.shell.start(argv, log=scratch / "pgbench.log")
    assert eventually(lambda: cluster.value(workload.invariant.count) > before + 500)
    os.kill(cluster.pid, signal.SIGKILL)
    client.wait(60)
    cluster.stop(immediately=True)
    assert eventually(lambda: restarted(cluster))
    assert cluster.value(workload.invariant.violations) == 0
    assert cluster.value(workload.invariant.count) > before + 500


def restarted(cluster) -> bool:
    """Start the server again; sessions of the killed one may need a moment to end."""
    try:
        cluster.start()
    except ServerError:
        return False
    return True
