"""One study at a time on a host, whoever starts it; a dead one's cleaning is waited for."""

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchlib.errors import PreflightError
from benchlib.host import lock as module
from benchlib.host.lock import LOCK_VARIABLE, host_lock

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
def as_user() -> Iterator[Callable[[int], None]]:
    """Turns root into the user of that number for the rest of the test."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")

    def become(user: int) -> None:
        os.seteuid(0)
        os.seteuid(user)

    yield become
    os.seteuid(0)


@pytest.fixture
def dead(lock: Path) -> Iterator["subprocess.Popen[str]"]:
    """A study that has died; its guardian holds the lock until ``stdin`` is closed."""
    argv = [sys.executable, "-c", DYING]
    study = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    study.wait(60)
    yield study
    study.communicate()


@pytest.mark.parametrize("content", [None, "garbage"])
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


def test_what_a_dead_study_left_is_waited_for(dead: "subprocess.Popen[str]") -> None:
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


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Does not wait long, and sees a run on this machine."""
    monkeypatch.setattr(module, "_CLEANING_LIMIT_S", 0.3)
    monkeypatch.setattr(module, "_guarded_users", lambda: {0})


def test_waiting_has_an_end(impatient: None, lock: Path, dead: "subprocess.Popen[str]") -> None:
    message = rf"still held for study “dead” .*: 'fuser -v {lock}'"
    with pytest.raises(PreflightError, match=message), host_lock("next"):
        raise AssertionError("two at once")


def test_a_process_that_began_after_the_lock_was_written_to_is_not_the_one_that_did(
    impatient: None, lock: Path
) -> None:
    with host_lock("first"):
        os.utime(lock, (1, 1))
        with pytest.raises(PreflightError, match="still held for first"), host_lock("next"):
            raise AssertionError("two at once")


@pytest.mark.parametrize("first", [0, 65534])
def test_one_users_lock_serves_another(
    first: int, shared_folder: Path, as_user: Callable[[int], None]
) -> None:
    as_user(first)
    with host_lock("first"):
        pass
    status = (shared_folder / "lock").stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (first, 0o666)
    as_user(65534 - first)
    with host_lock("second"), pytest.raises(PreflightError, match="second"), host_lock("third"):
        raise AssertionError("two at once")


def test_a_lock_that_cannot_be_opened_is_named_with_the_remedy(
    shared_folder: Path, as_user: Callable[[int], None]
) -> None:
    (shared_folder / "lock").touch(mode=0o600)
    as_user(65534)
    message = r"cannot use the lock .*/lock \(Permission denied\): remove that file, or"
    with pytest.raises(PreflightError, match=message), host_lock("x"):
        raise AssertionError("opened")


@pytest.mark.parametrize(
    "make",
    [
        Path.symlink_to,
        Path.hardlink_to,
        lambda lock, precious: lock.mkdir(),
        lambda lock, precious: os.mkfifo(lock),
    ],
)
def test_what_is_not_a_plain_file_is_never_written_to(
    make: Callable[[Path, Path], None], lock: Path, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("content")
    make(lock, precious)
    with pytest.raises(PreflightError, match=r"cannot use the lock .*BENCHLIB_LOCK"), host_lock("x"):
        raise AssertionError("opened")
    assert precious.read_text() == "content"


def test_a_lock_that_was_exchanged_after_it_was_opened_does_not_count(
    lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, opens = [], module._open

    def exchanged(path: Path) -> object:
        file = opens(path)
        if not opened:  # its owner moves it away meanwhile, and makes another
            path.rename(path.with_name("former"))
            path.touch()
        opened.append(path)
        return file

    monkeypatch.setattr(module, "_open", exchanged)
    with host_lock("study “x”"):
        assert "study “x”" in lock.read_text()
    assert len(opened) == 2


def test_root_s_own_lock_holds_whatever_becomes_of_the_shared_one(
    lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_OF_ROOT", tmp_path / "own.lock")
    with (
        module._held_by_root("study “first”"),
        pytest.raises(PreflightError, match="“first” is running here"),
        module._held_by_root("second"),
    ):
        raise AssertionError("two at once")
