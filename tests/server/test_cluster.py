"""Clusters and the delay proxy: create, configure, verify, stop."""

import os
import signal
import stat
from pathlib import Path

import psutil
import psycopg
import pytest
from clusters import eventually

from benchlib.errors import ServerError, SettingError
from benchlib.host.shell import Shell, server_user
from benchlib.host.sweep import processes_of
from benchlib.server.cluster import Cluster, NetworkAccess
from benchlib.server.installations import find_installation
from benchlib.server.replica import Replica, Source


def postmaster(cluster: Cluster) -> psutil.Process:
    return psutil.Process(int((cluster.data / "postmaster.pid").read_text().split()[0]))


@pytest.mark.example
def test_settings_are_read_back_in_the_servers_own_units(started):
    cluster = started(
        shared_buffers="64MB", checkpoint_timeout="7min", work_mem=8192, FSync=False, random_page_cost=1.1,
        wal_buffers=-1, wal_compression=True, log_min_messages="debug", DateStyle="iso,mdy", io_max_concurrency=-1,
    )  # fmt: skip
    settings = cluster.check_settings()
    assert settings.pop("io_max_concurrency") != "-1", "the server chooses"
    assert settings == {
        "shared_buffers": "8192 x 8kB", "checkpoint_timeout": "420 s", "work_mem": "8192 kB", "FSync": "off",
        "random_page_cost": "1.1", "wal_buffers": "256 x 8kB", "wal_compression": "pglz",
        "log_min_messages": "debug2", "DateStyle": "ISO, MDY",
    }  # fmt: skip
    assert cluster.version() == cluster.installation.version


def test_a_setting_that_is_overruled_changed_or_waits_for_a_restart_did_not_take(started):
    cluster = started(work_mem="8MB", synchronous_commit="on", random_page_cost=1.1, shared_buffers="64MB")
    cluster.execute("ALTER DATABASE bench SET synchronous_commit = off")
    with pytest.raises(SettingError, match=r"synchronous_commit: requested on, .* with off \(database\)"):
        cluster.check_settings("bench")
    cluster.write(cluster.settings_file, "random_page_cost = 3\nshared_buffers = 32MB\n", append=True)
    cluster.execute("ALTER SYSTEM SET work_mem = '16MB'", "SELECT pg_reload_conf()", dbname="postgres")
    assert eventually(lambda: cluster.value("SHOW work_mem", "postgres") == "16MB")
    overruled = r"work_mem: requested 8MB, .* with 16384 kB \(postgresql.auto.conf\)"
    with pytest.raises(SettingError, match=overruled) as caught:
        cluster.check_settings()
    assert "random_page_cost: requested 1.1, the server runs with 3 (benchlib.conf)" in str(caught.value)
    assert "shared_buffers: waits for a restart of the server" in str(caught.value)
    cluster.stop()
    with pytest.raises(SettingError, match=overruled):
        cluster.start()
    assert not cluster.running


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"port": 5433}, SettingError, r"port: requested 5433, the server runs with 5432 \(command line\)"),
        ({"no.such": 1}, SettingError, r"no\.such: the server has no such parameter"),
        ({"work_mem": "8 pigs"}, ServerError, 'did not start: invalid value for parameter "work_mem"'),
        ({"shared_preload_libraries": "no_such"}, ServerError, r"did not start: FATAL:.*no_such"),
    ],
)
def test_what_did_not_take_ends_the_server_with_the_reason_in_one_line(settings, error, message, new_cluster):
    cluster = new_cluster()
    cluster.configure(settings)
    with pytest.raises(error, match=message) as caught:
        cluster.start()
    assert "\n" not in str(caught.value)
    assert not cluster.running
    cluster.configure({"work_mem": "8MB"})
    cluster.start()
    assert cluster.running


@pytest.mark.pg
def test_initdb_takes_a_levels_options_or_says_why_not(scratch, installed):
    cluster = Cluster(Shell(server_user()), installed("18"), scratch / "c")
    with pytest.raises(ServerError, match=r"initdb failed: .*wal-segsize"):
        cluster.create(["--wal-segsize=7"])
    cluster.create(["--wal-segsize=4", "--no-data-checksums"])
    argv = [cluster.installation.program("postgres"), "-D", str(cluster.data), "-C", "data_checksums"]
    assert cluster.shell.run(argv).stdout == "off\n"
    assert {file.stat().st_size for file in (cluster.data / "pg_wal").glob("0*")} == {4 << 20}


