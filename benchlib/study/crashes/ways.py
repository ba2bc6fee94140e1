"""The two ways to crash a server: killing all of its processes, and copying what its disk holds at one moment."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchlib.errors import ServerError
from benchlib.host.changes import OURS
from benchlib.host.guardian import Run
from benchlib.host.shared_memory import remove_left_below
from benchlib.host.shell import ticks
from benchlib.levers import volumes
from benchlib.levers.lever import Site
from benchlib.levers.storage import storage_of
from benchlib.levers.volumes import Place
from benchlib.plan.level import SettingValue
from benchlib.server.cluster import Cluster
from benchlib.server.copying import share_blocks
from benchlib.study.crashed import KILLED, POWER_CUT, Kind

_DEATH_S = 10.0


def _kill(site: Site) -> float:
    """Kill all processes of the server at once.

    Raises:
        ServerError: it is gone already, or a process does not die.

    """
    if not site.cluster.running:
        raise ServerError("the server was gone before the crash")
    postmaster = psutil.Process(site.cluster.pid)
    processes = [postmaster, *postmaster.children(recursive=True)]
    moment = time.monotonic()
    for process in processes:  # the postmaster first: it would start the others again
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    for _ in ticks(_DEATH_S):
        if not any(map(_alive, processes)):
            return moment
    raise ServerError("a process of the killed server does not die")


def _alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


@contextlib.contextmanager
def _after_kill(site: Site, run: Run) -> Iterator[Cluster]:
    """The killed server itself, collected."""
    site.cluster.stop()
    yield site.cluster


def _copy_disk(site: Site) -> float:
    """Copy the file behind the stand's disk in one moment.

    Raises:
        OSError: the file system below cannot share blocks.

    """
    _, image = _disk(site)
    moment = time.monotonic()
    share_blocks(image, image.with_name("copy"))
    return moment


@contextlib.contextmanager
def _after_copy(site: Site, run: Run) -> Iterator[Cluster]:
    """A cluster on the copy of the stand's disk, which goes at the end; then the stand's own server goes on.

    Raises:
        TrialError: the copy cannot be mounted.

    """
    original, (place, image) = site.cluster, _disk(site)
    original.stop()
    copy = image.with_name("copy")
    cluster = Cluster(original.shell, original.installation, run.folder / "copy", original.groups)
    # one sync of the file system, not one of each of a thousand files, which is most of a short recovery
    quick: dict[str, SettingValue] = (
        {"recovery_init_sync_method": "syncfs"} if cluster.installation.major >= 14 else {}
    )
    try:
        with run.journal.chapter() as chapter:
            disk = volumes.mount_image(place, copy, "copy", run.folder, chapter)
            for folder in (cluster.folder, cluster.sockets):
                cluster.shell.make_directory(folder)
            cluster.data.symlink_to(disk / "data")
            # after a power cut no process has the number that it holds; here others go on
            (cluster.data / "postmaster.pid").unlink(missing_ok=True)
            cluster.configure({**quick, **original.wanted})
            try:
                yield cluster
            finally:
                cluster.stop(immediately=True)
                remove_left_below(disk)
    finally:
        shutil.rmtree(cluster.folder, ignore_errors=True)
        copy.unlink(missing_ok=True)
    original.start()


def _disk(site: Site) -> tuple[Place, Path]:
    """The one disk of a stand, and the file behind it."""
    disk = storage_of(site.level).data
    assert disk is not None
    (image,) = Path(str(disk.path)).glob(f"{OURS}*/image")
    return disk, image


@dataclass(frozen=True)
class Way:
    """A way to crash a server.

    The crash comes between the times ``after_s``, in seconds of load. ``crash`` tells when it did, in seconds of
    :func:`time.monotonic`; ``remains`` has a cluster on what it left, not started.
    """

    after_s: tuple[float, float]
    crash: Callable[[Site], float]
    remains: Callable[[Site, Run], AbstractContextManager[Cluster]]


WAYS: dict[Kind, Way] = {
    KILLED: Way((0.3, 1.5), _kill, _after_kill),
    POWER_CUT: Way((1.0, 4.0), _copy_disk, _after_copy),
}
