"""A fleet on hosts of our own making: network namespaces with an address, a worker, a scratch folder and a lock each.

    python benchmarks/fleet.py --kills 20

Two generators drive one server; then six blocks run on three hosts, and at a random moment one worker is killed with all that it
started, and started again; so many times. Each time every trial has to be kept once and good, each block by one host, and of what was
killed nothing may be alive or left after 10 s. All run on one machine, so nothing here is a measurement. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchlib.host.guardian import SCRATCH_VARIABLE
from benchlib.host.lock import LOCK_VARIABLE
from benchlib.levers import worded
from benchlib.load.workloads import load_workload
from benchlib.plan.design import randomised_blocks
from benchlib.plan.fleet import CERTIFICATES, Fleet, FleetHost
from benchlib.plan.level import Level
from benchlib.plan.model import Factor, Load, Plan, Study
from benchlib.study.driver import run_on_fleet
from benchlib.study.fleet import Hosts, make_certificates
from benchlib.study.results import trials_frame
from benchlib.study.store import StudyFolder

LIMIT_S = 10.0
_BRIDGE, _NETWORK, _PORT = "blfleet0", "10.77.91", 8786


def ip(*words: str) -> None:
    """Call ``ip``."""
    subprocess.run(["ip", *words], check=True)


class Made:
    """Hosts of our own making, by name, and the cluster that they are."""

    def __init__(self, names: list[str], root: Path) -> None:
        self.root, self.names = root, names
        self.scheduler = f"tls://{_NETWORK}.1:{_PORT}"
        self.address = {name: f"{_NETWORK}.{number}" for number, name in enumerate(names, 11)}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @contextlib.contextmanager
    def up(self) -> Iterator[Made]:
        """Namespaces, a scheduler and a worker each, until it is left."""
        make_certificates(self.root / "tls")
        try:
            ip("link", "add", _BRIDGE, "type", "bridge")
            ip("addr", "add", f"{_NETWORK}.1/24", "dev", _BRIDGE)
            ip("link", "set", _BRIDGE, "up")
            self._start(
                "scheduler", [], "scheduler", "--protocol=tls", f"--host={_NETWORK}.1", f"--port={_PORT}"
            )
            for number, (name, address) in enumerate(self.address.items()):
                space = f"bl-{name}"
                ip("netns", "add", space)
                ip("link", "add", f"blv{number}", "type", "veth", "peer", "name", "eth0", "netns", space)
                ip("link", "set", f"blv{number}", "master", _BRIDGE, "up")
                ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
                for device in ("eth0", "lo"):
                    ip("-n", space, "link", "set", device, "up")
                self.start(name)
            yield self
        finally:
            for process in self.processes.values():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            for name in self.names:
                subprocess.run(["ip", "netns", "del", f"bl-{name}"], check=False)
            subprocess.run(["ip", "link", "del", _BRIDGE], check=False)

    def start(self, name: str) -> None:
        """Start the worker of a host."""
        space = ["ip", "netns", "exec", f"bl-{name}"]
        own = [f"--name={name}", f"--host={self.address[name]}", "--nthreads=1"]
        self._start(name, space, "worker", self.scheduler, *own)

    def _start(self, name: str, before: list[str], *words: str) -> None:
        names = ("--tls-ca-file", "--tls-cert", "--tls-key")
        files = [
            f"{option}={self.root / 'tls' / file}" for option, file in zip(names, CERTIFICATES, strict=True)
        ]
        with (self.root / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*before, sys.executable, "-m", "dask", *words, *files, "--no-dashboard"],
                stdout=log, stderr=log, start_new_session=True, cwd=self.root,
                env={**os.environ, LOCK_VARIABLE: str(self.root / f"{name}.lock"), "PYTHONPATH": str(Path(__file__).parent.parent)},
            )  # fmt: skip

    def kill(self, name: str) -> float:
        """Kill the worker of a host; after how many seconds nothing of it is alive or left."""
        os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].wait()
        killed = time.monotonic()
        while self.left(name) and time.monotonic() < killed + 60:
            time.sleep(0.1)
        return time.monotonic() - killed

    def left(self, name: str) -> list[str]:
        """What of a host's runs is alive or on disk."""
        scratch = self.scratch(name)
        alive = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if f"{scratch}/run-" in " ".join([*process.cmdline(), process.cwd()]):
                    alive.append(str(process.pid))
        return alive + [path.name for path in scratch.glob("run-*")]

    def scratch(self, name: str) -> Path:
        """Where a host's clusters lie."""
        return self.root / name

    def hosts(self, **roles: str) -> Hosts:
        """A fleet of these hosts, once all are connected."""
        hosts = {
            name: FleetHost(roles=(role,), address=self.address[name], scratch=str(self.scratch(name)))
            for name, role in roles.items()
        }
        fleet = Hosts(
            Fleet(scheduler=self.scheduler, tls=str(self.root / "tls"), hosts=hosts, back_within_s=60)
        )
        with fleet.connected():
            while roles.keys() - fleet.addresses().keys():
                time.sleep(0.2)
        return fleet


