"""Clean up after a run: stop its processes, undo what it changed on the host, remove its folder.

In this order: what processes hold cannot be unmounted, and what is mounted in the folder must
not be removed with it. Where something resists the folder stays whole, with the journal that tells of it,
so that it can be tried again.

A PostgreSQL server that is killed with -9 leaves shared memory. One that ends in any other way removes it, and so does
its next start; but these servers have none. So the server's own program is asked to do here what it does at each start
before anything else, and no more: initdb tries values of parameters so (``postgres --check``, before version 15
``--boot -x0``). What others use it leaves alone. Source: ``src/backend/port/sysv_shmem.c`` (``PGSharedMemoryCreate``).
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
from benchlib.host.files import check_run_folder, one_line
from benchlib.host.journal import Journal
from benchlib.host.shell import Shell, known, ticks

JOURNAL = "journal"
"""The name of a run's journal in its folder."""

_GENTLE_S = 3.0
_PATIENCE_S = 6.0


@dataclass
class Swept:
    """What became of a run: what was ``done``, and a reason for each thing that resists. Nothing is done to a ``stranger``'s."""

    folder: Path
    done: list[str] = field(default_factory=list)
    resisting: list[str] = field(default_factory=list)
    stranger: bool = False

    def __str__(self) -> str:
        if self.stranger:
            return f"{one_line(str(self.folder))} belongs to somebody else: it is left alone"
        return f"{self.folder.name}: {'; '.join(self.done) or 'nothing could be undone'}"


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
        remove_shared_memory(each)
    swept.resisting += journal.undo()
    still = journal.standing()
    swept.done += [f"undid the {change}" for change in standing if change not in still]
    # never through a mount, and not while something resists that its journal tells of
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
    """Every process that names one of the folders in its command line or works inside it, guardians aside.

    What we may not stop is somebody else's, whatever it names.
    """
    names = tuple(map(str, folders))

    def belongs(process: psutil.Process) -> bool:
        uids, argv = known(process.uids), known(process.cmdline) or []
        ours = os.geteuid() == 0 or (uids and uids.real == os.geteuid())
        if not ours or process.pid == os.getpid() or "benchlib.host.guardian" in argv:
            return False
        named = any(name in word for word in argv for name in names)
        return named or (known(process.cwd) or "").startswith(names)

    return [process for process in psutil.process_iter() if belongs(process)]


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
    """Remove the shared memory that killed servers left whose data directories are below the folder.

    Where the program is gone or refuses, what is left stays until the machine starts again.
    """
    with contextlib.suppress(OSError, PreflightError), files.folder(folder, foreign=True) as top:
        for below, inner, names, _ in os.fwalk(".", dir_fd=top):
            if "PG_VERSION" in names:
                inner.clear()
            if "postmaster.pid" in names:
                with contextlib.suppress(OSError, ValueError, KeyError, BenchlibError):
                    _remove_memory_of(folder / below)


def _remove_memory_of(data: Path) -> None:
    """Run the program that ``postmaster.opts`` names, as the user who wrote it: what that says is theirs to say."""
    with files.folder(data, foreign=True) as folder:
        owner = os.fstat(folder).st_uid
    if owner == 0 or os.geteuid() not in (0, owner):
        return
    with os.fdopen(files.opened(data / "postmaster.opts", owner=owner)) as options:
        program = options.readline(10_000).partition(' "')[0]
    shell = Shell(pwd.getpwuid(owner).pw_name if os.geteuid() == 0 else None)
    with os.fdopen(files.opened(data / "PG_VERSION", owner=owner)) as version:
        major = int(version.read(10))
    check = ["--check"] if major >= 15 else ["--boot", "-x0"]
    # a killed process is gone from sight a moment before it has let go of its memory
    for _ in ticks(1.0, 0.1):
        if shell.run([program, *check, "-D", data], timeout_s=30).returncode == 0:
            return
