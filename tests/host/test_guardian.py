"""Whatever way a run ends, nothing of it is left soon after."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from benchlib.errors import PreflightError
from benchlib.host import guardian as guardian_module
from benchlib.host.guardian import guarded_run, recover
from benchlib.host.shell import known, ticks
from benchlib.host.sweep import processes_of

# Opens a run and starts what a run starts: a process that names the folder, one that
# works inside it, one that ignores polite signals (a server for what one can see), a group of its own each.
STUDY = """
import os, subprocess, sys, time
from pathlib import Path
from benchlib.host.guardian import guarded_run

deaf = "import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 3, 15)]; print(1, end=str(), flush=True); time.sleep(99)"
with guarded_run(Path(sys.argv[1]), "study “doomed”") as run:
    (run.folder / "data").mkdir()
    def start(argv, **more):
        return subprocess.Popen(argv, start_new_session=True, stdout=subprocess.PIPE, **more)
    named = start([sys.executable, "-S", "-c", "import time; time.sleep(99)", str(run.folder / "data")])
    inside = start(["sleep", "99"], cwd=run.folder / "data")
    stubborn = start([sys.executable, "-S", "-c", deaf, "-D", str(run.folder)])
    stubborn.stdout.read(1)
    print(run.folder, named.pid, inside.pid, stubborn.pid, flush=True)
    time.sleep(99)
"""


def guardian_of(folder: Path) -> psutil.Process:
    words = ["-m", "benchlib.host.guardian", str(folder)]
    (guardian,) = (p for p in psutil.process_iter() if (known(p.cmdline) or [])[1:] == words and is_alive(p))
    return guardian


class Doomed:
    """A study's process with what it started."""

    def __init__(self, scratch: Path) -> None:
        argv = [sys.executable, "-c", STUDY, str(scratch)]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self.process.stdout is not None
        folder, *pids = self.process.stdout.readline().split()
        self.folder = Path(folder)
        self.guardian, self.started = guardian_of(self.folder), [psutil.Process(int(pid)) for pid in pids]

    def alive(self) -> list[psutil.Process]:
        return [process for process in self.started if is_alive(process)]

    def is_gone(self) -> bool:
        return eventually(lambda: not self.alive() and not self.folder.exists())


@pytest.fixture
def doomed(scratch: Path) -> Iterator[Doomed]:
    study = Doomed(scratch)
    yield study
    for process in (*study.started, study.guardian):
        if is_alive(process):
            process.kill()
    study.process.kill()
    study.process.communicate()


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def eventually(condition: Callable[[], bool]) -> bool:
    return any(condition() for _ in ticks(60))


def kill_it_after_what_a_terminal_sends(study: Doomed) -> None:
    for sig in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        study.guardian.send_signal(sig)
    assert is_alive(study.guardian)
    study.process.kill()


def kill_its_tree(study: Doomed) -> None:
    tree = psutil.Process(study.process.pid).children(recursive=True)
    assert study.guardian not in tree, "whoever kills the tree spares the guardian"
    assert {process.pid for process in study.started} <= {process.pid for process in tree}
    for process in (psutil.Process(study.process.pid), *tree):
        process.kill()


@pytest.mark.example
@pytest.mark.parametrize("kill", [kill_it_after_what_a_terminal_sends, kill_its_tree])
def test_nothing_of_a_killed_study_is_left(kill: Callable[[Doomed], None], doomed: Doomed) -> None:
    assert len(doomed.alive()) == 3
    assert {p.pid for p in processes_of(doomed.folder)} >= {p.pid for p in doomed.started}
    kill(doomed)
    assert doomed.is_gone()
    assert eventually(lambda: not is_alive(doomed.guardian)), "the guardian goes last, and goes"


