"""The shared memory that a PostgreSQL server leaves when it is killed with -9.

A server that ends in any other way removes it, and so does its next start; but these servers have none. So the
server's own program is asked to do here what it does at each start before anything else, and no more: initdb tries
values of parameters so (``postgres --check``, before version 15 ``--boot -x0``). What others use it leaves alone.
Source: ``src/backend/port/sysv_shmem.c`` (``PGSharedMemoryCreate``).
"""

from __future__ import annotations

import contextlib
import os
import pwd
from pathlib import Path

from benchlib.errors import BenchlibError
from benchlib.host.ours import open_plain
from benchlib.host.shell import Shell, ticks

_PATIENCE_S = 1.0
_LIMIT_S = 30.0


def remove_left_below(folder: Path) -> None:
    """Remove what killed servers left whose data directories are below the folder.

    Where the program is gone or refuses, what is left stays until the machine starts again.
    """
    for data, inner, files in os.walk(folder):
        if "PG_VERSION" in files:
            inner.clear()
        if "postmaster.pid" in files:
            with contextlib.suppress(OSError, ValueError, KeyError, BenchlibError):
                _remove_left_by(Path(data))


def _remove_left_by(data: Path) -> None:
    """Run the program that ``postmaster.opts`` names, as the user who wrote it: what that says is theirs to say."""
    with open(data / "postmaster.opts", opener=open_plain) as options:
        owner, program = os.fstat(options.fileno()).st_uid, options.readline(10_000).partition(' "')[0]
    if owner == 0 or os.geteuid() not in (0, owner):
        return
    shell = Shell(pwd.getpwuid(owner).pw_name if os.geteuid() == 0 else None)
    with open(data / "PG_VERSION", opener=open_plain) as version:
        major = int(version.read(10))
    check = ["--check"] if major >= 15 else ["--boot", "-x0"]
    # a killed process is gone from sight a moment before it has let go of its memory
    for _ in ticks(_PATIENCE_S, 0.1):
        if shell.run([program, *check, "-D", data], timeout_s=_LIMIT_S).returncode == 0:
            return
