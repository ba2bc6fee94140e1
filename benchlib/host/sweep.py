"""Clean up after a run: stop its processes, undo what it changed on the host, remove its folder.

In this order: what processes hold cannot be unmounted, and what is mounted in the folder must
not be removed with it. Where something resists the folder stays whole, with the journal that tells of it,
so that it can be tried again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchlib.host.changes import Made, mounts_below
from benchlib.host.journal import Journal
from benchlib.host.ours import check_run_folder, one_line
from benchlib.host.shared_memory import remove_left_below
from benchlib.host.shell import ticks

JOURNAL = "journal"
"""The name of a run's journal in its folder."""

_GENTLE_S = 3.0
_PATIENCE_S = 6.0


@dataclass
class Swept:
    """What became of a run: how many processes were stopped, the changes undone, and a reason for each thing that resists.

    Nothing became of a ``stranger``'s.
    """

    folder: Path
    stopped: int = 0
    undone: list[str] = field(default_factory=list)
    resisting: list[str] = field(default_factory=list)
    stranger: bool = False

    def __str__(self) -> str:
        if self.stranger:
            return f"{one_line(str(self.folder))} belongs to somebody else: it is left alone"
        parts = [f"stopped {self.stopped} process(es)"] if self.stopped else []
        parts += [f"undid the {change}" for change in self.undone]
        parts += [] if self.folder.exists() else ["removed its folder"]
        return f"{self.folder.name}: {'; '.join(parts) or 'nothing could be undone'}"


def sweep(folder: Path) -> Swept:
    """Leave nothing of a run behind, as far as the host lets us; safe to repeat.

    Takes a fraction of a second, 3 s more if a server ignores its order to stop, and 2 s more for
    each change that resists.

    Raises:
        PreflightError: the folder or its journal is not ours; nothing has been done.

    """
    check_run_folder(folder)
    swept = Swept(folder)
    journal = Journal(folder / JOURNAL)
    standing = journal.standing()
    for change in standing:
        change.lift()
    folders = [folder, *(change.folder for change in standing if isinstance(change, Made))]
    _stop_processes(folders, swept)
    for each in folders:
        remove_left_below(each)
    swept.resisting += journal.undo()
    still = journal.standing()
    swept.undone = [str(change) for change in standing if change not in still]
    _remove(folder, swept)
    return swept


def processes_of(*folders: Path) -> list[psutil.Process]:
    """Every process that names one of the folders in its command line or works inside it, guardians aside.

    What we may not stop is somebody else's, whatever it names.
    """
    processes = []
    for process in psutil.process_iter():
        if os.geteuid() not in (0, _owner(process)):
            continue
        argv = _argv(process)
        if process.pid != os.getpid() and "benchlib.host.guardian" not in argv:
            named = any(str(folder) in word for word in argv for folder in folders)
            if named or _works_inside(process, folders):
                processes.append(process)
    return processes


def _argv(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error, OSError):
        return process.cmdline()
    return []


def _owner(process: psutil.Process) -> int | None:
    with contextlib.suppress(psutil.Error, OSError):
        return process.uids().real
    return None


def _works_inside(process: psutil.Process, folders: Collection[Path]) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return process.cwd().startswith(tuple(map(str, folders)))
    return False


def _stop_processes(folders: Collection[Path], swept: Swept) -> None:
    """Stop what belongs to the run.

    Servers get an immediate-shutdown signal first: they then end their own processes, which work
    inside their data directory, and remove their shared memory. Everything else, and all that
    stays, is killed.
    """
    met: set[psutil.Process] = set()
    for order, limit_s in ((signal.SIGQUIT, _GENTLE_S), (signal.SIGKILL, _PATIENCE_S)):
        for _ in ticks(limit_s, 0.1):
            alive = processes_of(*folders)
            met.update(alive)
            addressed = [process for process in alive if order == signal.SIGKILL or "-D" in _argv(process)]
            if not addressed:
                break
            for process in addressed:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(order)
    alive = processes_of(*folders)
    swept.stopped = len(met) - len(alive)
    swept.resisting += [
        f"process {process.pid} does not die: {' '.join(_argv(process))[:100]}" for process in alive
    ]


def _remove(folder: Path, swept: Swept) -> None:
    """Remove the folder; but never through a mount, and not while something resists that its journal tells of."""
    if mounts := mounts_below(folder):
        swept.resisting.append(f"a file system is mounted on {mounts[0]}")
    if swept.resisting:
        return
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        swept.resisting.append(f"{folder} cannot be removed whole")