def test_while_a_run_is_under_way_others_are_refused_and_what_is_left_without_a_guardian_is_recovered(
    doomed: Doomed, scratch: Path
) -> None:
    with pytest.raises(PreflightError) as caught, guarded_run(scratch, "another"):
        raise AssertionError("two at once")
    assert f"study “doomed” (process {doomed.process.pid}, since " in str(caught.value)
    assert "\n" not in str(caught.value)
    doomed.guardian.kill()
    doomed.process.kill()
    doomed.process.wait()
    assert len(doomed.alive()) == 3
    (swept,) = recover(scratch)
    assert str(swept) == f"{doomed.folder.name}: stopped 3 process(es); removed its folder"
    assert doomed.alive() == []
    assert recover(scratch) == recover(scratch / "never") == []


def test_an_ended_guardian_is_replaced(scratch: Path) -> None:
    with guarded_run(scratch, "test") as run:
        first = guardian_of(run.folder)
        run.check_guarded()
        assert guardian_of(run.folder) == first, "not while it is there"
        first.kill()
        assert eventually(lambda: not is_alive(first))
        run.check_guarded()
        second = guardian_of(run.folder)
        assert second != first
    assert eventually(lambda: not is_alive(second))


@pytest.mark.parametrize("end", [None, KeyboardInterrupt])
def test_the_end_of_a_run_leaves_nothing_but_what_is_not_the_runs(
    end: type[BaseException] | None, scratch: Path, lock: Path
) -> None:
    (scratch / "run-stale").mkdir(mode=0o700)  # as a crash of the machine left it
    (scratch / "notes").mkdir()
    (scratch / "run-file").write_text("a file, not a run")
    neighbour = subprocess.Popen(["sleep", "99"], cwd=scratch)
    try:
        messages: list[str] = []
        with (
            pytest.raises(end) if end else nullcontext(),
            guarded_run(scratch, "test", messages.append) as run,
        ):
            assert messages == ["an earlier run was cleaned up: run-stale: removed its folder"]
            assert not (scratch / "run-stale").exists()
            # as root the servers' user must be able to pass through
            assert oct(run.folder.stat().st_mode & 0o777) == ("0o710" if os.geteuid() == 0 else "0o700")
            guardian = guardian_of(run.folder)
            argv = [sys.executable, "-S", "-c", "import time; time.sleep(99)", str(run.folder)]
            child = subprocess.Popen(argv, start_new_session=True)
            if end:
                raise end
        assert child.wait(60) == -signal.SIGKILL
        assert {path.name for path in scratch.iterdir()} == {"notes", "run-file"}
        assert lock.read_text() == ""
        assert eventually(lambda: not is_alive(guardian))
        assert neighbour.poll() is None
    finally:
        neighbour.kill()
        neighbour.wait()


def test_a_sweep_that_is_interrupted_is_the_guardians(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as impatient:
        impatient.setattr(guardian_module, "sweep", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt), guarded_run(scratch, "test") as run:
            child = subprocess.Popen(["sleep", "99"], cwd=run.folder, start_new_session=True)
    with guarded_run(scratch, "next"):
        assert not run.folder.exists()
    assert child.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("long" * 15, r"too long for a Unix socket: name a shorter one in BENCHLIB_SCRATCH"),
        ("file/inside", r"cannot work in the scratch folder .* name another one in BENCHLIB_SCRATCH"),
    ],
)
def test_a_folder_that_will_not_do_is_refused_with_the_remedy(name: str, message: str, scratch: Path) -> None:
    (scratch / "file").write_text("")
    with pytest.raises(PreflightError, match=message), guarded_run(scratch / name, "test"):
        raise AssertionError("opened")


def test_a_run_whose_guardian_lives_is_not_swept_though_its_lock_is_gone(
    doomed: Doomed, scratch: Path, lock: Path
) -> None:
    lock.unlink()
    with pytest.raises(PreflightError, match=f"guardian: process {doomed.guardian.pid}"):
        recover(scratch)
    assert len(doomed.alive()) == 3
