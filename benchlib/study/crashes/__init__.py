"""What a crash loses, found out by crashing: acknowledged commits, and damage.

Sessions commit rows and note each commit that the server acknowledged (:mod:`.commits`). At a random moment
the server goes, and another is started on what is left, recovers, and is asked for those rows.

*Killed server*: all of its processes are killed at once (SIGKILL), so that no postmaster starts them again. What
they had handed to the kernel survives; it is what they still had in memory that is lost.

*Power cut*: data and WAL lie together on an ext4 on a loop device, which reads and writes its file directly. At the
moment the file is copied by reflink (``ioctl_ficlone(2)``): the kernel waits for the requests that are under way, takes up
no other, and shares all blocks, so that the copy is what a disk without a volatile cache had at one moment. The original is
stopped, the copy mounted (the file system recovers from its own journal), and the server started from it. Two
things are made as a server meets them that runs for weeks: the device takes requests of 4 kB at most (``max_sectors_kb``), so
that a page of 8 kB goes in two, as on a disk whose atomic unit is a sector of 4 kB, and may be torn between; and the
kernel writes back what is dirty after half a second instead of half a minute, so that a round of seconds
meets a disk that has got some pages and not others. Checkpoints follow one another, since it is they that write pages.

Beside that, all clusters have data checksums, which tell a torn page; the levels' own settings are in force.
"""

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from random import Random

import psutil

from benchlib.errors import BenchlibError, InputError, Interrupted, PreflightError, ServerError, StudyError
from benchlib.host import files
from benchlib.host.changes import OURS
from benchlib.host.guardian import Run, scratch_root
from benchlib.host.shell import Shell, known, ticks
from benchlib.host.sweep import remove_shared_memory
from benchlib.levers import volumes
from benchlib.levers.lever import Site
from benchlib.levers.storage import storage_of
from benchlib.plan.level import Level
from benchlib.plan.model import Plan
from benchlib.server.cluster import Cluster, failure_reason
from benchlib.server.copying import share_blocks
from benchlib.server.templates import Templates, workshop
from benchlib.study.crashed import KINDS, POWER_CUT, Crash, Kind, Round, keep_crash, kept_crashes, left_out
from benchlib.study.crashes.commits import WORKLOAD, Row, crash_load, examine
from benchlib.study.loop import Tell
from benchlib.study.stand import Stand, build
from benchlib.study.store import StudyFolder

_DEATH_S = 10.0
_KILL_S, _CUT_S = (0.3, 1.5), (1.0, 4.0)
"""Between which times a crash comes, in seconds of load."""
_RECOVERY_LIMIT_S = 900.0
"""A recovery may replay a whole ``max_wal_size`` from a slow disk."""

_DISK = volumes.Place(file_system="ext4", size=640 << 20)
_GROUND = volumes.Place(file_system="xfs", size=1536 << 20)
"""Holds the disk's file and its copy: a file system that can reflink."""
_HOST = {"max_sectors_kb": 4, "vm.dirty_expire_centisecs": 50, "vm.dirty_writeback_centisecs": 20}


def crash_missing(
    folder: StudyFolder, rounds: int, tell: Tell, may_here: Callable[[], None] = lambda: None
) -> None:
    """Crash each level of a study so many times in each way, as far as that is not kept, and keep each crash.

    What this machine cannot do is left out, and ``tell`` hears why. ``may_here`` is asked first where any are missing: it raises
    where the study is of another machine.

    Raises:
        InputError: the study has not been begun, or a kept crash is damaged.
        StudyError: a level cannot be crashed, or Ctrl-C; what was kept before is safe.

    """
    if not folder.exists():
        raise InputError("the levels are crashed for a study: run the study first")
    plan, kept = folder.read().plan, {(each.level, each.kind, each.number) for each in kept_crashes(folder)}
    todo: list[Round] = []
    done, notes = 0, ""
    for kind in KINDS:
        excused = left_out(plan, kind)
        missing = [
            Round(level=name, kind=kind, number=number)
            for name in plan.factor.levels
            for number in range(1, rounds + 1)
            if name not in excused and (name, kind, number) not in kept
        ]
        try:
            if missing:
                check(kind)
            todo += missing
        except PreflightError as reason:
            notes += f"; {kind} is left out: {reason}"

    def report(doing: str) -> None:
        tell(f"{folder.name}: crash {done}/{len(todo)} · {doing}{notes}")

    try:
        if todo:
            may_here()
            with (
                workshop(f"crashing “{folder.name}”", 1, report) as templates,
                contextlib.closing(_crashes(plan, todo, templates)) as crashes,
            ):
                for crash in crashes:
                    keep_crash(folder, crash)
                    done += 1
    except KeyboardInterrupt:
        kept_now = f"stopped: {done} of {len(todo)} crashes are kept"
        raise Interrupted(f"{kept_now}; run the same again to go on from there") from None
    report("done")


