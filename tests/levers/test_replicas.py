"""Replicas are made, stream, are watched under a load, and are held to what they promise."""

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from clusters import eventually, hurried, hurried_basebackup

from benchlib.errors import InvariantError, PreflightError, ServerError
from benchlib.host.shell import Completed, server_user
from benchlib.host.sweep import processes_of, remove_shared_memory
from benchlib.levers import replicas as replicas_module
from benchlib.levers import server_settings
from benchlib.levers.lever import Site
from benchlib.levers.replicas import Replicas, Watch
from benchlib.levers.replication import Replication, replica_beside
from benchlib.plan.level import Level
from benchlib.server.cluster import Cluster
from benchlib.server.installations import Installation, find_installation, find_program_for
from benchlib.server.replica import Source

ROWS = "SELECT count(*) FROM t"
Follow = Callable[..., Replicas]
pg = pytest.mark.pg


# --- real ones ---------------------------------------------------------------------------


def start_primary(cluster: Cluster, replication: Any, **settings: Any) -> Cluster:
    """A running server with the level's settings, the database of the load and a table in it."""
    level = Level(settings=settings, replication=replication)
    cluster.configure(server_settings(level))
    cluster.start()
    alone = "SET synchronous_commit = local"  # no replica is there to wait for
    cluster.execute(alone, "CREATE DATABASE bench", dbname="postgres")
    cluster.execute(alone, "CREATE TABLE t (n int)")
    return cluster


def replicas_of(
    primary: Cluster, basebackup: Path, count: int = 1, quorum: int = 0, delay_ms: float | None = None
) -> Replicas:
    """Replicas of a running primary, on its disk; nothing of them is there yet."""
    level = Level(replication={"replicas": count, "delay_ms": delay_ms})
    site = Site(level, "c", primary.folder, primary.shell, None, lambda _: basebackup, primary)  # type: ignore[arg-type]
    source = Source(str(primary.sockets), primary.port, primary.wanted, delay_ms)
    members = [replica_beside(site, number, source) for number in range(1, count + 1)]
    return Replicas(primary, quorum, members)


@pytest.fixture(scope="session")
def basebackup(runnable: Callable[[Installation], Installation], shelter: Path) -> Callable[[str], Path]:
    """pg_basebackup for a version, where the servers' user can reach it."""

    def of(version: str) -> Path:
        serving = find_program_for(find_installation(version), "pg_basebackup")
        return hurried_basebackup(runnable(serving).program("pg_basebackup"), shelter)

    return of


@pytest.fixture
def follow(new_cluster: Callable[[str], Cluster], basebackup: Callable[[str], Path]) -> Iterator[Follow]:
    """Makes a primary with its replicas; nothing of them is left after the test."""
    made: list[Replicas] = []

    def make(replication: Any, version: str = "18", **settings: Any) -> Replicas:
        primary = start_primary(new_cluster(version), replication, **settings)
        asked = Replication.model_validate(replication)
        program = basebackup(version)
        made.append(replicas_of(primary, program, asked.replicas, asked.waits_for, asked.delay_ms))
        made[-1].follow()
        return made[-1]

    yield make
    for replicas in made:
        replicas.stop()
        replicas.primary.stop(immediately=True)
        remove_shared_memory(replicas.primary.folder)  # what was killed leaves its shared memory


@pytest.fixture(scope="module")
def pair(
    created: Callable[[str], Cluster], basebackup: Callable[[str], Path], shelter: Path
) -> Iterator[Replicas]:
    """A primary with two replicas that no test may kill."""
    disk = created("18").shell.make_directory(shelter / "disk")
    primary = hurried(created("18").clone(shelter / "pair", data=disk))
    replicas = None
    try:
        start_primary(primary, "asynchronous", work_mem="8MB", hot_standby=False)
        replicas = replicas_of(primary, basebackup("18"), 2)
        replicas.follow()
        yield replicas
    finally:
        if replicas:
            replicas.stop()
        primary.stop(immediately=True)
        shutil.rmtree(primary.folder)
        shutil.rmtree(shelter / "disk")


