"""A cluster is made, told its settings, believed only on what it says itself, and stopped."""

import os
import re
import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import psutil
import psycopg
import pytest

from benchlib.errors import ServerError, SettingError
from benchlib.host.shell import Shell, server_user, ticks
from benchlib.plan.level import SettingValue
from benchlib.server.cluster import Cluster, Door, refusal
from benchlib.server.installations import Installation

pytestmark = pytest.mark.pg

NewCluster = Callable[..., Cluster]


@pytest.fixture
def started(new_cluster: NewCluster) -> Callable[..., Cluster]:
    """A running cluster with some settings."""

    def make(**settings: SettingValue) -> Cluster:
        cluster = new_cluster()
        cluster.configure(settings)
        cluster.start()
        return cluster

    return make


def eventually(condition: Callable[[], bool]) -> bool:
    return any(condition() for _ in ticks(60))


def shows(cluster: Cluster, name: str) -> str:
    return str(cluster.value(f"SHOW {name}", "postgres"))


def postmaster(cluster: Cluster) -> psutil.Process:
    return psutil.Process(int((cluster.data / "postmaster.pid").read_text().split()[0]))


@pytest.mark.example
def test_settings_are_read_back_in_the_servers_own_units(started: Callable[..., Cluster]) -> None:
    cluster = started(
        shared_buffers="64MB", checkpoint_timeout="7min", work_mem=8192, FSync=False, random_page_cost=1.1,
        wal_buffers=-1, wal_compression=True, log_min_messages="debug", DateStyle="iso,mdy", io_max_concurrency=-1,
    )  # fmt: skip
    settings = cluster.check_settings()
    assert settings.pop("io_max_concurrency") != "-1", "the server chooses"
    assert settings == {
        "shared_buffers": "8192 x 8kB",
        "checkpoint_timeout": "420 s",
        "work_mem": "8192 kB",
        "FSync": "off",
        "random_page_cost": "1.1",
        "wal_buffers": "256 x 8kB",
        "wal_compression": "pglz",
        "log_min_messages": "debug2",
        "DateStyle": "ISO, MDY",
    }
    assert cluster.version() == cluster.installation.version


def test_a_setting_that_is_overruled_changed_or_waits_for_a_restart_did_not_take(
    started: Callable[..., Cluster],
) -> None:
    cluster = started(work_mem="8MB", synchronous_commit="on", random_page_cost=1.1, shared_buffers="64MB")
    cluster.execute("CREATE DATABASE bench", dbname="postgres")
    cluster.execute("ALTER DATABASE bench SET synchronous_commit = off")
    assert cluster.check_settings()["work_mem"] == "8192 kB"
    with pytest.raises(SettingError, match=r"synchronous_commit: asked for on, .* with off \(database\)"):
        cluster.check_settings("bench")
    with (cluster.data / cluster.settings_file).open("a") as file:
        file.write("random_page_cost = 3\nshared_buffers = 32MB\n")
    cluster.execute("ALTER SYSTEM SET work_mem = '16MB'", "SELECT pg_reload_conf()", dbname="postgres")
    assert eventually(lambda: shows(cluster, "work_mem") == "16MB")
    with pytest.raises(SettingError) as caught:
        cluster.check_settings()
    overruled = "work_mem: asked for 8MB, the server runs with 16384 kB (postgresql.auto.conf)"
    assert overruled in str(caught.value)
    assert "random_page_cost: asked for 1.1, the server runs with 3 (benchlib.conf)" in str(caught.value)
    assert "shared_buffers: waits for a restart of the server" in str(caught.value)
    cluster.stop()
    with pytest.raises(SettingError, match=re.escape(overruled)):
        cluster.start()
    assert not cluster.running, "a server with other settings than asked for is of no use to anyone"


