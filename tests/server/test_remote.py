"""External servers: benchlib uses its own database or schema, restores all changes, and shows no password."""

import json
import logging
import time
import traceback
from functools import partial
from multiprocessing import Pipe

import pytest
from clusters import begun

from benchlib.errors import PreflightError, ServerError, SettingError
from benchlib.host.journal import Journal
from benchlib.host.sampler import Sampler, host_counters, kernel_files
from benchlib.host.telemetry import telemetry
from benchlib.load.pgbench import Pgbench
from benchlib.load.tool import Job
from benchlib.load.workloads import load_workload
from benchlib.plan.model import Load
from benchlib.plan.words import HOST_GRANTS
from benchlib.server import statistics
from benchlib.server.installations import find_pgbench
from benchlib.server.remote import Remote
from benchlib.server.rights import Target

pytestmark = pytest.mark.usefixtures("journal")  # which sees that the server is afterwards as it was

OWN = {"own_schema": "bench_own"}
TIMEOUT = "checkpoint_timeout"
MAKER_MAY = "GRANT CREATE ON DATABASE postgres TO maker"


def run(remote: Remote) -> tuple[object, str]:
    """Load pgbench's tables and drive them: how many transactions there were, and all that was seen of it."""
    shell, tpcb = remote.shell(), load_workload("tpcb-like")
    pgbench = Pgbench(find_pgbench().program("pgbench"))
    pgbench.fill(shell, remote.connection, tpcb, 1)
    load = Load(duration_s=1, clients=2, threads=1)
    argv = pgbench.argv(Job(remote.connection, tpcb, load, 1, 7, [(tpcb.scripts[0], None)]))
    done = shell.run(argv)
    report = pgbench.report(done.stdout, done.stderr, done.returncode, argv)
    return report["transactions"], f"{argv} {done} {shell}"


@pytest.mark.parametrize(("role", "by_uri"), [("boss", False), ("maker", True)])
def test_a_database_of_our_own_is_made_used_and_dropped(role, by_uri, foreign, place, journal, monkeypatch):
    before = foreign.databases()
    monkeypatch.setenv("PGPASSWORD", foreign.password(role))
    remote = place(foreign.uri(role) if by_uri else role)
    assert foreign.databases() - before == {remote.database}
    transactions, _ = run(remote)
    assert remote.value("SELECT count(*) FROM pgbench_history") == transactions
    remote.checkpoint()
    version, build = foreign.cluster.version(), foreign.cluster.value("SELECT version()", "postgres")
    assert remote.identity() == {"version": version, "build": build, "checkpoints": role == "boss"}
    with remote.connect():  # somebody is still there
        assert journal.undo() == []
    assert foreign.databases() == before


