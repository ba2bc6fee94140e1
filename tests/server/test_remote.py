"""On a server that is not ours everything happens in a place of our own, is given back, and no password is seen."""

import logging
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from foreign import Foreign

from benchlib.errors import PreflightError, ServerError, SettingError
from benchlib.host.journal import Journal
from benchlib.load.pgbench import Pgbench
from benchlib.load.tool import Job
from benchlib.load.workloads import load_workload
from benchlib.plan.model import Load
from benchlib.server import remote as remote_module
from benchlib.server import statistics
from benchlib.server.installations import find_pgbench
from benchlib.server.remote import Remote
from benchlib.server.rights import Target

pytestmark = [pytest.mark.pg, pytest.mark.usefixtures("services")]

PGBENCH = Pgbench(find_pgbench().program("pgbench"))
TPCB = load_workload("tpcb-like")


def run(remote: Remote) -> dict[str, object]:
    """Load pgbench's tables and drive them."""
    shell = remote.shell()
    PGBENCH.fill(shell, remote.connection, TPCB, 1)
    load = Load(duration_s=1, clients=2, threads=1)
    argv = PGBENCH.argv(Job(remote.connection, TPCB, load, 1, 7, [(TPCB.scripts[0], None)]))
    done = shell.run(argv)
    return PGBENCH.report(done.stdout, done.stderr, done.returncode, argv)


def test_a_database_of_our_own_is_made_used_and_dropped(foreign: Foreign, journal: Journal) -> None:
    before = foreign.databases()
    chapter = journal.chapter()
    remote = Remote.open(Target(server="maker"), "my-study 1", chapter)
    assert remote.database.startswith("benchlib_my_study_1_")
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
        remote = Remote.open(Target(server=foreign.uri("maker")), "uri", chapter)
        assert run(remote)["transactions"]