def test_only_the_owner_can_connect_and_the_callers_variables_are_ignored(started, monkeypatch):
    for variable in ("PGPORT=1", "PGHOSTADDR=127.0.0.1", "PGSERVICE=none", "PGOPTIONS=-c work_mem=99MB"):
        monkeypatch.setenv(*variable.split("=", 1))
    cluster = started(work_mem="8MB")
    assert cluster.check_settings() == {"work_mem": "8192 kB"}
    assert os.environ["PGSERVICE"] == "none"
    server = postmaster(cluster)
    # its processes inherit what the first one listens on
    assert [c for c in server.net_connections("inet") if c.status == psutil.CONN_LISTEN] == []
    assert any(c.laddr == str(cluster.sockets / ".s.PGSQL.5432") for c in server.net_connections("unix"))
    for folder in (cluster.folder, cluster.data, cluster.sockets):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder.name
        assert folder.stat().st_uid != 0


def test_a_cluster_stops_in_order_at_once_or_when_killed(new_cluster):
    cluster = new_cluster()
    assert (cluster.log_text(), cluster.log_size()) == ("", 0)
    cluster.stop()
    cluster.start()
    offset = cluster.log_size()
    cluster.execute("CREATE TABLE kept AS SELECT 7 AS n", dbname="postgres")
    with pytest.raises(ServerError, match="division by zero"):
        cluster.execute("SELECT 1/0", dbname="postgres")
    cluster.stop(immediately=True)
    assert "received immediate shutdown request" in cluster.log_text(offset)
    assert "starting PostgreSQL" not in cluster.log_text(offset)
    cluster.start()
    assert cluster.query("SELECT n FROM kept", dbname="postgres") == [{"n": 7}]
    cluster.stop()
    assert not cluster.running
    assert "database system is shut down" in cluster.log_text()
    cluster.start()
    before = os.times()
    os.kill(postmaster(cluster).pid, signal.SIGKILL)
    assert eventually(lambda: not cluster.running)
    assert os.times()[2:4] == before[2:4], "its processor time is not yet collected"
    with pytest.raises(ServerError, match=r"^the server refused or went away.*$"):
        cluster.query("SELECT 1", dbname="postgres")
    cluster.stop()


def test_who_comes_by_the_network_comes_by_one_address_from_one_place_with_a_password(new_cluster):
    def opened(client):
        cluster = new_cluster()
        cluster.listen(NetworkAccess.at("127.0.0.2", [client]))
        cluster.start()
        cluster.admit()
        return cluster

    def come(cluster, host="127.0.0.2", **way):
        way = {"password": cluster.network.password, "user": "postgres", "dbname": "postgres", **way}
        psycopg.connect(host=host, port=cluster.port, connect_timeout=5, **way).close()

    cluster, other = opened("127.0.0.1"), opened("192.0.2.7")
    come(cluster)
    for server, way, reason in (
        (cluster, {"password": "guessed"}, "password authentication failed"),
        (cluster, {"host": "127.0.0.1"}, "refused"),
        (other, {}, r"no pg_hba\.conf entry"),
    ):
        with pytest.raises(psycopg.OperationalError, match=reason):
            come(server, **way)
    server, secret = postmaster(cluster), cluster.network.password
    assert [connection.laddr.ip for connection in server.net_connections("tcp")] == ["127.0.0.2"]
    assert secret not in f"{cluster.log_text()} {cluster.network} {server.cmdline()}"


def test_a_delay_proxy_that_cannot_start_says_why(scratch):
    primary = Cluster(Shell(server_user()), find_installation("18"), scratch / ("long" * 25))
    replica = Replica(primary, 1, Source("/nowhere", 5432, {}, 2), Path())
    primary.make_folders()
    replica.make_folders()
    with pytest.raises(ServerError, match=r"^the delay proxy did not start: .*path too long"):
        replica.stream()
    assert processes_of(scratch) == []
