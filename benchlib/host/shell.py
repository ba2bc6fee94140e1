"""The only module that runs processes.

Root runs servers as an unprivileged user, because PostgreSQL refuses root. The caller's ``PG*`` variables are removed:
they would change the measured server.
"""

import contextlib
import math
import os
import pwd
import resource
import shutil
import signal
import subprocess
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
"""Twice the number of files that a process with a notebook, a sampler and many servers keeps open."""

_STANDSTILL_S = 3.0
"""The longest time that a process may be stopped by a signal."""


@dataclass(frozen=True)
class Completed:
    """A finished process; ``cpu_s`` is user plus system time."""

    returncode: int
    stdout: str
    stderr: str
    wall_s: float
    cpu_s: float

    @property
    def complaint(self) -> str:
        """The line that states the error."""
        lines = [line.strip() for line in (self.stderr or self.stdout).splitlines() if line.strip()]
        return (error_lines(lines) or lines or [f"no output, status {self.returncode}"])[0]

    def insist(self, error: type[BenchlibError], message: str) -> None:
        """Raise the error unless the process succeeded."""
        if self.returncode != 0:
            raise error(f"{message}: {self.complaint}")


def error_lines(lines: Sequence[str]) -> list[str]:
    """Return the lines with an error, the most severe first."""
    marks = ("FATAL:", "PANIC:", "ERROR:", "error:")
    return [line[line.index(mark) :] for mark in marks for line in lines if mark in line]


Process = subprocess.Popen[bytes]
"""A running process that this one has started."""

T = TypeVar("T")


def known(ask: Callable[[], T]) -> T | None:
    """Return a process's property; None if it has ended or is not accessible."""
    with contextlib.suppress(psutil.Error, OSError):
        return ask()
    return None


def _clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    names = ("TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    inherited = {name: os.environ[name] for name in names if name in os.environ}
    return {**inherited, "PATH": _search_path(), "LC_ALL": "C", "TZ": "UTC", "HOME": "/", **extra}


def _search_path() -> str:
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def which(name: str) -> Path | None:
    """Return the path of a program."""
    path = shutil.which(name, path=_search_path())
    return Path(path) if path else None


def server_user() -> str | None:
    """Return the user that runs servers, None for this user.

    For root ``BENCHLIB_USER``, or ``postgres``, or ``nobody`` unless other processes run as nobody.

    Raises:
        PreflightError: there is no such user, or it is root.

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
    ours = psutil.Process().children(recursive=True)
    return any(user in (known(p.uids) or ()) and p not in ours for p in psutil.process_iter())


def allow_open_files() -> None:
    """Raise the limit of open files; PreflightError if the hard limit is too low."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= most < _OPEN_FILES:  # -1 stands for no limit
        raise PreflightError(
            f"only {most} files may be open at once here, {_OPEN_FILES} may be needed: raise the limit (ulimit -n)"
        )
    if 0 <= now < _OPEN_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, most))


def admit_servers(folder: Path) -> None:
    """Let only the servers' user pass through a folder."""
    if user := server_user():
        needed = "the capabilities CHOWN, SETUID and SETGID are needed, or an ordinary user"
        with os_errors_as(PreflightError, f"root may not give {folder} to {user}: {needed}"):
            files.give(folder, group=pwd.getpwnam(user).pw_gid, mode=0o710)


