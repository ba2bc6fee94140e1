"""Kill a study that uses every lever at random moments, and look from outside at what remains.

    python benchmarks/kills.py --rounds 100 --out data/benchmarks/kills.csv

Each round starts (or goes on with) the study in a process of its own, kills it with SIGKILL after
a random time (the process alone, or its whole group), and then asks the kernel and the server that
is not ours, until all is as it was: tunables, mounts, loop devices, control groups, processes,
``ALTER SYSTEM``, databases. A round is good when that holds within 10 s; files, and shared memory
that no process uses (``segments``), are told beside it. In the end the study is let run to its
end: every trial must be there and good. Needs root.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchlib.host.facts import block_devices, queue_of
from benchlib.host.guardian import SCRATCH_VARIABLE
from benchlib.host.lock import LOCK_VARIABLE
from benchlib.host.shell import Shell, server_user
from benchlib.load.workloads import load_workload
from benchlib.plan.design import randomised_blocks
from benchlib.plan.level import Level
from benchlib.plan.model import Factor, Load, Plan, Study
from benchlib.server.cluster import Cluster
from benchlib.server.installations import find_installation, runnable_by
from benchlib.study.bench import open_bench
from benchlib.study.loop import keep_study, run_study
from benchlib.study.store import DATA_VARIABLE, StudyFolder

LIMIT_S = 10.0
COLUMNS = (
    "round",
    "killed_after_s",
    "how",
    "trials_kept",
    "restored_after_s",
    "gone_after_s",
    "segments",
    "left",
)
LEVELS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "kernel": {
        "host": {
            "vm.swappiness": 7,
            "vm.dirty_ratio": 0,
            "vm.dirty_bytes": 536870912,
            "transparent_hugepage": "never",
            "scheduler": "mq-deadline",
            "read_ahead_kb": 256,
        }
    },
    "storage": {
        "storage": {
            "data": {"file_system": "ext4", "size": "1GB", "mount_options": "noatime"},
            "wal": {"file_system": "tmpfs", "size": "512MB"},
            "read_iops": 2000,
            "memory": "512MB",
        },
        "settings": {"max_wal_size": "128MB", "min_wal_size": "32MB"},
    },
    "synchronous": {"replication": "synchronous"},
    "elsewhere": {
        "target": {"server": "kills", "server_wide": True},
        "settings": {"work_mem": "9MB", "checkpoint_timeout": "7min"},
    },
}


def plan(seed: int) -> Plan:
    """All levers, trials of a second."""
    return Plan(
        factor=Factor(
            question="What remains?", baseline="defaults", levels={k: Level.model_validate(v) for k, v in LEVELS.items()}
        ),
        workload=load_workload("insert"),
        load=Load(clients=2, threads=1, duration_s=1, warmup_s=1),
        scale=1,
        rebuild_every=1,
        seed=seed,
    )  # fmt: skip


def run_here(name: str, blocks: int) -> None:
    """Run the study to its end, in this process."""
    its_plan, folder = plan(seed=1), StudyFolder(name)
    trials = randomised_blocks(list(its_plan.factor.levels), blocks, its_plan.seed)
    study = keep_study(folder, Study(name=name, title=name, plan=its_plan, trials=trials))
    run_study(folder, partial(open_bench, study))


class Outside:
    """What the machine and the server that is not ours look like, seen without the library's own eyes."""

    def __init__(self, root: Path, server: Cluster) -> None:
        self.root, self.server = root, server
        self.runs: set[str] = set()
        disk = Path("/sys/block") / queue_of(block_devices(root)[0]) / "queue"
        self.files = [
            *(Path("/proc/sys/vm") / name for name in ("swappiness", "dirty_ratio", "dirty_bytes")),
            Path("/sys/kernel/mm/transparent_hugepage/enabled"),
            disk / "scheduler",
            disk / "read_ahead_kb",
        ]

    def look(self) -> dict[str, Any]:
        """All that a study may change."""
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        loops = subprocess.run(["losetup", "-a"], capture_output=True, text=True, check=True).stdout
        groups = [p for p in Path("/sys/fs/cgroup").rglob("benchlib-*") if self._ours(p.name)]
        conf = (self.server.data / "postgresql.auto.conf").read_text()
        databases = self.server.query("SELECT datname FROM pg_database ORDER BY 1", "postgres")
        shown = [self.server.value(f"SHOW {name}", "postgres") for name in ("work_mem", "checkpoint_timeout")]
        return {
            **{str(path): path.read_text().strip() for path in self.files},
            "mounts": sorted(line for line in mounts if str(self.root) in line),
            "loop devices": sorted(line for line in loops.splitlines() if str(self.root) in line),
            "control groups": sorted(map(str, groups)),
            "ALTER SYSTEM": sorted(line for line in conf.splitlines() if not line.startswith("#")),
            "settings": shown,
            "databases": [row["datname"] for row in databases],
            "processes": self._processes(),
        }

    def _ours(self, group: str) -> bool:
        """Whether a control group is one of our runs': others may run beside us under another root."""
        self.runs |= {p.name for p in (self.root / "scratch").glob("run-*")}
        return any(run in group for run in self.runs)

    def litter(self) -> list[str]:
        """Files of ours that are still there: they may take longer than 10 s to remove."""
        return [p.name for p in (self.root / "scratch").glob("run-*")]

    @staticmethod
    def unattached() -> list[str]:
        """PostgreSQL's System V segments that no process is attached to: a server that was killed left them."""
        lines = Path("/proc/sysvipc/shm").read_text().splitlines()
        columns = lines[0].split()
        rows = [dict(zip(columns, line.split(), strict=True)) for line in lines[1:]]
        return sorted(row["shmid"] for row in rows if row["nattch"] == "0" and row["size"] == "56")

    def _processes(self) -> list[str]:
        mark, found = str(self.root / "scratch"), []
        for process in psutil.process_iter():
            try:
                words = [*process.cmdline(), process.cwd()]
            except (psutil.Error, OSError):
                continue
            if any(mark in word for word in words) and "benchlib.host.guardian" not in words:
                found.append(" ".join(words)[:80])
        return found


