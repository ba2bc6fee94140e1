"""One study at a time on a host, whoever starts it; a dead one's cleaning is waited for."""

import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchlib.errors import PreflightError
from benchlib.host import lock as module
from benchlib.host.lock import LOCK_VARIABLE, host_lock, lock_path

# Takes the lock, has a child share it as a guardian does, and dies; the child stays for a while.
DYING = """
import os, subprocess, sys
from benchlib.host.lock import host_lock
with host_lock("study “dead”") as lock:
    subprocess.Popen(["sleep", sys.argv[1]], pass_fds=(lock,), stdout=subprocess.DEVNULL)
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


def die(seconds: float) -> int:
    done = subprocess.run(
        [sys.executable, "-c", DYING, str(seconds)], stdout=subprocess.PIPE, text=True, timeout=30
    )
    return int(done.stdout)


def test_the_lock_is_one_for_the_whole_host_unless_another_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(LOCK_VARIABLE, str(tmp_path / "x"))
    assert lock_path() == tmp_path / "x"
    monkeypatch.delenv(LOCK_VARIABLE)
    assert lock_path() == Path("/var/tmp/benchlib.lock")


def test_a_second_run_is_refused_at_once_in_one_line_that_names_the_first(lock: Path) -> None:
    with host_lock("study “first”"):
        started = time.monotonic()
        with pytest.raises(PreflightError) as caught, host_lock("second"):
            raise AssertionError("two at once")
        assert time.monotonic() - started < 1
        since = time.strftime("%Y-%m-%d %H:")
        assert f"study “first” (process {os.getpid()}, since {since}" in str(caught.value)
        assert "is running here: two at once would measure each other; wait for it" in str(caught.value)
        assert "\n" not in str(caught.value)
    assert lock.read_text() == ""
    with host_lock("second"):
        pass


def test_the_lock_is_free_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), host_lock("first"):
        raise ZeroDivisionError
    with host_lock("second"):
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


def test_what_a_dead_study_left_is_waited_for() -> None:
    pid = die(2.5)
    told: list[str] = []
    started = time.monotonic()
    with host_lock("next", tell=told.append):
        assert time.monotonic() - started < 10
    (words,) = told
    assert words.startswith(f"waiting until what study “dead” (process {pid}, since ")
    assert words.endswith(" left behind is cleaned up")


def test_waiting_has_an_end(monkeypatch: pytest.MonkeyPatch, lock: Path) -> None:
    monkeypatch.setattr(module, "_CLEANING_LIMIT_S", 0.3)
    die(5)
    with (
        pytest.raises(PreflightError, match=rf"still held for study “dead” .*: 'fuser -v {lock}'"),
        host_lock("next"),
    ):
        raise AssertionError("two at once")


def test_a_number_that_another_process_got_later_is_not_the_holder(lock: Path) -> None:
    die(2.5)
    lock.write_text(json.dumps({"what": "old", "pid": os.getpid(), "since": 1.0}))
    told: list[str] = []
    with host_lock("next", tell=told.append):
        pass
    assert "what old (process" in told[0]


@pytest.mark.parametrize("content", ["", "garbage", "{}", '{"what": 1}', "\0" * 100])
def test_what_an_unlocked_file_holds_does_not_matter(content: str, lock: Path) -> None:
    lock.write_text(content)
    with host_lock("next"):
        assert '"what":"next"' in lock.read_text()


def test_one_at_a_time_however_many_start_at_once() -> None:
    inside, most, refused = [0], [0], [0]

    def start() -> None:
        try:
            with host_lock("one of many"):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0.3)
                inside[0] -= 1
        except PreflightError:
            refused[0] += 1

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most[0], refused[0]) == (1, 7)


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
    with (
        pytest.raises(
            PreflightError, match=r"cannot use the lock .*/lock \(Permission denied\): remove that file, or"
        ),
        host_lock("x"),
    ):
        raise AssertionError("opened")


@pytest.mark.parametrize("make", ["link", "hard link", "folder", "pipe"])
def test_what_is_not_a_plain_file_is_never_written_to(make: str, lock: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("content")
    if make == "link":
        lock.symlink_to(precious)
    elif make == "hard link":
        lock.hardlink_to(precious)
    elif make == "folder":
        lock.mkdir()
    else:
        os.mkfifo(lock)
    with pytest.raises(PreflightError, match=r"cannot use the lock .*BENCHLIB_LOCK"), host_lock("x"):
        raise AssertionError("opened")
    assert precious.read_text() == "content"


def test_a_folder_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(LOCK_VARIABLE, str(tmp_path / "never" / "lock"))
    with pytest.raises(PreflightError, match="cannot use the lock"), host_lock("x"):
        raise AssertionError("opened")