@dataclass(frozen=True)
class Shell:
    """A runner of processes as one user, None for the caller, on ``cores`` (``0-1``; empty for all)."""

    user: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)  # it may hold a password
    cores: str = ""

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        stdout: Path | None = None,
        stderr: Path | None = None,
        stdin: bytes | IO[bytes] | None = None,
        cwd: Path | None = None,
        timeout_s: float = math.inf,
        watch: Callable[[], None] | None = None,
    ) -> Completed:
        """Run a process to its end; return its output, or write it to files.

        ``watch`` is called a few times a second and must not block. Any exception stops the process.

        Raises:
            TrialError: it did not start, ran longer than ``timeout_s``, or stayed stopped (SIGSTOP).

        """
        with contextlib.ExitStack() as stack:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            out, err = (
                stack.enter_context(os.fdopen(files.opened(path, flags), "wb")) if path else subprocess.PIPE
                for path in (stdout, stderr)
            )
            given = stdin if isinstance(stdin, bytes) else None
            source = subprocess.PIPE if isinstance(stdin, bytes) else stdin or subprocess.DEVNULL
            process = self._popen(argv, stdout=out, stderr=err, stdin=source, cwd=cwd or "/")
        # the kernel adds a child's CPU time to its parent's total for ended children (the third and fourth of
        # os.times) when the child is reaped; no other child of this process ends meanwhile
        before, started = sum(os.times()[2:4]), time.monotonic()
        ran_at, name = started, Path(str(argv[0])).name
        try:
            while (left_s := started + timeout_s - time.monotonic()) > 0:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    outputs = process.communicate(given, timeout=min(0.2, left_s))
                    break
                given = None  # communicate goes on with the first one
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
        output, errors = ((text or b"").decode(errors="replace") for text in outputs)
        # a difference of rounded sums may fall below zero by the last bit
        return Completed(process.returncode, output, errors, wall_s, max(cpu_s, 0.0))

    def start(self, argv: Sequence[str | Path], *, log: Path, groups: Sequence[Path] = ()) -> Process:
        """Start a process and leave it running; its output is appended to ``log``.

        It enters ``groups`` first, or ends with the reason in its log.

        Raises:
            TrialError: it could not be started.

        """
        if groups:
            become = list[str]()
            if ids := self._ids:  # an unprivileged process cannot enter
                become = ["setpriv", f"--reuid={ids['user']}", f"--regid={ids['group']}", "--clear-groups"]
            return replace(self, user=None).start([*_ENTER, *groups, "--", *become, *argv], log=log)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with os_errors_as(TrialError, f"cannot write {log}"):
            descriptor = files.opened(log, flags, owner=self.uid)
        with os.fdopen(descriptor, "ab") as out:
            return self._popen(argv, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd="/")

    def _popen(self, argv: Sequence[str | Path], **where: Any) -> Process:
        with os_errors_as(TrialError, f"cannot start {argv[0]}"):
            # a session of its own, so that Ctrl-C at the terminal reaches only this process
            process: Process = subprocess.Popen(
                [*(["taskset", "-c", self.cores] if self.cores else []), *map(str, argv)],
                **where,
                env=_clean_environment(self.environment),
                start_new_session=True,
                extra_groups=[] if self.user else None,
                **self._ids,
            )
            return process

    @property
    def _ids(self) -> dict[str, Any]:
        """The numbers of another user and its group."""
        entry = pwd.getpwnam(self.user) if self.user else None
        return {"user": entry.pw_uid, "group": entry.pw_gid} if entry else {}

    @property
    def uid(self) -> int:
        """The user's number."""
        return int(self._ids.get("user", os.geteuid()))

    def own(self, path: Path) -> None:
        """Give something in a trusted folder to this shell's user."""
        if self.user:
            files.give(path, **self._ids)

    def make_directory(self, path: Path) -> Path:
        """Make a missing folder (0700) of this shell's user."""
        if not self.user or files.trusted(path.parent):
            with os_errors_as(TrialError, f"cannot make {path}"):
                return files.make(path, mode=0o700, **self._ids)
        self.do("mkdir", "-p", "-m", "0700", "--", path)
        return path

    def do(self, *argv: str | Path) -> str:
        """Return a command's output; TrialError if it fails or takes ten minutes."""
        done = self.run(argv, timeout_s=600)
        done.insist(TrialError, f"{argv[0]} failed")
        return done.stdout

    def write(self, path: Path, text: str, *, append: bool = False) -> None:
        """Write a text file (0600) as this shell's user."""
        script = f'umask 077; cat {">>" if append else ">"}"$1"'
        # on its standard input, since everybody can read a command line
        done = self.run(["/bin/sh", "-c", script, "sh", path], stdin=text.encode())
        done.insist(TrialError, f"cannot write {path}")

    def remove(self, path: Path) -> None:
        """Remove a file or folder, if it exists."""
        if not self.user or files.trusted(path.parent):
            files.remove(path)
        else:
            self.do("rm", "-rf", "--", path)

    def link(self, path: Path, target: Path) -> None:
        """Make a symbolic link as this shell's user."""
        self.do("ln", "-s", "--", target, path)


_SCRIPT = 'while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit; shift; done; shift; exec "$@"'
_ENTER = ("/bin/sh", "-c", _SCRIPT, "sh")
"""Enters the control groups up to ``--``, then becomes the program after it."""


def stop(process: Process) -> None:
    """End a process group; close the pipes."""
    for sig, patience in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, sig)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            with contextlib.suppress(OSError):  # input that the process has not read
                pipe.close()


def ticks(seconds: float, pause_s: float = 0.05) -> Iterator[None]:
    """Yield until the time is up, with pauses: for polling."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(pause_s)