@pytest.fixture
def in_mode(pair: Replicas) -> Iterator[Callable[..., Replicas]]:
    """The pair with a quorum and a synchronous_commit; asynchronous again after the test."""

    def take(quorum: str | None, synchronous_commit: str = "on") -> Replicas:
        replication = Replication(replicas=2, quorum=quorum)
        pair.primary.execute(
            "SET synchronous_commit = local",
            f"ALTER SYSTEM SET synchronous_standby_names = '{replication.standby_names() or ''}'",
            f"ALTER SYSTEM SET synchronous_commit = '{synchronous_commit}'",
            "SELECT pg_reload_conf()",
        )
        replicas = Replicas(pair.primary, replication.waits_for, pair.members)
        assert eventually(lambda: pair.primary.value("SHOW synchronous_commit") == synchronous_commit)
        assert eventually(lambda: replicas.check() is None)
        return replicas

    yield take
    take(None)


def kill(cluster: Cluster) -> None:
    """As kill -9 does: the server and all of its processes, at once."""
    server = psutil.Process(int((cluster.data / "postmaster.pid").read_text().split()[0]))
    for process in (server, *server.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            os.kill(process.pid, signal.SIGKILL)
    assert eventually(lambda: not cluster.running)


def load(replicas: Replicas, seconds: int, pgbench: Path, watch: Callable[[], None]) -> Completed:
    """Two clients of pgbench that insert rows, watched."""
    primary = replicas.primary
    script = primary.folder / "insert.sql"
    primary.shell.write(script, "INSERT INTO t VALUES (1);\n")
    way = primary.connection
    return primary.shell.run(
        [pgbench, f"-h{way.host}", f"-p{way.port}", f"-U{way.user}", "-n", "-c2", f"-T{seconds}", f"-f{script}", "bench"],
        timeout_s=30, watch=watch,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def sampled_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas_module, "_INTERVAL_S", 0.1)


@pytest.fixture
def pgbench(installed: Callable[[str], Installation]) -> Path:
    return installed("18").program("pgbench")


@pg
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
def test_every_mode_holds_what_it_promises(
    in_mode: Callable[..., Replicas], quorum: str | None, synchronous_commit: str, promised: bool
) -> None:
    replicas = in_mode(quorum, synchronous_commit)
    before = int(replicas.primary.value(ROWS))
    with Watch(replicas) as watch:
        for _ in range(20):
            replicas.primary.execute("INSERT INTO t VALUES (1)")
            watch()
    found = replicas.verify(ROWS)
    assert (found.synchronous_commit, found.count) == (synchronous_commit, before + 20)
    assert len(found.held) >= (replicas.quorum if promised else 0)
    assert bool(found.warnings) == (quorum is not None and not promised)
    assert watch.warnings == []
    assert [row["replica"] for row in watch.lag[:2]] == ["replica1", "replica2"]
    replicas.primary.execute("CHECKPOINT")
    replicas.settle()


@pg
def test_replicas_run_with_the_primarys_settings_and_can_be_asked(pair: Replicas) -> None:
    for replica in pair.members:
        settings = replica.check_settings()
        assert (settings["work_mem"], settings["hot_standby"]) == ("8192 kB", "on")
        assert settings["primary_slot_name"] == replica.name
        assert replica.folder.parent == pair.primary.folder
        assert replica.value("SELECT pg_is_in_recovery()") is True
        with pytest.raises(ServerError, match="read-only transaction"):
            replica.execute("INSERT INTO t VALUES (1)")


@pg
def test_the_lag_of_a_replica_that_does_not_replay_grows(
    pair: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused, other = pair.members
    paused.execute("SELECT pg_wal_replay_pause()")
    try:
        with Watch(pair) as watch:
            assert eventually(lambda: len(watch.lag) >= 2)
            first = watch.lag[0]
            pair.primary.execute("INSERT INTO t SELECT generate_series(1, 10000)")
            assert eventually(lambda: watch.lag[-2]["replay_lag_bytes"] > 500_000)
            assert eventually(lambda: watch.lag[-2]["write_lag_bytes"] < 100_000), "it receives all the same"
            assert eventually(lambda: 0 <= watch.lag[-1]["replay_lag_bytes"] < 100_000)
            watch()
        with monkeypatch.context() as patched:
            patched.setattr(replicas_module, "CATCH_UP_LIMIT_S", 0.5)
            with pytest.raises(
                ServerError, match=r"^replica1 is [\d,]+ bytes of WAL behind 0\.5 s after the load$"
            ):
                pair.verify(ROWS)
    finally:
        paused.execute("SELECT pg_wal_replay_resume()")
    assert first["replay_lag_bytes"] < 100_000
    assert [row["replica"] for row in watch.lag[-2:]] == [paused.name, other.name]
    assert abs(first["at_s"] - time.time()) < 600
    pair.verify(ROWS)


@pg
def test_a_connection_that_was_lost_for_a_moment_is_noted(pair: Replicas) -> None:
    serving = (
        "SELECT pid FROM pg_stat_replication WHERE application_name = 'replica2' AND state = 'streaming'"
    )
    with Watch(pair) as watch:
        assert eventually(lambda: len(watch.lag) >= 2)
        before = pair.primary.value(serving)
        pair.primary.execute(f"SELECT pg_terminate_backend({before})")
        assert eventually(lambda: watch.lag[-1]["pid"] not in (before, None))
    assert watch.warnings == ["replica2 lost its connection during the trial and came back"]


@pg
def test_a_broken_promise_is_found(in_mode: Callable[..., Replicas]) -> None:
    asynchronous = in_mode(None, "remote_apply")
    for replica in asynchronous.members:
        replica.execute("SELECT pg_wal_replay_pause()")
    try:
        pretended = Replicas(asynchronous.primary, 1, asynchronous.members)
        with pytest.raises(
            InvariantError,
            match=r"^0 replica\(s\) had replayed a commit when it was acknowledged, .* promises 1$",
        ):
            pretended.verify(ROWS)
        assert pretended.check() == "0 of 1 are synchronous"
    finally:
        for replica in asynchronous.members:
            replica.execute("SELECT pg_wal_replay_resume()")


@pg
def test_rows_that_are_missing_are_found(pair: Replicas) -> None:
    with pytest.raises(InvariantError, match=r"^replica1 holds 6 rows, the primary 7$"):
        pair.verify("SELECT CASE WHEN pg_is_in_recovery() THEN 6 ELSE 7 END")


@pg
def test_a_commit_that_nobody_confirms_ends_in_time(
    in_mode: Callable[..., Replicas], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas_module, "ACKNOWLEDGE_LIMIT_S", 0.5)
    replicas = in_mode("FIRST 1", "remote_apply")
    replicas.members[0].execute("SELECT pg_wal_replay_pause()")
    try:
        with pytest.raises(ServerError, match=r"^no replica confirmed a commit within"):
            replicas.verify(ROWS)
    finally:
        replicas.members[0].execute("SELECT pg_wal_replay_resume()")


# --- a longer way -------------------------------------------------------------------------


@pg
def test_a_commit_waits_for_the_way_there_and_back(follow: Follow) -> None:
    replicas = follow({"quorum": "FIRST 1", "delay_ms": 40}, synchronous_commit="on")
    primary = replicas.primary
    relays = [p for p in processes_of(primary.folder) if "relay.py" in " ".join(p.cmdline())]
    assert [p.username() for p in relays] == [server_user() or psutil.Process().username()]
    with primary.connect() as connection:
        for sql in ("INSERT INTO t VALUES (1)", "INSERT INTO t SELECT generate_series(1, 200000)"):
            started = time.monotonic()
            connection.execute(sql)
            assert time.monotonic() - started >= 0.08
    verified = replicas.verify(ROWS)
    assert (verified.held, verified.count) == (("replica1",), 200001)
    replicas.stop()
    assert not any(p.is_running() for p in relays)


# --- a replica dies ------------------------------------------------------------------------


@pg
def test_a_quorum_bears_the_death_of_who_is_not_needed_and_stops_a_load_that_would_wait_for_ever(
    follow: Follow, pgbench: Path
) -> None:
    replicas = follow({"replicas": 2, "quorum": "ANY 1"}, synchronous_commit="remote_apply")
    with Watch(replicas) as watch:
        kill(replicas.members[0])
        done = load(replicas, 1, pgbench, watch)
    assert done.returncode == 0
    assert watch.warnings == ["replica1 ended during the trial; the load went on"]
    (gone,) = [row for row in watch.lag[-2:] if row["replica"] == "replica1"]
    assert gone["state"] is gone["replay_lag_bytes"] is None, "a figure that is missing is no 0"
    verified = replicas.verify(ROWS)
    assert verified.held == ("replica2",)
    assert verified.count == replicas.primary.value(ROWS) > 0
    with pytest.raises(ServerError, match=r"^replica1 ended$"):
        replicas.settle()

    with Watch(replicas) as watch:
        killer = threading.Timer(0.5, kill, [replicas.members[1]])
        killer.start()
        with pytest.raises(
            ServerError,
            match=r"^replica1 ended; replica2 ended: commits wait for 1 replica\(s\) and 0 are left; "
            r"the load was stopped after \d+ s$",
        ):
            load(replicas, 25, pgbench, watch)
        killer.join()
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    assert replicas.primary.value(waiting) > 0, "the commits wait still"
    with pytest.raises(ServerError, match=r"^replica1 ended; replica2 ended: too few replicas are left"):
        replicas.verify(ROWS)
    with Watch(Replicas(replicas.primary, 0, replicas.members)) as watch:
        watch()  # where no commit waits the load goes on
    assert len(watch.warnings) == 2
    replicas.stop()
    replicas.primary.stop(immediately=True)
    assert processes_of(replicas.primary.folder) == []


@pg
@pytest.mark.long
def test_a_replica_that_lives_but_streams_no_more_is_lost_too(
    follow: Follow, pgbench: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas_module, "SILENCE_S", 1.0)
    replicas = follow("synchronous")
    with Watch(replicas) as watch:
        promoted = threading.Timer(0.5, replicas.members[0].execute, ["SELECT pg_promote()"])
        promoted.start()
        with pytest.raises(ServerError, match=r"^replica1 does not stream \(.*\): commits wait for 1"):
            load(replicas, 25, pgbench, watch)
        promoted.join()
    assert "replica1 does not stream" in (replicas.check() or "")


@pg
@pytest.mark.example
def test_what_was_acknowledged_outlives_the_primary_on_the_replica(follow: Follow) -> None:
    replicas = follow("synchronous", synchronous_commit="on")
    acknowledged = 0
    killer = threading.Thread(target=kill, args=[replicas.primary])
    with pytest.raises(psycopg.OperationalError), replicas.primary.connect() as connection:  # noqa: PT012
        while True:
            connection.execute("INSERT INTO t VALUES (1)")
            acknowledged += 1
            if acknowledged == 50:
                killer.start()
    killer.join()
    (replica,) = replicas.members
    # one more may have arrived there whose acknowledgement was lost
    assert eventually(lambda: 0 <= replica.value(ROWS) - acknowledged <= 1)
    with pytest.raises(ServerError, match="the server refused or went away"):
        replicas.verify(ROWS)


# --- making them -----------------------------------------------------------------------------


@pg
@pytest.mark.long
@pytest.mark.parametrize("version", [*map(str, range(10, 18))])
def test_older_versions_have_replicas_too(follow: Follow, version: str) -> None:
    try:
        find_installation(version)
    except PreflightError as reason:
        pytest.skip(str(reason))
    replicas = follow("synchronous", version, synchronous_commit="remote_write")
    with Watch(replicas) as watch:
        replicas.primary.execute("INSERT INTO t VALUES (1)")
    found = replicas.verify(ROWS)
    assert found.count == 1
    assert bool(found.held) == (int(version) >= 13), "older ones do not tell what they have written"
    assert watch.lag[0]["state"] == "streaming"
    replicas.primary.execute("CHECKPOINT")
    replicas.settle()


@pg
def test_a_server_that_gives_no_replica_says_why_and_nothing_is_left(
    new_cluster: Callable[[str], Cluster], basebackup: Callable[[str], Path]
) -> None:
    primary = start_primary(new_cluster("18"), "asynchronous", max_wal_senders=1)
    with pytest.raises(ServerError, match=r"^pg_basebackup failed for replica1: .*max_wal_senders"):
        replicas_of(primary, basebackup("18")).follow()
    primary.stop(immediately=True)
    assert processes_of(primary.folder) == []
