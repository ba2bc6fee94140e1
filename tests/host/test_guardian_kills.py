"""Killed at random moments while it changes the host in every way, a study leaves the host as it was."""

import contextlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import needs
import psutil
import pytest

from benchlib.host.changes import loop_devices, mounts_below
from benchlib.host.shell import ticks

LIMIT_S = 60.0
CAPS = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")
TUNABLES = [Path("/proc/sys/fs/lease-break-time"), Path("/proc/sys/vm/stat_interval")]
ABOVE_GROUPS = [
    folder
    for folder in map(Path, ("/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"))
    if (folder / "cgroup.procs").is_file() and os.access(folder, os.W_OK)
]

pytestmark = [
    *needs.ROOT,
    pytest.mark.skipif(
        not Path("/dev/loop-control").exists() or not ABOVE_GROUPS,
        reason="needs loop devices and control groups",
    ),
]

# What a study does, in fast motion, over and over; it prints its folder.
STUDY = """
import subprocess, sys
from pathlib import Path
from benchlib.host.guardian import guarded_run
from benchlib.host.changes import Attached, Grouped, Made, Mounted, Written, write_kernel_file

scratch, group, caps, first, second = map(Path, sys.argv[1:])

def set_tunable(chapter, path, value):
    chapter.note(Written(path=path, former=path.read_text().strip(), value=value))
    write_kernel_file(path, value)

with guarded_run(scratch, "study “doomed”") as run:
    print(run.folder, flush=True)
    study = run.journal.chapter()
    made = Made(folder=scratch / "benchlib-elsewhere")
    study.note(made)
    made.make()
    while True:
        with run.journal.chapter() as trial:
            set_tunable(trial, first, "41")
            set_tunable(trial, second, "7")
            set_tunable(trial, first, "42")
            disk, target = run.folder / "disk", made.folder / "m"
            trial.note(Attached(file=disk))
            subprocess.run(["truncate", "--size=16M", disk], check=True)
            shown = subprocess.run(["losetup", "--find", "--show", disk], check=True, capture_output=True, text=True)
            device = shown.stdout.strip()
            subprocess.run(["mkfs.ext4", "-q", device], check=True)
            target.mkdir(exist_ok=True)
            trial.note(Mounted(target=target))
            subprocess.run(["mount", device, target], check=True)
            if caps.exists():
                number = Path("/sys/class/block", Path(device).name, "dev").read_text().strip()
                trial.note(Written(path=caps, former=f"{number} 0", value=f"{number} 2000003"))
                write_kernel_file(caps, f"{number} 2000003")
            (target / "data").mkdir()
            trial.note(Grouped(folder=group))
            (group / "inner").mkdir(parents=True)
            inside = subprocess.Popen(["sleep", "99"], cwd=target / "data", start_new_session=True)
            (group / "inner" / "cgroup.procs").write_text(str(inside.pid))
            (target / "data" / "file").write_bytes(bytes(1 << 20))
            inside.kill(); inside.wait()
"""


class Study(NamedTuple):
    """A study's process, its folder and control group, and the tunables before it."""

    process: "subprocess.Popen[str]"
    folder: Path
    group: Path
    before: dict[Path, str]


def start(scratch: Path) -> Study:
    before = {path: path.read_text() for path in TUNABLES}
    group = ABOVE_GROUPS[0] / f"benchlib-test-{scratch.name}"
    argv = [sys.executable, "-c", STUDY, scratch, group, CAPS, *TUNABLES]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    return Study(process, Path(process.stdout.readline().strip()), group, before)


def kill_tree(study: "subprocess.Popen[str]") -> None:
    tree = psutil.Process(study.pid).children(recursive=True)
    for process in (psutil.Process(study.pid), *tree):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended by itself just now
            process.kill()


def traces(scratch: Path, study: Study) -> list[str]:
    """What is different from before the study."""
    left = [f"{path} is {path.read_text()}" for path, was in study.before.items() if path.read_text() != was]
    caps = CAPS.read_text().splitlines() if CAPS.exists() else []
    left += [f"capped {line}" for line in caps if line.endswith(" 2000003")]
    left += [f"mounted {point}" for point in mounts_below(scratch)]
    left += [f"attached {device}" for device in loop_devices(study.folder / "disk")]
    left += [f"there is {path}" for path in (study.group, *scratch.iterdir()) if path.exists()]
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = f"{process.info['cmdline']} {process.info['cwd']}"
        if str(scratch) in words:
            left.append(f"running {words}")
    return left


@pytest.mark.parametrize("times", [1, pytest.param(100, marks=pytest.mark.long)])
def test_studies_killed_at_random_moments_leave_the_host_as_it_was(times: int, scratch: Path) -> None:
    for attempt in range(times):
        study = start(scratch)
        time.sleep(random.uniform(0, 0.5))
        assert study.process.poll() is None
        kill_tree(study.process) if attempt % 2 else study.process.kill()
        study.process.communicate()
        for _ in ticks(LIMIT_S):
            if not (left := traces(scratch, study)):
                break
        assert left == []
