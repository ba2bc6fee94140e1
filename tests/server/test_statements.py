"""A workload from pg_stat_statements: types, values, weights, omissions; and it runs on another server."""

import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import tomli_w

from benchlib.errors import InputError, PreflightError, ServerError
from benchlib.load.pgbench import Pgbench
from benchlib.load.tool import Job
from benchlib.load.workloads import load_workload
from benchlib.plan.model import Load
from benchlib.server import statements
from benchlib.server.installations import find_pgbench
from benchlib.server.server import refuse_pooler
from benchlib.server.statements import workload_of
from benchlib.server.templates import load
from benchlib.study.environment import written

READS = {
    "SELECT * FROM customers WHERE id = 17": 30,
    "SELECT c.email, o.total FROM customers AS c JOIN \"Orders\" o ON o.customer = c.id WHERE c.email = 'u9:x@example.org' AND o.total > 3.5": 20,
    "SELECT 1 AS one FROM customers WHERE mood = 'it''s' AND born >= DATE '1971-01-01' LIMIT 5": 15,
    "SELECT count(*) FROM \"Orders\" WHERE at BETWEEN '2024-01-02 00:00+00' AND '2024-01-03 00:00+00' AND price IN (1, 2, 3)": 10,
    "SELECT id FROM customers WHERE code = '8e296a06-7a37-6334-70de-d05f5a3bf5dd' OR \"Odd name\" LIKE 'odd1'": 5,
    "SELECT at FROM visits WHERE country = 'DE' AND id = 7": 12,
    "SELECT count(*) FROM visits WHERE phone = '+4911' OR came BETWEEN '2024-01-02 00:00+00' AND '2024-01-03 00:00+00'": 11,
    "SELECT born FROM customers WHERE id IN (5, 6, 7, 8)": 6,
    "SELECT at FROM orders_of WHERE id = 5": 14,
    "SELECT email FROM customers WHERE id = ANY ('{1,2,3}'::int[])": 4,
    "SELECT id FROM \"Orders\" /* a :comment; */ WHERE note <> 'a' ORDER BY id OFFSET 3 LIMIT 2": 3,
}
LEFT_OUT = {
    "SELECT * FROM seen": "they use a view, or the server's own catalogs",
    "SELECT relname FROM pg_class WHERE oid = 3": "they use a view, or the server's own catalogs",
    "UPDATE customers SET email = 'x' WHERE id = 0": "they write",
    "SELECT id FROM customers WHERE id = 1 FOR UPDATE": "they write",
    "SELECT id FROM \"Orders\" WHERE at > now() - interval '1 day'": "the values of a parameter of type interval are unknown",
    "SELECT id FROM \"Orders\" WHERE about ->> 'k' = '3'": "the values of a parameter of type text are unknown",
    'SELECT extract(year FROM at) FROM "Orders" WHERE id = 3': None,
    "SELECT 1": "they use no table",
    "SELECT app.twice(id::integer) FROM visits WHERE id = 3": "they call a function that is not built in",
    f"SELECT id FROM customers WHERE id IN ({', '.join(map(str, range(300)))})": None,
    "SET work_mem = '4MB'": "they neither read nor write rows",
    "SELECT x FROM app.hidden WHERE x = 5": "pg_stats has no values of a column",
}
WRITES = {
    "INSERT INTO \"Orders\" (customer, total, note) VALUES (3, 2.5, 'x'), (4, 1.0, 'y')": 9,
    "UPDATE customers SET \"Odd name\" = 'odd2', born = born WHERE id = 12": 8,
    "INSERT INTO members (customer, team) VALUES (7, 3)": 1,
    "DELETE FROM \"Orders\" WHERE id = 5": 7,
}  # fmt: skip


@pytest.fixture(scope="module", params=["15", "11.22", "18.6"])
def shop_server(request, created, shelter):
    """Somebody's server, of an installation that has the extension."""
    try:
        cluster = created(request.param).clone(shelter / f"s{request.param}")
        cluster.configure({"shared_preload_libraries": "pg_stat_statements", "fsync": "off"})
        cluster.start()
    except (PreflightError, ServerError) as reason:
        pytest.skip(f"no pg_stat_statements: {reason}")
    cluster.execute("CREATE DATABASE shop", dbname="postgres")
    cluster.database = "shop"
    with cluster.connect() as connection:
        connection.execute("CREATE EXTENSION pg_stat_statements")
        connection.execute((Path(__file__).parent / "shop.sql").read_text())
    yield cluster
    cluster.stop(immediately=True)


