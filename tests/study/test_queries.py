"""Query by query on real servers: an index that helps one query, at a level that harms the other.

Sleeps decide how long the queries take, so that no outcome depends on this machine's speed.
"""

import pytest
from click.testing import CliRunner
from clusters import bench_plan
from hosts import run_for_real

from benchlib.cli import cli
from benchlib.plan.workload import Script, Workload
from benchlib.report.site import data_of
from benchlib.study.experiment import shown
from benchlib.study.frames import OpenStudy
from benchlib.study.records import QueryPlans

pytestmark = [pytest.mark.pg, pytest.mark.usefixtures("ready_clusters", "unguarded")]

BY_CUSTOMER = """\\set c random(0, 999)
SELECT sum(id) FROM orders
WHERE customer = :c;
SELECT pg_sleep(by_customer) FROM pause;
"""
BY_ID = """\\set i random(1, 50000)
BEGIN;
UPDATE orders SET seen = seen + 1 WHERE id = :i;
SELECT pg_sleep(by_id) FROM pause;
END;
"""
TWO = Workload(
    name="two", title="Two queries", pgbench_tables=False, vacuum=("orders",),
    load_sql="CREATE TABLE orders AS SELECT i AS id, i % 1000 AS customer, 0 AS seen FROM generate_series(1, 50000) AS i;"
    "ALTER TABLE orders ADD PRIMARY KEY (id); CREATE TABLE pause AS SELECT 0.2 AS by_customer, 0.005 AS by_id;",
    scripts=(Script(sql=BY_CUSTOMER, weight=3), Script(sql=BY_ID, title="by id")),
)  # fmt: skip
CHANGE = (
    "CREATE INDEX by_customer ON orders (customer); ALTER TABLE orders DROP CONSTRAINT orders_pkey;"
    "UPDATE pause SET by_customer = by_id, by_id = by_customer;"
)


def test_a_query_that_gets_slower_is_named_with_its_plan_and_fails_the_check(data_root):
    plan = bench_plan(
        {"as it is": {}, "index": {"sql": CHANGE}}, load={"transaction_log": True, "clients": 8}
    )
    folder = run_for_real("two", plan.model_copy(update={"workload": TWO}), 4)
    study = OpenStudy(shown(folder))
    rows = study.queries()
    assert rows["query"].to_list()[:2] == ["script 1", "by id"]
    assert rows["latency_p95_ms"].notna().all()
    assert rows.groupby(["level", "block"])["share_percent"].sum().round(6).eq(100).all()

    effects = study.by_query().set_index("query")
    assert effects["verdict"].to_dict() == {"script 1": "faster", "by id": "slower"}
    bitmap = "Bitmap Heap Scan on orders, Bitmap Index Scan on by_customer"
    assert effects["plan"].to_dict() == {
        "script 1": f"changed: Seq Scan on orders → {bitmap}",
        "by id": "changed: Index Scan using orders_pkey on orders → Seq Scan on orders",
    }
    first = [trial.id for trial in study.study.trials if trial.block == 1]
    assert all(QueryPlans.read(folder, name) for name in first)
    assert not any(b"statement:" in (folder.raw(name, "server.log") or b"") for name in first)

    (limit,) = [limit for limit in data_of("two").limits if limit.code == "slower_queries"]
    assert "1 of 2, the worst is “by id”" in limit.text
    assert CliRunner().invoke(cli, ["check", "two"]).exit_code == 0
    found = CliRunner().invoke(cli, ["check", "two", "--by", "query"])
    assert found.exit_code == 3
    assert "slower: two: by id: index against as it is" in found.output
