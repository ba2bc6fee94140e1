"""The two ways to crash a server: killing all of its processes, and copying what its disk holds at one moment."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchlib.errors import ServerError
from benchlib.host.changes import OURS
from benchlib.host.guardian import Run
from benchlib.host.shared_memory import remove_left_below
from benchlib.host.shell import ticks
from benchlib.levers import volumes
from benchlib.levers.storage import storage_of
from benchlib.levers.volumes import Place
from benchlib.plan.level import Level, SettingValue
from benchlib.server.cluster import Cluster
from benchlib.server.copying import share_blocks
from benchlib.study.stand import OwnStand

_DEATH_S = 10.0


def kill(cluster: Cluster) -> float:
    """Kill all processes of a server at once; when, in seconds of :func:`time.monotonic`.

    Raises:
        ServerError: it is gone already, or a process does not die.

    """
    try:
        postmaster = psutil.Process(cluster.pid)
        processes = [postmaster, *postmaster.children(recursive=True)]
    except psutil.NoSuchProcess:
        raise ServerError("the server was gone before the crash") from None
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


def copy_disk(level: Level) -> float:
    """Copy the file behind a level's disk in one moment; when that began, in seconds of :func:`time.monotonic`.

    Raises:
        OSError: the file system below cannot share blocks.

    """
    image = _image(level)
    moment = time.monotonic()
    share_blocks(image, image.with_name("copy"))
    return moment


@contextlib.contextmanager
def from_copy(level: Level, stand: OwnStand, run: Run) -> Iterator[Cluster]:
    """A cluster on the copy of a level's disk, configured and not started; the copy goes at the end.

    Raises:
        TrialError: the copy cannot be mounted.

    """
    original = stand.server
    copy = _image(level).with_name("copy")
    cluster = Cluster(original.shell, original.installation, run.folder / "copy", original.groups)
    try:
        with run.journal.chapter() as chapter:
            disk = volumes.mount_image(_disk(level), copy, "copy", run.folder, chapter)
            for folder in (cluster.folder, cluster.sockets):
                cluster.shell.make_directory(folder)
            cluster.data.symlink_to(disk / "data")
            # after a power cut no process has the number that it holds; here others go on
            (cluster.data / "postmaster.pid").unlink(missing_ok=True)
            cluster.configure({**_quick_recovery(cluster), **original.wanted})
            try:
                yield cluster
            finally:
                cluster.stop(immediately=True)
                remove_left_below(disk)
    finally:
        shutil.rmtree(cluster.folder, ignore_errors=True)
        copy.unlink(missing_ok=True)


def _quick_recovery(cluster: Cluster) -> dict[str, SettingValue]:
    """One sync of the file system instead of one of each of a thousand files, which is most of a short recovery."""
    return {"recovery_init_sync_method": "syncfs"} if cluster.installation.major >= 14 else {}


def _disk(level: Level) -> Place:
    disk = storage_of(level).data
    assert disk is not None
    return disk


def _image(level: Level) -> Path:
    """The file of the one disk that is below the level's ground."""
    (image,) = Path(str(_disk(level).path)).glob(f"{OURS}*/image")
    return image
