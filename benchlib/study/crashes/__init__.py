"""Crash tests: lost commits and damage after a killed server or a power cut.

*Killed server*: SIGKILL for all processes; data in the kernel survives.

*Power cut*: data and WAL share an ext4 file system on a loop device with direct I/O. Its backing file is
cloned with ``ioctl_ficlone(2)``, which waits for requests in flight. So the copy is a disk without volatile
cache at one moment. Constant checkpoints and two settings provoke torn pages, which data checksums detect.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from functools import cache
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
from benchlib.study.crashes.commits import WORKLOAD, crash_load, examine
from benchlib.study.environment import Environment, build
from benchlib.study.loop import Tell
from benchlib.study.store import StudyFolder

_DEATH_S = 10.0
_KILL_S, _CUT_S = (0.3, 1.5), (1.0, 4.0)
"""Ranges for the time of a crash, in seconds of load."""
_RECOVERY_LIMIT_S = 900.0
"""Time limit of recovery: it may replay a whole ``max_wal_size`` from a slow disk."""

_DISK = volumes.Place(file_system="ext4", size=640 << 20)
_GROUND = volumes.Place(file_system="xfs", size=1536 << 20)
"""File system with reflink for the disk's backing file and its copy."""
# an 8 kB page takes two requests; dirty pages are written after 0.5 s, so that only some reach the disk
_HOST = {"max_sectors_kb": 4, "vm.dirty_expire_centisecs": 50, "vm.dirty_writeback_centisecs": 20}


def crash_missing(
    folder: StudyFolder, rounds: int, tell: Tell, may_here: Callable[[], None] = lambda: None
) -> None:
    """Run and save the missing crashes: ``rounds`` per level and kind.

    ``may_here`` raises if the study belongs to another machine.

    Raises:
        InputError: the study has no trials yet, or a saved crash is damaged.
        StudyError: a level cannot be crashed, or Ctrl-C.

    """
    if not folder.exists():
        raise InputError("the study has no trials: run it before its crashes")
    plan, kept = folder.read().plan, {(each.level, each.kind, each.number) for each in kept_crashes(folder)}
    todo, done, notes = list[Round](), 0, ""
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
            notes += f"; {kind} is skipped: {reason}"

    def report(doing: str) -> None:
        tell(f"{folder.name}: crash {done}/{len(todo)} · {doing}{notes}")

    try:
        if todo:
            may_here()
            with (
                workshop(f"crashing “{folder.name}”", 1, report) as templates,
                templates.run.journal.scope() as scope,
            ):
                ground = cache(
                    lambda: volumes.provide(_GROUND, "ground", templates.run.folder, Shell(), scope)
                )
                for this in todo:
                    report(f"“{this.level}”, {this.kind}")
                    keep_crash(folder, _crash(plan, this, f"x{done:02d}", templates, ground))
                    done += 1
    except KeyboardInterrupt:
        kept_now = f"stopped: {done} of {len(todo)} crashes are saved"
        raise Interrupted(f"{kept_now}; repeat the command to continue") from None
    report("done")


def check(kind: Kind) -> None:
    """Check that such crashes are possible here, else raise PreflightError."""
    if kind == POWER_CUT:
        volumes.check(_DISK, scratch_root())
        volumes.check(_GROUND, scratch_root())


def _crash(plan: Plan, this: Round, name: str, templates: Templates, ground: Callable[[], Path]) -> Crash:
    """Return a round's result, on a new cluster of that name."""
    level = _as_crashed(plan.level(this.level), ground() if this.kind == POWER_CUT else None)
    try:
        built = build(level, WORKLOAD, templates.run.folder / name, templates)
        with contextlib.closing(built) as environment, environment.apply_settings():
            return _round(environment, this, Random(f"{plan.seed} {this.model_dump_json()}"))
    except BenchlibError as reason:
        raise StudyError(f"level “{this.level}” cannot be crashed ({this.kind}): {reason}") from reason


def _as_crashed(level: Level, ground: Path | None) -> Level:
    """Return a level with checksums and without caps."""
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


def _round(environment: Environment, this: Round, random: Random) -> Crash:
    power_cut, site = this.kind == POWER_CUT, environment.site
    assert site is not None  # left_out() excludes external servers
    version = environment.server.version()
    environment.checkpoint()
    os.sync()
    after_s = random.uniform(*(_CUT_S if power_cut else _KILL_S))
    with crash_load(site.cluster, random, checkpoints=power_cut) as (times_by_client, end_load):
        started = time.monotonic()
        time.sleep(after_s)
        moment = _copy_disk(site, end_load) if power_cut else _kill(site, end_load)
    site.cluster.stop()
    rows, recovery_s = None, None
    with _on_copy(site, environment.run) if power_cut else contextlib.nullcontext(site.cluster) as cluster:
        log, restarted = cluster.log_size(), time.monotonic()
        try:
            cluster.start(_RECOVERY_LIMIT_S)
            recovery_s = round(time.monotonic() - restarted, 3)
            rows, damage = examine(cluster)
        except ServerError:
            damage = (failure_reason(cluster.log_text(log)),)
    acknowledged = {
        (client, nth): at for client, times in enumerate(times_by_client) for nth, at in enumerate(times)
    }
    # commits during the copy need not be in it
    promised = {row: at for row, at in acknowledged.items() if not power_cut or at <= moment}
    lost = None if rows is None else promised.keys() - rows
    oldest_ms = 1000 * (moment - min(promised[row] for row in lost)) if lost else None
    return Crash(
        **this.model_dump(),
        after_s=round(moment - started, 3),
        server_version=version,
        acknowledged=len(promised),
        lost=None if lost is None else len(lost),
        oldest_lost_ms=None if oldest_ms is None else round(max(0.0, oldest_ms), 1),
        unacknowledged=None if rows is None else len(rows - acknowledged.keys()),
        recovery_s=recovery_s,
        damage=damage,
    )


# --- the two kinds ----------------------------------------------------------------------------


def _kill(site: Site, end_load: Callable[[], None]) -> float:
    """Kill all server processes while the load commits; return the time."""
    if not site.cluster.running:
        raise ServerError("the server was gone before the crash")
    postmaster = psutil.Process(site.cluster.pid)
    processes = [postmaster, *postmaster.children(recursive=True)]
    end_load()
    moment = time.monotonic()
    for process in processes:  # the postmaster first: it restarts the others
        known(process.kill)
    for _ in ticks(_DEATH_S):
        if all(known(process.status) in (None, psutil.STATUS_ZOMBIE) for process in processes):
            return moment
    raise ServerError("a process of the killed server does not die")


def _copy_disk(site: Site, end_load: Callable[[], None]) -> float:
    """Clone the disk's backing file; return the time."""
    _, image = _disk(site)
    end_load()
    moment = time.monotonic()
    share_blocks(image, image.with_name("copy"))
    return moment


@contextlib.contextmanager
def _on_copy(site: Site, run: Run) -> Iterator[Cluster]:
    """Provide a cluster on the copied disk."""
    original, (place, image) = site.cluster, _disk(site)
    copy = image.with_name("copy")
    cluster = Cluster(original.shell, original.installation, run.folder / "copy", original.groups)
    try:
        with run.journal.scope() as scope:
            disk = volumes.mount_image(place, copy, "copy", run.folder, scope)
            cluster.make_folders()
            cluster.place(disk / "data")
            # its process id may belong to another process here
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


def _disk(site: Site) -> tuple[volumes.Place, Path]:
    disk = storage_of(site.level).data
    assert disk is not None
    (image,) = Path(str(disk.path)).glob(f"{OURS}*/image-*")
    return disk, image
