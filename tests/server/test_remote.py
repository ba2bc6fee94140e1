"""On a server that is not ours everything happens in a place of our own, is given back, and no password is seen."""

import contextlib
import logging
import os
import time
import traceback
from collections.abc import Callable
from functools import cache, partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from clusters import begun
from foreign import Foreign

from benchlib.errors import PreflightError, ServerError, SettingError
from benchlib.host.journal import Journal
from benchlib.host.sampler import Sampler, host_counters, kernel_files
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

pytestmark = [pytest.mark.pg, pytest.mark.usefixtures("services")]

TPCB = load_workload("tpcb-like")


@cache
def pgbench() -> Pgbench:
    return Pgbench(find_pgbench().program("pgbench"))


def run(remote: Remote) -> dict[str, object]:
    """Load pgbench's tables and drive them."""
    shell = remote.shell()
    pgbench().fill(shell, remote.connection, TPCB, 1)
    load = Load(duration_s=1, clients=2, threads=1)
    argv = pgbench().argv(Job(remote.connection, TPCB, load, 1, 7, [(TPCB.scripts[0], None)]))
    done = shell.run(argv)
    return pgbench().report(done.stdout, done.stderr, done.returncode, argv)


def test_a_database_of_our_own_is_made_used_and_dropped(foreign: Foreign, journal: Journal) -> None:
    before = foreign.databases()
    chapter = journal.chapter()
    remote = Remote.open(Target(server="maker"), chapter)
    assert remote.database.startswith("benchlib_")
    assert foreign.databases() - before == {remote.database}
    assert (remote.major, remote.version()) == (foreign.cluster.installation.major, foreign.cluster.version())
    report = run(remote)
    assert remote.value("SELECT count(*) FROM pgbench_history") == report["transactions"]
    assert remote.check_settings(remote.database) == {}
    remote.checkpoint()
    with remote.connect():  # somebody is still there
        chapter.undo()
    assert foreign.databases() == before
    chapter.undo()