def study(name: str, root: Path, blocks: int, load: Load) -> StudyFolder:
    """A small study of one level and its twin."""
    factor = Factor(question="Is anything lost?", baseline="one", levels={"one": Level(), "other": Level()})
    plan = Plan(factor=factor, workload=load_workload("simple-update"), load=load, scale=1, seed=blocks)
    folder = StudyFolder(name, root / "data")
    trials = randomised_blocks(["one", "other"], blocks, 1)
    folder.write(worded(Study(name=name, title="A fleet on trial", plan=plan, trials=trials)))
    return folder


def complaints(folder: StudyFolder) -> list[str]:
    """What is wrong with a study that has run: a trial that is not there or failed, a block of two hosts."""
    planned, kept = folder.read().trials, folder.kept()
    frame = trials_frame(folder)
    wrong = [f"{trial.id} is missing" for trial in planned if trial.id not in kept]
    wrong += [str(error) for error in frame["error"].dropna()]
    hosts = frame.groupby("block")["host"].nunique()
    return wrong + [f"block {block} ran on {count} hosts" for block, count in hosts.items() if count != 1]


def main() -> int:
    """Put a fleet on trial; 0 where nothing was lost or left."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ.pop(SCRATCH_VARIABLE, None)
    root = Path(tempfile.mkdtemp(prefix="blf", dir="/var/tmp"))
    root.chmod(0o755)
    bad = 0
    try:
        with Made(["db1", "db2", "db3"], root).up() as made:
            load = Load(
                clients=4,
                threads=2,
                duration_s=3,
                warmup_s=1,
                transaction_log=True,
                generators=("db2", "db3"),
            )
            folder = study("generators", root, 1, load)
            run_on_fleet(folder, made.hosts(db1="server", db2="load", db3="load"))
            wrong = complaints(folder)
            bad += bool(wrong)
            print(f"two generators, one server: {'; '.join(wrong) or 'good'}", flush=True)
            chance = random.Random(options.seed)
            for number in range(1, options.kills + 1):
                bad += not round_of_kills(made, number, chance)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 1 if bad else 0


def round_of_kills(made: Made, number: int, chance: random.Random) -> bool:
    """Six blocks on three hosts, one of which is killed at a random moment; whether all was as it should be."""
    hosts = made.hosts(db1="server", db2="server", db3="server")
    folder = study(f"kills-{number}", made.root, 6, Load(clients=2, duration_s=1, warmup_s=0))
    victim, after_s, gone = chance.choice(made.names), chance.uniform(2, 30), []

    def kill() -> None:
        gone.append(made.kill(victim))
        made.start(victim)

    timer = threading.Timer(after_s, kill)
    timer.start()
    run_on_fleet(folder, hosts)
    timer.join()
    wrong = complaints(folder) + [f"{victim} was clean only after {s:.1f} s" for s in gone if s > LIMIT_S]
    spoilt = len(list(folder.path.glob("spoilt/*")))
    print(
        f"{number}: {victim} killed after {after_s:.1f} s, clean after {gone[0]:.1f} s, {spoilt} trials spoilt: "
        f"{'; '.join(wrong) or 'good'}",
        flush=True,
    )
    return not wrong


if __name__ == "__main__":
    sys.exit(main())
