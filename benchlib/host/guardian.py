"""A run's scratch folder, and the guardian process that cleans up after it.

A run's processes name its folder in their command line or work in it, so they are found after a crash.

The guardian reads from a pipe to which only the study's process can write, and cleans up when the pipe ends. Its session
is its own and its parent is init, so signals to the study spare it. It holds the host's lock until it has finished.

Run as ``python -m benchlib.host.guardian FOLDER SCOPE`` with the pipe as standard input.
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

from benchlib.errors import HostBusyError, PreflightError, StudyError
from benchlib.host import files
from benchlib.host.facts import existing
from benchlib.host.files import check_folder
from benchlib.host.journal import MODULES_OF_CHANGES, Journal
from benchlib.host.lock import GUARDIAN, check_no_other_user, guardians, host_lock, lock_scope
from benchlib.host.shell import admit_servers, allow_open_files, ticks
from benchlib.host.sweep import JOURNAL, Swept, sweep

SCRATCH_VARIABLE = "BENCHLIB_SCRATCH"


def scratch_root() -> Path:
    """Return the folder of a study's clusters, whose disk is measured.

    ``BENCHLIB_SCRATCH``, by default in ``/var/tmp``: ``/tmp`` may be memory, and sockets need a short path.
    """
    named = os.environ.get(SCRATCH_VARIABLE)
    # Path.resolve would follow links
    return Path(os.path.abspath(named)) if named else Path("/var/tmp") / f"benchlib-{os.getuid()}"  # noqa: PTH100


class Run:
    """A run's folder and journal, with a guardian."""

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder = folder
        self.journal = Journal(folder / JOURNAL)
        self._lock = lock
        self._pipe = _start_guardian(folder, lock)

    def check_guarded(self) -> None:
        """Start the guardian again if it has ended."""
        pipe = select.poll()
        pipe.register(self._pipe, 0)  # reports an error only: the reading end is closed
        if pipe.poll(0):
            dead, self._pipe = self._pipe, _start_guardian(self.folder, self._lock)
            os.close(dead)

    def _end(self, how: str) -> None:
        try:
            swept = sweep(self.folder)  # in this process, which can report what resists
            with contextlib.suppress(BrokenPipeError):  # the guardian has ended
                os.write(self._pipe, b"swept")
        finally:
            os.close(self._pipe)  # without that word, as after a second Ctrl-C, the guardian cleans up
        if swept.resisting:
            raise StudyError(f"{how}; and something is left behind: {_remedy(swept)}")


@contextlib.contextmanager
def guarded_run(scratch: Path, what: str, tell: Callable[[str], None] = lambda _: None) -> Iterator[Run]:
    """Make a private folder whose processes, files and changes end with this process.

    ``what`` names the run to others. Leftovers of earlier runs are cleaned up first.

    Raises:
        PreflightError: the folder cannot be made, another run is under way, or leftovers resist.
        StudyError: something of this run resists at its end.

    """
    allow_open_files()
    _make_root(scratch)
    with host_lock(what, tell) as lock:
        for swept in _sweep_all(scratch):
            if swept.resisting:
                raise PreflightError(f"leftovers of an earlier run resist: {_remedy(swept)}")
            tell(str(swept) if swept.stranger else f"an earlier run was cleaned up: {swept}")
        folder = Path(tempfile.mkdtemp(prefix="run-", dir=scratch))
        admit_servers(folder)
        run = Run(folder, lock)
        try:
            check_no_other_user()  # again: one may have started at the same moment
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
    swept = []
    for path in sorted(scratch.glob("run-*")):
        with contextlib.suppress(FileNotFoundError):  # another user's may disappear at any moment
            status = path.lstat()
            living = {
                words[0]: process.pid for process, user, words in guardians() if user in (0, os.geteuid())
            }
            if status.st_uid != os.geteuid():
                swept.append(Swept(path, stranger=True))
            elif guardian := living.get(str(path)):
                raise HostBusyError(
                    f"a run is under way in {path} (guardian: process {guardian}): wait for it"
                )
            elif not stat.S_ISREG(status.st_mode):
                swept.append(sweep(path))
    return swept


def recover(scratch: Path, tell: Callable[[str], None] = lambda message: None) -> list[Swept]:
    """Clean up after dead runs; PreflightError if a run is under way."""
    if not os.path.lexists(scratch):
        return []
    check_folder(scratch)
    with host_lock("benchlib recover", tell):
        return _sweep_all(scratch)


def _make_root(scratch: Path) -> None:
    advice = f"name another one in {SCRATCH_VARIABLE}"
    if "," in str(scratch):  # separates hosts for libpq, and folders of sockets for a server
        raise PreflightError(f"the scratch folder {scratch} has a comma: {advice}")
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
        raise PreflightError(f"cannot work in the scratch folder {scratch} ({why}): {advice}") from reason
    if len(os.fsencode(f"{scratch}/run-xxxxxxxx/c000/s/.s.PGSQL.5432")) > 100:
        raise PreflightError(f"the scratch folder's path is too long for a Unix socket: {advice}")


def _start_guardian(folder: Path, lock: int) -> int:
    """Return its pipe, once ready."""
    reading, writing = os.pipe()
    # it works in another folder, and may have to connect to a server
    names = (
        "PGSERVICEFILE", "PGPASSFILE", "PGSYSCONFDIR", "PGSSLCERT", "PGSSLKEY", "PGSSLROOTCERT", "PGSSLCRL", "PGSSLCRLDIR",
    )  # fmt: skip
    paths = {
        name: str(Path(os.environ[name]).absolute())
        for name in names
        if os.environ.get(name) not in (None, "", "system")
    }
    try:
        subprocess.run(
            [sys.executable, "-m", GUARDIAN, str(folder), lock_scope()],
            stdin=reading,
            stdout=subprocess.PIPE,  # closed when it is ready
            cwd=Path(__file__).parents[2],
            env={**os.environ, **paths, "PYTHONWARNINGS": "ignore"},
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


def main() -> None:
    """Clean up when the pipe ends, unless the study has done so."""
    folder = Path(sys.argv[1])
    for module in MODULES_OF_CHANGES:  # now: the installation may be gone when the study ends
        import_module(module)
    if os.fork():
        return
    os.setsid()
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.chdir("/")
    if not os.read(0, 1024):
        for _ in ticks(30.0, pause_s=1.0):  # a process that waits for its disk dies later
            with contextlib.suppress(Exception):
                if not sweep(folder).resisting:
                    break


if __name__ == "__main__":
    main()
