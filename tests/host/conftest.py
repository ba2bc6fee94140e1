"""What tests of the host share."""

import os
import subprocess
from contextlib import ExitStack

import pytest
from host_parts import Stranger

from benchlib.host.changes import Grouped, is_mounted


@pytest.fixture
def run():
    """Runs a command of the system and gives its output; skips the test where this machine cannot."""

    def call(*argv):
        try:
            return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError) as reason:
            pytest.skip(f"this machine cannot {argv[0]}: {reason}")

    return call


@pytest.fixture
def start():
    """Starts processes, which end with the test."""
    with ExitStack() as stack:

        def call(*argv, **more):
            process = stack.enter_context(subprocess.Popen(argv, **more))
            stack.callback(process.kill)
            return process

        yield call


@pytest.fixture
def group():
    """Makes a control group in another, which goes with all in it."""
    with ExitStack() as stack:

        def call(above):
            folder = above / f"benchlib-test-{os.getpid()}"
            folder.mkdir()
            stack.callback(Grouped(folder=folder).undo)
            return folder

        yield call


@pytest.fixture
def mount(run):
    """Makes a folder and mounts a small file system in memory on it, or a device."""
    with ExitStack() as stack:

        def unmount(folder):
            while is_mounted(folder):
                subprocess.run(["umount", "--lazy", folder], check=True)

        def call(folder, *what):
            folder.mkdir(exist_ok=True)
            stack.callback(unmount, folder)
            run("mount", *(what or ("-t", "tmpfs", "-o", "size=64k", "benchlib-test")), folder)
            return folder

        yield call


@pytest.fixture
def recover(command_line, scratch):
    """Runs ``benchlib recover``."""
    return lambda: command_line("recover")


@pytest.fixture(scope="session")
def strangers():
    """Two ordinary users, made for the tests and removed after them."""
    if os.geteuid() != 0:
        pytest.skip("only root can make users")
    names = [f"bl{os.getpid()}{which}" for which in "ab"]
    try:
        for name in names:
            command = ["useradd", "--user-group", "--no-create-home", "--home-dir", "/", name]
            subprocess.run(command, check=True, capture_output=True)
        yield [*map(Stranger, names)]
    except (OSError, subprocess.CalledProcessError) as reason:
        pytest.skip(f"this machine makes no users: {reason}")
    finally:
        for name in names:
            subprocess.run(["userdel", "--force", name], capture_output=True, check=False)


@pytest.fixture
def mallory(strangers):
    """A user who means ill."""
    return strangers[0]


@pytest.fixture
def bob(strangers):
    """One more user."""
    return strangers[1]


@pytest.fixture
def shared(scratch):
    """A scratch folder that all users share, as they do /var/tmp."""
    scratch.chmod(0o1777)
    return scratch
