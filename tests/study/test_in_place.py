"""A database in use: benchlib only reads it, within bounds, and creates nothing."""

import contextlib
from typing import Any
from unittest.mock import Mock

import psutil
import psycopg
import pytest
from clusters import bench_plan
from hosts import ending, meanwhile, run_for_real

from benchlib.errors import BrakeError, InputError, PreflightError, ServerError, StudyError
from benchlib.host.shell import Shell
from benchlib.levers import BY_KEY
from benchlib.plan.level import Level
from benchlib.plan.model import Plan
from benchlib.plan.workload import Workload
from benchlib.server.brakes import braking
from benchlib.server.remote import Remote
from benchlib.server.rights import Target
from benchlib.server.statistics import IN_PLACE
from benchlib.study.preflight import preflight

pytestmark = [pytest.mark.pg, pytest.mark.usefixtures("ready_clusters", "unguarded", "journal")]

IN_USE = {"server": "guest", "in_place": True}
TABLE = "CREATE TABLE shop AS SELECT generate_series(1, 1000) AS i"
GRANTS = ("GRANT SELECT ON shop TO guest", "GRANT pg_read_all_stats TO guest")
READS = "SELECT i FROM shop WHERE i = 7;"
WRITTEN = "SELECT txid_snapshot_xmax(txid_current_snapshot()), (SELECT count(*) FROM pg_class)"


def plan(script: str = READS, *, target: Any = IN_USE, load: Any = (), **level: Any) -> Plan:
    levels = {"plain": {"target": target}, "other": {"target": target, **level}}
    workload = {"name": "w", "title": "W", "scripts": [{"sql": script}], "load_sql": "DROP TABLE shop"}
    made = bench_plan(levels, load={"rate": 50, **dict(load)})
    return made.changed(
        workload=Workload.model_validate({**workload, "pgbench_tables": False, "vacuum": [""]})
    )


def test_a_study_reads_with_its_own_settings_and_writes_nothing(foreign, scratch, monkeypatch):
    # a division by zero where a session of the load is not as it should be
    as_asked = "(current_setting('work_mem') = '8MB' AND current_setting('transaction_read_only') = 'on')"
    asked = plan(f"SELECT 1 / {as_asked}::int FROM shop WHERE i = 7;", settings={"work_mem": "8MB"})
    seen = []
    meanwhile(monkeypatch, lambda _: seen.append((foreign.databases(), foreign.shows("work_mem"))))
    with foreign.given(TABLE, *GRANTS, "ALTER SYSTEM SET autovacuum = 'off'"):
        before = foreign.rows(WRITTEN), foreign.databases(), foreign.schemas()
        folder = run_for_real("in-place", asked, 1)
        assert (foreign.rows(WRITTEN), foreign.databases(), foreign.schemas()) == before
    kept = folder.kept().values()
    assert {m.trial.level: m.error is None for m in kept} == {"plain": False, "other": True}
    assert seen == [(before[1], "4MB")]
    assert {m.settings["default_transaction_read_only"] for m in kept} == {"on"}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"script": "SELECT 1; INSERT INTO shop VALUES (1)"}, "in place, a workload only reads: script 1 of “w” has INSERT"),
        ({"script": "SELECT i AS j FROM shop LIMIT 1 \\gset"}, "\\gset needs the protocol extended"),
        ({"settings": {"max_connections": 9}}, "max_connections = 9: needs a restart of the server"),
        ({"settings": {"checkpoint_timeout": "7min"}}, "checkpoint_timeout applies to the whole server: in place, only"),
        ({"settings": {"transaction_read_only": "off"}}, "transaction_read_only: every session is read-only in place"),
        ({"settings": {"log_statement_stats": "on"}}, "the role guest may not SET log_statement_stats"),
        ({"load": {"rate": "50 % of capacity"}}, "the capacity of a server in use is not measured"),
        ({"target": "boss", "load": {"rate": "5 % of its calls"}}, "needs a target with 'in_place'"),
        ({"target": {**IN_USE, "brakes": {"lag_s": 3}}}, None),
        ({"target": {"server": "tuner", "in_place": True}}, "GRANT pg_read_all_stats TO tuner;"),
    ],
)  # fmt: skip
def test_levels_that_are_refused_before_anything_runs(foreign, asked, expected):
    with foreign.given(TABLE, *GRANTS), ending(None if expected is None else (PreflightError, "")) as caught:
        texts = dict(preflight(plan(**asked)))
    if expected is None:
        assert texts["service guest, brakes"] == "connections 80, active 10, lag_s 3", (
            "by default the server's"
        )
    else:
        assert expected in str(caught.value)
        assert caught.value.exit_code == InputError.exit_code


