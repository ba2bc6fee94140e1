"""One study at a time on a host; a dead one's clean-up is waited for, and nobody else's file matters."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from clusters import eventually
from host_parts import refused, spoilt

from benchlib.host import lock as module
from benchlib.host.lock import LOCK_VARIABLE, UNNAMED, guardians, held_by, host_lock, lock_path

# Takes the lock, has a child share it as a guardian does, and dies; the child stays until its input ends.
DYING = """
import os, subprocess
from benchlib.host.lock import host_lock
with host_lock("study “dead”") as lock:
    subprocess.Popen(["cat"], pass_fds=(lock,), stdout=subprocess.DEVNULL)
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(module, "_CLEANING_LIMIT_S", 0.3)
    monkeypatch.setattr(module, "_ENDING_LIMIT_S", 0.3)


def test_a_second_run_is_refused_in_one_line_that_names_the_first():
    lock_path().touch(0o600)
    lock_path().write_text("garbage")  # of an unlocked file, it does not matter
    assert held_by() is None
    with host_lock("study “first”"):
        line = refused(host_lock("second"), f"study “first” \\(process {os.getpid()}, since .* running here")
        assert line.endswith("wait for it")
        assert (held_by() or "").startswith("study “first” (")
    assert lock_path().read_text() == ""
    with pytest.raises(ZeroDivisionError), host_lock("third"):
        raise ZeroDivisionError
    with host_lock("fourth"):
        pass


def test_a_guardian_that_lives_a_moment_longer_does_not_hold_up_the_next(start):
    with host_lock("first") as lock:
        start("sleep", "99", pass_fds=(lock,))
    with host_lock("second", tell=pytest.fail):
        pass


def test_the_clean_up_of_a_dead_study_is_waited_for():
    messages = []
    # its guardian holds the lock until stdin is closed
    with subprocess.Popen([sys.executable, "-c", DYING], stdin=subprocess.PIPE) as dead:
        dead.wait(60)

        def tell(message):
            messages.append(message)
            assert dead.stdin
            dead.stdin.close()

        with host_lock("next", tell):
            pass
    (message,) = messages
    assert message.startswith("waiting until the leftovers of study “dead” (process ")


def test_waiting_has_an_end_and_a_process_younger_than_the_note_did_not_write_it(impatient):
    with host_lock("first"):
        os.utime(lock_path(), (1, 1))
        assert held_by() is None
        refused(host_lock("next"), rf"still held for first .*: 'fuser -v {lock_path()}'")


@spoilt
def test_only_a_plain_file_of_this_user_is_written_to(spoil, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("content")
    spoil(lock_path(), precious)
    refused(host_lock("x"), r"cannot use the lock .*BENCHLIB_LOCK")
    assert held_by() is None
    assert next(path.read_text() for path in (precious, lock_path()) if path.is_file()) == "content"


def test_root_s_own_lock_lies_where_no_other_user_can_make_it(monkeypatch):
    monkeypatch.delenv(LOCK_VARIABLE)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert lock_path() == Path(os.path.realpath("/var/run"), "benchlib.lock-0")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert lock_path() == Path("/var/tmp/benchlib.lock-1000")


# --- among users --------------------------------------------------------------------


@pytest.fixture
def shared_lock(shared, monkeypatch):
    """A lock in a folder that everybody may write to, as /var/tmp."""
    monkeypatch.setenv(LOCK_VARIABLE, str(shared / "lock"))
    return str(shared / "lock")


@pytest.fixture
def guarding(mallory, shared_lock):
    """A process that looks as a guardian of another user does."""
    words = ("sh", "-c", "read _", "-m", "benchlib.host.guardian", "/x", shared_lock)
    with mallory.start(*words, stdin=subprocess.PIPE) as process:
        assert eventually(lambda: process.pid in [guardian.pid for guardian, *_ in guardians()])
        yield


def test_a_run_of_another_user_keeps_all_others_out(impatient, guarding, mallory, bob, monkeypatch):
    for_root = refused(host_lock("x"), f"a run of the user {mallory.name} is under way here")
    with bob.acting():
        assert refused(host_lock("x"), "a run of the user") == for_root
    assert held_by() == UNNAMED
    monkeypatch.setenv(LOCK_VARIABLE, f"{lock_path()}-other")
    with host_lock("a run with another lock"):
        pass


@pytest.mark.parametrize("make", ["touch $1; chmod 666 $1", "mkdir $1", "ln -s /etc/passwd $1", "mkfifo $1"])
def test_a_lock_file_that_another_user_has_made_is_never_used(make, mallory, bob, shared_lock):
    mallory.do(make, lock_path())
    refused(host_lock("root's"), "cannot use the lock .* name another one in BENCHLIB_LOCK")
    assert held_by() is None
    with bob.acting(), host_lock("bob's"):
        assert (lock_path().stat().st_uid, lock_path().stat().st_mode & 0o777) == (bob.uid, 0o600)
