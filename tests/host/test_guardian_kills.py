"""Killed at random moments while it changes the host in every way, a study leaves the host as it was."""

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchlib.host.changes import loop_devices, mounts_below
from benchlib.host.guardian import guarded_run

LIMIT_S = 60.0
TUNABLES = [Path("/proc/sys/fs/lease-break-time"), Path("/proc/sys/vm/stat_interval")]
ABOVE_GROUPS = [
    folder
    for folder in map(Path, ("/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"))
    if (folder / "cgroup.procs").is_file() and os.access(folder, os.W_OK)
]

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/loop-control").exists() or not ABOVE_GROUPS,
    reason="needs root, loop devices and control groups",
)

# What a study does, in fast motion, over and over; told: the folder, then a dot for each round.
STUDY = """
import json, subprocess, sys
from pathlib import Path
from benchlib.host.guardian import guarded_run
from benchlib.host.changes import Attached, Grouped, Made, Mounted, Written, write_kernel_file

given = json.loads(sys.argv[1])
scratch = Path(given["scratch"])

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
            set_tunable(trial, Path(given["tunables"][0]), "41")
            set_tunable(trial, Path(given["tunables"][1]), "7")
            set_tunable(trial, Path(given["tunables"][0]), "42")
            disk, target = run.folder / "disk", made.folder / "m"
            trial.note(Attached(file=disk))
            subprocess.run(["truncate", "--size=16M", disk], check=True)
            shown = subprocess.run(["losetup", "--find", "--show", disk], check=True, capture_output=True, text=True)
            device = shown.stdout.strip()
            subprocess.run(["mkfs.ext4", "-q", device], check=True)
            target.mkdir(exist_ok=True)
            trial.note(Mounted(target=target))
            subprocess.run(["mount", device, target], check=True)
            (target / "data").mkdir()
            group = Path(given["group"])
            trial.note(Grouped(folder=group))
            (group / "inner").mkdir(parents=True)
            inside = subprocess.Popen(["sleep", "99"], cwd=target / "data", start_new_session=True)
            (group / "inner" / "cgroup.procs").write_text(str(inside.pid))
            (target / "data" / "file").write_bytes(bytes(1 << 20))
            inside.kill(); inside.wait()
        print(".", end="", flush=True)
"""


def start(scratch: Path) -> tuple["subprocess.Popen[str]", Path, Path]:
    group = ABOVE_GROUPS[0] / f"benchlib-test-{scratch.name}"
    given = {"scratch": str(scratch), "tunables": [str(path) for path in TUNABLES], "group": str(group)}
    study = subprocess.Popen(
        [sys.executable, "-c", STUDY, json.dumps(given)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )  # fmt: skip
    assert study.stdout is not None
    return study, Path(study.stdout.readline().strip()), group


def kill_tree(study: "subprocess.Popen[str]") -> None:
    tree = psutil.Process(study.pid).children(recursive=True)
    for process in (psutil.Process(study.pid), *tree):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended by itself just now
            process.kill()


Host = dict[Path, str]


def looked_at() -> Host:
    return {path: path.read_text() for path in TUNABLES}


def traces(scratch: Path, group: Path, disk: Path, before: Host, mine: Path | None = None) -> list[str]:
    """What is different from before, but for what belongs to a run of the test's own."""
    left = [f"{path} is {path.read_text()}" for path in before if path.read_text() != before[path]]
    left += [f"mounted {point}" for point in mounts_below(scratch)]
    left += [f"attached {device}" for device in loop_devices(disk)]
    left += [f"there is {path}" for path in (group, *scratch.iterdir()) if path.exists() and path != mine]
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = f"{process.info['cmdline']} {process.info['cwd']}"
        if str(scratch) in words and not (mine and str(mine) in words):
            left.append(f"running {words}")
    return left


def kill_once(scratch: Path, after_s: float, *, tree: bool = False) -> None:
    """Start a study, kill it after so many seconds, and wait until the host is as it was."""
    before = looked_at()
    study, folder, group = start(scratch)
    time.sleep(after_s)
    assert study.poll() is None
    kill_tree(study) if tree else study.kill()
    killed = time.monotonic()
    study.communicate()
    while (left := traces(scratch, group, folder / "disk", before)) and time.monotonic() < killed + LIMIT_S:
        time.sleep(0.05)
    assert left == []


@pytest.mark.parametrize("times", [1, pytest.param(100, marks=pytest.mark.slow)])
def test_studies_killed_at_random_moments_leave_the_host_as_it_was(times: int, scratch: Path) -> None:
    for attempt in range(times):
        kill_once(scratch, random.uniform(0, 0.5), tree=attempt % 2 == 1)


def test_without_its_guardian_the_next_run_undoes_it(scratch: Path) -> None:
    before = looked_at()
    study, folder, group = start(scratch)
    time.sleep(0.3)
    (guardian,) = (
        p
        for p in psutil.process_iter(["cmdline"])
        if str(folder) in (p.info["cmdline"] or ()) and "benchlib.host.guardian" in p.info["cmdline"]
    )
    guardian.kill()
    study.kill()
    study.communicate()
    assert traces(scratch, group, folder / "disk", before), "nobody else does"
    messages: list[str] = []
    with guarded_run(scratch, "next", messages.append) as run:
        assert traces(scratch, group, folder / "disk", before, run.folder) == []
    assert messages[-1].startswith(f"an earlier run was cleaned up: {folder.name}: ")
