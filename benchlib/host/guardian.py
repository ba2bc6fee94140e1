"""Nothing is left behind: a run's scratch folder, its journal, and the guardian process.

Every process of a run either has the run's folder in its command line or works inside
it, so they can be found from outside without having been announced, and no moment of a
crash is too early. What a run changes outside its folder is in its journal before it is
changed. The guardian holds the reading end of a pipe whose writing end only the study's
process has; when that process is gone, however it went, the pipe ends, and the guardian
sweeps. It is detached (a session of its own, adopted by init), so what kills the study's
process tree or terminal spares it, and it holds the host's lock until all is clean.

Run as ``python -m benchlib.host.guardian FOLDER`` with the pipe as standard input.
"""

import contextlib
import os
import select
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import psutil

from benchlib.errors import HostBusyError, PreflightError, StudyError
from benchlib.host import files
from benchlib.host.facts import existing
from benchlib.host.files import check_folder
from benchlib.host.journal import MODULES_OF_CHANGES, Journal
from benchlib.host.lock import host_lock
from benchlib.host.shell import admit_servers, allow_open_files, known, ticks
from benchlib.host.sweep import JOURNAL, Swept, sweep

SCRATCH_VARIABLE = "BENCHLIB_SCRATCH"


def scratch_root() -> Path:
    """Where clusters live while a study runs: the disk that is measured.

    ``/var/tmp/benchlib-UID`` unless ``BENCHLIB_SCRATCH`` names another folder. Not
    ``/tmp``, which may be memory, and a short path, because sockets live in it.
    """
    named = os.environ.get(SCRATCH_VARIABLE)
    # without following a link, as Path.resolve would
    return Path(os.path.abspath(named)) if named else Path("/var/tmp") / f"benchlib-{os.getuid()}"  # noqa: PTH100


class Run:
    """A run's ``folder`` and ``journal``, guarded until :func:`guarded_run` is left."""

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder = folder
        self.journal = Journal(folder / JOURNAL)
        self._lock = lock
        self._pipe = _start_guardian(folder, lock)

    def check_guarded(self) -> None:
        """Start the guardian again if somebody has ended it."""
        pipe = select.poll()
        pipe.register(self._pipe, 0)  # tells an error alone: that nobody has the other end any more
        if pipe.poll(0):
            dead, self._pipe = self._pipe, _start_guardian(self.folder, self._lock)
            os.close(dead)

    def _end(self, how: str) -> None:
        """Sweep in this process, which can report what resists, and dismiss the guardian."""
        try:
            swept = sweep(self.folder)
            with contextlib.suppress(BrokenPipeError):  # somebody has ended it
                os.write(self._pipe, b"swept")
        finally:
            os.close(self._pipe)  # without that word, as after an impatient Ctrl-C, the guardian sweeps
        if swept.resisting:
            raise StudyError(f"{how}; and something is left behind: {_remedy(swept)}")


@contextlib.contextmanager
def guarded_run(scratch: Path, what: str, tell: Callable[[str], None] = lambda _: None) -> Iterator[Run]:
    """A new private folder under ``scratch`` whose processes, files and changes end with this process.

    ``what`` names the run to anyone who finds the host taken. What an earlier run left here is
    undone first; ``tell`` gets a message for what is waited for and what was undone.

    Raises:
        PreflightError: the folder cannot be made, another run is under way on this host, or what
            an earlier one left resists.
        StudyError: at the end, something of this run resists; the message names it.

    """
    allow_open_files()
    _make_root(scratch)
    with host_lock(what, tell) as lock:
        for swept in _sweep_all(scratch):
            if swept.resisting:
                raise PreflightError(f"an earlier run left what resists: {_remedy(swept)}")
            tell(str(swept) if swept.stranger else f"an earlier run was cleaned up: {swept}")
        folder = Path(tempfile.mkdtemp(prefix="run-", dir=scratch))
        admit_servers(folder)
        run = Run(folder, lock)
        try:
            yield run
        except BaseException as reason:
            run._end(str(reason) or type(reason).__name__)
            raise
        run._end("the run ended")


def _remedy(swept: Swept) -> str:
    return (
        f"{'; '.join(swept.resisting)} ('benchlib recover' tries again; "
        f"if you have undone it by hand, remove {swept.folder})"
    )