def test_what_the_bench_decides_or_the_server_does_not_know_did_not_take(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.configure({"port": 5433, "no.such": 1})
    with pytest.raises(SettingError) as caught:
        cluster.start()
    assert "port: asked for 5433, the server runs with 5432 (command line)" in str(caught.value)
    assert "no.such: the server has no such parameter" in str(caught.value)


def test_settings_that_the_server_refuses_are_told_in_its_own_words(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    unknown = (
        'unrecognized configuration parameter "work_memory"; unrecognized configuration parameter "jitt"'
    )
    assert refusal(cluster.installation, {"work_memory": "8MB", "jitt": False}) == unknown
    wrong = 'invalid value for parameter "work_mem": "8 pigs"; parameter "jit" requires a Boolean value'
    assert refusal(cluster.installation, {"work_mem": "8 pigs", "jit": "perhaps"}) == wrong
    cluster.configure({"work_mem": "8 pigs"})
    with pytest.raises(ServerError, match='did not start: invalid value for parameter "work_mem"'):
        cluster.start()
    cluster.configure({"shared_preload_libraries": "no_such_library"})
    with pytest.raises(ServerError, match=r"did not start: FATAL:.*no_such_library") as caught:
        cluster.start()
    assert "\n" not in str(caught.value)
    assert not cluster.running
    assert refusal(cluster.installation, {"work_mem": "8MB", "zero_damaged_pages": True}) is None
    cluster.configure({"work_mem": "8MB"})
    cluster.start()
    assert cluster.running


def test_a_server_that_never_answers_is_stopped_and_named(scratch: Path) -> None:
    (scratch / "postgres").write_text("#!/bin/sh\nexec sleep 600\n")
    (scratch / "postgres").chmod(0o755)
    mute = Cluster(Shell(server_user()), Installation("18.9", scratch, "test"), scratch)
    with pytest.raises(ServerError, match="did not answer within"):
        mute.start(0.5)
    assert not mute.running


def test_initdb_takes_a_levels_options_or_says_why_not(
    scratch: Path, installed: Callable[[str], Installation]
) -> None:
    user = server_user()
    cluster = Cluster(Shell(user), installed("18"), scratch / "c")
    with pytest.raises(ServerError, match=r"initdb failed: .*wal-segsize"):
        cluster.create(["--wal-segsize=7"])
    cluster.create(["--wal-segsize=4", "--no-data-checksums"])
    argv = [cluster.installation.program("postgres"), "-D", str(cluster.data), "-C", "data_checksums"]
    assert cluster.shell.run(argv).stdout == "off\n"
    assert {file.stat().st_size for file in (cluster.data / "pg_wal").glob("0*")} == {4 << 20}


def test_nobody_else_reaches_it_and_the_callers_variables_change_nothing(
    started: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PGPORT", str(free.getsockname()[1]))
    monkeypatch.setenv("PGHOSTADDR", "127.0.0.1")
    monkeypatch.setenv("PGSERVICE", "no-such-service")
    monkeypatch.setenv("PGOPTIONS", "-c work_mem=99MB")
    cluster = started(work_mem="8MB")
    assert cluster.check_settings() == {"work_mem": "8192 kB"}
    assert os.environ["PGSERVICE"] == "no-such-service"
    server = postmaster(cluster)
    # its processes inherit what the first one listens on
    assert [c for c in server.net_connections("inet") if c.status == psutil.CONN_LISTEN] == []
    assert any(c.laddr == str(cluster.sockets / ".s.PGSQL.5432") for c in server.net_connections("unix"))
    for folder in (cluster.folder, cluster.data, cluster.sockets):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder.name
        assert folder.stat().st_uid != 0


def test_it_is_stopped_in_order_at_once_or_killed_and_its_log_tells(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    assert (cluster.log_text(), cluster.log_size()) == ("", 0)
    cluster.stop()
    cluster.configure({})
    cluster.start()
    assert "starting PostgreSQL" in cluster.log_text()
    offset = cluster.log_size()
    cluster.execute("CREATE TABLE kept AS SELECT 7 AS n", dbname="postgres")
    with pytest.raises(ServerError, match="division by zero"):
        cluster.execute("SELECT 1/0", dbname="postgres")
    cluster.stop(immediately=True)
    assert "received immediate shutdown request" in cluster.log_text(offset)
    assert "starting PostgreSQL" not in cluster.log_text(offset)
    cluster.start()
    assert cluster.query("SELECT n FROM kept", dbname="postgres") == [{"n": 7}]
    pid = postmaster(cluster).pid
    cluster.stop()
    cluster.stop(immediately=True)
    assert not cluster.running
    assert not psutil.pid_exists(pid)
    assert "database system is shut down" in cluster.log_text()
    cluster.start()
    before = os.times()
    os.kill(postmaster(cluster).pid, signal.SIGKILL)
    assert eventually(lambda: not cluster.running)
    after = os.times()
    ours = (before.children_user, before.children_system)
    assert (after.children_user, after.children_system) == ours, "its time is left for whoever waits for it"
    with pytest.raises(ServerError, match="the server refused or went away") as caught:
        cluster.query("SELECT 1", dbname="postgres")
    assert "\n" not in str(caught.value)
    cluster.stop()


def test_who_comes_by_the_network_comes_by_one_address_from_one_place_with_a_password(
    new_cluster: NewCluster,
) -> None:
    cluster = new_cluster("18")
    door = Door.at("127.0.0.2", ["127.0.0.1"])
    cluster.open_door(door)
    cluster.start()
    cluster.admit()

    def come(host: str, password: str, **way: str) -> None:
        psycopg.connect(
            host=host,
            port=door.port,
            user="postgres",
            dbname="postgres",
            password=password,
            connect_timeout=5,
            **way,
        ).close()

    come("127.0.0.2", door.password)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        come("127.0.0.2", "guessed")
    with pytest.raises(psycopg.OperationalError, match="refused"):
        come("127.0.0.1", door.password)
    assert [connection.laddr.ip for connection in postmaster(cluster).net_connections("tcp")] == ["127.0.0.2"]
    assert door.password not in cluster.log_text() + repr(door) + " ".join(postmaster(cluster).cmdline())
    other = new_cluster("18")
    other.open_door(Door.at("127.0.0.2", ["192.0.2.7"]))
    other.start()
    with pytest.raises(psycopg.OperationalError, match=r"no pg_hba\.conf entry"):
        psycopg.connect(
            host="127.0.0.2", port=other.port, user="postgres", dbname="postgres", connect_timeout=5
        )
