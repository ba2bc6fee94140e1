"""One study at a time on a host, whoever starts it; a dead one's cleaning is waited for."""

import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchlib.errors import PreflightError
from benchlib.host import lock as module
from benchlib.host.lock import LOCK_VARIABLE, host_lock, lock_path

# Takes the lock, has a child share it as a guardian does, and dies; the child stays until its input ends.
DYING = """
import os, subprocess
from benchlib.host.lock import host_lock
with host_lock("study “dead”") as lock:
    subprocess.Popen(["cat"], pass_fds=(lock,), stdout=subprocess.DEVNULL)
    print(os.getpid(), flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def shared_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that everybody may write to, as /var/tmp, with the lock in it."""
    with tempfile.TemporaryDirectory(prefix="bl", dir="/var/tmp") as name:
        Path(name).chmod(0o1777)
        monkeypatch.setenv(LOCK_VARIABLE, f"{name}/lock")
        yield Path(name)


@pytest.fixture
def as_user() -> Iterator[Callable[[], None]]:
    """Turns root into an ordinary user for the rest of the test."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    yield lambda: os.seteuid(65534)
    os.seteuid(0)


@pytest.fixture
def dead(lock: Path) -> Iterator["subprocess.Popen[str]"]:
    """A study that has died; its guardian holds the lock until ``stdin`` is closed."""
    argv = [sys.executable, "-c", DYING]
    study = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    study.wait(60)
    yield study
    study.communicate()


def test_the_lock_is_one_for_the_whole_host_unless_another_is_named(
    monkeypatch: pytest.MonkeyPatch, lock: Path
) -> None:
    assert lock_path() == lock
    monkeypatch.delenv(LOCK_VARIABLE)
    assert lock_path() == Path("/var/tmp/benchlib.lock")


@pytest.mark.parametrize("content", [None, "", "garbage", "{}", "\0" * 100])
def test_a_second_run_is_refused_in_one_line_that_names_the_first(lock: Path, content: str | None) -> None:
    if content is not None:
        lock.write_text(content)  # of an unlocked file, it does not matter
    with host_lock("study “first”"):
        with pytest.raises(PreflightError) as caught, host_lock("second"):
            raise AssertionError("two at once")
        assert f"study “first” (process {os.getpid()}, since " in str(caught.value)
        assert "is running here: two at once would measure each other; wait for it" in str(caught.value)
        assert "\n" not in str(caught.value)
    assert lock.read_text() == ""
    with pytest.raises(ZeroDivisionError), host_lock("third"):
        raise ZeroDivisionError
    with host_lock("fourth"):
        pass


def test_a_guardian_that_lives_a_moment_longer_does_not_hold_up_the_next() -> None:
    with host_lock("first") as shared:
        guardian = subprocess.Popen(["sleep", "99"], pass_fds=(shared,))
    try:
        with host_lock("second", tell=pytest.fail):
            pass
    finally:
        guardian.kill()
        guardian.wait()


@pytest.mark.parametrize("number_given_again", [False, True])
def test_what_a_dead_study_left_is_waited_for(
    dead: "subprocess.Popen[str]", number_given_again: bool, lock: Path
) -> None:
    if number_given_again:  # to a process that began later
        lock.write_text(json.dumps({"what": "study “dead”", "pid": os.getpid(), "since": 1.0}))
    messages: list[str] = []

    def tell(message: str) -> None:
        messages.append(message)
        assert dead.stdin
        dead.stdin.close()

    with host_lock("next", tell):
        pass
    (message,) = messages
    assert message.startswith("waiting until what study “dead” (process ")
    assert message.endswith(" left behind is cleaned up")
    dead.stdin = None


def test_waiting_has_an_end(
    monkeypatch: pytest.MonkeyPatch, lock: Path, dead: "subprocess.Popen[str]"
) -> None:
    monkeypatch.setattr(module, "_CLEANING_LIMIT_S", 0.3)
    message = rf"still held for study “dead” .*: 'fuser -v {lock}'"
    with pytest.raises(PreflightError, match=message), host_lock("next"):
        raise AssertionError("two at once")


def test_one_at_a_time_however_many_start_at_once() -> None:
    outcomes: list[str] = []
    decided = threading.Event()

    def start() -> None:
        try:
            with host_lock("one of many"):
                outcomes.append("inside")
                decided.wait(60)
        except PreflightError:
            outcomes.append("refused")
        if outcomes.count("refused") == 7:
            decided.set()

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["inside", *["refused"] * 7]


# --- root and ordinary users --------------------------------------------------------


def test_roots_lock_serves_an_ordinary_user(shared_folder: Path, as_user: Callable[[], None]) -> None:
    with host_lock("root's"):
        pass
    assert stat.S_IMODE((shared_folder / "lock").stat().st_mode) == 0o666
    as_user()
    with host_lock("a user's"):
        pass


def test_a_users_lock_serves_root(shared_folder: Path, as_user: Callable[[], None]) -> None:
    as_user()
    with host_lock("a user's"):
        pass
    os.seteuid(0)
    assert (shared_folder / "lock").stat().st_uid == 65534
    with host_lock("root's"), pytest.raises(PreflightError, match="root's"), host_lock("another"):
        raise AssertionError("two at once")


def test_a_lock_that_cannot_be_opened_is_named_with_the_remedy(
    shared_folder: Path, as_user: Callable[[], None]
) -> None:
    (shared_folder / "lock").touch(mode=0o600)
    as_user()
    message = r"cannot use the lock .*/lock \(Permission denied\): remove that file, or"
    with pytest.raises(PreflightError, match=message), host_lock("x"):
        raise AssertionError("opened")


@pytest.mark.parametrize("kind", ["link", "hard link", "folder", "pipe", "in no folder"])
def test_what_is_not_a_plain_file_is_never_written_to(
    kind: str, lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("content")
    if kind == "link":
        lock.symlink_to(precious)
    elif kind == "hard link":
        lock.hardlink_to(precious)
    elif kind == "folder":
        lock.mkdir()
    elif kind == "pipe":
        os.mkfifo(lock)
    else:
        monkeypatch.setenv(LOCK_VARIABLE, str(tmp_path / "never" / "lock"))
    with pytest.raises(PreflightError, match=r"cannot use the lock .*BENCHLIB_LOCK"), host_lock("x"):
        raise AssertionError("opened")
    assert precious.read_text() == "content"
