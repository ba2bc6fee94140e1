"""Whoever runs as the servers' user gets nothing that is root's: attacks from that account, on real clusters."""

import contextlib
import subprocess
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import needs
import pytest
from clusters import short_folder

from benchlib.errors import BenchlibError, PreflightError
from benchlib.host.shell import Shell, server_user
from benchlib.levers.replication import replica_beside
from benchlib.load.latency import client_logs, keep_log
from benchlib.plan.level import Level
from benchlib.server.cluster import refusal
from benchlib.server.installations import Installation

pytestmark = [*needs.ROOT]


@pytest.fixture
def precious(tmp_path):
    """A folder that only root may enter, with a secret."""
    folder = tmp_path / "precious"
    folder.mkdir(mode=0o700)
    (folder / "secret").write_text("the secret of root\n")
    (folder / "secret").chmod(0o600)
    return folder


def exchange(path: Path, target: Path) -> None:
    """Put a link in a path's place, as the servers' user."""
    script = 'if [ -e "$1" ]; then mv "$1" "$1.old"; fi; ln -s "$2" "$1"'
    subprocess.run(["sh", "-c", script, "sh", path, target], user=server_user(), check=True, cwd="/")


@pytest.mark.parametrize(
    "act",
    [
        lambda cluster: cluster.configure({"work_mem": "8MB"}),
        lambda cluster: cluster.write("standby.signal", ""),
        lambda cluster: cluster.clone(cluster.folder.with_name("copy")),
        lambda cluster: cluster.shell.remove(cluster.data / "secret"),
        lambda cluster: cluster.shell.make_directory(cluster.data / "new"),
        lambda cluster: cluster.shell.link(cluster.data / "new", Path("/")),
    ],
)
def test_a_data_directory_exchanged_for_a_link_leads_root_nowhere(act, new_cluster, precious):
    cluster, before = new_cluster(), sorted(precious.iterdir())
    exchange(cluster.data, precious)
    with contextlib.suppress(BenchlibError):  # what does nothing does no harm
        act(cluster)
    assert sorted(precious.iterdir()) == before
    assert {path.stat().st_uid for path in (precious, *precious.iterdir())} == {0}


def test_a_log_exchanged_for_a_link_is_not_read(new_cluster, precious, scratch, tmp_path):
    cluster = new_cluster()
    exchange(cluster.log, precious / "secret")
    assert cluster.log_text() == ""
    with pytest.raises(BenchlibError):
        cluster.start()
    logs = cluster.shell.make_directory(scratch / "log")
    exchange(logs / "log.1", precious / "secret")
    with pytest.raises((BenchlibError, OSError)) as caught:
        keep_log(client_logs(logs), tmp_path / "kept", ["pgbench", "--log"], cluster.shell.uid)
    assert "secret of root" not in str(caught.value)


def test_a_server_that_its_user_cannot_run_is_never_run_by_root(tmp_path):
    """A build closed to others, whose programs say who runs them."""
    bindir = tmp_path / "closed" / "pg" / "bin"
    bindir.mkdir(parents=True)
    (tmp_path / "closed").chmod(0o700)
    with short_folder() as ran:
        ran.chmod(0o777)
        for name in ("postgres", "initdb"):
            (bindir / name).write_text(f'#!/bin/sh\ntouch "{ran}/$(id -u)"\nexit 1\n')
            (bindir / name).chmod(0o755)
        hostile = Installation("16.9", bindir, "given folder", None, "cc", has_pgbench=False)
        with pytest.raises(PreflightError, match="cannot run a copy"):
            refusal(hostile, {"work_mem": "8MB"})
        assert {path.name for path in ran.iterdir()} <= {str(Shell(server_user()).uid)}


def test_where_a_replica_s_disk_is_is_not_asked_of_a_link_that_may_be_exchanged(new_cluster, precious):
    cluster, before = new_cluster(), sorted(precious.iterdir())
    exchange(cluster.data, precious / "below")
    assert (cluster.placed, cluster.placed_wal) == (cluster.data, cluster.data / "pg_wal")
    site = SimpleNamespace(cluster=cluster, level=Level(), name="x", program=Path)
    replica = replica_beside(site, 1, Mock())
    assert not replica.places
    assert sorted(precious.iterdir()) == before
