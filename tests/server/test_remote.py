"""On a server that is not ours everything happens in a place of our own, is given back, and no password is seen."""

import contextlib
import json
import logging
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import pytest
from clusters import begun, bench_plan

from benchlib.errors import PreflightError, ServerError, SettingError
from benchlib.host.journal import Journal
from benchlib.host.sampler import Sampler, host_counters, kernel_files
from benchlib.host.shell import which
from benchlib.host.telemetry import telemetry
from benchlib.load.pgbench import Pgbench
from benchlib.load.tool import Job
from benchlib.load.workloads import load_workload
from benchlib.plan.level import SettingValue
from benchlib.plan.model import Load
from benchlib.plan.words import HOST_GRANTS
from benchlib.server import statistics
from benchlib.server.installations import find_pgbench
from benchlib.server.remote import Remote
from benchlib.server.rights import Target
from benchlib.study.records import Parameters

pytestmark = [pytest.mark.pg, pytest.mark.usefixtures("services")]

Place = Callable[..., Remote]
TPCB = load_workload("tpcb-like")
OWN = {"own_schema": "bench_own"}
BESIDE = {**OWN, "beside": "postgres"}
TIMEOUT = "checkpoint_timeout"
MAKER_MAY = "GRANT CREATE ON DATABASE postgres TO maker"


def run(remote: Remote) -> tuple[object, str]:
    """Load pgbench's tables and drive them: how many transactions there were, and all that was seen of it."""
    shell, pgbench = remote.shell(), Pgbench(find_pgbench().program("pgbench"))
    pgbench.fill(shell, remote.connection, TPCB, 1)
    load = Load(duration_s=1, clients=2, threads=1)
    argv = pgbench.argv(Job(remote.connection, TPCB, load, 1, 7, [(TPCB.scripts[0], None)]))
    done = shell.run(argv)
    report = pgbench.report(done.stdout, done.stderr, done.returncode, argv)
    return report["transactions"], f"{argv} {done} {shell}"


@pytest.mark.parametrize(("role", "by_uri"), [("boss", False), ("maker", True)])
def test_a_database_of_our_own_is_made_used_and_dropped(role, by_uri, foreign, journal, monkeypatch):
    before, chapter = foreign.databases(), journal.chapter()
    monkeypatch.setenv("PGPASSWORD", foreign.password(role))
    remote = Remote.open(Target(server=foreign.uri(role) if by_uri else role), chapter)
    assert remote.database.startswith("benchlib_")
    assert foreign.databases() - before == {remote.database}
    transactions, _ = run(remote)
    assert remote.value("SELECT count(*) FROM pgbench_history") == transactions
    remote.checkpoint()
    version, build = foreign.cluster.version(), foreign.cluster.value("SELECT version()", "postgres")
    assert remote.identity() == {"version": version, "build": build, "checkpoints": role == "boss"}
    assert remote.major == foreign.cluster.installation.major
    with remote.connect():  # somebody is still there
        chapter.undo()
    assert foreign.databases() == before
    chapter.undo()