def check(kind: Kind) -> None:
    """See whether crashes of a kind can be made on this machine.

    Raises:
        PreflightError: they cannot; the message says why and what to do.

    """
    if kind == POWER_CUT:
        volumes.check(_DISK, scratch_root())
        volumes.check(_GROUND, scratch_root())


def _crashes(plan: Plan, rounds: Iterable[Round], templates: Templates) -> Generator[Crash, None, None]:
    """What each round left. Rounds of one level and kind that follow each other share a cluster.

    Each begins with a recovered server and with everything on its disk.
    """
    run = templates.run
    ground: Path | None = None
    with run.journal.chapter() as chapter:
        for (name, kind), group in groupby(rounds, lambda each: (each.level, each.kind)):
            if kind == POWER_CUT and ground is None:
                templates.tell("making a disk that can be copied in one moment")
                ground = volumes.provide(_GROUND, "ground", run.folder, Shell(), chapter)
            level = _as_crashed(plan.level(name), ground if kind == POWER_CUT else None)
            todo = list(group)
            try:
                while todo:
                    yield from _on_one_stand(level, todo, plan.seed, templates)
            except BenchlibError as reason:
                raise StudyError(f"level “{name}” cannot be crashed ({kind}): {reason}") from reason


def _as_crashed(level: Level, ground: Path | None) -> Level:
    """A level's server with checksums, at the speed of its disks; its disk below ``ground`` where its power will be cut."""
    places = {
        name: place for name, place in level.part("storage").items() if name in ("data", "wal") and place
    }
    changes: dict[str, object] = {"storage": places or None}
    if not any(option == "-k" or "checksums" in option for option in level.initdb):
        changes["initdb"] = (*level.initdb, "--data-checksums")
    if ground:
        place = _DISK.changed(path=str(ground))
        changes["storage"] = {"data": place.model_dump(mode="json")}
        named = {name.removesuffix("?") for name in level.host}
        changes["host"] = {**level.host, **{k: v for k, v in _HOST.items() if k not in named}}
    return level.without_load().model_copy(update=changes)


def _on_one_stand(level: Level, todo: list[Round], seed: int, templates: Templates) -> Iterator[Crash]:
    """Crash one level until all rounds are done, or it is damaged and needs a new stand."""
    # a short name, as the path of a socket has to be
    folder = templates.run.folder / f"x{len(todo):02d}"
    with contextlib.closing(build(level, WORKLOAD, folder, templates)) as stand, stand.under():
        while todo:
            this = todo.pop(0)
            templates.tell(f"“{this.level}”, {this.kind}")
            crash = _round(stand, this, Random(f"{seed} {this.model_dump_json()}"))
            yield crash
            if crash.damage and this.kind != POWER_CUT:
                return  # nobody knows what state it is in