def a_round(
    number: int, outside: Outside, before: dict[str, Any], name: str, blocks: int, longest: float
) -> dict[str, Any]:
    """Start the study, kill it, wait until nothing of it is left."""
    segments = set(outside.unattached())
    words = [sys.executable, __file__, "--child", name, "--blocks", str(blocks)]
    child = subprocess.Popen(words, start_new_session=True, stdin=subprocess.DEVNULL)
    wait, how = random.uniform(0.2, longest), random.choice(["process", "group"])
    try:
        child.wait(wait)
        how = "ended by itself"
    except subprocess.TimeoutExpired:
        (os.kill if how == "process" else os.killpg)(child.pid, signal.SIGKILL)
        child.wait()
    killed = time.monotonic()
    restored, left = None, ["not looked"]
    while restored is None and time.monotonic() - killed < 60:
        now = outside.look()
        left = [f"{key}: {now[key]}" for key in before if now[key] != before[key]]
        if not left:
            restored = time.monotonic() - killed
        else:
            time.sleep(0.2)
    while (litter := outside.litter()) and time.monotonic() - killed < 60:
        time.sleep(0.2)
    gone = time.monotonic() - killed
    return {
        "round": number,
        "killed_after_s": f"{wait:.2f}",
        "how": how,
        "trials_kept": len(StudyFolder(name).kept()) if StudyFolder(name).exists() else 0,
        "restored_after_s": "" if restored is None else f"{restored:.2f}",
        "gone_after_s": "" if litter else f"{gone:.2f}",
        "segments": len(set(outside.unattached()) - segments),
        "left": "; ".join(left + litter),
    }


def main() -> None:
    """The rounds, and the study to its end."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=100)
    options.add_argument(
        "--longest", type=float, default=25.0, help="kill at the latest after so many seconds"
    )
    options.add_argument("--blocks", type=int, default=4, help="blocks of each study")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--out", type=Path)
    options.add_argument("--child", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.child:
        run_here(given.child, given.blocks)
        return
    random.seed(given.seed)
    root = Path(tempfile.mkdtemp(prefix="bk", dir="/var/tmp"))
    root.chmod(0o755)
    os.environ |= {
        SCRATCH_VARIABLE: str(root / "scratch"),
        DATA_VARIABLE: str(root / "data"),
        LOCK_VARIABLE: str(root / "lock"),
        "PGSERVICEFILE": str(root / "services"),
    }
    (root / "data").mkdir()
    shell = Shell(server_user())
    other = root / "other"
    other.mkdir(mode=0o755)
    server = Cluster(shell, runnable_by(shell, find_installation("18"), other), other / "c")
    server.create()
    server.configure({})
    server.start()
    (root / "services").write_text(
        f"[kills]\nhost={server.sockets}\nport=5432\nuser=postgres\ndbname=postgres\n"
    )
    rows: list[dict[str, Any]] = []
    study = 1
    try:
        outside = Outside(root, server)
        before = outside.look()
        for number in range(1, given.rounds + 1):
            name = f"kills-{study}"
            row = a_round(number, outside, before, name, given.blocks, given.longest)
            rows.append(row)
            print(*row.values(), sep="\t", flush=True)
            if row["how"] == "ended by itself":
                study += 1
        run_here(f"kills-{study}", given.blocks)
        wrong = [
            m.error for n in range(1, study + 1) for m in StudyFolder(f"kills-{n}").kept().values() if m.error
        ]
    finally:
        server.stop(immediately=True)
        if given.out:
            with given.out.open("w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS)
                writer.writeheader()
                writer.writerows(rows)
        if not rows or not any(row["left"] for row in rows):
            shutil.rmtree(root, ignore_errors=True)
    times = sorted(float(row["restored_after_s"]) for row in rows if row["restored_after_s"])
    kills = [row for row in rows if row["how"] != "ended by itself"]
    bad = [row for row in kills if not row["restored_after_s"] or float(row["restored_after_s"]) > LIMIT_S]
    print(
        f"{len(kills)} kills, {len(bad)} not restored within {LIMIT_S:g} s; {study} studies, {len(wrong)} failed trials"
    )
    if times:
        print(f"restored after {times[len(times) // 2]:.1f} s (median), {times[-1]:.1f} s (longest)")
    for error in wrong:
        print(error)
    sys.exit(1 if bad or wrong else 0)


if __name__ == "__main__":
    main()