def test_a_schema_of_our_own_beside_the_tables_of_others(foreign, journal):
    theirs = ("pgbench_accounts", "test_table")
    with foreign.given(*(f"CREATE TABLE {t} AS SELECT 7 AS n" for t in theirs)):
        with journal.chapter() as chapter:
            remote, second = (Remote.open(Target(server="boss", **BESIDE), chapter) for _ in range(2))
            run(remote)
            remote.execute(load_workload("insert").load_sql)
            schemas = {r.value("SELECT current_schema()") for r in (remote, second)}
            assert all(name.startswith("bench_own_") for name in schemas)
            assert foreign.schemas() == {"public", *schemas}
            rows = remote.query("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
            assert {"pgbench_accounts", "pgbench_history", "test_table"} <= {row["tablename"] for row in rows}
            assert remote.value("SELECT count(*) FROM pgbench_accounts") == 100_000
            remote.execute('CREATE TABLE "Ours" AS SELECT 1 AS n')
            remote.vacuum("FREEZE, ANALYZE")
            seen = "SELECT reltuples >= 1 FROM pg_class WHERE oid = '{}'::regclass"
            assert remote.value(seen.format('"Ours"'))
            assert not remote.value(seen.format("public.pgbench_accounts"))
            told = "SELECT pg_stat_force_next_flush()"
            more = "INSERT INTO test_table SELECT generate_series(8, 1000000)"
            foreign.execute("ANALYZE test_table", told, more, told)
            ours, none = (statistics.snapshot(r)["database_bytes"] for r in (remote, second))
            assert 13 << 20 < ours < 30 << 20  # theirs has 35 MB
            assert none in (0, None)
            assert statistics.growth(second) is None
            foreign.execute("DELETE FROM test_table WHERE n > 7")
        assert foreign.schemas() == {"public"}
        assert [foreign.rows(f"SELECT * FROM {table}") for table in theirs] == [[(7,)]] * 2


def test_a_schema_of_our_own_goes_though_a_killed_load_goes_on_in_it(foreign, journal):
    with journal.chapter() as chapter:
        remote = Remote.open(Target(server="boss", **OWN), chapter)
        with contextlib.closing(remote.connect()) as load:
            for statement in ("CREATE TABLE held (n int)", "BEGIN", "LOCK TABLE held"):
                load.execute(statement)
            chapter.undo()  # which would fail after waiting for the lock
    assert foreign.schemas() == {"public"}


def test_options_of_the_service_stay_beside_our_own(services, foreign, place):
    more = f"password={foreign.password('boss')}\noptions=-cwork_mem=5MB -csearch_path=public"
    services.write_text(foreign.service("boss", more=more))
    remote = place(**OWN)
    assert remote.value("SHOW work_mem") == "5MB"
    assert remote.value("SELECT current_schema()").startswith("bench_own_")
    options = remote.shell().environment["PGOPTIONS"]
    assert options.startswith("-cwork_mem=5MB -csearch_path=public -csearch_path=bench_own_")


def test_a_service_is_where_its_file_says_whatever_the_environment_does(foreign, place, monkeypatch):
    monkeypatch.setenv("PGHOST", "192.0.2.1")
    monkeypatch.setenv("PGSERVICE", "another")
    remote = place()
    assert remote.value("SHOW data_directory") == str(foreign.cluster.data)
    assert remote.shell().environment.get("PGHOST") != "192.0.2.1"


def test_options_that_go_astray_are_noticed_before_a_table_is_touched(place, monkeypatch):
    """As with a connection pooler that ignores them."""
    connect = Remote.connect

    def pooled(self: Remote, dbname: str | None = None) -> object:
        self._parameters.pop("options", None)
        return connect(self, dbname)

    monkeypatch.setattr(Remote, "connect", pooled)
    with pytest.raises(PreflightError, match="does not heed the connection's options"):
        place(**OWN)


def test_settings_hold_for_our_database_alone(foreign, journal, place):
    remote, other = place("maker"), place("maker")
    with journal.chapter() as trial:
        remote.configure({"work_mem": "8MB", "jit": False, "random_page_cost": 1.1}, trial)
        in_force = {"work_mem": "8192 kB", "jit": "off", "random_page_cost": "1.1"}
        assert remote.check_settings(remote.database) == in_force
        shown = [remote.value("SHOW work_mem"), other.value("SHOW work_mem"), foreign.shows("work_mem")]
        assert shown == ["8MB", "4MB", "4MB"]
        with pytest.raises(SettingError, match="checkpoint_timeout is the whole server's: say server_wide"):
            remote.configure({"work_mem": "8MB", TIMEOUT: "7min"}, trial)
    assert foreign.altered() == {}


def test_in_a_schema_they_hold_for_our_sessions_and_those_of_the_load(foreign, journal):
    with (
        foreign.given(MAKER_MAY, "ALTER ROLE maker IN DATABASE postgres SET work_mem = '5MB'"),
        journal.chapter() as chapter,
    ):
        former = foreign.set_for()
        remote = Remote.open(Target(server="maker", **OWN), chapter)
        remote.configure({"work_mem": "8MB", "DateStyle": "SQL, DMY"}, chapter)
        assert remote.check_settings(remote.database)["work_mem"] == "8192 kB"
        assert [remote.value(f"SHOW {name}") for name in ("work_mem", "DateStyle")] == ["8MB", "SQL, DMY"]
        assert remote.shell().environment["PGOPTIONS"].endswith(" -cwork_mem=8MB -cDateStyle=SQL,\\ DMY")
        assert (foreign.set_for(), foreign.shows("work_mem")) == (former, "4MB")
        remote.configure({}, chapter)
        assert remote.value("SHOW work_mem") == "5MB"


WIDE = [{TIMEOUT: "7min", "autovacuum": False}, {TIMEOUT: "8min"}, {}]


def test_what_no_session_may_have_for_itself_everybody_gets_and_the_former_return(foreign, journal, place):
    with foreign.given(
        "ALTER SYSTEM SET checkpoint_timeout = '9min'",
        "ALTER SYSTEM SET application_name = 'it''s, \"theirs\"'",
    ):
        former, remote = foreign.altered(), place(server_wide=True)
        for wide in WIDE:
            level = {**wide, "work_mem": "8MB"}
            with journal.chapter() as trial:
                remote.configure(level, trial)
                assert set(remote.check_settings(remote.database)) == set(level)
                values = {name: "off" if value is False else value for name, value in wide.items()}
                assert foreign.altered() == {**former, **values}
                assert foreign.shows("work_mem") == "4MB"
            assert foreign.altered() == former
            assert not wide or foreign.shows(TIMEOUT) == "9min"


def test_a_setting_that_is_refused_overruled_or_altered_meanwhile_ends_the_trial(foreign, journal, place):
    remote, tuner = place(server_wide=True), place("tuner", server_wide=True)
    overruled = f"ALTER ROLE boss IN DATABASE {remote.database} SET work_mem = '6MB'"
    # no session may set it, so ALTER SYSTEM alone can refuse it
    outside = r"1 s is outside the valid range for parameter .checkpoint_timeout"
    for setting, refusal in (
        ({"shared_buffers": "1GB"}, "shared_buffers = 1GB: needs a restart"),
        ({TIMEOUT: "1s"}, outside),
        ({}, "work_mem: asked for 8MB"),
    ):
        with foreign.given(*[] if setting else [overruled]), journal.chapter() as trial:
            with pytest.raises(SettingError, match=refusal):
                remote.configure({"work_mem": "8MB", **setting}, trial)
            assert foreign.altered() == {}
    with journal.chapter() as trial:
        tuner.configure({TIMEOUT: "7min"}, trial)
        with (
            foreign.given("ALTER SYSTEM SET checkpoint_timeout = '8min'"),
            pytest.raises(
                SettingError, match="checkpoint_timeout: asked for 7min, the server runs with 480 s"
            ),
        ):
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
    raw = sampler.raw
    first, last = raw["readings"][0], raw["readings"][-1]
    assert (raw["of_target"], sampler.warnings) == (True, [])
    assert set(first["devices"]) == set(before["devices"])
    assert before["context_switches"] < first["context_switches"] < last["context_switches"]
    figures = telemetry(raw)
    assert figures[["cpu_user_percent", "context_switches_per_s", "dirty_mib"]].notna().all(axis=None)


def test_counters_that_an_ordinary_role_may_not_see_are_null(foreign, place):
    remote = place("maker")
    counters = statistics.snapshot(remote)
    assert counters["lsn"]
    assert counters["database"]["datname"] == remote.database
    # as in every database of a server that was set up so
    foreign.cluster.execute(
        "REVOKE EXECUTE ON FUNCTION pg_current_wal_insert_lsn() FROM PUBLIC",
        "REVOKE SELECT ON pg_stat_bgwriter FROM PUBLIC",
        dbname=remote.database,
    )
    counters = statistics.snapshot(remote)
    assert (counters["lsn"], counters["bgwriter"]) == (None, None)
    assert counters["database"]


def test_parameters_are_kept_without_folder_host_or_name(foreign, place, monkeypatch):
    with foreign.given(
        "ALTER SYSTEM SET work_mem = '7MB'",
        "ALTER SYSTEM SET primary_conninfo = 'host=secret.example user=somebody'",
        "ALTER ROLE maker SET random_page_cost = 1.5",
    ):
        of_maker = place("maker").parameters()
        monkeypatch.setattr(foreign.cluster, "database", "postgres")
        of_owner = foreign.cluster.parameters()
    work_mem = {"setting": "7168", "unit": "kB", "boot_val": "4096", "source": "configuration file"}
    assert of_maker["work_mem"] == work_mem
    assert of_maker["random_page_cost"]["setting"] == "1.5", "as the sessions of the load have it"
    assert (of_maker["fsync"]["setting"], of_maker["fsync"]["source"]) == ("on", "default")
    assert of_owner["primary_conninfo"]["setting"] == "set"
    text = json.dumps([of_maker, of_owner])
    for secret in ("/", "secret", "somebody", "maker", foreign.cluster.folder.parent.name):
        assert secret not in text


def test_a_server_that_vanishes_is_one_clear_line_and_what_was_changed_is_given_back_later(
    foreign, journal, place
):
    remote = place(server_wide=True)
    remote.configure({TIMEOUT: "7min"}, journal.chapter())
    foreign.cluster.stop(immediately=True)
    try:
        for ask in (
            lambda: remote.query("SELECT 1"),
            remote.shell,
            lambda: remote.configure({"jit": 0}, journal.chapter()),
            remote.checkpoint,
            lambda: statistics.snapshot(remote),
        ):
            with pytest.raises(ServerError, match=r"^the server refused or went away: .*$"):
                ask()
        resisting = journal.undo()
        assert len(resisting) == 2
        assert all("run 'benchlib recover' where the server can be reached" in line for line in resisting)
    finally:
        foreign.cluster.start()


def live(journal: Journal, target: Target, settings: dict[str, SettingValue], ready: Connection) -> None:
    """Have a place with settings on the server, until somebody ends this process."""
    remote = Remote.open(target, journal.chapter())
    remote.configure(settings, journal.chapter())
    remote.execute("CREATE TABLE ours (n int)")
    ready.send(remote.database)
    time.sleep(60)


@pytest.mark.parametrize(
    ("target", "wide"),
    [
        ({"server": "maker"}, {}),
        ({"server": "boss", **OWN}, {}),
        ({"server": "boss", "server_wide": True}, WIDE[1]),
    ],
)
def test_after_kill_9_the_journal_gives_everything_back(foreign, journal, target, wide):
    told, ready = Pipe(duplex=False)
    doomed = begun(live, Journal(journal.path), Target(**target), {"work_mem": "8MB", **wide}, ready)
    assert told.poll(60)
    database = told.recv()
    assert foreign.altered() == wide
    assert foreign.set_for() == ({} if "own_schema" in target else {database: ["work_mem=8MB"]})
    assert foreign.shows("work_mem") == "4MB"
    doomed.kill()
    doomed.join()
    assert len(journal.standing()) == 1 + len(wide)
    assert "zebra" not in journal.path.read_text()
    assert journal.undo() == []
    assert (foreign.altered(), foreign.set_for()) == ({}, {})
    assert (foreign.databases(), foreign.schemas()) == ({"postgres"}, {"public"})


@pytest.mark.parametrize("source", ["environment", "pgpass, for the named database only"])
def test_a_planted_password_appears_nowhere(source, foreign, journal, services, monkeypatch, caplog):
    secret = foreign.password("boss")
    services.write_text(foreign.service("boss"))
    if source == "environment":
        monkeypatch.setenv("PGPASSWORD", secret)
    else:
        passes = services.with_name("passes")
        passes.write_text(f"*:*:postgres:boss:{secret}\n")
        passes.chmod(0o600)
        monkeypatch.setenv("PGPASSFILE", str(passes))
    caplog.set_level(logging.DEBUG)
    with journal.chapter() as chapter:
        remote = Remote.open(Target(server="boss"), chapter)
        remote.configure({"work_mem": "8MB"}, chapter)
        seen = [*run(remote), journal.path.read_text(), remote, remote.connection, vars(remote).keys()]
        seen += [remote.identity(), statistics.snapshot(remote)]
        for wrong in ("SELECT nonsense", "SELECT pg_sleep('x')"):
            with pytest.raises(ServerError) as caught:
                remote.query(wrong)
            seen += traceback.format_exception(caught.value)
    assert secret not in f"{seen} {caplog.text}"


@pytest.mark.long
@pytest.mark.parametrize("more", [{}, OWN])
@pytest.mark.parametrize("step", ["tpcb-like-90", "load", "sysbench-write-only"])
def test_each_step_of_the_study_of_a_managed_server_runs_in_a_whole_trial(
    foreign, journal, trials, step, more
):
    if "sysbench" in step and which("sysbench") is None:
        pytest.skip("no sysbench on the PATH")
    level = {"workload": step, "target": {"server": "maker", **more}}
    levels = {step: level, "other": {**level, "settings": {"work_mem": "8MB"}}}
    steps = {"workloads": {step: load_workload(step)}, "arrangement": "fresh"}
    plan = bench_plan(levels, "tpcb-like-90", {"protocol": "prepared"}, **steps)
    with foreign.given(MAKER_MAY):
        measurement, kept = trials.run(trials.bench(plan), step)
        trials.close()
    assert measurement.error is None
    assert (kept / Parameters.FILE).is_file()
    assert b"zebra" not in b"".join(path.read_bytes() for path in kept.iterdir())
