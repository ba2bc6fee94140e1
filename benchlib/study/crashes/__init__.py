"""What a crash loses, found out by crashing: acknowledged commits, and damage.

Sessions commit rows and note each commit that the server acknowledged (:mod:`.load`). At a random moment
the server goes, and another is started on what is left, recovers, and is asked for those rows (:mod:`.damage`).

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

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Literal

from pydantic import Field

from benchlib.errors import BenchlibError, PreflightError, ServerError, StudyError
from benchlib.host.guardian import Run, guarded_run, scratch_root
from benchlib.host.shell import Shell, server_user
from benchlib.levers import volumes
from benchlib.plan.level import Level, LoadPatch, Model, Place, Storage
from benchlib.plan.model import Plan
from benchlib.server.cluster import Cluster
from benchlib.server.copying import can_share
from benchlib.server.templates import Templates
from benchlib.study.crashes import ways
from benchlib.study.crashes.damage import Row, examine, last_cries
from benchlib.study.crashes.load import WORKLOAD, CrashLoad
from benchlib.study.stand import Stand, build

Kind = Literal["killed server", "power cut"]
KILLED: Kind = "killed server"
POWER_CUT: Kind = "power cut"
KINDS = (KILLED, POWER_CUT)

_MOMENT_S = {KILLED: (0.3, 1.5), POWER_CUT: (1.0, 4.0)}
"""Between which times after the load has begun the crash comes."""
_DISK = Place(file_system="ext4", size=640 << 20)
_GROUND = Place(file_system="xfs", size=1536 << 20)
"""Holds the disk's file and its copy where the scratch folder's own file system cannot reflink."""
_HOST: dict[str, int | str] = {
    "max_sectors_kb": 4,
    "vm.dirty_expire_centisecs": 50,
    "vm.dirty_writeback_centisecs": 20,
}


class Round(Model):
    """One crash of one level; ``number`` counts those of a kind at a level from 1."""

    level: str
    kind: Kind
    number: int = Field(ge=1)


class Crash(Round):
    """What one crash left.

    ``after_s`` is when it came, in seconds of load; ``acknowledged`` counts the commits up to then, ``lost`` those of them
    that are gone, and ``oldest_lost_ms`` is how long before the crash the first of them was acknowledged.
    ``unacknowledged`` commits are there although nobody was told, which does no harm. All three are None where the rows
    cannot be read, and ``recovery_s``, from the start until the server answered, where it did not start. ``damage``
    is in the server's own words.
    """

    after_s: float
    server_version: str
    acknowledged: int
    lost: int | None
    oldest_lost_ms: float | None
    unacknowledged: int | None
    recovery_s: float | None
    damage: tuple[str, ...]


def left_out(plan: Plan, kind: Kind) -> dict[str, str]:
    """The levels that are not crashed, each with the reason."""
    reasons: dict[str, str] = {}
    met: dict[str, str] = {}
    for name in plan.factor.levels:
        level = _server_of(plan.level(name))
        storage = level.storage or Storage()
        same = met.setdefault(level.model_dump_json(), name)
        if level.target:
            reasons[name] = "its server is not ours to crash"
        elif level.replication and level.replication.replicas:
            reasons[name] = "its rows are on replicas too, which each trial holds to their promise"
        elif same != name:
            reasons[name] = f"its server is that of “{same}”"
        elif kind == POWER_CUT and (storage.data or storage.wal):
            reasons[name] = "its data or WAL have a place of their own, and one device loses power here"
    return reasons


def check(kind: Kind, scratch: Path | None = None) -> None:
    """See whether crashes of a kind can be made on this machine.

    Raises:
        PreflightError: they cannot; the message says why and what to do.

    """
    if kind == POWER_CUT:
        scratch = scratch or scratch_root()
        if os.geteuid() != 0:
            raise PreflightError(
                "a power cut needs a loop device and a mount, which only root can make: run as root"
            )
        volumes.check(_DISK, scratch)
        if not can_share(scratch):
            volumes.check(_GROUND, scratch)


def crash(
    plan: Plan,
    study: str,
    rounds: Iterable[Round],
    keep: Callable[[Crash], None],
    tell: Callable[[str], None] = lambda words: None,
    *,
    scratch: Path | None = None,
) -> None:
    """Crash levels of a plan, round by round; ``keep`` is given what each left.

    Rounds of one level and kind that follow each other share a cluster: each begins with a recovered server
    and with everything on its disk. ``study`` names the run to anyone who finds the host taken.

    Raises:
        PreflightError: a kind cannot be had here, or another run is under way.
        StudyError: a level's cluster cannot be built or loaded; the rounds that were kept are safe.

    """
    scratch = scratch or scratch_root()
    with guarded_run(scratch, f"crashing “{study}”", tell) as run, run.journal.chapter() as chapter:
        shell = Shell(server_user())
        templates = Templates(run.folder, shell, 1, tell)
        ground: Path | None = None
        try:
            for (name, kind), group in groupby(rounds, lambda each: (each.level, each.kind)):
                if kind == POWER_CUT and ground is None:
                    check(kind, scratch)
                    tell("making a disk that can be copied in one moment")
                    ground = run.folder if can_share(run.folder) else volumes.provide(
                        _GROUND, "ground", run.folder, Shell(), chapter
                    )  # fmt: skip
                level = _as_crashed(plan.level(name), ground if kind == POWER_CUT else None)
                try:
                    _Crasher(level, templates, run).crash(group, plan.seed, keep, tell)
                except StudyError:
                    raise
                except BenchlibError as reason:
                    raise StudyError(f"level “{name}” cannot be crashed ({kind}): {reason}") from reason
        finally:
            templates.close()


def _server_of(level: Level) -> Level:
    """What a level changes of its server, the load aside."""
    return level.model_copy(update={"workload": None, "load": LoadPatch()})


def _as_crashed(level: Level, ground: Path | None) -> Level:
    """A level's server with checksums; its disk below ``ground`` where its power will be cut."""
    changes: dict[str, object] = {}
    if not any(option == "-k" or "checksums" in option for option in level.initdb):
        changes["initdb"] = (*level.initdb, "--data-checksums")
    if ground:
        place = _DISK.model_copy(update={"path": str(ground)})
        changes["storage"] = (level.storage or Storage()).model_copy(update={"data": place})
        named = {name.removesuffix("?") for name in level.host}
        changes["host"] = {**level.host, **{k: v for k, v in _HOST.items() if k not in named}}
    return _server_of(level).model_copy(update=changes)


