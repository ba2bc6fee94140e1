"""Replicas are made, stream, are watched under a load, and are held to what they promise."""

import contextlib
import os
import signal
import threading
import time

import needs
import psutil
import psycopg
import pytest
from clusters import eventually, hurried, hurried_basebackup

from benchlib.errors import InvariantError, ServerError
from benchlib.host.shell import server_user
from benchlib.host.sweep import processes_of, remove_shared_memory
from benchlib.levers import replicas as replicas_module
from benchlib.levers import server_settings
from benchlib.levers.lever import Site
from benchlib.levers.replicas import Replicas, Watch
from benchlib.levers.replication import Replication, replica_beside
from benchlib.plan.level import Level
from benchlib.server.installations import find_installation, find_program_for
from benchlib.server.replica import Source

pytestmark = pytest.mark.pg
ROWS = "SELECT count(*) FROM t"
INSERT = "INSERT INTO t VALUES (1)"


@pytest.fixture(scope="session")
def following(runnable, shelter):
    """A running primary with a table in the load's database, and its replicas; nothing of them is left afterwards."""

    @contextlib.contextmanager
    def of(primary, replication, **settings):
        level, serving = Level(replication=replication, settings=settings), primary.installation
        asked = Replication.model_validate(replication)
        copier = runnable(find_program_for(serving, "pg_basebackup")).program("pg_basebackup")
        program = hurried_basebackup(copier, shelter)
        primary.configure(server_settings(level))
        primary.start()
        alone = "SET synchronous_commit = local"  # no replica is there to wait for
        primary.execute(alone, "CREATE DATABASE bench", dbname="postgres")
        primary.execute(alone, "CREATE TABLE t (n int)")
        site = Site(level, "c", primary.folder, primary.shell, None, lambda _: program, primary)
        source = Source(str(primary.sockets), primary.port, primary.wanted, asked.delay_ms)
        members = [replica_beside(site, number, source) for number in range(1, asked.replicas + 1)]
        replicas = Replicas(primary, asked.waits_for, members)
        try:
            replicas.follow()
            yield replicas
        finally:
            replicas.stop()
            primary.stop(immediately=True)
            left = processes_of(primary.folder)
            remove_shared_memory(primary.folder)  # what was killed leaves its shared memory
        assert left == []

    return of


@pytest.fixture
def follow(new_cluster, following):
    """Makes a primary of the test's own with its replicas."""
    with contextlib.ExitStack() as stack:
        yield lambda replication, version="18", **settings: stack.enter_context(
            following(new_cluster(version), replication, **settings)
        )


@pytest.fixture(scope="module")
def pair(created, following, shelter):
    """A primary, whose data lie elsewhere, with two replicas that no test may kill."""
    disk = created("18").shell.make_directory(shelter / "disk")
    primary = hurried(created("18").clone(shelter / "pair", data=disk))
    with following(primary, {"replicas": 2}, work_mem="8MB", hot_standby=False) as replicas:
        yield replicas


@pytest.fixture
def in_mode(pair):
    """The pair with a quorum and a synchronous_commit; asynchronous again after the test."""

    def take(quorum, synchronous_commit="on"):
        replication = Replication(replicas=2, quorum=quorum)
        pair.primary.execute(
            "SET synchronous_commit = local",
            f"ALTER SYSTEM SET synchronous_standby_names = '{replication.standby_names or ''}'",
            f"ALTER SYSTEM SET synchronous_commit = '{synchronous_commit}'",
            "SELECT pg_reload_conf()",
        )
        replicas = Replicas(pair.primary, replication.waits_for, pair.members)
        assert eventually(lambda: pair.primary.value("SHOW synchronous_commit") == synchronous_commit)
        assert eventually(lambda: replicas.check() is None)
        return replicas

    yield take
    take(None)


@contextlib.contextmanager
def paused(*replicas):
    """They receive, and replay nothing."""
    for replica in replicas:
        replica.execute("SELECT pg_wal_replay_pause()")
    try:
        yield
    finally:
        for replica in replicas:
            replica.execute("SELECT pg_wal_replay_resume()")


