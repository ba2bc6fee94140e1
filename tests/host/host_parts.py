"""What tests of the host share beside their fixtures."""

import os
import pwd
import subprocess
from contextlib import contextmanager
from pathlib import Path

import needs
import psutil
import pytest

from benchlib.errors import PreflightError
from benchlib.host.shell import known

NOBODY = 65534
spoilt = pytest.mark.parametrize(
    "spoil",
    [
        Path.symlink_to,
        Path.hardlink_to,
        lambda file, _: file.mkdir(),
        lambda file, _: os.mkfifo(file, 0o600),
        lambda file, precious: precious.rename(file).chmod(0o622),
        pytest.param(lambda file, other: os.chown(other.rename(file), NOBODY, NOBODY), marks=needs.ROOT),
    ],
    ids=["link", "second name", "folder", "pipe", "open to others", "somebody else's"],
)
"""What is in the place of a file of ours that is plain; it is called with the file and a precious one."""


class Stranger:
    """Another ordinary user of this machine."""

    def __init__(self, name):
        self.name = name
        self.uid = pwd.getpwnam(name).pw_uid

    def start(self, *argv, **more):
        """Start a process of theirs."""
        user = {"user": self.name, "group": self.name, "extra_groups": []}
        return subprocess.Popen([*map(str, argv)], text=True, **user, **more)

    def do(self, script, *words):
        """What a shell script of theirs prints; ``words`` are its ``$1``, ``$2`` and so on."""
        with self.start("sh", "-c", script, "sh", *words, stdout=subprocess.PIPE, cwd="/") as shell:
            return str(shell.communicate()[0])

    @contextmanager
    def acting(self):
        """Be this user meanwhile."""
        os.seteuid(self.uid)
        try:
            yield
        finally:
            os.seteuid(0)


def refused(begun, match):
    """The one line with which a run is refused before it begins; it has to match."""
    with pytest.raises(PreflightError, match=match) as caught, begun:
        raise AssertionError("begun")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def is_alive(process):
    """Whether it runs; a dead one that nobody has buried does not."""
    return process.is_running() and known(process.status) not in (None, psutil.STATUS_ZOMBIE)


GROUPS = [
    folder
    for folder in (Path("/sys/fs/cgroup", name) for name in ("memory", "unified", "blkio", ""))
    if (folder / "cgroup.procs").is_file() and os.access(folder, os.W_OK)
]
"""Where control groups may be made, of either version."""
