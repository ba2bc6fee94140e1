"""The only gateway to processes: run one to its end, or start one and keep it.

As root, everything that touches a server runs as an unprivileged user, because
PostgreSQL refuses root; as anybody else, as oneself. The environment is a clean one:
the caller's ``PG*`` variables would silently change what is measured.
"""

import contextlib
import math
import os
import pwd
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, TypeVar

import psutil

from benchlib.errors import BenchlibError, PreflightError, TrialError, os_errors_as
from benchlib.host import files

USER_VARIABLE = "BENCHLIB_USER"
_OPEN_FILES = 256
"""What a notebook, a sampler and the servers of many levels keep open in one process, and as much again."""

_STANDSTILL_S = 3.0
"""For how long a process may be stopped by a signal."""


@dataclass(frozen=True)
class Completed:
    """What a finished process left. Times in seconds; ``cpu_s`` is user plus system time."""

    returncode: int
    stdout: str
    stderr: str
    wall_s: float
    cpu_s: float

    @property
    def complaint(self) -> str:
        """The line that says what is wrong."""
        lines = [line.strip() for line in (self.stderr or self.stdout).splitlines() if line.strip()]
        return (error_lines(lines) or lines or [f"no output, status {self.returncode}"])[0]

    def insist(self, error: type[BenchlibError], message: str) -> None:
        """Raise the error, with why behind its message, unless the process ended well."""
        if self.returncode != 0:
            raise error(f"{message}: {self.complaint}")


def error_lines(lines: Sequence[str]) -> list[str]:
    """The lines that tell an error, from their mark on, the gravest first."""
    marks = ("FATAL:", "PANIC:", "ERROR:", "error:")
    return [line[line.index(mark) :] for mark in marks for line in lines if mark in line]


Process = subprocess.Popen[bytes]
"""A running process of ours."""

T = TypeVar("T")


