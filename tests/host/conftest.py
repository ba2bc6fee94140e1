"""What tests of changes to the host share."""

import os
import pwd
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchlib.host.changes import is_mounted


@pytest.fixture
def run() -> Callable[..., str]:
    """Runs a command of the system and gives its output; skips the test where this machine cannot."""

    def call(*argv: str | Path) -> str:
        try:
            return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError) as reason:
            pytest.skip(f"this machine cannot {argv[0]}: {reason}")

    return call


@pytest.fixture
def mount(run: Callable[..., str]) -> Iterator[Callable[..., Path]]:
    """Makes a folder and mounts a small file system in memory on it, or a device."""
    with ExitStack() as stack:

        def unmount(folder: Path) -> None:
            while is_mounted(folder):
                subprocess.run(["umount", "--lazy", folder], check=True)

        def call(folder: Path, *what: str) -> Path:
            folder.mkdir(exist_ok=True)
            stack.callback(unmount, folder)
            run("mount", *(what or ("-t", "tmpfs", "-o", "size=64k", "benchlib-test")), folder)
            return folder

        yield call


class Stranger:
    """Another ordinary user of this machine."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.uid = pwd.getpwnam(name).pw_uid

    def start(self, *argv: str | Path, **more: Any) -> "subprocess.Popen[str]":
        """Start a process of theirs."""
        return subprocess.Popen(
            [str(word) for word in argv], user=self.name, group=self.name, extra_groups=[], text=True, **more
        )

    def do(self, script: str, *words: str | Path) -> str:
        """What a shell script of theirs prints; ``words`` are its ``$1``, ``$2`` and so on."""
        with self.start("sh", "-c", script, "sh", *words, stdout=subprocess.PIPE, cwd="/") as shell:
            return shell.communicate()[0]


@pytest.fixture(scope="session")
def strangers() -> Iterator[tuple[Stranger, Stranger]]:
    """Two ordinary users, made for the tests and removed after them."""
    if os.geteuid() != 0:
        pytest.skip("only root can make users")
    names = [f"bl{os.getpid()}{which}" for which in "ab"]
    try:
        for name in names:
            try:
                command = ["useradd", "--user-group", "--no-create-home", "--home-dir", "/", name]
                subprocess.run(command, check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError) as reason:
                pytest.skip(f"this machine makes no users: {reason}")
        first, second = map(Stranger, names)
        yield first, second
    finally:
        for name in names:
            subprocess.run(["userdel", "--force", name], capture_output=True, check=False)


@pytest.fixture
def mallory(strangers: tuple[Stranger, Stranger]) -> Stranger:
    """A user who means ill."""
    return strangers[0]


@pytest.fixture
def bob(strangers: tuple[Stranger, Stranger]) -> Stranger:
    """One more user."""
    return strangers[1]


@pytest.fixture
def shared(scratch: Path) -> Path:
    """A scratch folder that all users share, as they do /var/tmp."""
    scratch.chmod(0o1777)
    return scratch
