"""Whatever way a run ends, nothing of it is left soon after."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from unittest.mock import Mock

import needs
import psutil
import pytest
from clusters import eventually, remains
from host_parts import GROUPS, is_alive, refused

from benchlib.host import guardian as module
from benchlib.host.changes import loop_devices
from benchlib.host.guardian import guarded_run, recover
from benchlib.host.lock import lock_path
from benchlib.host.shell import known
from benchlib.host.sweep import processes_of

# Opens a run and starts what a run starts: a process that names the folder, one that
# works inside it, one that ignores polite signals (a server for what one can see), a group of its own each.
STUDY = """
import subprocess, sys, time
from pathlib import Path
from benchlib.host.guardian import guarded_run

deaf = "import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 3, 15)]; print(1, end=str(), flush=True); time.sleep(99)"
with guarded_run(Path(sys.argv[1]), "study “doomed”") as run:
    (run.folder / "data").mkdir()
    def start(*argv, **more):
        return subprocess.Popen(argv, start_new_session=True, stdout=subprocess.PIPE, **more)
    named = start(sys.executable, "-S", "-c", "import time; time.sleep(99)", run.folder / "data")
    inside = start("sleep", "99", cwd=run.folder / "data")
    stubborn = start(sys.executable, "-S", "-c", deaf, "-D", str(run.folder))
    stubborn.stdout.read(1)
    print(run.folder, named.pid, inside.pid, stubborn.pid, flush=True)
    time.sleep(99)
"""


def guardian_of(folder):
    words = ["-m", "benchlib.host.guardian", str(folder)]
    (guardian,) = (p for p in psutil.process_iter() if (known(p.cmdline) or [])[1:4] == words and is_alive(p))
    return guardian


class Doomed:
    """A study's process, with its run's folder, guardian, and what it started."""

    def __init__(self, study, *words):
        argv = [sys.executable, "-c", study, *words]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self.process.stdout is not None
        folder, *pids = self.process.stdout.readline().split()
        self.folder, self.guardian = Path(folder), guardian_of(Path(folder))
        self.started = [psutil.Process(int(pid)) for pid in pids]

    def alive(self):
        return [process for process in self.started if is_alive(process)]

    def kill_tree(self):
        """As who ends all that it has started; says who that was."""
        tree = psutil.Process(self.process.pid).children(recursive=True)
        for process in (self.process, *tree):
            with suppress(psutil.NoSuchProcess):  # it ended by itself just now
                process.kill()
        return {*tree}


@pytest.fixture
def doomed(scratch):
    study = Doomed(STUDY, scratch)
    assert len(study.alive()) == 3
    yield study
    for process in (*study.started, study.guardian):
        if is_alive(process):
            process.kill()
    study.process.kill()
    study.process.communicate()


def kill_it_after_what_a_terminal_sends(study):
    for sig in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        study.guardian.send_signal(sig)
    assert is_alive(study.guardian)
    study.process.kill()


def kill_its_tree(study):
    killed = study.kill_tree()
    assert study.guardian not in killed, "whoever kills the tree spares the guardian"
    assert {*study.started} <= killed


@pytest.mark.example
@pytest.mark.parametrize("kill", [kill_it_after_what_a_terminal_sends, kill_its_tree])
def test_nothing_of_a_killed_study_is_left(kill, doomed):
    assert {*processes_of(doomed.folder)} >= {*doomed.started}
    kill(doomed)
    assert eventually(lambda: not doomed.alive() and not doomed.folder.exists())
    assert eventually(lambda: not is_alive(doomed.guardian)), "the guardian goes last, and goes"


def test_a_run_keeps_others_out_and_is_recovered_without_its_guardian(doomed, scratch):
    refused(guarded_run(scratch, "another"), rf"study “doomed” \(process {doomed.process.pid}, since ")
    doomed.guardian.kill()
    doomed.process.kill()
    doomed.process.wait()
    assert len(doomed.alive()) == 3
    (swept,) = recover(scratch)
    assert str(swept) == f"{doomed.folder.name}: stopped 3 process(es); removed its folder"
    assert doomed.alive() == []
    assert recover(scratch) == recover(scratch / "never") == []


def test_a_guarded_run_is_not_swept_though_its_lock_is_gone(doomed, scratch):
    lock_path().unlink()
    refused(guarded_run(scratch, "another"), f"guardian: process {doomed.guardian.pid}")
    assert len(doomed.alive()) == 3


def test_an_ended_guardian_is_replaced(scratch):
    with guarded_run(scratch, "test") as run:
        first = guardian_of(run.folder)
        run.check_guarded()
        assert guardian_of(run.folder) == first, "not while it is there"
        first.kill()
        assert eventually(lambda: not is_alive(first))
        run.check_guarded()
        second = guardian_of(run.folder)
    assert eventually(lambda: not is_alive(second))


@pytest.mark.parametrize("end", [None, KeyboardInterrupt])
def test_a_run_ends_with_all_of_its_own(end, scratch, start):
    (scratch / "run-stale").mkdir(mode=0o700)  # as a crash of the machine left it
    (scratch / "notes").mkdir()
    (scratch / "run-file").write_text("a file, not a run")
    neighbour, messages = start("sleep", "99", cwd=scratch), []
    with pytest.raises(end) if end else nullcontext(), guarded_run(scratch, "test", messages.append) as run:
        assert messages == ["an earlier run was cleaned up: run-stale: removed its folder"]
        assert not (scratch / "run-stale").exists()
        # as root the servers' user must be able to pass through
        assert run.folder.stat().st_mode & 0o777 == (0o710 if os.geteuid() == 0 else 0o700)
        guardian = guardian_of(run.folder)
        child = start("sleep", "99", cwd=run.folder, start_new_session=True)
        if end:
            raise end
    assert child.wait(60) == -signal.SIGKILL
    assert {path.name for path in scratch.iterdir()} == {"notes", "run-file"}
    assert lock_path().read_text() == ""
    assert eventually(lambda: not is_alive(guardian))
    assert neighbour.poll() is None


def test_an_interrupted_sweep_is_the_guardians(scratch, monkeypatch, start):
    with monkeypatch.context() as impatient:
        impatient.setattr(module, "sweep", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt), guarded_run(scratch, "test") as run:
            child = start("sleep", "99", cwd=run.folder, start_new_session=True)
    with guarded_run(scratch, "next"):
        assert not run.folder.exists()
    assert child.wait(60) == -signal.SIGKILL


def test_a_folder_that_will_not_do_is_refused_with_the_remedy(scratch):
    (scratch / "file").touch()
    refused(guarded_run(scratch / ("ö" * 30), "test"), "too long for a Unix socket.* BENCHLIB_SCRATCH")
    refused(guarded_run(scratch / "file" / "inside", "test"), "cannot work in .* BENCHLIB_SCRATCH")
    refused(guarded_run(scratch / "a,b", "test"), "has a comma.* BENCHLIB_SCRATCH")


# --- killed at random moments while it changes the host in every way --------------------------

TUNABLE = Path("/proc/sys/fs/lease-break-time")

# What a study does, in fast motion, over and over; it prints its folder.
CHANGING = """
import subprocess, sys
from pathlib import Path
from benchlib.host.guardian import guarded_run
from benchlib.host.changes import Attached, Grouped, Made, Mounted, Written, write_kernel_file