def known(ask: Callable[[], T]) -> T | None:
    """What a process is asked; None where it has gone, or is not ours to look into."""
    with contextlib.suppress(psutil.Error, OSError):
        return ask()
    return None


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """A process environment without the caller's PostgreSQL variables and locale."""
    names = ("TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return {**kept, "PATH": _search_path(), "LC_ALL": "C", "TZ": "UTC", "HOME": "/", **extra}


def _search_path() -> str:
    """The caller's PATH, then where the system keeps programs such as ``losetup``: not every root has them on it."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def which(name: str) -> Path | None:
    """Where a program is that :class:`Shell` would run by this name."""
    path = shutil.which(name, path=_search_path())
    return Path(path) if path else None


def server_user() -> str | None:
    """Who runs the servers: None for oneself, or as root an unprivileged user's name.

    ``BENCHLIB_USER`` if it is set, otherwise the system's ``postgres``, otherwise
    ``nobody``, so that a bare container works too; but not where others run as nobody, who could do all that the servers can.

    Raises:
        PreflightError: the configured user does not exist or is root, or others run as nobody.

    """
    if os.geteuid() != 0:
        return None
    named = os.environ.get(USER_VARIABLE)
    for name in [named] if named else ["postgres", "nobody"]:
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name).pw_uid
            if user != 0 and (named or name != "nobody" or not _others_run_as(user)):
                return name
    raise PreflightError(
        f"no unprivileged user of its own to run PostgreSQL as (tried {named or 'postgres, nobody'}): "
        f"set {USER_VARIABLE} to one that exists, is not root and runs nothing else"
    )


def _others_run_as(user: int) -> bool:
    """Whether a process that we have not started runs as a user."""
    ours = psutil.Process().children(recursive=True)
    return any(user in (known(p.uids) or ()) and p not in ours for p in psutil.process_iter())


def allow_open_files() -> None:
    """Let this process and those it starts open as many files at once as a run needs.

    Raises:
        PreflightError: that is too few for a run, or for a notebook.

    """
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= most < _OPEN_FILES:  # -1 stands for no limit
        raise PreflightError(
            f"only {most} files may be open at once here, {_OPEN_FILES} may be needed: raise the limit (ulimit -n)"
        )
    if 0 <= now < _OPEN_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, most))


def admit_servers(folder: Path) -> None:
    """Let those who run the servers pass through a folder of our own, and nobody else."""
    if user := server_user():
        files.give(folder, group=pwd.getpwnam(user).pw_gid, mode=0o710)


@dataclass(frozen=True)
class Shell:
    """Runs processes as one user. ``user`` None means the caller."""

    user: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)  # it may hold a password

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        stdout: Path | None = None,
        stderr: Path | None = None,
        stdin: IO[bytes] | None = None,
        cwd: Path | None = None,
        timeout_s: float = math.inf,
        watch: Callable[[], None] | None = None,
    ) -> Completed:
        """Run a process to its end. Output goes to the given files verbatim, or comes back as text.

        An interruption (Ctrl-C) or the time limit stops the process before the exception
        goes on, so nothing keeps running behind it; so does whatever ``watch`` raises, which is
        called a few times a second meanwhile and must not block.

        Raises:
            TrialError: it could not be started, ran longer than ``timeout_s``, or was stopped (SIGSTOP) and not continued.

        """
        with contextlib.ExitStack() as stack:
            to = [
                stack.enter_context(_emptied(path)) if path else subprocess.PIPE for path in (stdout, stderr)
            ]
            process = self._popen(
                argv, stdout=to[0], stderr=to[1], stdin=stdin or subprocess.DEVNULL, cwd=cwd or "/"
            )
        # the kernel adds a child's CPU time to its parent's total (of those that have ended, the third and the
        # fourth) when the child is reaped, so the total is read before and after: nothing else of ours ends meanwhile
        before, started = sum(os.times()[2:4]), time.monotonic()
        ran_at, name = started, Path(str(argv[0])).name
        try:
            while (left_s := started + timeout_s - time.monotonic()) > 0:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    outputs = process.communicate(timeout=min(0.2, left_s))
                    break
                if watch:
                    watch()
                if known(lambda: psutil.Process(process.pid).status()) != psutil.STATUS_STOPPED:
                    ran_at = time.monotonic()
                elif time.monotonic() > ran_at + _STANDSTILL_S:
                    raise TrialError(f"{name} stood still, stopped by a signal, and was ended")
            else:
                raise TrialError(f"{name} did not end within {timeout_s:g} s and was stopped")
        except BaseException:
            stop(process)
            raise
        wall_s, cpu_s = time.monotonic() - started, sum(os.times()[2:4]) - before
        out, err = ((output or b"").decode(errors="replace") for output in outputs)
        # a difference of rounded sums may fall below zero by the last bit
        return Completed(process.returncode, out, err, wall_s, max(cpu_s, 0.0))

    def start(self, argv: Sequence[str | Path], *, log: Path, groups: Sequence[Path] = ()) -> Process:
        """Start a process that stays; its output is appended to ``log``.

        It is inside the control groups ``groups`` (their folders) before it becomes the program. If one does not take it,
        or there is no such program, it ends, and its output says why.

        Raises:
            TrialError: it could not be started.

        """
        if groups:
            become = list[str]()
            if self.user:  # who has given up root cannot enter
                gid = pwd.getpwnam(self.user).pw_gid
                become = ["setpriv", f"--reuid={self.user}", f"--regid={gid}", "--clear-groups"]
            return replace(self, user=None).start([*_ENTER, *groups, "--", *become, *argv], log=log)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with os_errors_as(TrialError, f"cannot write {log}"):
            descriptor = files.opened(log, flags, owner=self.uid)
        with os.fdopen(descriptor, "ab") as out:
            return self._popen(argv, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd="/")

    def _popen(self, argv: Sequence[str | Path], **where: Any) -> Process:
        with os_errors_as(TrialError, f"cannot start {argv[0]}"):
            # a session of its own: a Ctrl-C at the terminal is ours to pass on, in order
            process: Process = subprocess.Popen(
                [*map(str, argv)],
                **where,
                env=clean_environment(self.environment),
                start_new_session=True,
                user=self.user,
                group=pwd.getpwnam(self.user).pw_gid if self.user else None,
                extra_groups=[] if self.user else None,
            )
            return process

    @property
    def uid(self) -> int:
        """The number of the user that this shell runs as."""
        return pwd.getpwnam(self.user).pw_uid if self.user else os.geteuid()

    def own(self, path: Path) -> None:
        """Give a file or folder of a trusted folder to the user that this shell runs as."""
        if self.user:
            entry = pwd.getpwnam(self.user)
            files.give(path, user=entry.pw_uid, group=entry.pw_gid)

    def make_directory(self, path: Path) -> Path:
        """Make a private folder (0700) of the user that this shell runs as, if it is missing.

        In a trusted folder it is made here and given away; in one of that user, by that user.

        Raises:
            TrialError: it cannot be made.

        """
        if not self.user or files.trusted(path.parent):
            entry = pwd.getpwnam(self.user) if self.user else None
            with os_errors_as(TrialError, f"cannot make {path}"):
                return files.make(path, mode=0o700, user=entry and entry.pw_uid, group=entry and entry.pw_gid)
        self.do("mkdir", "-p", "-m", "0700", "--", path)
        return path

    def do(self, *argv: str | Path, limit_s: float = 600) -> str:
        """Run a command as the shell's user to its end; what it printed.

        Raises:
            TrialError: it failed.

        """
        done = self.run(argv, timeout_s=limit_s)
        done.insist(TrialError, f"{argv[0]} failed")
        return done.stdout

    def write(self, path: Path, text: str, *, append: bool = False) -> None:
        """Write a text file (0600) in a folder of the shell's user, as that user.

        Raises:
            TrialError: it cannot be written.

        """
        # by its input, since a command line is no secret
        with tempfile.TemporaryFile() as file:
            file.write(text.encode())
            file.seek(0)
            script = f'umask 077; cat {">>" if append else ">"}"$1"'
            self.run(["/bin/sh", "-c", script, "sh", path], stdin=file).insist(
                TrialError, f"cannot write {path}"
            )

    def remove(self, path: Path) -> None:
        """Remove a file or folder, if it is there: from a trusted folder here, from one of the shell's user as that user."""
        if not self.user or files.trusted(path.parent):
            files.remove(path)
        else:
            self.run(["rm", "-rf", "--", path])

    def link(self, path: Path, target: Path) -> None:
        """Make a symbolic link in a folder of the shell's user, as that user."""
        self.do("ln", "-s", "--", target, path)


def _emptied(path: Path) -> IO[bytes]:
    """Open a file of a trusted folder for writing, empty."""
    return os.fdopen(files.opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb")


_SCRIPT = 'while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit; shift; done; shift; exec "$@"'
_ENTER = ("/bin/sh", "-c", _SCRIPT, "sh")
"""Enters the control groups up to ``--``, then becomes the program behind it."""


def stop(process: Process) -> None:
    """Ask the process to end, then kill it with all of its group; close its pipes."""
    for sig, patience in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, sig)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()


def ticks(seconds: float, pause_s: float = 0.05) -> Iterator[None]:
    """Yield until the time is up, with a pause between: for polling."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(pause_s)