def kill(cluster):
    """As kill -9 does: the server and all of its processes, at once."""
    server = psutil.Process(int((cluster.data / "postmaster.pid").read_text().split()[0]))
    for process in (server, *server.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            os.kill(process.pid, signal.SIGKILL)
    assert eventually(lambda: not cluster.running)


@pytest.fixture(autouse=True)
def sampled_often(monkeypatch):
    monkeypatch.setattr(replicas_module, "_INTERVAL_S", 0.1)


# --- two that live -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quorum", "synchronous_commit", "promised"),
    [
        ("FIRST 1", "remote_write", True),
        ("FIRST 2", "on", True),
        ("ANY 1", "remote_apply", True),
        ("ANY 1", "off", False),
        (None, "on", False),
    ],
)
def test_every_mode_holds_what_it_promises(in_mode, quorum, synchronous_commit, promised):
    replicas = in_mode(quorum, synchronous_commit)
    before = int(replicas.primary.value(ROWS))
    with Watch(replicas) as watch:
        for _ in range(20):
            replicas.primary.execute(INSERT)
            watch()
    found = replicas.verify(ROWS)
    assert (found.synchronous_commit, found.count) == (synchronous_commit, before + 20)
    assert len(found.held) >= (replicas.quorum if promised else 0)
    assert bool(found.warnings) == (quorum is not None and not promised)
    assert watch.warnings == []
    assert [row["replica"] for row in watch.lag[:2]] == ["replica1", "replica2"]
    replicas.primary.execute("CHECKPOINT")
    replicas.settle()


def test_replicas_run_with_the_primarys_settings_on_its_disk_and_can_be_asked(pair):
    for replica in pair.members:
        settings = replica.check_settings()
        assert (settings["work_mem"], settings["hot_standby"]) == ("8192 kB", "on")
        assert settings["primary_slot_name"] == replica.name
        assert replica.folder.parent == pair.primary.folder
        assert replica.data.resolve().parents[1] == pair.primary.data.resolve().parent
        assert replica.value("SELECT pg_is_in_recovery()") is True
    with pytest.raises(InvariantError, match=r"^replica1 holds 6 rows, the primary 7$"):
        pair.verify("SELECT CASE WHEN pg_is_in_recovery() THEN 6 ELSE 7 END")


def test_the_lag_of_a_replica_that_does_not_replay_grows(pair, monkeypatch):
    with paused(pair.members[0]):
        with Watch(pair) as watch:
            assert eventually(lambda: len(watch.lag) >= 2)
            pair.primary.execute("INSERT INTO t SELECT generate_series(1, 10000)")
            assert eventually(lambda: watch.lag[-2]["replay_lag_bytes"] > 500_000)
            assert eventually(lambda: watch.lag[-2]["write_lag_bytes"] < 100_000), "it receives all the same"
            assert eventually(lambda: 0 <= watch.lag[-1]["replay_lag_bytes"] < 100_000)
        monkeypatch.setattr(replicas_module, "CATCH_UP_LIMIT_S", 0.5)
        with pytest.raises(ServerError, match=r"^replica1 is [\d,]+ bytes of WAL behind$"):
            pair.verify(ROWS)
    assert watch.lag[0]["replay_lag_bytes"] < 100_000
    assert [row["replica"] for row in watch.lag[-2:]] == ["replica1", "replica2"]


def test_a_connection_that_was_lost_for_a_moment_is_noted(pair):
    with Watch(pair) as watch:
        assert eventually(lambda: len(watch.lag) >= 2)
        before = watch.lag[1]["pid"]
        pair.primary.execute(f"SELECT pg_terminate_backend({before})")
        assert eventually(lambda: watch.lag[-1]["pid"] not in (before, None))
    assert watch.warnings == ["replica2 lost its connection during the trial and reconnected"]


