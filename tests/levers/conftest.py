"""What tests of levers that change the host share."""

import subprocess
import tempfile
from pathlib import Path

import pytest

from benchlib.host.journal import Journal


@pytest.fixture
def journal(tmp_path):
    """A journal of the test's own; whatever happens, it is undone."""
    kept = Journal(tmp_path / "journal")
    yield kept
    assert kept.undo() == []


@pytest.fixture
def scope(journal):
    return journal.scope()


@pytest.fixture
def loop():
    """A loop device of 64 MiB that nobody else uses, in memory, so that no disk's own speed is measured."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.truncate(64 << 20)
        argv = ["losetup", "--find", "--show", file.name]
        try:
            device = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError) as reason:
            pytest.skip(f"no loop devices here: {reason}")
        yield Path(device).name
        subprocess.run(["losetup", "--detach", device], check=True)
