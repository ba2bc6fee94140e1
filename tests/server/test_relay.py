"""The relay between two servers starts or says why, and goes with the run that made it."""

import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from clusters import begun, eventually

from benchlib.errors import ServerError
from benchlib.host.guardian import guarded_run
from benchlib.host.shell import Shell, server_user
from benchlib.host.sweep import processes_of
from benchlib.server.cluster import Cluster
from benchlib.server.installations import find_installation
from benchlib.server.replica import Relay, Source


def relay(folder: Path, host: str) -> None:
    """Start one, of a replica in a folder."""
    replica = Cluster(Shell(server_user()), find_installation("18"), folder)
    replica.shell.make_directory(folder)
    Relay(replica, Source(host, 5432, {}, 2))


def test_a_relay_that_cannot_start_says_why(scratch):
    with pytest.raises(ServerError, match=r"^the relay between the servers did not start: .*path too long"):
        relay(scratch / ("long" * 25), "/nowhere")
    assert processes_of(scratch) == []


def guarded(runs: Path, ready: Connection) -> None:
    """Start a relay in a guarded run."""
    with guarded_run(runs, "doomed") as run:
        relay(run.folder / "c000", "127.0.0.1")
        ready.send(None)
        time.sleep(99)


def test_a_relay_ends_with_its_run(scratch):
    runs = scratch / "runs"
    told, ready = Pipe(duplex=False)
    doomed = begun(guarded, runs, ready)
    assert told.poll(60)
    assert [p for p in processes_of(runs) if "relay.py" in " ".join(p.cmdline())]
    doomed.kill()
    doomed.join()
    assert eventually(lambda: not list(runs.glob("run-*")))
    assert processes_of(runs) == []