def _round(stand: Stand, this: Round, random: Random) -> Crash:
    power_cut, version, site = this.kind == POWER_CUT, stand.server.version(), stand.site
    assert site is not None  # who is not ours is left out
    stand.checkpoint()
    os.sync()
    after_s = random.uniform(*(_CUT_S if power_cut else _KILL_S))
    with crash_load(site.cluster, this.number, random, checkpoints=power_cut) as (times_by_client, end_load):
        started = time.monotonic()
        time.sleep(after_s)
        if power_cut:
            end_load()
        moment = _copy_disk(site) if power_cut else _kill(site, end_load)
    site.cluster.stop()
    with _on_copy(site, stand.run) if power_cut else contextlib.nullcontext(site.cluster) as cluster:
        rows, recovery_s, damage = _restarted(cluster, this.number)
    by_client = enumerate(times_by_client)
    acknowledged = {(client, nth): at for client, times in by_client for nth, at in enumerate(times)}
    # while a disk is copied commits go on: those promise nothing of the copy
    promised = {row: at for row, at in acknowledged.items() if not power_cut or at <= moment}
    lost = None if rows is None else promised.keys() - rows
    oldest_s = max(0.0, moment - min(promised[row] for row in lost)) if lost else None
    return Crash(
        **this.model_dump(),
        after_s=round(moment - started, 3),
        server_version=version,
        acknowledged=len(promised),
        lost=None if lost is None else len(lost),
        oldest_lost_ms=None if oldest_s is None else round(1000 * oldest_s, 1),
        unacknowledged=None if rows is None else len(rows - acknowledged.keys()),
        recovery_s=recovery_s,
        damage=damage,
    )


def _restarted(cluster: Cluster, number: int) -> tuple[set[Row] | None, float | None, tuple[str, ...]]:
    """Start a server again: the rows of the round, how long recovery took, and what is damaged."""
    log, started = cluster.log_size(), time.monotonic()
    try:
        cluster.start(_RECOVERY_LIMIT_S)
    except ServerError:
        return None, None, (failure_reason(cluster.log_text(log)),)
    recovery_s = round(time.monotonic() - started, 3)
    rows, damage = examine(cluster, number)
    return rows, recovery_s, damage


# --- the two ways ----------------------------------------------------------------------------


def _kill(site: Site, end_load: Callable[[], None]) -> float:
    """Kill all processes of the server at once, while the load commits: that is told only as they die.

    Raises:
        ServerError: it is gone already, or a process does not die.

    """
    if not site.cluster.running:
        raise ServerError("the server was gone before the crash")
    postmaster = psutil.Process(site.cluster.pid)
    processes = [postmaster, *postmaster.children(recursive=True)]
    end_load()
    moment = time.monotonic()
    for process in processes:  # the postmaster first: it would start the others again
        known(process.kill)
    for _ in ticks(_DEATH_S):
        if all(known(process.status) in (None, psutil.STATUS_ZOMBIE) for process in processes):
            return moment
    raise ServerError("a process of the killed server does not die")


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
def _on_copy(site: Site, run: Run) -> Iterator[Cluster]:
    """A cluster on the copy of the stand's disk, which goes at the end; then the stand's own server goes on.

    Raises:
        TrialError: the copy cannot be mounted.

    """
    original, (place, image) = site.cluster, _disk(site)
    copy = image.with_name("copy")
    cluster = Cluster(original.shell, original.installation, run.folder / "copy", original.groups)
    try:
        with run.journal.chapter() as chapter:
            disk = volumes.mount_image(place, copy, "copy", run.folder, chapter)
            cluster.make_folders()
            cluster.place(disk / "data")
            # after a power cut no process has the number that it holds; here others go on
            cluster.shell.remove(cluster.data / "postmaster.pid")
            cluster.configure(original.wanted)
            try:
                yield cluster
            finally:
                cluster.stop(immediately=True)
                remove_shared_memory(disk)
    finally:
        cluster.shell.remove(cluster.folder)
        files.remove(copy)
    original.start()


def _disk(site: Site) -> tuple[volumes.Place, Path]:
    """The one disk of a stand, and the file behind it."""
    disk = storage_of(site.level).data
    assert disk is not None
    (image,) = Path(str(disk.path)).glob(f"{OURS}*/image-*")
    return disk, image
