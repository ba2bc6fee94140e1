"""What tests of changes to the host share."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

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