def test_a_schema_change_is_refused():
    level = Level.model_validate({"target": IN_USE, "sql": "CREATE INDEX ON shop (i)"})
    assert BY_KEY["target"].conflict(level) == "'sql' changes a database, 'in_place' only reads it"


def test_a_brake_ends_the_load_and_the_study(foreign, scratch, monkeypatch):
    """Others' sessions arrive while a slow query of the load runs."""
    asked = plan(
        "SELECT pg_sleep(60);", target={**IN_USE, "brakes": {"connections": 9}}, load={"duration_s": 90}
    )
    with contextlib.ExitStack() as others, foreign.given(TABLE, *GRANTS):

        def arrive(_: object) -> None:
            for _ in range(9):
                others.enter_context(foreign.cluster.connect("postgres"))

        meanwhile(monkeypatch, arrive)
        stops = r"the load was ended: connections in use: \d+, the bound is 9 .brakes: connections.; later, run again"
        with pytest.raises(StudyError, match=stops) as caught:
            run_for_real("braked", asked, 2)
        load = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{IN_PLACE}'"
        assert foreign.rows(load) == [(0,)]
    assert caught.value.exit_code == 1


def test_each_bound_is_named_with_its_value(foreign):
    with Remote(Target(server="boss", in_place=True)).connect() as ours:
        for bound, expected in (
            ({"active": -1}, "active sessions of others: 0, the bound is -1"),
            ({"lag_s": -1}, "replay lag of a replica: 0.0 s, the bound is -1"),
        ):
            with pytest.raises(BrakeError, match=expected), braking(ours, bound):
                pass


def test_a_server_that_is_stopped_ends_the_load(foreign):
    with Remote(Target(server="boss", in_place=True)).connect() as ours:
        backend = psutil.Process(ours.info.backend_pid)
        with contextlib.ExitStack() as resumed, braking(ours, {}) as check:
            resumed.callback(backend.resume)
            backend.suspend()
            with pytest.raises(BrakeError, match="did not answer"):
                Shell().run(["sleep", "60"], watch=check)


def test_a_load_ends_when_no_connection_is_free(foreign, monkeypatch):
    remote = Remote(Target(server="boss", in_place=True))
    with contextlib.closing(remote.connect()) as load:
        load.execute(f"SET application_name = '{IN_PLACE}'")
        braked = remote.braked()
        braked.__enter__()
        monkeypatch.setattr(remote, "connect", Mock(side_effect=ServerError("too many clients")))
        braked.__exit__(BrakeError, BrakeError(), None)
        with pytest.raises(psycopg.OperationalError):
            load.execute("SELECT 1")


def test_the_rate_is_a_share_of_the_calls_and_at_least_one_a_second():
    shares = plan(load={"rate": "10 % of its calls"})
    assert shares.level_load("plain").rate == "10 % of its calls"
    assert [shares.changed(calls_tps=tps).level_load("plain").rate for tps in (0, 1234.5)] == [1, 123]
    unset = plan(load={"rate": None})
    assert unset.changed(calls_tps=1000).level_load("plain").rate == 50


def test_a_copy_of_a_template_database(foreign, journal):
    def refusal(name: str, role: str = "boss") -> str:
        with pytest.raises(PreflightError) as caught:
            Remote.open(Target(server=role), journal.scope(), name)
        return str(caught.value)

    with foreign.given("CREATE DATABASE shop_copy"):
        with psycopg.connect(foreign.uri("postgres", "shop_copy"), autocommit=True) as connection:
            connection.execute(TABLE)
            assert "shop_copy cannot be copied while 1 sessions use it" in refusal("shop_copy")
        foreign.wait_until_alone()
        copy = Remote.open(Target(server="boss"), journal.scope(), "shop_copy")
        assert copy.value("SELECT count(*) FROM shop") == 1000
        assert "postgres: ALTER DATABASE shop_copy IS_TEMPLATE true" in refusal("shop_copy", "maker")
        assert journal.undo() == []
    assert "the server has no database shop_coppy to copy" in refusal("shop_coppy")
    assert "while benchlib is connected to it" in refusal("postgres")


def test_a_template_database_needs_an_external_server():
    copied = Workload.model_validate(
        {"name": "w", "title": "W", "scripts": [{"sql": READS}], "data": {"template": "t"}}
    )
    with pytest.raises(
        PreflightError, match="is a database of an external server, “t”: give a target without"
    ):
        preflight(bench_plan({"plain": {}, "other": {}}).changed(workload=copied))