@dataclass
class _Crasher:
    """Crashes one level in one way."""

    level: Level
    templates: Templates
    run: Run
    made: int = 0

    def crash(
        self, rounds: Iterable[Round], seed: int, keep: Callable[[Crash], None], tell: Callable[[str], None]
    ) -> None:
        rounds = list(rounds)
        while rounds:
            with self._stand() as stand, stand.under(self.run):
                while rounds:
                    this = rounds.pop(0)
                    tell(f"“{this.level}”, {this.kind}")
                    found = self._round(stand, this, Random(f"{seed} {this.model_dump_json()}"))
                    keep(found)
                    if found.damage and this.kind == KILLED:
                        break  # nobody knows what state it is in: the next round gets a new one

    @contextmanager
    def _stand(self) -> Iterator[Stand]:
        self.made += 1
        # short, as the path of a socket has to be
        stand = build(self.level, WORKLOAD, self.run.folder / f"x{self.made:02d}", self.templates, self.run)
        try:
            yield stand
        finally:
            stand.discard()

    def _round(self, stand: Stand, this: Round, random: Random) -> Crash:
        cluster = stand.cluster
        assert cluster is not None
        stand.checkpoint()
        os.sync()
        version, log = cluster.version(), cluster.log_size()
        after_s = random.uniform(*_MOMENT_S[this.kind])
        with CrashLoad(cluster, this.number, random, checkpoints=this.kind == POWER_CUT) as load:
            started = time.monotonic()
            time.sleep(after_s)
            load.over()
            moment = ways.kill(cluster) if this.kind == KILLED else ways.copy_disk(self.level)
            if this.kind == KILLED:
                load.end()  # what was acknowledged may still be on its way
        cluster.stop()  # the killed one is collected; the other goes on from here when the copy has been asked
        if this.kind == KILLED:
            outcome = _restarted(cluster, this.number, log)
        else:
            with ways.from_copy(self.level, stand, self.run) as copy:
                outcome = _restarted(copy, this.number, 0)
            cluster.start()
        acknowledged = {
            (client, number): at
            for client, times in enumerate(load.acknowledged)
            for number, at in enumerate(times)
        }
        # while a disk is copied commits go on: those promise nothing of the copy
        promised = {row: at for row, at in acknowledged.items() if this.kind == KILLED or at <= moment}
        return Crash(
            **this.model_dump(),
            after_s=round(moment - started, 3),
            server_version=version,
            acknowledged=len(promised),
            **_losses(promised, acknowledged.keys(), outcome.rows, moment),
            recovery_s=outcome.recovery_s,
            damage=outcome.damage,
        )


@dataclass(frozen=True)
class _Outcome:
    rows: set[Row] | None
    recovery_s: float | None
    damage: tuple[str, ...]


def _restarted(cluster: Cluster, number: int, log: int) -> _Outcome:
    started = time.monotonic()
    try:
        cluster.start()
    except ServerError:
        return _Outcome(None, None, (last_cries(cluster, log),))
    recovery_s = round(time.monotonic() - started, 3)
    found = examine(cluster, number)
    return _Outcome(found.rows, recovery_s, found.damage)


def _losses(
    promised: dict[Row, float], acknowledged: Iterable[Row], rows: set[Row] | None, moment: float
) -> dict[str, float | None]:
    if rows is None:
        return {"lost": None, "oldest_lost_ms": None, "unacknowledged": None}
    lost = promised.keys() - rows
    oldest = max(0.0, moment - min(promised[row] for row in lost)) if lost else None
    return {
        "lost": len(lost),
        "oldest_lost_ms": None if oldest is None else round(1000 * oldest, 1),
        "unacknowledged": len(rows - set(acknowledged)),
    }