def test_a_server_is_reached_by_its_uri_too(
    foreign: Foreign, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", foreign.password("maker"))
    with journal.chapter() as chapter:
        remote = Remote.open(Target(server=foreign.uri("maker")), chapter)
        assert run(remote)["transactions"]


def test_a_schema_of_our_own_beside_the_tables_of_others(foreign: Foreign, journal: Journal) -> None:
    theirs = ("pgbench_accounts", "test_table")
    target = Target(server="boss", own_schema="bench_own", beside="postgres")
    with foreign.given(
        *(f"CREATE TABLE {t} AS SELECT 7 AS n" for t in theirs), back=f"DROP TABLE {', '.join(theirs)}"
    ):
        with journal.chapter() as chapter:
            remote, second = (Remote.open(target, chapter) for _ in range(2))
            run(remote)
            remote.execute(load_workload("insert").load_sql)
            schemas = {r.value("SELECT current_schema()") for r in (remote, second)}
            assert all(name.startswith("bench_own_") for name in schemas)
            assert foreign.schemas() == {"public", *schemas}
            rows = remote.query("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
            assert {"pgbench_accounts", "pgbench_history", "test_table"} <= {row["tablename"] for row in rows}
            assert remote.value("SELECT count(*) FROM pgbench_accounts") == 100_000
            rows, told = "SELECT generate_series(8, 1000000) AS n", "SELECT pg_stat_force_next_flush()"
            foreign.cluster.execute(
                "ANALYZE test_table", told, f"INSERT INTO test_table {rows}", told, dbname="postgres"
            )
            bytes_of = {r: statistics.snapshot(r)["database_bytes"] for r in (remote, second)}
            assert 13 << 20 < bytes_of[remote] < 30 << 20  # theirs has 35 MB
            assert bytes_of[second] in (0, None)
            assert statistics.growth(second) is None
            foreign.cluster.execute("DELETE FROM test_table WHERE n > 7", dbname="postgres")
        assert foreign.schemas() == {"public"}
        for table in theirs:
            assert foreign.cluster.query(f"SELECT * FROM {table}", "postgres") == [{"n": 7}]


def test_a_schema_of_our_own_goes_though_a_killed_load_goes_on_in_it(
    foreign: Foreign, journal: Journal
) -> None:
    with journal.chapter() as chapter:
        remote = Remote.open(Target(server="boss", own_schema="bench_own"), chapter)
        with contextlib.closing(remote.connect()) as load:
            for statement in ("CREATE TABLE held (n int)", "BEGIN", "LOCK TABLE held"):
                load.execute(statement)
            chapter.undo()  # which would fail after waiting for the lock
    assert foreign.schemas() == {"public"}


def test_options_of_the_service_stay_beside_our_own(
    services: Path, foreign: Foreign, journal: Journal
) -> None:
    more = f"password={foreign.password('boss')}\noptions=-cwork_mem=5MB -csearch_path=public"
    services.write_text(foreign.service("boss", more=more))
    with journal.chapter() as chapter:
        remote = Remote.open(Target(server="boss", own_schema="bench_own"), chapter)
        assert (remote.value("SHOW work_mem"), remote.value("SELECT current_schema()")[:10]) == (
            "5MB",
            "bench_own_",
        )
        options = remote.shell().environment["PGOPTIONS"]
        assert options.startswith("-cwork_mem=5MB -csearch_path=public -csearch_path=bench_own_")


def test_a_service_is_where_its_file_says_whatever_the_environment_does(
    foreign: Foreign, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, elsewhere in (("PGHOST", "192.0.2.1"), ("PGSERVICE", "another")):
        monkeypatch.setenv(name, elsewhere)
    with journal.chapter() as chapter:
        remote = Remote.open(Target(server="boss"), chapter)
        assert remote.value("SHOW data_directory") == str(foreign.cluster.data)
        assert os.environ["PGSERVICE"] == "another"
        assert remote.shell().environment.get("PGHOST") != "192.0.2.1"


def test_in_a_schema_of_ours_no_table_of_others_is_vacuumed(foreign: Foreign, journal: Journal) -> None:
    foreign.cluster.execute("CREATE TABLE theirs AS SELECT 1 AS n", dbname="postgres")
    try:
        with journal.chapter() as chapter:
            target = Target(server="boss", own_schema="bench_own", beside="postgres")
            remote = Remote.open(target, chapter)
            remote.execute('CREATE TABLE "Ours" AS SELECT 1 AS n')
            remote.vacuum("FREEZE, ANALYZE")
            seen = "SELECT reltuples >= 1 FROM pg_class WHERE relname = '{}'"
            assert remote.value(seen.format("Ours"))
            assert not remote.value(seen.format("theirs"))
    finally:
        foreign.cluster.execute("DROP TABLE theirs", dbname="postgres")


def test_options_that_go_astray_are_noticed_before_a_table_is_touched(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a connection pooler that ignores them."""
    connect = Remote.connect

    def pooled(self: Remote, dbname: str | None = None) -> object:
        self._parameters.pop("options", None)
        return connect(self, dbname)

    monkeypatch.setattr(Remote, "connect", pooled)
    with (
        journal.chapter() as chapter,
        pytest.raises(PreflightError, match="does not heed the connection's options"),
    ):
        Remote.open(Target(server="boss", own_schema="bench_own"), chapter)


def test_settings_hold_for_our_database_alone(foreign: Foreign, journal: Journal) -> None:
    with journal.chapter() as chapter:
        remote, other = (Remote.open(Target(server="maker"), chapter) for _ in range(2))
        with journal.chapter() as trial:
            remote.configure({"work_mem": "8MB", "jit": False, "random_page_cost": 1.1}, trial)
            in_force = {"work_mem": "8192 kB", "jit": "off", "random_page_cost": "1.1"}
            assert remote.check_settings(remote.database) == in_force
            shown = [remote.value("SHOW work_mem"), other.value("SHOW work_mem"), foreign.shows("work_mem")]
            assert shown == ["8MB", "4MB", "4MB"]
        with pytest.raises(SettingError, match="checkpoint_timeout is the whole server's: say server_wide"):
            remote.configure({"work_mem": "8MB", "checkpoint_timeout": "7min"}, chapter)
        assert foreign.altered() == {}


def test_in_a_schema_they_hold_for_our_sessions_and_those_of_the_load(
    foreign: Foreign, journal: Journal
) -> None:
    with foreign.given(
        "GRANT CREATE ON DATABASE postgres TO maker",
        "ALTER ROLE maker IN DATABASE postgres SET work_mem = '5MB'",
        back="REVOKE CREATE ON DATABASE postgres FROM maker;ALTER ROLE maker IN DATABASE postgres RESET ALL",
    ):
        former = foreign.set_for()
        with journal.chapter() as chapter:
            remote = Remote.open(Target(server="maker", own_schema="bench_own"), chapter)
            remote.configure({"work_mem": "8MB", "DateStyle": "SQL, DMY"}, chapter)
            assert remote.check_settings(remote.database)["work_mem"] == "8192 kB"
            assert [remote.value(f"SHOW {name}") for name in ("work_mem", "DateStyle")] == ["8MB", "SQL, DMY"]
            assert remote.shell().environment["PGOPTIONS"].endswith(" -cwork_mem=8MB -cDateStyle=SQL,\\ DMY")
            assert (foreign.set_for(), foreign.shows("work_mem")) == (former, "4MB")
            remote.configure({}, chapter)
            assert remote.value("SHOW work_mem") == "5MB"


def test_what_no_session_may_have_for_itself_everybody_gets_and_the_former_return(
    foreign: Foreign, journal: Journal
) -> None:
    with foreign.given(
        "ALTER SYSTEM SET checkpoint_timeout = '9min'",
        "ALTER SYSTEM SET application_name = 'it''s, \"theirs\"'",
        back="ALTER SYSTEM RESET checkpoint_timeout;ALTER SYSTEM RESET application_name;SELECT pg_reload_conf()",
    ):
        former = foreign.altered()
        with journal.chapter() as chapter:
            remote = Remote.open(Target(server="boss", server_wide=True), chapter)
            for wide in (
                {"checkpoint_timeout": "7min", "autovacuum": False},
                {"checkpoint_timeout": "8min"},
                {},
            ):
                level = {**wide, "work_mem": "8MB"}
                with journal.chapter() as trial:
                    remote.configure(level, trial)
                    assert set(remote.check_settings(remote.database)) == set(level)
                    values = {name: "off" if value is False else value for name, value in wide.items()}
                    assert foreign.altered() == {**former, **values}
                    assert foreign.shows("work_mem") == "4MB"
                assert foreign.altered() == former
                assert not wide or foreign.shows("checkpoint_timeout") == "9min"
    foreign.wait_until_it_shows("checkpoint_timeout", "5min")


def test_what_its_owner_alters_meanwhile_is_noticed(foreign: Foreign, journal: Journal) -> None:
    with journal.chapter() as chapter:
        remote = Remote.open(Target(server="tuner", server_wide=True), chapter)
        with journal.chapter() as trial:
            remote.configure({"checkpoint_timeout": "7min"}, trial)
            foreign.cluster.execute(
                "ALTER SYSTEM SET checkpoint_timeout = '8min'", "SELECT pg_reload_conf()", dbname="postgres"
            )
            foreign.wait_until_it_shows("checkpoint_timeout", "8min")
            with pytest.raises(
                SettingError, match="checkpoint_timeout: asked for 7min, the server runs with 480 s"
            ):
                remote.check_settings(remote.database)


def test_a_setting_that_is_refused_or_does_not_take_ends_the_trial(
    foreign: Foreign, journal: Journal
) -> None:
    with journal.chapter() as chapter:
        remote = Remote.open(Target(server="boss", server_wide=True), chapter)
        with pytest.raises(SettingError, match="shared_buffers = 1GB: needs a restart"):
            remote.configure({"work_mem": "8MB", "shared_buffers": "1GB"}, chapter)
        # no session may set it, so ALTER SYSTEM alone can refuse it
        with (
            journal.chapter() as trial,
            pytest.raises(
                SettingError, match=r"1 s is outside the valid range for parameter .checkpoint_timeout"
            ),
        ):
            remote.configure({"work_mem": "8MB", "checkpoint_timeout": "1s"}, trial)
        assert foreign.altered() == {}
        overruled = f"ALTER ROLE boss IN DATABASE {remote.database} SET work_mem = '6MB'"
        foreign.cluster.execute(overruled, dbname="postgres")
        with journal.chapter() as trial, pytest.raises(SettingError, match="work_mem: asked for 8MB"):
            remote.configure({"work_mem": "8MB"}, trial)


def test_the_host_is_sampled_where_the_role_may_have_its_files_read(
    foreign: Foreign, journal: Journal
) -> None:
    with journal.chapter() as chapter:
        remote = Remote.open(Target(server="maker"), chapter)
        files = partial(statistics.kernel_files, remote)
        with Sampler(servers=lambda: [], files=files) as sampler:
            pass
        assert "of_target" not in sampler.raw
        grants = HOST_GRANTS.replace("our_role", "maker")
        back = grants.replace("GRANT", "REVOKE").replace(" TO ", " FROM ")
        with foreign.given(*grants.split("; "), back=back.replace("; ", ";")):
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


def test_the_provenance_says_what_it_is_and_not_where(foreign: Foreign, journal: Journal) -> None:
    with journal.chapter() as chapter:
        remote = Remote.open(Target(server="boss"), chapter)
        assert remote.identity() == {
            "version": foreign.cluster.version(),
            "build": foreign.cluster.value("SELECT version()", "postgres"),
            "checkpoints": True,
        }


def test_an_ordinary_role_goes_without_what_it_may_not(foreign: Foreign, journal: Journal) -> None:
    with journal.chapter() as chapter:
        remote = Remote.open(Target(server="maker"), chapter)
        remote.checkpoint()
        assert remote.identity()["checkpoints"] is False
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


def test_a_server_that_vanishes_is_one_clear_line_and_what_was_changed_is_given_back_later(
    foreign: Foreign, journal: Journal
) -> None:
    remote = Remote.open(Target(server="boss", server_wide=True), journal.chapter())
    remote.configure({"checkpoint_timeout": "7min"}, journal.chapter())
    foreign.cluster.stop(immediately=True)
    try:
        for ask in (lambda: remote.query("SELECT 1"), remote.shell, lambda: remote.configure({"jit": 0}, journal.chapter()),
                    remote.checkpoint, lambda: statistics.snapshot(remote)):  # fmt: skip
            with pytest.raises(ServerError, match="the server refused or went away: ") as caught:
                ask()
            assert "\n" not in str(caught.value)
        resisting = journal.undo()
        assert len(resisting) == 2
        assert all("run 'benchlib recover' where the server can be reached" in line for line in resisting)
    finally:
        foreign.cluster.start()


def live(
    journal: Journal, target: dict[str, object], settings: dict[str, SettingValue], ready: Connection
) -> None:
    """Have a place with settings on the server, until somebody ends this process."""
    remote = Remote.open(Target.model_validate(target), journal.chapter())
    remote.configure(settings, journal.chapter())
    remote.execute("CREATE TABLE ours (n int)")
    ready.send(remote.database)
    time.sleep(60)


@pytest.mark.parametrize(
    ("target", "settings", "altered"),
    [
        ({"server": "maker"}, {"work_mem": "8MB"}, {}),
        ({"server": "boss", "own_schema": "bench_own"}, {"work_mem": "8MB"}, {}),
        (
            {"server": "boss", "server_wide": True},
            {"work_mem": "8MB", "checkpoint_timeout": "7min"},
            {"checkpoint_timeout": "7min"},
        ),
    ],
)
def test_after_kill_9_the_journal_gives_everything_back(
    foreign: Foreign,
    journal: Journal,
    target: dict[str, object],
    settings: dict[str, SettingValue],
    altered: dict[str, str],
) -> None:
    told, ready = Pipe(duplex=False)
    doomed = begun(live, Journal(journal.path), target, settings, ready)
    assert told.poll(60)
    database = told.recv()
    assert foreign.altered() == altered
    assert foreign.set_for() == ({} if "own_schema" in target else {database: ["work_mem=8MB"]})
    assert foreign.shows("work_mem") == "4MB"
    doomed.kill()
    doomed.join()
    assert len(journal.standing()) == 1 + len(altered)
    assert "zebra" not in journal.path.read_text()
    assert journal.undo() == []
    assert (foreign.altered(), foreign.set_for()) == ({}, {})
    assert foreign.databases() == {"postgres"}
    assert foreign.schemas() == {"public"}


def _in_the_environment(foreign: Foreign, services: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    services.write_text(foreign.service("boss"))
    monkeypatch.setenv("PGPASSWORD", foreign.password("boss"))


def _in_pgpass_for_the_named_database_only(
    foreign: Foreign, services: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services.write_text(foreign.service("boss"))
    passes = services.with_name("passes")
    passes.write_text(f"*:*:postgres:boss:{foreign.password('boss')}\n")
    passes.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passes))


@pytest.mark.parametrize("planted", [_in_the_environment, _in_pgpass_for_the_named_database_only])
def test_a_planted_password_appears_nowhere(
    foreign: Foreign,
    journal: Journal,
    services: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    planted: Callable[[Foreign, Path, pytest.MonkeyPatch], None],
) -> None:
    planted(foreign, services, monkeypatch)
    caplog.set_level(logging.DEBUG)
    with journal.chapter() as chapter:
        remote = Remote.open(Target(server="boss"), chapter)
        remote.configure({"work_mem": "8MB"}, chapter)
        shell = remote.shell()
        pgbench().fill(shell, remote.connection, TPCB, 1)
        argv = pgbench().argv(
            Job(remote.connection, TPCB, Load(duration_s=1), 1, 7, [(TPCB.scripts[0], None)])
        )
        done = shell.run(argv)
        assert done.returncode == 0
        texts = [str(argv), journal.path.read_text(), *map(repr, (done, shell, remote, remote.connection))]
        texts += map(repr, (remote.identity(), statistics.snapshot(remote), vars(remote).keys()))
        for wrong in ("SELECT nonsense", "SELECT pg_sleep('x')"):
            with pytest.raises(ServerError) as caught:
                remote.query(wrong)
            texts.append("".join(traceback.format_exception(caught.value)))
    assert not [text for text in (*texts, caplog.text) if foreign.password("boss") in text]