def test_a_schema_in_a_database_with_other_tables(foreign, place, journal):
    theirs = ("pgbench_accounts", "test_table")
    with foreign.given(*(f"CREATE TABLE {t} AS SELECT 7 AS n" for t in theirs)):
        remote, second = (place(**OWN, beside="postgres") for _ in range(2))
        run(remote)
        remote.execute(load_workload("insert").load_sql, 'CREATE TABLE "Ours" AS SELECT 1 AS n')
        schemas = {r.value("SELECT current_schema()") for r in (remote, second)}
        assert foreign.schemas() == {"public", *schemas}
        rows = remote.query("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
        assert {"pgbench_accounts", "pgbench_history", "test_table"} <= {row["tablename"] for row in rows}
        remote.vacuum("FREEZE, ANALYZE")
        seen = "SELECT reltuples >= 1 FROM pg_class WHERE oid = '{}'::regclass"
        assert remote.value(seen.format('"Ours"'))
        assert not remote.value(seen.format("public.pgbench_accounts"))
        flush = "SELECT pg_stat_force_next_flush()"
        more = "INSERT INTO test_table SELECT generate_series(8, 1000000)"
        foreign.execute("ANALYZE test_table", flush, more, flush)
        ours, none = (statistics.snapshot(r)["database_bytes"] for r in (remote, second))
        assert 13 << 20 < ours < 30 << 20  # theirs has 35 MB
        assert none in (0, None)
        assert statistics.growth(second) is None
        foreign.execute("DELETE FROM test_table WHERE n > 7")
        assert journal.undo() == []
        assert [foreign.rows(f"SELECT * FROM {table}") for table in theirs] == [[(7,)]] * 2


def test_a_schema_of_our_own_goes_though_a_killed_load_goes_on_in_it(place, journal):
    with place(**OWN).connect() as load:
        for statement in ("CREATE TABLE held (n int)", "BEGIN", "LOCK TABLE held"):
            load.execute(statement)
        assert journal.undo() == []  # which would fail after waiting for the lock
        load.close()


def test_a_service_is_as_its_file_says_whatever_the_environment_does(services, foreign, place, monkeypatch):
    monkeypatch.setenv("PGHOST", "192.0.2.1")
    monkeypatch.setenv("PGSERVICE", "another")
    more = f"password={foreign.password('boss')}\noptions=-cwork_mem=5MB -csearch_path=public"
    services.write_text(foreign.service("boss", more=more))
    remote = place(**OWN)
    assert remote.value("SHOW data_directory") == str(foreign.cluster.data)
    assert remote.value("SHOW work_mem") == "5MB"
    environment = remote.shell().environment
    assert environment["PGOPTIONS"].startswith("-cwork_mem=5MB -csearch_path=public -csearch_path=bench_own_")
    assert environment.get("PGHOST") != "192.0.2.1"


def test_options_that_go_astray_are_noticed_before_a_table_is_touched(place, monkeypatch):
    """As with a connection pooler that ignores them."""
    connect = Remote.connect

    def pooled(self, dbname=None, **role):
        self._parameters.pop("options", None)
        return connect(self, dbname, **role)

    monkeypatch.setattr(Remote, "connect", pooled)
    with pytest.raises(PreflightError, match="ignores connection options"):
        place(**OWN)


@pytest.mark.parametrize("own", [{}, OWN])
def test_settings_hold_for_our_sessions_and_those_of_the_load_alone(own, foreign, journal, place):
    with foreign.given(MAKER_MAY, "ALTER ROLE maker SET work_mem = '5MB'"):
        former, remote, other = foreign.set_for(), place("maker", **own), place("maker", **own)
        settings = {"work_mem": "8MB", "DateStyle": "SQL, DMY", "jit": False, "random_page_cost": 1.1}
        remote.configure(settings, journal.scope())
        in_force = {"work_mem": "8192 kB", "DateStyle": "SQL, DMY", "jit": "off", "random_page_cost": "1.1"}
        assert remote.check_settings(remote.database) == in_force
        options = "-cwork_mem=8MB -cDateStyle=SQL,\\ DMY -cjit=off -crandom_page_cost=1.1"
        assert options in remote.shell().environment["PGOPTIONS"]
        shown = [remote.value("SHOW work_mem"), other.value("SHOW work_mem"), foreign.shows("work_mem")]
        assert shown == ["8MB", "5MB", "4MB"]
        with pytest.raises(SettingError, match="checkpoint_timeout applies to the whole server: set "):
            remote.configure({"work_mem": "8MB", TIMEOUT: "7min"}, journal.scope())
        assert (foreign.set_for(), foreign.altered()) == (former, {})
        remote.configure({}, journal.scope())
        assert remote.value("SHOW work_mem") == "5MB"
        remote._begin_sessions_with({"bench.own": (words := "a\t-cwork_mem=9MB\n\\ b")})
        assert [remote.value("SHOW bench.own"), remote.value("SHOW work_mem")] == [words, "5MB"]


def test_what_no_session_may_have_for_itself_everybody_gets_and_the_former_return(foreign, journal, place):
    theirs = "ALTER SYSTEM SET application_name = 'it''s, \"theirs\"'"
    with foreign.given("ALTER SYSTEM SET checkpoint_timeout = '9min'", theirs):
        former, remote = foreign.altered(), place(server_wide=True)
        for wide in ({TIMEOUT: "7min", "autovacuum": "off"}, {TIMEOUT: "8min"}, {}):
            with journal.scope() as trial:
                remote.configure({**wide, "work_mem": "8MB"}, trial)
                assert set(remote.check_settings(remote.database)) == {*wide, "work_mem"}
                assert foreign.altered() == {**former, **wide}
                assert foreign.shows("work_mem") == "4MB"
            assert foreign.altered() == former
            assert not wide or foreign.shows(TIMEOUT) == "9min"


def test_a_setting_that_is_refused_or_altered_meanwhile_ends_the_trial(foreign, journal, place):
    remote = place(server_wide=True)
    # no session may set it, so ALTER SYSTEM alone can refuse it
    with pytest.raises(SettingError, match=r"1 s is outside the valid range for parameter .checkpoint_t"):
        remote.configure({TIMEOUT: "1s"}, journal.scope())
    assert foreign.altered() == {}
    tuner = place("tuner", server_wide=True)
    tuner.configure({TIMEOUT: "7min"}, journal.scope())
    altered = foreign.given("ALTER SYSTEM SET checkpoint_timeout = '8min'")
    with altered, pytest.raises(SettingError, match=r"checkpoint_timeout: requested 7min, .* with 480 s"):
        tuner.check_settings(tuner.database)


def test_the_host_is_sampled_where_the_role_may_have_its_files_read(foreign, place):
    remote = place("maker")
    files = partial(statistics.kernel_files, remote)
    with Sampler(servers=lambda: [], files=files) as sampler:
        pass
    assert "of_target" not in sampler.raw
    with foreign.given(*HOST_GRANTS.replace("our_role", "maker").split("; ")):
        before = host_counters(kernel_files())
        with Sampler(servers=lambda: [], files=files, interval_s=0.2) as sampler:
            run(remote)
    first, last = (sampler.raw["readings"][at] for at in (0, -1))
    assert (sampler.raw["of_target"], sampler.warnings) == (True, [])
    assert set(first["devices"]) == set(before["devices"])
    assert before["context_switches"] < first["context_switches"] < last["context_switches"]
    figures = telemetry(sampler.raw)
    assert figures[["cpu_user_percent", "context_switches_per_s", "dirty_mib"]].notna().all(axis=None)


def test_counters_that_an_ordinary_role_may_not_see_are_null(foreign, place):
    remote = place("maker")
    assert {statistics.snapshot(remote)[name] is None for name in ("lsn", "bgwriter")} == {False}
    closed = ("EXECUTE ON FUNCTION pg_current_wal_insert_lsn()", "SELECT ON pg_stat_bgwriter")
    foreign.cluster.execute(*(f"REVOKE {right} FROM PUBLIC" for right in closed), dbname=remote.database)
    seen = statistics.snapshot(remote)
    assert (seen["lsn"], seen["bgwriter"], seen["database"]["datname"]) == (None, None, remote.database)


def test_parameters_are_saved_without_folder_host_or_name(foreign, place, monkeypatch):
    with foreign.given(
        "ALTER SYSTEM SET work_mem = '7MB'",
        "ALTER SYSTEM SET primary_conninfo = 'host=secret.example user=somebody'",
        "ALTER ROLE maker SET random_page_cost = 1.5",
    ):
        of_maker = place("maker").parameters()
        monkeypatch.setattr(foreign.cluster, "database", "postgres")
        of_owner = foreign.cluster.parameters()
    work_mem = {"setting": "7168", "unit": "kB", "boot_val": "4096", "source": "configuration file"}
    assert (of_maker["work_mem"], of_maker["random_page_cost"]["setting"]) == (work_mem, "1.5")
    assert of_owner["primary_conninfo"]["setting"] == "set"
    secrets = ("/", "secret", "somebody", "maker", foreign.cluster.folder.parent.name)
    assert not [secret for secret in secrets if secret in json.dumps([of_maker, of_owner])]


def test_a_server_that_vanishes_is_one_clear_line_and_all_is_given_back_later(foreign, journal, place):
    remote = place(server_wide=True)
    remote.configure({TIMEOUT: "7min"}, journal.scope())
    configure = partial(remote.configure, {"jit": 0}, journal.scope())
    snapshot = partial(statistics.snapshot, remote)
    foreign.cluster.stop(immediately=True)
    try:
        for ask in (remote.version, remote.shell, configure, remote.checkpoint, snapshot):
            with pytest.raises(ServerError, match=r"^the server refused or went away: .*$"):
                ask()
        resisting = journal.undo()
    finally:
        foreign.cluster.start()
    assert len(resisting) == 2
    assert all("run 'benchlib recover' where the server can be reached" in line for line in resisting)


def live(journal, target, settings, ready):
    """Keep a database with settings on the server until this process is killed."""
    remote = Remote.open(target, journal.scope())
    remote.configure(settings, journal.scope())
    remote.execute("CREATE TABLE ours (n int)")
    ready.send(None)
    time.sleep(60)


@pytest.mark.parametrize(
    ("role", "more", "wide"),
    [("maker", {}, {}), ("boss", OWN, {}), ("boss", {"server_wide": True}, {TIMEOUT: "7min"})],
)
def test_after_kill_9_the_journal_gives_everything_back(foreign, journal, role, more, wide):
    receiver, ready = Pipe(duplex=False)
    target = Target(server=role, **more)
    doomed = begun(live, Journal(journal.path), target, {"work_mem": "8MB", **wide}, ready)
    assert receiver.poll(60)
    assert (foreign.altered(), foreign.set_for()) == (wide, {})
    doomed.kill()
    doomed.join()
    assert len(journal.standing()) == 1 + len(wide)
    assert "zebra" not in journal.path.read_text()


@pytest.mark.parametrize("variable", ["PGPASSWORD", "PGPASSFILE"])
def test_a_planted_password_appears_nowhere(variable, foreign, journal, place, services, monkeypatch, caplog):
    secret, passes = foreign.password("boss"), services.with_name("passes")
    services.write_text(foreign.service("boss"))
    passes.write_text(f"*:*:postgres:boss:{secret}\n")  # for the named database only
    passes.chmod(0o600)
    monkeypatch.setenv(variable, secret if variable == "PGPASSWORD" else str(passes))
    caplog.set_level(logging.DEBUG)
    remote = place()
    remote.configure({"work_mem": "8MB"}, journal.scope())
    seen = [*run(remote), journal.path.read_text(), remote, remote.connection, vars(remote).keys()]
    seen += [remote.identity(), statistics.snapshot(remote)]
    for wrong in ("SELECT nonsense", "SELECT pg_sleep('x')"):
        with pytest.raises(ServerError) as caught:
            remote.query(wrong)
        seen += traceback.format_exception(caught.value)
    assert secret not in f"{seen} {caplog.text}"
