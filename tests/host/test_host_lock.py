"""One study at a time on a host, whoever starts it; a dead one's cleaning is waited for, and nobody else keeps it from running."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from host_parts import Patch, Start, Stranger, refused

from benchlib.host import lock as module
from benchlib.host.lock import LOCK_VARIABLE, held_by, host_lock

# Takes the lock, has a child share it as a guardian does, and dies; the child stays until its input ends.
DYING = """
import os, subprocess
from benchlib.host.lock import host_lock
with host_lock("study “dead”") as lock:
    subprocess.Popen(["cat"], pass_fds=(lock,), stdout=subprocess.DEVNULL)
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def shared_lock(shared: Path, monkeypatch: Patch) -> Path:
    """A lock in a folder that everybody may write to, as /var/tmp."""
    monkeypatch.setenv(LOCK_VARIABLE, str(shared / "lock"))
    return shared / "lock"


@pytest.fixture
def impatient(monkeypatch: Patch) -> set[int]:
    """Does not wait long, and sees runs of these users on this machine."""
    users: set[int] = set()
    monkeypatch.setattr(module, "_CLEANING_LIMIT_S", 0.3)
    monkeypatch.setattr(module, "_guarded_users", lambda: users)
    return users


def test_a_second_run_is_refused_in_one_line_that_names_the_first(lock: Path) -> None:
    lock.write_text("garbage")  # of an unlocked file, it does not matter
    with host_lock("study “first”"):
        line = refused(host_lock("second"), f"study “first” \\(process {os.getpid()}, since .* running here")
        assert line.endswith("wait for it")
    assert lock.read_text() == ""
    with pytest.raises(ZeroDivisionError), host_lock("third"):
        raise ZeroDivisionError
    with host_lock("fourth"):
        pass


def test_a_guardian_that_lives_a_moment_longer_does_not_hold_up_the_next(start: Start) -> None:
    with host_lock("first") as lock:
        start("sleep", "99", pass_fds=(lock,))
    with host_lock("second", tell=pytest.fail):
        pass


def test_what_a_dead_study_left_is_waited_for(lock: Path) -> None:
    messages: list[str] = []
    # its guardian holds the lock until stdin is closed
    with subprocess.Popen([sys.executable, "-c", DYING], stdin=subprocess.PIPE) as dead:
        dead.wait(60)

        def tell(message: str) -> None:
            messages.append(message)
            assert dead.stdin
            dead.stdin.close()

        with host_lock("next", tell):
            pass
    (message,) = messages
    assert message.startswith("waiting until what study “dead” (process ")


def test_waiting_has_an_end_and_who_is_younger_than_the_note_did_not_write_it(
    impatient: set[int], lock: Path
) -> None:
    impatient.add(0)
    with host_lock("first"):
        os.utime(lock, (1, 1))
        refused(host_lock("next"), rf"still held for first .*: 'fuser -v {lock}'")


@pytest.mark.parametrize(
    "make", [Path.symlink_to, Path.hardlink_to, lambda lock, _: lock.mkdir(), lambda lock, _: os.mkfifo(lock)]
)
def test_only_a_plain_file_is_written_to(
    make: Callable[[Path, Path], None], lock: Path, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("content")
    make(lock, precious)
    refused(host_lock("x"), r"cannot use the lock .*BENCHLIB_LOCK")
    assert precious.read_text() == "content"


def test_a_lock_that_was_exchanged_meanwhile_does_not_count(lock: Path, monkeypatch: Patch) -> None:
    opens = module._open

    def exchanged(path: Path) -> object:
        """Its owner moves it away meanwhile, and makes another."""
        monkeypatch.setattr(module, "_open", opens)
        file = opens(path)
        path.rename(path.with_name("former"))
        path.touch()
        return file

    monkeypatch.setattr(module, "_open", exchanged)
    with host_lock("study “x”"):
        assert "study “x”" in lock.read_text()


def test_root_has_a_lock_of_its_own(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(module, "_OF_ROOT", tmp_path / "own.lock")
    with module._held_by_root("study “first”"):
        refused(module._held_by_root("second"), "“first” is running here")


# --- among users --------------------------------------------------------------------


@pytest.mark.parametrize("bob_is_first", [False, True])
def test_one_users_lock_serves_another(bob_is_first: bool, bob: Stranger, shared_lock: Path) -> None:
    first, second = (bob.acting, nullcontext) if bob_is_first else (nullcontext, bob.acting)
    with first(), host_lock("first"):
        pass
    status = shared_lock.stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (bob.uid * bob_is_first, 0o666)
    with second(), host_lock("second"):
        refused(host_lock("third"), "second")


@contextmanager
def held(lock: Path, one: Stranger, content: str) -> Iterator[None]:
    """Somebody's process holds the lock, which all may write to."""
    one.do('touch "$1" && chmod 666 "$1"', lock)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with one.start("flock", lock, "sh", "-c", "echo; read _", **pipes) as holder:
        assert holder.stdout
        holder.stdout.readline()
        lock.write_text(content)
        yield


def test_a_lock_that_no_run_holds_keeps_nobody_out(
    impatient: set[int], mallory: Stranger, bob: Stranger, shared_lock: Path
) -> None:
    messages: list[str] = []
    with held(shared_lock, mallory, "\x1b[2Jx (process 1, since yesterday)"):
        assert held_by() is None
        with host_lock("root's", messages.append):
            pass
        with bob.acting(), host_lock("bob's", messages.append):
            pass
    assert [line for line in messages if "is passed over" in line] == [messages[-1]] * 2
    assert all(line.isprintable() for line in messages)


@pytest.mark.parametrize(
    "make", ['touch "$1"; chmod 600 "$1"', 'mkdir "$1"', 'ln -s /etc/passwd "$1"', 'mkfifo -m 666 "$1"']
)
def test_a_spoilt_lock_keeps_nobody_out(
    make: str, impatient: set[int], mallory: Stranger, bob: Stranger, shared_lock: Path
) -> None:
    mallory.do(make, shared_lock)
    messages: list[str] = []
    with bob.acting(), host_lock("bob's", messages.append):
        pass
    assert messages == [f"the lock {shared_lock} is in the hands of what is no run: it is passed over"]


def test_a_run_of_another_user_is_waited_for(
    impatient: set[int], mallory: Stranger, shared_lock: Path
) -> None:
    impatient.add(mallory.uid)
    with held(shared_lock, mallory, "\x1b[2Jstudy"):
        refused(host_lock("x"), r"^\?\[2Jstudy is running here")
