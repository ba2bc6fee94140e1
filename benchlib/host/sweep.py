"""Clean up after a run: stop its processes, undo its changes to the host, remove its folder.

In this order: a mount in use cannot be unmounted, and must not be removed with the folder. If something resists, the
folder stays, with the journal, for another attempt.

A PostgreSQL server killed with -9 leaves shared memory. The check of each start (``postgres --check``, before version 15
``--boot -x0``) removes it, and spares memory in use.
Source: ``src/backend/port/sysv_shmem.c`` (``PGSharedMemoryCreate``).
"""

import contextlib
import os
import pwd
import signal
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchlib.errors import BenchlibError, PreflightError
from benchlib.host import files
from benchlib.host.changes import Made, mounts_below
from benchlib.host.journal import Journal
from benchlib.host.lock import GUARDIAN
from benchlib.host.shell import Shell, known, ticks

JOURNAL = "journal"
"""The name of a run's journal in its folder."""

_GENTLE_S = 3.0
_PATIENCE_S = 6.0


@dataclass
class Swept:
    """The result for a run; a ``stranger`` is another user's, and left alone."""

    folder: Path
    done: list[str] = field(default_factory=list)
    resisting: list[str] = field(default_factory=list)
    stranger: bool = False

    def __str__(self) -> str:
        if self.stranger:
            return f"{files.one_line(str(self.folder))} belongs to another user: it is left alone"
        return f"{self.folder.name}: {'; '.join(self.done) or 'nothing could be undone'}"


def sweep(folder: Path) -> Swept:
    """Clean up after a run; may be repeated.

    Raises:
        PreflightError: the folder or its journal is not this user's.

    """
    files.check_run_folder(folder)
    swept = Swept(folder)
    journal = Journal(folder / JOURNAL)
    standing = journal.standing()
    for change in standing:
        change.lift()
    folders = [folder, *(change.folder for change in standing if isinstance(change, Made))]
    _stop_processes(folders, swept)
    for path in folders:
        remove_shared_memory(path)
    swept.resisting += journal.undo()
    remaining = journal.standing()
    swept.done += [f"undid the {change}" for change in standing if change not in remaining]
    # never through a mount, nor while a change in its journal resists
    swept.resisting += [f"a file system is mounted on {mount}" for mount in mounts_below(folder)[:1]]
    if not swept.resisting:
        with contextlib.suppress(OSError):
            files.remove(folder)
        if folder.exists():
            swept.resisting.append(f"{folder} cannot be removed whole")
        else:
            swept.done.append("removed its folder")
    return swept


def processes_of(*folders: Path) -> list[psutil.Process]:
    """Return this user's processes (root's: all) that name a folder in their command line or work in it.

    A run's processes are in sessions of their own, without a terminal: a user's shell or viewer is not.
    """
    names, own = tuple(map(str, folders)), psutil.Process()
    spared = {own.pid, *(parent.pid for parent in own.parents())}

    def belongs(process: psutil.Process) -> bool:
        uids, argv = known(process.uids), known(process.cmdline) or []
        ours = os.geteuid() == 0 or (uids and uids.real == os.geteuid())
        if not ours or process.pid in spared or GUARDIAN in argv:
            return False
        if known(process.terminal) or known(lambda: os.getsid(process.pid)) == os.getsid(0):
            return False
        named = any(name in word for word in argv for name in names)
        return named or (known(process.cwd) or "").startswith(names)

    return [process for process in psutil.process_iter() if belongs(process)]


def _stop_processes(folders: Collection[Path], swept: Swept) -> None:
    met: set[psutil.Process] = set()
    # SIGQUIT, an immediate shutdown, lets servers remove their shared memory
    for order, limit_s in ((signal.SIGQUIT, _GENTLE_S), (signal.SIGKILL, _PATIENCE_S)):
        for _ in ticks(limit_s, 0.1):
            alive = processes_of(*folders)
            met.update(alive)
            addressed = [p for p in alive if order == signal.SIGKILL or "-D" in (known(p.cmdline) or ())]
            if not addressed:
                break
            for process in addressed:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(order)
    alive = processes_of(*folders)
    if stopped := len(met) - len(alive):
        swept.done.append(f"stopped {stopped} process(es)")
    swept.resisting += [
        f"process {p.pid} does not die: {' '.join(known(p.cmdline) or [])[:100]}" for p in alive
    ]


def remove_shared_memory(folder: Path) -> None:
    """Remove the shared memory of killed servers below the folder.

    Without the program it stays until the machine restarts.
    """
    with contextlib.suppress(OSError, PreflightError), files.folder(folder, foreign=True) as top:
        for below, inner, names, _ in os.fwalk(".", dir_fd=top):
            if "PG_VERSION" in names:
                inner.clear()
            if "postmaster.pid" in names:
                with contextlib.suppress(OSError, ValueError, KeyError, BenchlibError):
                    _remove_memory_of(folder / below)


def _remove_memory_of(data: Path) -> None:
    with files.folder(data, foreign=True) as folder:
        owner = os.fstat(folder).st_uid
    if owner == 0 or os.geteuid() not in (0, owner):
        return
    with os.fdopen(files.opened(data / "postmaster.opts", owner=owner)) as options:
        program = options.readline(10_000).partition(' "')[0]
    with os.fdopen(files.opened(data / "PG_VERSION", owner=owner)) as version:
        check = ["--check"] if int(version.read(10)) >= 15 else ["--boot", "-x0"]
    # as the owner, who has written the program's name
    shell = Shell(pwd.getpwuid(owner).pw_name if os.geteuid() == 0 else None)
    # a killed process disappears a moment before it has released its memory
    for _ in ticks(1.0, 0.1):
        if shell.run([program, *check, "-D", data], timeout_s=30).returncode == 0:
            return