def test_a_broken_promise_is_found_and_a_commit_that_nobody_confirms_ends_in_time(in_mode, monkeypatch):
    asynchronous = in_mode(None, "remote_apply")
    pretended = Replicas(asynchronous.primary, 1, asynchronous.members)
    with paused(*asynchronous.members):
        with pytest.raises(InvariantError, match=r"^0 replica\(s\) replayed a commit, .* promises 1$"):
            pretended.verify(ROWS)
        assert pretended.check() == "0 of 1 are synchronous"
    replicas = in_mode("FIRST 1", "remote_apply")
    monkeypatch.setattr(replicas_module, "ACKNOWLEDGE_LIMIT_S", 0.5)
    with (
        paused(replicas.members[0]),
        pytest.raises(ServerError, match=r"^no replica confirmed a commit within"),
    ):
        replicas.verify(ROWS)


# --- others --------------------------------------------------------------------------------


def test_a_commit_waits_for_the_way_there_and_back(follow):
    replicas = follow({"quorum": "FIRST 1", "delay_ms": 40}, synchronous_commit="on")
    relays = [p for p in processes_of(replicas.primary.folder) if "relay.py" in " ".join(p.cmdline())]
    assert [p.username() for p in relays] == [server_user() or psutil.Process().username()]
    with replicas.primary.connect() as connection:
        for sql in (INSERT, "INSERT INTO t SELECT generate_series(1, 200000)"):
            started = time.monotonic()
            connection.execute(sql)
            assert time.monotonic() - started >= 0.08
    verified = replicas.verify(ROWS)
    assert (verified.held, verified.count) == (("replica1",), 200001)
    replicas.stop()
    assert not any(p.is_running() for p in relays)


def test_a_quorum_bears_the_death_of_who_is_not_needed_and_ends_a_load_that_would_wait_for_ever(follow):
    replicas = follow({"replicas": 2, "quorum": "ANY 1"}, synchronous_commit="remote_apply")
    first, second = replicas.members
    with Watch(replicas) as watch:
        kill(first)
        for _ in range(20):
            replicas.primary.execute(INSERT)
            watch()
        assert eventually(lambda: watch.lag[-2]["state"] is None)
    assert watch.warnings == ["replica1 ended during the trial; the load continued"]
    assert watch.lag[-2]["replay_lag_bytes"] is None, "a figure that is missing is no 0"
    verified = replicas.verify(ROWS)
    assert (verified.held, verified.count) == (("replica2",), 20)
    with pytest.raises(ServerError, match=r"^replica1 ended$"):
        replicas.settle()

    with Watch(replicas) as watch:
        kill(second)
        with pytest.raises(ServerError, match=r"^replica1 ended; replica2 ended: commits wait for 1$"):
            watch()
    with pytest.raises(ServerError, match=r"^replica1 ended; replica2 ended: too few replicas are left"):
        replicas.verify(ROWS)
    with Watch(Replicas(replicas.primary, 0, replicas.members)) as watch:
        watch()  # where no commit waits the load goes on
    assert len(watch.warnings) == 2


@pytest.mark.example
def test_what_was_acknowledged_outlives_the_primary_on_the_replica(follow):
    replicas = follow("synchronous", synchronous_commit="on")
    acknowledged = 0
    killer = threading.Thread(target=kill, args=[replicas.primary])
    with pytest.raises(psycopg.OperationalError), replicas.primary.connect() as connection:  # noqa: PT012
        while True:
            connection.execute(INSERT)
            acknowledged += 1
            if acknowledged == 50:
                killer.start()
    killer.join()
    # one more may have arrived there whose acknowledgement was lost
    assert eventually(lambda: 0 <= replicas.members[0].value(ROWS) - acknowledged <= 1)
    with pytest.raises(ServerError, match="the server refused or went away"):
        replicas.verify(ROWS)


@pytest.mark.long
@pytest.mark.parametrize("version", ["13", "14", "15", "16", "17"])
def test_older_versions_have_replicas_too(follow, version):
    needs.possible(find_installation, version)
    replicas = follow("synchronous", version, synchronous_commit="remote_write")
    replicas.primary.execute(INSERT)
    assert replicas.verify(ROWS).held == ("replica1",)
    replicas.settle()


def test_a_server_that_gives_no_replica_says_why_and_nothing_is_left(follow):
    with pytest.raises(ServerError, match=r"^pg_basebackup failed for replica1: .*max_wal_senders"):
        follow("asynchronous", max_wal_senders=1)
