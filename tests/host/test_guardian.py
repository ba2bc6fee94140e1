"""Whatever way a run ends, nothing of it is left ten seconds later."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from benchlib.errors import PreflightError
from benchlib.host import guardian as guardian_module
from benchlib.host.guardian import SCRATCH_VARIABLE, guarded_run, recover, scratch_root
from benchlib.host.sweep import processes_of

LIMIT_S = 10.0

# Opens a run and starts what a run starts: a process that names the folder, one that works
# inside it, one that ignores polite signals (a server for what one can see, where the study is given
# "-D"), a group of its own each, as the shell does.
STUDY = """
import subprocess, sys, time
from pathlib import Path
from benchlib.host.guardian import guarded_run

deaf = "import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 3, 15)]; print(1, end=str(), flush=True); time.sleep(99)"
with guarded_run(Path(sys.argv[1]), "study “doomed”") as run:
    (run.folder / "data").mkdir()
    def start(words, **more):
        return subprocess.Popen(words, start_new_session=True, stdout=subprocess.PIPE, **more)
    named = start([sys.executable, "-c", "import time; time.sleep(99)", str(run.folder / "data")])
    inside = start(["sleep", "99"], cwd=run.folder / "data")
    stubborn = start([sys.executable, "-c", deaf, *sys.argv[2:], str(run.folder)])
    stubborn.stdout.read(1)
    print(run.folder, run._guardian, named.pid, inside.pid, stubborn.pid, flush=True)
    time.sleep(99)
"""


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bl", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        monkeypatch.setenv(SCRATCH_VARIABLE, name)
        yield Path(name)


class Doomed:
    """A study's process with what it started."""

    def __init__(self, scratch: Path, *words: str, script: str = STUDY) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, str(scratch), *words],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        folder, *pids = self.process.stdout.readline().split()
        self.folder = Path(folder)
        self.guardian, *self.started = (psutil.Process(int(pid)) for pid in pids)

    def alive(self) -> list[psutil.Process]:
        return [p for p in self.started if is_alive(p)]

    def clear_away(self) -> None:
        for process in (*self.started, self.guardian):
            if is_alive(process):
                process.kill()
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def doomed(scratch: Path) -> Iterator[Doomed]:
    study = Doomed(scratch)
    yield study
    study.clear_away()


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def within(seconds: float, what: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not what() and time.monotonic() < end:
        time.sleep(0.1)
    return what()


def kill_itself(study: Doomed) -> None:
    study.process.kill()


def kill_its_group(study: Doomed) -> None:
    os.killpg(study.process.pid, signal.SIGKILL)


def kill_its_tree(study: Doomed) -> None:
    tree = psutil.Process(study.process.pid).children(recursive=True)
    assert study.guardian not in tree, "whoever kills the tree spares the guardian"
    assert {p.pid for p in study.started} <= {p.pid for p in tree}
    for process in (psutil.Process(study.process.pid), *tree):
        process.kill()


def end_it_politely(study: Doomed) -> None:
    study.process.terminate()


@pytest.mark.parametrize("kill", [kill_itself, kill_its_group, kill_its_tree, end_it_politely])
def test_nothing_of_a_killed_study_is_left(kill: Callable[[Doomed], None], doomed: Doomed) -> None:
    assert len(doomed.alive()) == 3
    assert {p.pid for p in processes_of(doomed.folder)} >= {p.pid for p in doomed.started}
    kill(doomed)
    assert within(LIMIT_S, lambda: not doomed.alive() and not doomed.folder.exists())
    assert processes_of(doomed.folder) == []
    assert within(2, lambda: not is_alive(doomed.guardian)), "the guardian goes last, and goes"


def test_the_guardian_ignores_what_a_terminal_sends(doomed: Doomed) -> None:
    for sig in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        doomed.guardian.send_signal(sig)
    time.sleep(0.3)
    assert is_alive(doomed.guardian)
    assert doomed.folder.exists()
    kill_itself(doomed)
    assert within(LIMIT_S, lambda: not doomed.alive() and not doomed.folder.exists())


def test_a_second_run_is_refused_in_one_line_that_names_the_first(doomed: Doomed, scratch: Path) -> None:
    with pytest.raises(PreflightError) as caught, guarded_run(scratch, "another"):
        raise AssertionError("two at once")
    assert f"study “doomed” (process {doomed.process.pid}, since " in str(caught.value)
    assert ") is running here" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(doomed.alive()) == 3
    assert doomed.folder.is_dir()


def test_recovering_is_refused_while_a_run_is_under_way_and_works_after(
    doomed: Doomed, scratch: Path
) -> None:
    with pytest.raises(PreflightError, match="study “doomed”"):
        recover(scratch)
    assert len(doomed.alive()) == 3
    doomed.guardian.kill()
    kill_itself(doomed)
    doomed.process.wait()
    time.sleep(0.3)
    assert len(doomed.alive()) == 3, "without its guardian they stay"
    (swept,) = recover(scratch)
    assert str(swept) == f"{doomed.folder.name}: stopped 3 process(es); removed its folder"
    assert doomed.alive() == []
    assert not doomed.folder.exists()
    assert recover(scratch) == []


def test_the_next_run_removes_what_a_crash_of_the_machine_left(scratch: Path) -> None:
    stale = scratch / "run-stale"
    (stale / "data").mkdir(parents=True)
    (stale / "data" / "file").write_text("left")
    with guarded_run(scratch, "next") as run:
        assert not stale.exists()
        assert run.folder.is_dir()


def test_what_is_not_a_runs_is_spared(scratch: Path) -> None:
    (scratch / "notes").mkdir()
    (scratch / "run-file").write_text("a file, not a run")
    neighbour = subprocess.Popen(["sleep", "99"], cwd=scratch)
    try:
        with guarded_run(scratch, "test"):
            pass
        assert recover(scratch) == []
        assert neighbour.poll() is None
        assert (scratch / "notes").is_dir()
        assert (scratch / "run-file").is_file()
    finally:
        neighbour.kill()
        neighbour.wait()


def test_an_ended_guardian_is_replaced(scratch: Path) -> None:
    with guarded_run(scratch, "test") as run:
        first = psutil.Process(run._guardian)
        run.check_guarded()
        assert run._guardian == first.pid, "not while it is there"
        first.kill()
        assert within(3, lambda: not is_alive(first))
        run.check_guarded()
        second = psutil.Process(run._guardian)
        assert second.pid != first.pid
        assert is_alive(second)
        assert str(run.folder) in second.cmdline()
    assert within(3, lambda: not is_alive(second))


def test_a_replaced_guardian_guards(scratch: Path) -> None:
    script = STUDY.replace(
        "    (run.folder", "    import os; os.kill(run._guardian, 9); time.sleep(0.5); run.check_guarded()\n    (run.folder", 1
    )  # fmt: skip
    assert script != STUDY
    study = Doomed(scratch, script=script)
    try:
        kill_itself(study)
        assert within(LIMIT_S, lambda: not study.alive() and not study.folder.exists())
    finally:
        study.clear_away()


def test_a_server_that_is_deaf_to_its_order_to_stop_is_killed(scratch: Path) -> None:
    study = Doomed(scratch, "-D")
    try:
        kill_itself(study)
        assert within(LIMIT_S, lambda: not study.alive() and not study.folder.exists())
    finally:
        study.clear_away()


@pytest.mark.parametrize("end", [None, RuntimeError, KeyboardInterrupt])
def test_the_end_of_a_run_leaves_nothing(end: type[BaseException] | None, scratch: Path, lock: Path) -> None:
    with pytest.raises(end) if end else nullcontext(), guarded_run(scratch, "test") as run:
        guardian = psutil.Process(run._guardian)
        child = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(99)", str(run.folder)], start_new_session=True
        )
        (run.folder / "file").write_text("x")
        if end:
            raise end
    assert child.wait(1) == -signal.SIGKILL
    assert list(scratch.iterdir()) == []
    assert lock.read_text() == ""
    assert within(3, lambda: not is_alive(guardian))
    with guarded_run(scratch, "again"):
        pass