def test_a_schema_of_our_own_beside_the_tables_of_others(foreign: Foreign, journal: Journal) -> None:
    theirs = ("pgbench_accounts", "test_table")
    target = Target(server="boss", own_schema="bench_own", beside="postgres")
    with foreign.given(
        *(f"CREATE TABLE {t} AS SELECT 7 AS n" for t in theirs), back=f"DROP TABLE {', '.join(theirs)}"
    ):
        with journal.chapter() as chapter:
            remote, second = (Remote.open(target, "any", chapter) for _ in range(2))
            run(remote)
            remote.execute(load_workload("insert").load_sql)
            schemas = {r.value("SELECT current_schema()") for r in (remote, second)}
            assert all(name.startswith("bench_own_") for name in schemas)
            assert foreign.schemas() == {"public", *schemas}
            rows = remote.query("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
            assert {"pgbench_accounts", "pgbench_history", "test_table"} <= {row["tablename"] for row in rows}
            assert remote.value("SELECT count(*) FROM pgbench_accounts") == 100_000
        assert foreign.schemas() == {"public"}
        for table in theirs:
            assert foreign.cluster.query(f"SELECT * FROM {table}", "postgres") == [{"n": 7}]


def test_options_of_the_service_stay_beside_our_own(
    services: Path, foreign: Foreign, journal: Journal
) -> None:
    more = f"password={foreign.password('boss')}\noptions=-cwork_mem=5MB -csearch_path=public"
    services.write_text(foreign.service("boss", more=more))
    with journal.chapter() as chapter:
        remote = Remote.open(Target(server="boss", own_schema="bench_own"), "any", chapter)
        assert (remote.value("SHOW work_mem"), remote.value("SELECT current_schema()")[:10]) == (
            "5MB",
            "bench_own_",
        )
        options = remote.shell().environment["PGOPTIONS"]
        assert options.startswith("-cwork_mem=5MB -csearch_path=public -csearch_path=bench_own_")


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
        Remote.open(Target(server="boss", own_schema="bench_own"), "any", chapter)


def test_settings_hold_for_new_sessions_and_the_former_ones_return(
    foreign: Foreign, journal: Journal
) -> None:
    with foreign.given(
        "ALTER SYSTEM SET work_mem = '5MB'",
        "ALTER SYSTEM SET application_name = 'it''s, \"theirs\"'",
        back="ALTER SYSTEM RESET work_mem;ALTER SYSTEM RESET application_name;SELECT pg_reload_conf()",
    ):
        former = foreign.altered()
        with journal.chapter() as chapter:
            remote = Remote.open(Target(server="boss"), "any", chapter)
            wanted = {"work_mem": "8MB", "checkpoint_timeout": "7min", "jit": False, "random_page_cost": 1.1}
            for level in (wanted, {"work_mem": "9MB"}, {}):
                with journal.chapter() as trial:
                    remote.configure(level, trial)
                    assert set(remote.check_settings(remote.database)) == set(level)
                    assert {n: foreign.altered()[n] for n in level} == {
                        n: "off" if v is False else str(v) for n, v in level.items()
                    }
                assert foreign.altered() == former
                assert foreign.shows("work_mem") == "5MB"
    foreign.wait_until_it_shows("work_mem", "4MB")


def test_what_its_owner_alters_meanwhile_is_noticed(foreign: Foreign, journal: Journal) -> None:
    with journal.chapter() as chapter:
        remote = Remote.open(Target(server="tuner"), "any", chapter)
        with journal.chapter() as trial:
            remote.configure({"work_mem": "8MB"}, trial)
            foreign.cluster.execute(
                "ALTER SYSTEM SET work_mem = '9MB'", "SELECT pg_reload_conf()", dbname="postgres"
            )
            foreign.wait_until_it_shows("work_mem", "9MB")
            with pytest.raises(SettingError, match="work_mem: asked for 8MB, the server runs with 9216 kB"):
                remote.check_settings(remote.database)


def test_a_setting_that_is_refused_or_does_not_take_ends_the_trial(
    foreign: Foreign, journal: Journal
) -> None:
    with journal.chapter() as chapter:
        remote = Remote.open(Target(server="boss"), "any", chapter)
        with pytest.raises(SettingError, match="shared_buffers = 1GB: needs a restart"):
            remote.configure({"work_mem": "8MB", "shared_buffers": "1GB"}, chapter)
        assert foreign.altered() == {}
        # no session may set it, so ALTER SYSTEM alone can refuse it
        with (
            journal.chapter() as trial,
            pytest.raises(
                SettingError, match=r"1 s is outside the valid range for parameter .checkpoint_timeout"
            ),
        ):
            remote.configure({"work_mem": "8MB", "checkpoint_timeout": "1s"}, trial)
        assert foreign.altered() == {}
        foreign.cluster.execute(f"ALTER DATABASE {remote.database} SET work_mem = '6MB'", dbname="postgres")
        with journal.chapter() as trial, pytest.raises(SettingError, match="work_mem: asked for 8MB"):
            remote.configure({"work_mem": "8MB"}, trial)


def test_the_provenance_says_what_it_is_and_not_where(
    foreign: Foreign, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with journal.chapter() as chapter:
        remote = Remote.open(Target(server="boss"), "any", chapter)
        assert remote.identity() == {
            "version": foreign.cluster.version(),
            "build": foreign.cluster.value("SELECT version()", "postgres"),
            "provider": None,
            "checkpoints": True,
        }
        # a managed server is known by the parameters that its provider has added
        monkeypatch.setattr(remote_module, "_PROVIDERS", {"rds": "this one", "autovacuum": "that one"})
        assert remote.identity()["provider"] == "that one"


def test_an_ordinary_role_goes_without_what_it_may_not(foreign: Foreign, journal: Journal) -> None:
    with journal.chapter() as chapter:
        remote = Remote.open(Target(server="maker"), "any", chapter)
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
    remote = Remote.open(Target(server="boss"), "any", journal.chapter())
    remote.configure({"work_mem": "8MB"}, journal.chapter())
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


LIVES = """
import sys, time
from pathlib import Path
from benchlib.host.journal import Journal
from benchlib.server.rights import Target
from benchlib.server.remote import Remote
journal = Journal(Path(sys.argv[1]))
remote = Remote.open(Target.model_validate_json(sys.argv[2]), "dies", journal.chapter())
remote.configure({"work_mem": "8MB", "checkpoint_timeout": "7min"}, journal.chapter())
remote.execute("CREATE TABLE ours (n int)")
print("ready", flush=True)
time.sleep(60)
"""


def test_after_kill_9_the_journal_gives_everything_back(foreign: Foreign, journal: Journal) -> None:
    argv = [sys.executable, "-c", LIVES, str(journal.path), Target(server="boss").model_dump_json()]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        assert foreign.shows("work_mem") == "8MB"
        assert set(foreign.altered()) == {"work_mem", "checkpoint_timeout"}
        os.kill(process.pid, signal.SIGKILL)
    assert len(journal.standing()) == 3
    assert "zebra" not in journal.path.read_text()
    assert journal.undo() == []
    assert foreign.altered() == {}
    assert foreign.shows("work_mem") == "4MB"
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
        remote = Remote.open(Target(server="boss"), "secret", chapter)
        remote.configure({"work_mem": "8MB"}, chapter)
        shell = remote.shell()
        PGBENCH.fill(shell, remote.connection, TPCB, 1)
        argv = PGBENCH.argv(Job(remote.connection, TPCB, Load(duration_s=1), 1, 7, [(TPCB.scripts[0], None)]))
        done = shell.run(argv)
        assert done.returncode == 0
        texts = [str(argv), journal.path.read_text(), *map(repr, (done, shell, remote, remote.connection))]
        texts += map(repr, (remote.identity(), statistics.snapshot(remote), vars(remote).keys()))
        for wrong in ("SELECT nonsense", "SELECT pg_sleep('x')"):
            with pytest.raises(ServerError) as caught:
                remote.query(wrong)
            texts.append("".join(traceback.format_exception(caught.value)))
    assert not [text for text in (*texts, caplog.text) if foreign.password("boss") in text]
