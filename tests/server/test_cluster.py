"""A cluster is made, told its settings, believed only on what it says itself, and stopped."""

import os
import shutil
import signal
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchlib.errors import ServerError, SettingError
from benchlib.host.shell import Shell, server_user
from benchlib.plan.level import SettingValue
from benchlib.plan.settings import shown
from benchlib.server import cluster as cluster_module
from benchlib.server.cluster import Cluster
from benchlib.server.installations import Installation

pytestmark = pytest.mark.pg

NewCluster = Callable[..., Cluster]


def value(cluster: Cluster, name: str) -> str:
    return shown(
        **cluster.query("SELECT setting AS value, unit FROM pg_settings WHERE name = %s", "postgres", [name])[
            0
        ]
    )


def eventually(what: Callable[[], bool], within_s: float = 5.0) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if what():
            return True
        time.sleep(0.05)
    return what()


def postmaster(cluster: Cluster) -> psutil.Process:
    return psutil.Process(int((cluster.data / "postmaster.pid").read_text().split()[0]))


def test_settings_are_read_back_in_the_servers_own_units(cluster: Cluster) -> None:
    wanted: dict[str, SettingValue] = {
        "shared_buffers": "64MB", "checkpoint_timeout": "7min", "work_mem": 8192, "FSync": False, "random_page_cost": 1.1,
        "wal_buffers": -1, "wal_compression": True, "log_min_messages": "debug", "DateStyle": "iso,mdy",
    }  # fmt: skip
    if cluster.installation.major >= 18:
        wanted |= {"io_max_concurrency": -1, "transaction_buffers": 0}
    cluster.configure(wanted)
    cluster.start()
    assert cluster.running
    settings = cluster.check_settings()
    for name, asked in {"io_max_concurrency": "-1", "transaction_buffers": "0"}.items():
        assert settings.pop(name, None) != asked, "the server chooses"
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


