"""Nothing is left behind: the scratch folder of a run, its lock, and the guardian process.

Every process of a run either has the run's folder in its command line or works inside
it, so they can be found from outside without having been announced, and no moment of a
crash is too early. The guardian holds the reading end of a pipe whose writing end only
the study's process has; when that process is gone, however it went, the pipe ends, and
the guardian stops what still runs and removes the folder. It is detached (a session of
its own, adopted by init), so what kills the study's process tree or terminal spares it.

Run as ``python -m benchlib.guardian FOLDER`` with the pipe as standard input.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchlib.errors import PreflightError, StudyError
from benchlib.journal import Journal

SCRATCH_VARIABLE = "BENCHLIB_SCRATCH"
_GENTLE_S = 3.0
_PATIENCE_S = 9.0


def scratch_root() -> Path:
    """Where clusters live while a study runs: the disk that is measured.

    ``/var/tmp/benchlib-UID`` unless ``BENCHLIB_SCRATCH`` names another folder. Not
    ``/tmp``, which may be memory, and a short path, because sockets live in it.
    """
    named = os.environ.get(SCRATCH_VARIABLE)
    return Path(named).absolute() if named else Path("/var/tmp") / f"benchlib-{os.getuid()}"


@dataclass
class Run:
    """A run's folder, guarded until :func:`guarded_run` is left."""

    folder: Path
    journal: Journal
    _pipe: int
    _guardian: int

    def check_guarded(self) -> None:
        """Start the guardian again if somebody has ended it."""
        if not _on_guard(self._guardian):
            os.close(self._pipe)
            self._pipe, self._guardian = _start_guardian(self.folder)


def _on_guard(pid: int) -> bool:
    """Whether the guardian lives. In a container nobody may collect the dead: they stay as zombies."""
    with contextlib.suppress(psutil.Error, OSError):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@contextlib.contextmanager
def guarded_run(scratch: Path, what: str) -> Iterator[Run]:
    """A new private folder under ``scratch`` whose processes and files end with this process.

    ``what`` names the run to anyone who finds the place taken. What an earlier run left
    here is removed first.

    Raises:
        PreflightError: the folder cannot be made, or another run holds it.

    """
    _make_root(scratch)
    with _lock(scratch, what):
        recover(scratch)
        folder = Path(tempfile.mkdtemp(prefix="run-", dir=scratch))
        folder.chmod(0o711 if os.geteuid() == 0 else 0o700)
        pipe, guardian = _start_guardian(folder)
        run = Run(folder, Journal(folder / "journal"), pipe, guardian)
        try:
            yield run
        finally:
            sweep(folder)
            os.close(run._pipe)


def recover(scratch: Path) -> list[str]:
    """Stop and remove what runs that are gone left under ``scratch``; their names."""
    left = sorted(p for p in scratch.glob("run-*") if p.is_dir())
    for folder in left:
        sweep(folder)
    return [p.name for p in left]


def recover_unattended(scratch: Path) -> list[str]:
    """As :func:`recover`, unless a run is under way.

    Raises:
        PreflightError: a run is under way; the message names it.

    """
    if not scratch.is_dir():
        return []
    with _lock(scratch, "benchlib recover"):
        return recover(scratch)


def processes_of(folder: Path) -> list[psutil.Process]:
    """Every process that names the folder in its command line or works inside it, guardians aside."""
    mark = str(folder)
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            words = process.cmdline()
            if process.pid == os.getpid() or "benchlib.guardian" in words:
                continue
            if any(mark in word for word in words) or _inside(process, mark):
                found.append(process)
    return found


def _inside(process: psutil.Process, mark: str) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return process.cwd().startswith(mark)
    return False


def sweep(folder: Path) -> None:
    """Stop the processes of a run and remove its folder.

    Servers get an immediate-shutdown signal first (they then remove their shared
    memory themselves), everything else and all that stays is killed.
    """
    started = time.monotonic()
    while alive := processes_of(folder):
        waited = time.monotonic() - started
        if waited > _PATIENCE_S:
            break
        for process in alive:
            is_server = any(w == "-D" for w in _words(process))
            with contextlib.suppress(psutil.Error):
                if waited >= _GENTLE_S or not (is_server or _inside(process, str(folder))):
                    process.kill()
                elif is_server:
                    process.send_signal(signal.SIGQUIT)
        time.sleep(0.1)
    if Journal(folder / "journal").undo():
        return
    shutil.rmtree(folder, ignore_errors=True)


def _words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error, OSError):
        return process.cmdline()
    return []


def _make_root(scratch: Path) -> None:
    try:
        scratch.mkdir(mode=0o711, parents=True, exist_ok=True)
        if scratch.stat().st_uid == os.geteuid():
            scratch.chmod(0o711 if os.geteuid() == 0 else 0o700)
        elif SCRATCH_VARIABLE not in os.environ:
            raise PreflightError(
                f"{scratch} belongs to somebody else: name another folder in {SCRATCH_VARIABLE}"
            )
        with tempfile.TemporaryFile(dir=scratch):
            pass
    except OSError as reason:
        raise PreflightError(
            f"cannot write to the scratch folder {scratch} ({reason.strerror}): name another one in {SCRATCH_VARIABLE}"
        ) from reason
    longest = str(scratch / "run-xxxxxxxx" / "c000" / "s" / ".s.PGSQL.5432")
    if len(longest) > 100:
        raise PreflightError(
            f"the scratch folder's path is too long for a Unix socket: name a shorter one in {SCRATCH_VARIABLE}"
        )


@contextlib.contextmanager
def _lock(scratch: Path, what: str) -> Iterator[None]:
    with (scratch / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "another run"
            raise PreflightError(
                f"{holder} is running here: two at once would measure each other; wait for it"
            ) from None
        file.truncate(0)
        file.write(f"{what} (process {os.getpid()})")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def _start_guardian(folder: Path) -> tuple[int, int]:
    """Start the guardian; the writing end of its pipe, and its process id once it is on guard."""
    reading, writing = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchlib.guardian", str(folder)],
            stdin=reading,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parent.parent,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
            start_new_session=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as reason:
        os.close(writing)
        raise StudyError(f"the guardian process did not start: {reason}") from reason
    finally:
        os.close(reading)
    return writing, int(done.stdout)


def main() -> None:
    """Detach, tell the process id, wait for the pipe to end, and clean up."""
    folder = Path(sys.argv[1])
    child = os.fork()
    if child:
        print(child)
        return
    os.setsid()
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.chdir("/")
    while os.read(0, 1024):
        pass
    sweep(folder)


if __name__ == "__main__":
    main()
