"""The workloads on a real server: a second of each, what must hold afterwards, and what does not when it is meddled with."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchlib.errors import ServerError
from benchlib.host.shell import which
from benchlib.load.tool import Job
from benchlib.load.tools import check, load_tool
from benchlib.load.workloads import load_workload
from benchlib.plan.model import Load
from benchlib.plan.workload import Script, Workload
from benchlib.server.cluster import Cluster
from benchlib.server.installations import Installation, find_pgbench
from benchlib.server.statistics import explained
from benchlib.server.templates import load
from benchlib.study.environment import written

pytestmark = pytest.mark.pg

SCALE = 1
SERIAL = "SET max_parallel_workers_per_gather = 0"
PARTS = ("Node Type", "Join Type", "Relation Name")
QUICK = ["mixed", "foreign-key", "vacuum", "joins-bad-order", "latest-temporary", "load", "sysbench-write-only"]  # fmt: skip
OTHERS = [
    "sort-hash", "index-build", "joins", "joins-full-outer", "joins-union", "joins-grouped", "joins-good-order", "joins-stale",
    "joins-fresh", "latest-in-place", "tpcb-like-90", "sysbench-read-write",
]  # fmt: skip


class Databases:
    """A server with a loaded database for each set of data, which tests must leave as they are."""

    def __init__(self, cluster: Cluster, pgbench: Path, folder: Path) -> None:
        self.cluster, self.pgbench, self.folder = cluster, pgbench, folder
        self._loaded: dict[tuple[object, ...], str] = {}

    def loaded(self, workload: Workload) -> Cluster:
        if workload.tool == "sysbench" and which("sysbench") is None:
            pytest.skip("no sysbench on the PATH")
        if workload.contents not in self._loaded:
            name = f"d{len(self._loaded)}"
            self.cluster.execute(f"CREATE DATABASE {name}", dbname="postgres")
            self.cluster.database = name
            load(self.cluster, workload, SCALE, self.cluster.shell, self.pgbench)
            self._loaded[workload.contents] = name
        self.cluster.database = self._loaded[workload.contents]
        return self.cluster

    def run(self, workload: Workload, its_load: Load) -> dict[str, Any]:
        server, shell = self.loaded(workload), self.cluster.shell
        tool = load_tool(workload.tool, self.pgbench)
        scripts = written(workload, self.folder, shell)
        argv = tool.argv(Job(server.connection, workload, its_load, SCALE, 7, scripts))
        done = shell.run(argv, timeout_s=tool.limit_s(its_load))
        return tool.report(done.stdout, done.stderr, done.returncode, argv)

    def plans(self, name: str, **changes: Any) -> list[list[dict[str, Any]]]:
        """The nodes of the plan of each statement that a workload, changed so, explains, the topmost first."""
        workload = load_workload(name)
        rows = explained(self.loaded(workload), workload.model_copy(update=changes), SCALE)
        return [nodes(row["plan"]["Plan"]) for row in rows]


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for part in plan.get("Plans", []) for node in nodes(part))]


@pytest.fixture(scope="module")
def databases(
    created: Callable[[str], Cluster], installed: Callable[[str], Installation], shelter: Path
) -> Iterator[Databases]:
    cluster = created("18").clone(shelter / "w")
    cluster.configure({"fsync": "off"})
    cluster.start()
    (shelter / "scripts").mkdir(mode=0o711)
    yield Databases(cluster, installed(find_pgbench().version).program("pgbench"), shelter / "scripts")
    cluster.stop(immediately=True)


@pytest.mark.parametrize("protocol", ["simple", pytest.param("prepared", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)])
def test_its_invariant_holds_after_a_second_of_it(name: str, protocol: str, databases: Databases) -> None:
    workload = load_workload(name)
    its_load = Load(clients=2, threads=1, duration_s=1, protocol=protocol)  # type: ignore[arg-type]
    server, count = databases.loaded(workload), workload.invariant.count
    check(workload, its_load)
    before = int(server.value(count)) if count else 0
    report = databases.run(workload, its_load)
    if count:
        assert report["transactions"] >= 2
        assert int(server.value(count)) - before in workload.invariant.growth(report)
    assert server.value(workload.invariant.violations or "") == 0


@pytest.mark.parametrize(
    "name", ["select-scan", "tpcb-bulk", pytest.param("mixed-scan", marks=pytest.mark.long)]
)
def test_what_runs_beside_can_run_and_takes_no_more_disk_than_it_may(name: str, databases: Databases) -> None:
    workload = load_workload(name)
    (beside,) = workload.beside
    megabyte = beside.sql.replace("2147483648", "1000000")  # in place of two gigabytes
    alone = workload.model_copy(update={"name": f"{name}-beside", "scripts": (Script(sql=megabyte),)})
    assert databases.run(alone, Load(clients=1, threads=1, duration_s=1))["transactions"] >= 2
    server = databases.cluster
    assert server.value(workload.invariant.violations or "") == 0
    for table in workload.truncate if name == "tpcb-bulk" else ():
        assert server.value(f"SELECT pg_relation_size('{table}')") < 12_000_000  # what a transaction adds
        server.execute(f"TRUNCATE {table}")


BATCH = "SELECT mixed_insert(); "
BODY = "UPDATE pg_proc SET prosrc = '{1}' WHERE proname = '{0}'"
LOST_MAKERS = (
    "SELECT c.maker, c.warehouse, c.quantity, w.quantity FROM came_by_maker(since, till) AS c"
    " LEFT JOIN went_by_maker(since, till) AS w USING (maker, warehouse)"
)
LOST_ROW = "SELECT category, warehouse, total FROM supply_from_region(since, till, area) OFFSET 1"
OTHER_VALUES = "BEGIN RETURN QUERY SELECT p.good, p.value + 1 FROM value_in_place(at) AS p; END"


@pytest.mark.parametrize(
    ("name", "behind"),
    [
        ("mixed", "UPDATE pgbench_tellers SET tbalance = tbalance + 1 WHERE tid = 1"),
        ("mixed", f"{BATCH}DELETE FROM pgbench_history WHERE ctid = (SELECT min(ctid) FROM pgbench_history)"),
        ("mixed", f"{BATCH}UPDATE pgbench_history SET delta = 0 WHERE ctid = (SELECT min(ctid) FROM pgbench_history)"),
        ("sort-hash", "UPDATE events SET mark = 'x' WHERE id = 7"),
        ("index-build", "CREATE INDEX ON events (id)"),
        ("joins", "DELETE FROM customers WHERE id = 1"),
        ("joins-union", BODY.format("turnover_union", LOST_MAKERS)),
        ("joins-bad-order", BODY.format("supply_from_receipts", LOST_ROW)),
        ("foreign-key", "DELETE FROM events WHERE id = 1"),
        ("vacuum", "UPDATE events SET version = version + 1 WHERE id = 2"),
        ("latest-temporary", BODY.format("value_temporary", OTHER_VALUES)),
        ("load", "DELETE FROM pgbench_accounts WHERE aid = 5"),
        ("load", "ALTER TABLE pgbench_accounts DROP CONSTRAINT pgbench_accounts_pkey"),
        pytest.param("sysbench-write-only", "DELETE FROM sbtest250 WHERE id = 1", marks=pytest.mark.long),
        pytest.param("sysbench-read-write", "UPDATE sbtest1 SET id = 46 WHERE id = 1", marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_its_invariant_does_not_hold_after_this(name: str, behind: str, databases: Databases) -> None:
    workload = load_workload(name)
    if name == "load":
        databases.run(workload, Load())
    with databases.loaded(workload).connect() as connection, connection.transaction(force_rollback=True):
        ask = lambda sql: next(iter(connection.execute(sql)))[0]  # noqa: E731
        assert ask(workload.invariant.violations or "") == 0
        connection.execute(behind)
        assert ask(workload.invariant.violations or "") > 0


@pytest.mark.parametrize("name", ["mixed", "joins-union", "latest-temporary"])
def test_plans_are_kept_and_nothing_else(name: str, databases: Databases) -> None:
    workload = load_workload(name)
    server = databases.loaded(workload)
    tables = "SELECT count(*) FROM pg_class"
    before = [server.value(tables), server.value(workload.invariant.count or "")]
    plans = explained(server, workload, SCALE)
    assert [row["statement"] for row in plans] == list(workload.explain)
    assert all("Shared Hit Blocks" in row["plan"]["Plan"] for row in plans)
    assert [server.value(tables), server.value(workload.invariant.count or "")] == before
    assert server.value(workload.invariant.violations or "") == 0


def test_little_memory_sends_sorts_and_hashes_to_disk(databases: Databases) -> None:
    """What the workload is for: with much memory none of its queries writes a temporary file."""
    for memory, is_written in (("1MB", True), ("256MB", False)):
        plans = databases.plans("sort-hash", explain_after=f"{SERIAL}; SET work_mem = '{memory}'")
        assert [plan[0]["Temp Written Blocks"] > 0 for plan in plans] == [is_written] * 3


def test_a_rewrite_is_seen_in_its_plan(databases: Databases) -> None:
    def shape(name: str) -> str:
        return "; ".join(" ".join(str(node.get(key)) for key in PARTS) for node in databases.plans(name)[0])

    full, union, grouped = map(shape, ("joins-full-outer", "joins-union", "joins-grouped"))
    assert " Full " in full
    assert "Append None None" in union
    assert "Nested Loop Left" in union, "its condition allows no other join"
    assert not re.search(" (Full|Left) ", grouped)
    assert ["latest" in shape(f"latest-{how}") for how in ("in-place", "temporary")] == [False, True]


def test_a_written_order_is_taken_where_the_planner_looks_for_none(databases: Databases) -> None:
    def rows_met(name: str, limit: int) -> int:
        """How many rows came out of all joins together."""
        top = databases.plans(name, explain_after=f"{SERIAL}; SET join_collapse_limit = {limit}")[0]
        return sum(int(node["Actual Rows"] * node["Actual Loops"]) for node in top if "Join Type" in node)

    assert rows_met("joins-good-order", 8) == rows_met("joins-bad-order", 8)
    assert rows_met("joins-bad-order", 1) > 5 * rows_met("joins-good-order", 1)


def test_stale_statistics_promise_few_rows_until_the_tables_are_analysed(databases: Databases) -> None:
    def expected(name: str) -> tuple[float, float]:
        """The sales of the month that the planner expects, and those that there are."""
        scan = databases.plans(name, explain=("SELECT * FROM sales WHERE day BETWEEN 460 AND 489",))[0][0]
        return scan["Plan Rows"], scan["Actual Rows"]

    rows, there = expected("joins-stale")
    assert rows < there / 10
    databases.cluster.execute(*(f"VACUUM (ANALYZE) {table}" for table in load_workload("joins-fresh").vacuum))
    assert expected("joins-fresh")[0] == pytest.approx(there, rel=0.3)


def test_a_plan_that_cannot_be_had_is_told_in_the_server_s_words(databases: Databases) -> None:
    refused = {"SELECT nothing": 'column "nothing"', "SELECT 1; DROP TABLE sales": "multiple commands"}
    for statement, words in refused.items():
        with pytest.raises(ServerError, match=f"a plan cannot be had: .*{words}"):
            databases.plans("joins", explain=(statement,))
    assert databases.cluster.value(load_workload("joins").invariant.violations or "") == 0
    assert databases.plans("insert") == []


def test_the_first_scan_of_what_was_loaded_writes_nothing(databases: Databases) -> None:
    """Rows that are frozen have no hint bits to be set: else the first scan would write the whole table."""
    server = databases.loaded(load_workload("select-scan"))
    frozen = "SELECT relallfrozen = relpages FROM pg_class WHERE relname = 'pgbench_accounts'"
    assert server.value(frozen)


def test_loading_is_measured(databases: Databases) -> None:
    report = databases.run(load_workload("load"), Load())
    assert [report[name] for name in ("rows", "scale", "tps", "transactions")] == [100_000, SCALE, None, None]
    assert report["init_s"] is not None
    options = databases.cluster.value("SELECT reloptions FROM pg_class WHERE relname = 'pgbench_accounts'")
    assert options == ["fillfactor=90"]