@pytest.fixture
def shop(shop_server):
    """The server with the calls of its own statements alone, whatever other tests have run there."""
    ran = READS | dict.fromkeys(LEFT_OUT, 1) | WRITES
    with shop_server.connect() as connection:
        connection.execute("SELECT pg_stat_statements_reset()")
        with connection.transaction(force_rollback=True):
            for sql in (sql for sql, times in ran.items() for _ in range(times)):
                connection.execute(sql)
    return shop_server


@pytest.fixture
def run_all(started, installed, scratch, tmp_path):
    """Load a workload into an embedded cluster and run each script three times."""
    cluster, pgbench = started(), installed(find_pgbench().version).program("pgbench")

    def run(keys, protocol, scale):
        cluster.database = f"{protocol}{scale}"
        cluster.execute(f"CREATE DATABASE {cluster.database}", dbname="postgres")
        (tmp_path / "shop.toml").write_text(tomli_w.dumps(keys))
        workload = load_workload(str(tmp_path / "shop.toml"))
        load(cluster, workload, scale, cluster.shell, pgbench)
        its_load = Load(clients=1, threads=1, duration_s=1, protocol=protocol)
        (folder := scratch / cluster.database).mkdir(mode=0o711)
        for script in written(workload, folder, cluster.shell):
            argv = Pgbench(pgbench).argv(Job(cluster.connection, workload, its_load, scale, 7, [script]))
            argv = ["--transactions=3" if word == "--time=1" else word for word in argv]
            cluster.shell.run(argv, timeout_s=60).insist(ServerError, str(script[0].sql))
        return cluster

    return run


LOADED = {
    "SELECT count(*) > 5000 FROM orders_of": "as many as its partitions have",
    "SELECT count(*) > 8800 FROM visits": "keys of whole numbers and of times have as many values as there are rows",
    "SELECT count(DISTINCT country) = 5 FROM visits WHERE country LIKE 'D_'": "the values of the column",
    "SELECT count(*) = 0 FROM visits WHERE at IS NULL OR came < '2024-01-01 00:00+00'": "in their range",
    "SELECT avg((mood = 'glad')::int) BETWEEN 0.4 AND 0.61 FROM customers": "half of them are",
    'SELECT avg(("Odd name" IS NULL)::int) BETWEEN 0.25 AND 0.42 FROM customers': "a third of them are",
    'SELECT count(*) = 0 FROM "Orders" o LEFT JOIN customers c ON c.id = customer WHERE c.id IS NULL': "references lead somewhere",
}
"""What holds of the tables elsewhere, and why."""


def test_reading_statements_become_scripts_that_run_with_values_of_the_data(shop, run_all):
    keys, lines = workload_of(shop, "shop", 20, writes=False)
    sqls = {script["weight"]: script["sql"] for script in keys["scripts"]}
    assert {*READS.values()} <= sqls.keys(), lines
    without_texts = [re.sub(r"'[^']*'", "", script["sql"]) for script in keys["scripts"]]
    assert not any(re.search(r"\$\d", sql) for sql in without_texts), "every parameter has a value"
    for protocol in ("simple", "prepared"):
        for scale in (1, 3):
            elsewhere = run_all(keys, protocol, scale)
    for condition, what in LOADED.items():
        assert elsewhere.value(condition), what


def test_coverage_and_omissions_are_reported_with_reasons(shop):
    keys, lines = workload_of(shop, "shop", 20, writes=False)
    assert re.match(r"taken: \d+ \(SELECT .* …\), [\d.]+ % of the calls, [\d.]+ % of the time$", lines[0])
    for sql, reason in LEFT_OUT.items():
        assert reason is None or any(f"left out, since {reason}" in line for line in lines), (sql, lines)
    shares = re.findall(r"([\d.e+-]+) % of the calls", "\n".join(lines))
    assert sum(map(float, shares)) == pytest.approx(100, abs=1)
    assert lines[0] in keys["prose"]
    keys, lines = workload_of(shop, "shop", 2, writes=False)
    assert len(keys["scripts"]) == 2
    assert any("not among the 2 most called" in line for line in lines)