def _sweep_all(scratch: Path) -> list[Swept]:
    """Sweep what is ours; a plain file is no run's."""
    swept = []
    for path in sorted(scratch.glob("run-*")):
        with contextlib.suppress(FileNotFoundError):  # somebody else's may go at any moment
            status = path.lstat()
            if status.st_uid != os.geteuid():
                swept.append(Swept(path, stranger=True))
            elif guardian := _guardian_of(path):
                raise HostBusyError(
                    f"a run is under way in {path} (guardian: process {guardian}): wait for it"
                )
            elif not stat.S_ISREG(status.st_mode):
                swept.append(sweep(path))
    return swept


def _guardian_of(folder: Path) -> int | None:
    """Return the process that guards a run's folder, of this user's or root's; None where none lives."""
    for process in psutil.process_iter():
        argv, uids = known(process.cmdline) or [], known(process.uids)
        if argv[-2:] == ["benchlib.host.guardian", str(folder)] and uids and uids.real in (0, os.geteuid()):
            return process.pid
    return None


def recover(scratch: Path, tell: Callable[[str], None] = lambda message: None) -> list[Swept]:
    """Stop, undo and remove what runs that are gone left under ``scratch``, unless a run is under way on this host.

    Raises:
        PreflightError: a run is under way; the message names it. Or the folder is not a safe one.

    """
    if not os.path.lexists(scratch):
        return []
    check_folder(scratch)
    with host_lock("benchlib recover", tell):
        return _sweep_all(scratch)


def _make_root(scratch: Path) -> None:
    if "," in str(scratch):  # which parts hosts for libpq, and folders of sockets for a server
        raise PreflightError(
            f"the scratch folder {scratch} has a comma: name another one in {SCRATCH_VARIABLE}"
        )
    try:
        check_folder(existing(scratch.parent))  # before anything is made or changed there
        files.make(scratch, mode=0o711)
        status = scratch.lstat()
        ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        if ours and not status.st_mode & stat.S_ISVTX:
            files.give(scratch, mode=0o711 if os.geteuid() == 0 else 0o700)
        check_folder(scratch)
        with tempfile.TemporaryFile(dir=scratch):
            pass
    except (PreflightError, OSError) as reason:
        why = reason.strerror if isinstance(reason, OSError) else reason
        raise PreflightError(
            f"cannot work in the scratch folder {scratch} ({why}): name another one in {SCRATCH_VARIABLE}"
        ) from reason
    longest = str(scratch / "run-xxxxxxxx" / "c000" / "s" / ".s.PGSQL.5432")
    if len(longest) > 100:
        raise PreflightError(
            f"the scratch folder's path is too long for a Unix socket: name a shorter one in {SCRATCH_VARIABLE}"
        )


def _start_guardian(folder: Path, lock: int) -> int:
    """Start the guardian; the writing end of its pipe, once it is on guard."""
    reading, writing = os.pipe()
    try:
        subprocess.run(
            [sys.executable, "-m", "benchlib.host.guardian", str(folder)],
            stdin=reading,
            stdout=subprocess.PIPE,  # which it lets go of when it is on guard
            cwd=Path(__file__).parents[2],
            # it works in another folder, and may have to reach a server
            env={**os.environ, **_whole_paths(), "PYTHONWARNINGS": "ignore"},
            start_new_session=True,
            pass_fds=(lock,),
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as reason:
        os.close(writing)
        raise StudyError(f"the guardian process did not start: {reason}") from reason
    finally:
        os.close(reading)
    return writing


def _whole_paths() -> dict[str, str]:
    """libpq's variables that name a file, or a folder, from the root on."""
    names = ("PGSERVICEFILE", "PGPASSFILE", "PGSYSCONFDIR", "PGSSLCERT", "PGSSLKEY")
    return {name: str(Path(os.environ[name]).absolute()) for name in names if os.environ.get(name)}


def main() -> None:
    """Detach, wait for the pipe to end, and clean up unless the study has done it."""
    folder = Path(sys.argv[1])
    for module in MODULES_OF_CHANGES:  # now, while they are there: it may be long until the sweep
        import_module(module)
    if os.fork():
        return
    os.setsid()
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.chdir("/")
    if not os.read(0, 1024):
        for _ in ticks(30.0, pause_s=1.0):  # a process that waits for its disk dies later
            if not sweep(folder).resisting:
                break


if __name__ == "__main__":
    main()
