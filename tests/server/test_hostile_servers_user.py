"""Whoever runs as the servers' user gets nothing that is root's: attacks from that account, on real clusters."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import needs
import pytest

from benchlib.errors import BenchlibError, PreflightError
from benchlib.host.shell import Shell, server_user
from benchlib.load.latency import client_logs, keep_log
from benchlib.server.cluster import Cluster, refusal
from benchlib.server.installations import Installation

pytestmark = [*needs.ROOT]


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder that only root may enter, with a secret."""
    folder = tmp_path / "precious"
    folder.mkdir(mode=0o700)
    (folder / "secret").write_text("the secret of root\n")
    (folder / "secret").chmod(0o600)
    return folder


@pytest.fixture
def attacker() -> Callable[..., None]:
    """Runs a script as the servers' user."""

    def run(script: str, *words: Path) -> None:
        subprocess.run(["sh", "-c", script, "sh", *words], user=server_user(), check=True, cwd="/")

    return run


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
def test_a_data_directory_exchanged_for_a_link_leads_root_nowhere(
    act: Callable[[Cluster], object],
    new_cluster: Callable[[], Cluster],
    precious: Path,
    attacker: Callable[..., None],
) -> None:
    cluster, before = new_cluster(), sorted(precious.iterdir())
    attacker('mv "$1" "$1.old" && ln -s "$2" "$1"', cluster.data, precious)
    with contextlib.suppress(BenchlibError):  # what does nothing does no harm
        act(cluster)
    assert sorted(precious.iterdir()) == before
    assert {path.stat().st_uid for path in (precious, *precious.iterdir())} == {0}


def test_a_log_exchanged_for_a_link_is_not_read(
    new_cluster: Callable[[], Cluster],
    precious: Path,
    attacker: Callable[..., None],
    scratch: Path,
    tmp_path: Path,
) -> None:
    cluster = new_cluster()
    attacker('rm -f "$1"; ln -s "$2" "$1"', cluster.log, precious / "secret")
    assert cluster.log_text() == ""
    with pytest.raises(BenchlibError):
        cluster.start()
    logs = cluster.shell.make_directory(scratch / "log")
    attacker('ln -s "$2" "$1/log.1"', logs, precious / "secret")
    with pytest.raises((BenchlibError, OSError)) as caught:
        keep_log(client_logs(logs), tmp_path / "kept", ["pgbench", "--log"], cluster.shell.uid)
    assert "secret of root" not in str(caught.value)


def test_a_server_that_its_user_cannot_run_is_never_run_by_root(tmp_path: Path) -> None:
    """A build closed to others, whose programs say who runs them."""
    ran = Path("/var/tmp") / f"ran-{os.getpid()}"
    ran.mkdir(mode=0o777)
    ran.chmod(0o777)
    try:
        bindir = tmp_path / "closed" / "pg" / "bin"
        bindir.mkdir(parents=True)
        (tmp_path / "closed").chmod(0o700)
        for name in ("postgres", "initdb"):
            (bindir / name).write_text(f'#!/bin/sh\ntouch "{ran}/$(id -u)"\nexit 1\n')
            (bindir / name).chmod(0o755)
        hostile = Installation("16.9", bindir, "given folder", None, "cc", has_pgbench=False)
        with pytest.raises(PreflightError, match="cannot run a copy"):
            refusal(hostile, {"work_mem": "8MB"})
        assert {path.name for path in ran.iterdir()} <= {str(Shell(server_user()).uid)}
    finally:
        shutil.rmtree(ran)