def test_values_of_real_rows_are_from_one_row_where_one_table_has_them(shop):
    keys, lines = workload_of(shop, "shop", 20, writes=False, real=True)
    sqls = {script["weight"]: script["sql"] for script in keys["scripts"]}
    assert {*READS.values()} - {1} <= sqls.keys(), lines
    assert keys["private"]
    assert "load_sql" not in keys
    assert keys["data"] == {"tables": []}, "they need a type, so the whole database is dumped"
    assert any(line.startswith("data: the whole database, since the tables need ") for line in lines)
    # a script has up to 16 executions; each is in itself a statement
    executions = re.findall(r"^SELECT at FROM visits .*;$", sqls[12], re.MULTILINE)
    pairs = [re.findall(r"CAST\('([^']*)'", execution) for execution in executions]
    assert 2 <= len(pairs) <= 16
    with shop.connect() as connection:
        for country, number in pairs:
            count = f"SELECT count(*) FROM visits WHERE id = {number} AND country = '{country}'"
            assert connection.execute(count).fetchone() == (1,)
        for sql in re.findall(r"^SELECT .*;$", "\n".join(sqls.values()), re.MULTILINE):
            connection.execute(sql)


def test_the_tables_of_a_dump_include_partitions_and_references(shop):
    teams, players = (
        "CREATE TABLE teams (id int PRIMARY KEY)",
        "CREATE TABLE players (team int REFERENCES teams)",
    )
    shop.execute(teams, players)
    try:
        oids = shop.value("SELECT ARRAY['players'::regclass::oid, 'orders_of'::regclass::oid]::bigint[]")
        sql = (Path(statements.__file__).parent / "needed.sql").read_text()
        (found,) = shop.query(sql, None, {"oids": oids})
    finally:
        shop.execute("DROP TABLE players, teams")
    assert {*found["tables"]} == {"players", "teams", "orders_of", "orders_of_1"}
    assert found["lacking"] is None


def test_a_schema_without_access_is_reported_once(shop):
    shop.execute("CREATE ROLE reader IN ROLE pg_read_all_stats", "ALTER DATABASE shop SET role = reader")
    try:
        _, lines = workload_of(shop, "shop", 20, writes=False)
    finally:
        shop.execute("ALTER DATABASE shop RESET role", "DROP ROLE reader", dbname="postgres")
    assert any("permission denied for schema app (needs a GRANT): 2 (" in line for line in lines), lines


def test_statements_that_write_are_taken_if_asked_for_and_nothing_is_changed_there(shop, run_all):
    files = "SELECT relname, relfilenode FROM pg_class ORDER BY oid"
    before = shop.query(files)
    keys, lines = workload_of(shop, "shop", 30, writes=True)
    assert shop.query(files) == before
    assert {9, 8, 7} <= {script["weight"] for script in keys["scripts"]}, lines
    assert any("they write values of a unique column" in line for line in lines)
    run_all(keys, "simple", 1)


def test_a_database_without_the_extension_or_with_nothing_to_run_says_why(shop, monkeypatch):
    monkeypatch.setattr(shop, "database", "bare")
    shop.execute("DROP DATABASE IF EXISTS bare", "CREATE DATABASE bare", dbname="postgres")
    with pytest.raises(PreflightError, match="is not in that database: it needs "):
        workload_of(shop, "shop", 20, writes=False)
    shop.execute("CREATE EXTENSION pg_stat_statements")
    with pytest.raises(InputError, match="no statement can be run"):
        workload_of(shop, "shop", 20, writes=False)


def test_a_pooler_in_between_is_refused_before_anything_is_set():
    asked = []
    session = Mock(
        info=SimpleNamespace(backend_pid=7, dsn="host=127.0.0.1 port=1 connect_timeout=1", password="")
    )
    session.execute = lambda sql: asked.append(sql) or SimpleNamespace(fetchone=lambda: (8,))
    with pytest.raises(PreflightError, match="a connection pooler is in between"):
        refuse_pooler(session)
    assert asked == ["SELECT pg_backend_pid()"]
    session.info.backend_pid = 8
    refuse_pooler(session)