def test_a_sweep_that_is_interrupted_is_the_guardians(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as impatient:
        impatient.setattr(guardian_module, "sweep", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt), guarded_run(scratch, "test") as run:
            child = subprocess.Popen(["sleep", "99"], cwd=run.folder, start_new_session=True)
    with guarded_run(scratch, "next"):
        assert not run.folder.exists()
    assert child.wait(1) == -signal.SIGKILL


def test_a_runs_folder_is_private(scratch: Path) -> None:
    with guarded_run(scratch, "test") as run:
        # as root the servers' user must be able to pass through
        assert oct(run.folder.stat().st_mode & 0o777) == ("0o711" if os.geteuid() == 0 else "0o700")
        assert run.folder.parent == scratch


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("long" * 15, r"too long for a Unix socket: name a shorter one in BENCHLIB_SCRATCH"),
        ("file/inside", r"cannot write to the scratch folder .* name another one in BENCHLIB_SCRATCH"),
        ("/proc/benchlib", r"cannot write to the scratch folder .* name another one in BENCHLIB_SCRATCH"),
    ],
)
def test_a_place_that_will_not_do_is_refused_with_the_remedy(place: str, words: str, scratch: Path) -> None:
    (scratch / "file").write_text("")
    with pytest.raises(PreflightError, match=words), guarded_run(scratch / place, "test"):
        raise AssertionError("opened")


def test_recovering_where_nothing_ever_was_finds_nothing(scratch: Path) -> None:
    assert recover(scratch / "never") == []


def test_the_scratch_folder_is_the_one_that_is_named(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert scratch_root() == scratch
    monkeypatch.delenv(SCRATCH_VARIABLE)
    assert scratch_root() == Path(f"/var/tmp/benchlib-{os.getuid()}")