scratch, group, tunable = map(Path, sys.argv[1:])
script = '''
    truncate --size=16M "$1"; device=$(losetup --find --show "$1"); mkfs.ext4 -q $device; mount $device "$2"
    mkdir -p "$3/inner"; echo $$ > "$3/inner/cgroup.procs"; cd "$2"; head -c 1000000 /dev/zero > file
'''
with guarded_run(scratch, "study “doomed”") as run:
    print(run.folder, flush=True)
    made = Made(folder=scratch / "benchlib-elsewhere")
    run.journal.scope().note(made)
    made.make()
    disk, target = run.folder / "disk", made.folder / "m"
    target.mkdir()
    while True:
        with run.journal.scope() as trial:
            for value in ("41", "42"):
                trial.note(Written(path=tunable, former=tunable.read_text().strip(), value=value))
                write_kernel_file(tunable, value)
            for change in (Attached(file=disk), Mounted(target=target), Grouped(folder=group)):
                trial.note(change)
            subprocess.run(["sh", "-ec", script, "sh", disk, target, group], check=True)
"""


@needs.root
@pytest.mark.skipif(
    not Path("/dev/loop-control").exists() or not GROUPS, reason="needs loop devices and groups"
)
@pytest.mark.parametrize("times", [1, pytest.param(100, marks=pytest.mark.long)])
def test_studies_killed_at_random_moments_leave_the_host_as_it_was(times, scratch):
    group, before = GROUPS[0] / f"benchlib-test-{scratch.name}", TUNABLE.read_text()

    def traces():
        """What is different from before the study."""
        left = [path for path in (group, *scratch.iterdir()) if path.exists()]
        attached = remains(scratch) + loop_devices(study.folder / "disk")
        return [*left, *attached, *processes_of(scratch), *({before} - {TUNABLE.read_text()})]

    for attempt in range(times):
        study = Doomed(CHANGING, scratch, group, TUNABLE)
        time.sleep(random.uniform(0, 0.5))
        assert study.process.poll() is None
        study.kill_tree() if attempt % 2 else study.process.kill()
        study.process.communicate()
        assert eventually(lambda: not traces()), traces()