def test_what_the_bench_decides_cannot_be_set(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.configure({"port": 5433})
    with pytest.raises(
        SettingError, match=r"port: asked for 5433, the server runs with 5432 \(command line\)"
    ):
        cluster.start()


def test_a_setting_that_waits_for_a_restart_did_not_take(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.configure({"shared_buffers": "64MB"})
    cluster.start()
    cluster.configure({"shared_buffers": "32MB"})
    cluster.execute("SELECT pg_reload_conf()", dbname="postgres")
    assert eventually(
        lambda: cluster.value("SELECT count(*) FROM pg_settings WHERE pending_restart", "postgres") == 1
    )
    with pytest.raises(SettingError, match="shared_buffers: waits for a restart of the server"):
        cluster.check_settings()


def test_a_setting_that_alter_system_overrides_is_an_error_now_and_at_the_next_start(
    cluster: Cluster,
) -> None:
    cluster.configure({"work_mem": "8MB"})
    cluster.start()
    cluster.execute("ALTER SYSTEM SET work_mem = '16MB'", "SELECT pg_reload_conf()", dbname="postgres")
    assert eventually(lambda: value(cluster, "work_mem") == "16384 kB")
    with pytest.raises(SettingError, match="work_mem: asked for 8MB, the server runs with 16384 kB"):
        cluster.check_settings()
    cluster.stop()
    with pytest.raises(SettingError, match="work_mem: asked for 8MB"):
        cluster.start()
    assert not cluster.running, "a server with other settings than asked for is of no use to anyone"


def test_a_value_that_changed_behind_our_back_is_noticed(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.configure({"random_page_cost": 1.1})
    cluster.start()
    (cluster.data / "benchlib.conf").write_text(
        (cluster.data / "benchlib.conf").read_text() + "random_page_cost = 3\n"
    )
    cluster.execute("SELECT pg_reload_conf()", dbname="postgres")
    assert eventually(lambda: value(cluster, "random_page_cost") == "3")
    with pytest.raises(SettingError, match=r"random_page_cost: asked for 1\.1"):
        cluster.check_settings()


def test_a_value_that_holds_only_in_the_databases_sessions_is_noticed_there(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.configure({"synchronous_commit": "on"})
    cluster.start()
    cluster.execute("CREATE DATABASE bench", dbname="postgres")
    cluster.execute("ALTER DATABASE bench SET synchronous_commit = off")
    assert cluster.check_settings() == {"synchronous_commit": "on"}
    with pytest.raises(SettingError, match="synchronous_commit: asked for on"):
        cluster.check_settings("bench")


def test_settings_that_the_server_refuses_are_told_in_its_own_words_without_a_start(
    cluster: Cluster,
) -> None:
    cluster.configure({"work_mem": "8MB"})
    assert cluster.refusal() is None
    cluster.configure({"work_memory": "8MB"})
    assert cluster.refusal() == 'unrecognized configuration parameter "work_memory"'
    cluster.configure({"work_mem": "8 pigs"})
    assert cluster.refusal() == 'invalid value for parameter "work_mem": "8 pigs"'
    assert not cluster.running
    with pytest.raises(ServerError, match='did not start: invalid value for parameter "work_mem"'):
        cluster.start()


def test_a_start_that_fails_gives_the_servers_last_words(cluster: Cluster) -> None:
    cluster.configure({"shared_preload_libraries": "no_such_library"})
    with pytest.raises(ServerError, match=r"did not start: FATAL:.*no_such_library") as caught:
        cluster.start()
    assert "\n" not in str(caught.value)
    assert not cluster.running
    cluster.configure({})
    cluster.start()
    assert cluster.running


def test_a_server_that_never_answers_is_stopped_and_named(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "START_LIMIT_S", 0.5)
    (scratch / "postgres").write_text("#!/bin/sh\nexec sleep 60\n")
    (scratch / "postgres").chmod(0o755)
    mute = Cluster(Shell(server_user()), Installation("18.9", scratch, "test"), scratch)
    started = time.monotonic()
    with pytest.raises(ServerError, match="did not answer within"):
        mute.start()
    assert not mute.running
    assert time.monotonic() - started < 45, "well before the mute one ends by itself"


def test_initdb_that_fails_gives_its_last_words(
    scratch: Path, installed: Callable[[str], Installation]
) -> None:
    if user := server_user():
        shutil.chown(scratch, user)
    cluster = Cluster(Shell(server_user()), installed("18"), scratch / "c")
    with pytest.raises(ServerError, match=r"initdb failed: .*wal-segsize"):
        cluster.create(["--wal-segsize=7"])


def test_initdb_takes_a_levels_options(scratch: Path, installed: Callable[[str], Installation]) -> None:
    if user := server_user():
        shutil.chown(scratch, user)
    cluster = Cluster(Shell(server_user()), installed("18"), scratch / "c")
    cluster.create(["--wal-segsize=4", "--no-data-checksums"])
    cluster.configure({})
    try:
        cluster.start()
        assert value(cluster, "wal_segment_size") == "4194304 B"
        assert value(cluster, "data_checksums") == "off"
    finally:
        cluster.stop(immediately=True)


def test_no_port_listens(cluster: Cluster) -> None:
    cluster.configure({})
    cluster.start()
    server = postmaster(cluster)
    # its processes inherit what the first one listens on
    assert [c for c in server.net_connections("inet") if c.status == psutil.CONN_LISTEN] == []
    assert any(c.laddr == str(cluster.sockets / ".s.PGSQL.5432") for c in server.net_connections("unix"))


def test_only_their_owner_may_enter_a_clusters_folders(cluster: Cluster) -> None:
    cluster.configure({})
    cluster.start()
    for folder in (cluster.folder, cluster.data, cluster.sockets):
        found = folder.stat()
        assert stat.S_IMODE(found.st_mode) == 0o700, folder.name
        assert found.st_uid != 0


def test_two_stand_side_by_side(new_cluster: NewCluster) -> None:
    first, second = new_cluster("16"), new_cluster("18")
    for number, cluster in enumerate((first, second)):
        cluster.configure({"work_mem": f"{8 + number}MB"})
        cluster.start()
    assert (first.version(), second.version()) == (
        first.installation.version,
        second.installation.version,
    )
    assert (value(first, "work_mem"), value(second, "work_mem")) == ("8192 kB", "9216 kB")
    first.stop()
    assert not first.running
    assert second.query("SELECT 1 AS one", dbname="postgres") == [{"one": 1}]


def test_the_log_can_be_read_from_an_offset_on(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    assert (cluster.log_text(), cluster.log_size()) == ("", 0)
    cluster.configure({})
    cluster.start()
    offset = cluster.log_size()
    assert offset > 0
    with pytest.raises(ServerError, match="division by zero"):
        cluster.execute("SELECT 1/0", dbname="postgres")
    assert eventually(lambda: "division by zero" in cluster.log_text(offset))
    assert "starting PostgreSQL" in cluster.log_text()
    assert "starting PostgreSQL" not in cluster.log_text(offset)


def test_stopping_twice_or_before_a_start_is_no_error(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.stop()
    cluster.configure({})
    cluster.start()
    pid = postmaster(cluster).pid
    cluster.stop()
    cluster.stop(immediately=True)
    assert not cluster.running
    assert not psutil.pid_exists(pid)
    assert "database system is shut down" in cluster.log_text()


def test_an_immediate_stop_is_quick_and_the_data_survive_it(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.configure({})
    cluster.start()
    cluster.execute("CREATE TABLE kept AS SELECT 7 AS n", dbname="postgres")
    started = time.monotonic()
    cluster.stop(immediately=True)
    assert time.monotonic() - started < 5
    assert "received immediate shutdown request" in cluster.log_text()
    cluster.start()
    assert cluster.query("SELECT n FROM kept", dbname="postgres") == [{"n": 7}]


def test_a_copy_is_independent_of_what_it_was_copied_from(new_cluster: NewCluster, scratch: Path) -> None:
    original = new_cluster()
    original.configure({"work_mem": "8MB"})
    original.start()
    original.execute("CREATE TABLE shared AS SELECT 1 AS n", dbname="postgres")
    original.stop()
    copy = original.clone(scratch / "copy")
    copy.configure({"work_mem": "9MB"})
    try:
        for cluster in (original, copy):
            cluster.start()
        copy.execute("CREATE TABLE own AS SELECT 2 AS n", "DROP TABLE shared", dbname="postgres")
        assert copy.query("SELECT n FROM own", dbname="postgres") == [{"n": 2}]
        assert original.query("SELECT n FROM shared", dbname="postgres") == [{"n": 1}]
        with pytest.raises(ServerError, match=r"relation .own. does not exist"):
            original.query("SELECT n FROM own", dbname="postgres")
        assert (value(original, "work_mem"), value(copy, "work_mem")) == ("8192 kB", "9216 kB")
    finally:
        copy.stop(immediately=True)


def test_a_server_that_was_killed_is_not_running_and_says_so_in_one_line(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.configure({})
    cluster.start()
    os.kill(postmaster(cluster).pid, signal.SIGKILL)
    assert eventually(lambda: not cluster.running)
    with pytest.raises(ServerError, match="the server refused or went away") as caught:
        cluster.query("SELECT 1", dbname="postgres")
    assert "\n" not in str(caught.value)
    cluster.stop()


def test_the_callers_own_connection_variables_change_nothing(
    new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PGPORT", str(free.getsockname()[1]))
    monkeypatch.setenv("PGHOSTADDR", "127.0.0.1")
    monkeypatch.setenv("PGSERVICE", "no-such-service")
    monkeypatch.setenv("PGOPTIONS", "-c work_mem=99MB")
    cluster = new_cluster()
    cluster.configure({"work_mem": "8MB"})
    cluster.start()
    assert cluster.check_settings() == {"work_mem": "8192 kB"}
    assert os.environ["PGSERVICE"] == "no-such-service"
