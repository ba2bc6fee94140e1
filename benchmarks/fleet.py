"""A fleet on hosts of our own making: network namespaces with an address, a worker, a scratch folder and a lock each.

    python benchmarks/fleet.py --kills 20 --follower-kills 3
    python benchmarks/fleet.py --hold fleet.yaml     # or only make the hosts, until Ctrl-C

Two generators drive one server. A replica two namespaces away is waited for over a way of 0, 1 and 5 ms: commits wait for it, and no
packet on the network, no file and no command line has the password. Then six blocks run on three hosts, half of the trials on a disk
that is made for them, and at a random moment one worker is killed, and started again; so many times; and so often the worker of a
replica's host. Then the scheduler, the driver, or any one process of a host, whichever chance takes; what has ended is started again,
and so is the same study. Each time every trial has to be kept once and good (where a server or its load was killed, it is kept as
failed), each block by one host, and nothing may be alive or left 10 s after the kill, or after the study where a single process was
killed. All run on one machine, so nothing here is a measurement. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import yaml
from eavesdropper import Eavesdropper

from benchlib.errors import BenchlibError
from benchlib.host.guardian import SCRATCH_VARIABLE
from benchlib.host.lock import LOCK_VARIABLE
from benchlib.levers import worded
from benchlib.load.workloads import load_workload
from benchlib.plan.design import randomised_blocks
from benchlib.plan.fleet import CERTIFICATES, Fleet, FleetHost
from benchlib.plan.level import Level
from benchlib.plan.model import Factor, Load, Plan, Study
from benchlib.study.driver import run_on_fleet
from benchlib.study.experiment import shown
from benchlib.study.fleet import Hosts, make_certificates
from benchlib.study.records import ReplicaReadings
from benchlib.study.store import StudyFolder

LIMIT_S = 10.0
OTHERS = ("scheduler", "driver", "process")
BRIDGE, _NETWORK, _PORT = "blfleet0", "10.77.91", 8786


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
            ip("link", "add", BRIDGE, "type", "bridge")
            ip("addr", "add", f"{_NETWORK}.1/24", "dev", BRIDGE)
            ip("link", "set", BRIDGE, "up")
            self.start("scheduler")
            for number, (name, address) in enumerate(self.address.items()):
                space = f"bl-{name}"
                ip("netns", "add", space)
                ip("link", "add", f"blv{number}", "type", "veth", "peer", "name", "eth0", "netns", space)
                ip("link", "set", f"blv{number}", "master", BRIDGE, "up")
                ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
                for device in ("eth0", "lo"):
                    ip("-n", space, "link", "set", device, "up")
                self.start(name)
            yield self
        finally:
            for process in self.processes.values():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            # a study that was under way is undone by its guardian, which needs its folder
            self.clean(self.names)
            for name in self.names:
                subprocess.run(["ip", "netns", "del", f"bl-{name}"], check=False)
            subprocess.run(["ip", "link", "del", BRIDGE], check=False)

    def start(self, name: str) -> None:
        """Start the worker of a host, or the scheduler."""
        if name == "scheduler":
            self._start(name, [], "scheduler", "--protocol=tls", f"--host={_NETWORK}.1", f"--port={_PORT}")
            return
        # not "ip netns exec", which mounts another /sys: without control groups no disk has a cap
        space = ["nsenter", f"--net=/run/netns/bl-{name}"]
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

    def kill(self, name: str) -> None:
        """Kill the worker of a host, or the scheduler."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].wait()

    def start_again(self) -> None:
        """Start what has ended; with the scheduler all, since its workers do not come back to another."""
        if self.processes["scheduler"].poll() is not None:
            for name in self.names:
                self.kill(name)
        for name, process in list(self.processes.items()):
            if process.poll() is not None:
                self.start(name)

    def clean(self, names: Iterable[str]) -> float:
        """After how many seconds nothing of these hosts' runs is alive or left."""
        since, names = time.monotonic(), list(names)
        while any(map(self.left, names)) and time.monotonic() < since + 60:
            time.sleep(0.1)
        return time.monotonic() - since

    def inside(self, name: str) -> list[psutil.Process]:
        """The processes of a host: the worker's, those of runs, servers, load tools and guardians."""
        listed = subprocess.run(["ip", "netns", "pids", f"bl-{name}"], stdout=subprocess.PIPE, check=True)
        return [psutil.Process(int(pid)) for pid in listed.stdout.split() if psutil.pid_exists(int(pid))]

    def left(self, name: str) -> list[str]:
        """What of a host's runs is alive or on disk."""
        scratch = self.scratch(name)
        alive = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if f"{scratch}/run-" in " ".join([*process.cmdline(), process.cwd()]):
                    alive.append(str(process.pid))
        devices = list[str]()
        for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
            with contextlib.suppress(OSError):
                devices += [backing.parts[3]] if str(scratch) in backing.read_text() else []
        return alive + devices + [path.name for path in scratch.glob("run-*")]

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


TWINS = {"one": Level(), "other": Level()}
DISKS = {
    "one": Level(),
    "on a disk of its own": Level(storage={"data": {"file_system": "ext4", "size": "1GB"}}),
}


def study(
    name: str,
    root: Path,
    blocks: int,
    load: Load,
    levels: Mapping[str, Level] = TWINS,
    workload: str = "simple-update",
) -> StudyFolder:
    """A small study of some levels, of which the first is the baseline."""
    factor = Factor(question="Is anything lost?", baseline=next(iter(levels)), levels=dict(levels))
    plan = Plan(factor=factor, workload=load_workload(workload), load=load, scale=1, seed=blocks)
    folder = StudyFolder(name, root / "data")
    trials = randomised_blocks([*levels], blocks, 1)
    folder.write(worded(Study(name=name, title="A fleet on trial", plan=plan, trials=trials)))
    return folder


def complaints(folder: StudyFolder, failures: int = 0) -> list[str]:
    """What is wrong with a study that has run: a trial that is not there, more failed than so many, a block of two hosts."""
    planned, kept = folder.read().trials, folder.kept()
    frame = shown(folder).trials
    wrong = [f"{trial.id} is missing" for trial in planned if trial.id not in kept]
    errors = [str(error) for error in frame["error"].dropna()]
    wrong += errors if len(errors) > failures else []
    hosts = frame.groupby("block")["host"].nunique()
    return wrong + [f"block {block} ran on {count} hosts" for block, count in hosts.items() if count != 1]


def generators(made: Made) -> list[str]:
    """Two generators against one server; what is wrong."""
    load = Load(
        clients=4, threads=2, duration_s=3, warmup_s=1, transaction_log=True, generators=("db2", "db3")
    )
    folder = study("generators", made.root, 1, load)
    run_on_fleet(folder, made.hosts(db1="server", db2="load", db3="load"))
    return complaints(folder)


def far(delay_ms: float | None) -> Level:
    """A level whose commits wait for a replica on another host, so much later each way."""
    replication: dict[str, Any] = {"on": ["db3"], "quorum": "FIRST 1", "delay_ms": delay_ms}
    return Level(replication={"replicas": 1, **replication}, settings={"synchronous_commit": "on"})


def followers(made: Made) -> list[str]:
    """A replica two namespaces away at three delays; what is wrong."""
    delays = {"0 ms": None, "1 ms": 1.0, "5 ms": 5.0}
    load, levels = (
        Load(clients=1, threads=1, duration_s=3, warmup_s=1),
        {k: far(v) for k, v in delays.items()},
    )
    folder = study("followers", made.root, 2, load, levels, "insert")
    with Eavesdropper(made.root, BRIDGE) as heard:
        run_on_fleet(folder, made.hosts(db1="server", db3="follower"))
    wrong, frame = complaints(folder) + heard.complaints(), shown(folder).trials
    latency = frame.groupby("level")["latency_average_ms"].mean()
    for trial_id, measurement in folder.kept().items():
        record, level = ReplicaReadings.read(folder, trial_id), measurement.trial.level
        if record is None or not record.verified or record.verified["held"] != ["replica1"]:
            wrong.append(f"the promise of {level} was not verified")
            continue
        trip_ms, least_ms = 1000 * record.elsewhere["replica1"].round_trip_s, 2 * (delays[level] or 0)
        print(f"  {level}: round trip {trip_ms:.2f} ms, a commit {latency[level]:.2f} ms", flush=True)
        if trip_ms < least_ms or latency[level] < least_ms:
            wrong.append(f"{level} away is nearer than that")
    return wrong


def hold(made: Made, file: Path) -> None:
    """Write the file of a fleet of a server and two that follow or generate load, and leave it be until Ctrl-C or SIGTERM."""
    hosts = made.hosts(db1="server", db2="follower", db3="load")
    file.write_text(yaml.safe_dump(hosts.fleet.model_dump(mode="json", exclude_defaults=True)), "utf-8")
    print(f"benchlib run … --fleet {file}; Ctrl-C here ends it", flush=True)
    ends = {signal.SIGINT, signal.SIGTERM}  # a shell's background process is deaf to the first
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    signal.sigwait(ends)
    file.unlink()


def main() -> int:
    """Put a fleet on trial; 0 where nothing was lost or left."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, help="of a server's worker")
    parser.add_argument("--follower-kills", type=int, default=3, help="of a replica's worker")
    parser.add_argument("--other-kills", type=int, default=6, help="of scheduler, driver, or any process")
    parser.add_argument("--only-kills", action="store_true")
    parser.add_argument("--drive", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hold", type=Path, metavar="FILE", help="make the hosts, write FILE, and wait")
    options = parser.parse_args()
    os.environ.pop(SCRATCH_VARIABLE, None)
    if options.drive:
        return drive(options.drive)
    root = Path(tempfile.mkdtemp(prefix="blf", dir="/var/tmp"))
    root.chmod(0o755)
    bad = 0
    try:
        with Made(["db1", "db2", "db3"], root).up() as made:
            if options.hold:
                hold(made, options.hold)
                return 0
            for part in () if options.only_kills else (generators, followers):
                wrong = part(made)
                bad += bool(wrong)
                print(f"{part.__name__}: {'; '.join(wrong) or 'good'}", flush=True)
            chance = random.Random(options.seed)
            servers, follower = dict.fromkeys(made.names, "server"), {"db1": "server", "db3": "follower"}
            rounds = [("worker", servers)] * options.kills + [("worker", follower)] * options.follower_kills
            rounds += [(chance.choice(OTHERS), servers) for _ in range(options.other_kills)]
            for number, (what, roles) in enumerate(rounds, 1):
                bad += not round_of_kills(made, f"kill-{number}", chance, what, roles)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 1 if bad else 0


def drive(given: Mapping[str, Any]) -> int:
    """Run a study of a round, or what is missing of it, in a process that can be killed."""
    made = Made(given["names"], Path(given["root"]))
    try:
        hosts = made.hosts(**given["roles"])
        run_on_fleet(StudyFolder(given["study"], made.root / "data"), hosts, partial(print, flush=True))
    except BenchlibError as reason:
        print(reason, flush=True)
        return 1
    return 0


class Killer:
    """Kills one thing of a round, at a random moment after so many steps of what the driver tells."""

    def __init__(self, made: Made, what: str, chance: random.Random, roles: Mapping[str, str]) -> None:
        self._made, self._what, self._chance, self._roles = made, what, chance, roles
        able = [host for host, role in roles.items() if role == "follower"]
        self._host = chance.choice(able or [*roles])
        # steps, so that a slow machine is met in the midst too
        self._left = self.steps = chance.randrange(1, 30)
        self._timer = threading.Timer(chance.uniform(0, 3), self._kill)
        self.victim, self.clean_s = what, 0.0
        self.driver: subprocess.Popen[str] | None = None

    def step(self) -> None:
        """The driver has told one thing more."""
        self._left -= 1
        if self._left == 0:
            self._timer.start()

    def done(self) -> None:
        """Wait until it has killed; at once, where there were fewer steps."""
        if self._left > 0:
            self._timer.start()
        self._timer.join()

    def _kill(self) -> None:
        concerned = [self._host]
        if self._what == "driver":
            concerned = [*self._roles]
            if self.driver and self.driver.poll() is None:
                self.driver.kill()
            else:
                self.victim += ", which had ended,"
        elif self._what == "process":
            concerned = []  # the run goes on: it is clean once it has ended
            with contextlib.suppress(psutil.Error):
                process = self._chance.choice(self._made.inside(self._host))
                self.victim = f"{process.name()} of {self._host} ({' '.join(process.cmdline())[-60:]})"
                process.kill()
            time.sleep(1)
        else:
            self.victim = self._host if self._what == "worker" else self._what
            concerned = [self._host] if self._what == "worker" else [*self._roles]
            self._made.kill(self.victim)
        self.clean_s = self._made.clean(concerned)
        self._made.start_again()


def round_of_kills(made: Made, name: str, chance: random.Random, what: str, roles: Mapping[str, str]) -> bool:
    """Six blocks, and one thing is killed at a random moment; whether all was as it should be."""
    levels = {"one": far(None), "other": far(None)} if "follower" in roles.values() else DISKS
    folder = study(name, made.root, 6, Load(clients=2, duration_s=1, warmup_s=0), levels)
    given = {"names": made.names, "root": str(made.root), "study": name, "roles": dict(roles)}
    killer, wrong = Killer(made, what, chance, roles), list[str]()
    for _ in range(4):
        command = [sys.executable, __file__, "--drive", json.dumps(given)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killer.driver:
            last = ""
            for line in killer.driver.stdout or ():
                last = line.strip()
                killer.step()
        if killer.driver.returncode == 0:
            break
        killer.done()
    else:
        wrong.append(f"the study did not end: {last}")
    killer.done()
    end_s = made.clean(roles)
    failed = int(shown(folder).trials["error"].notna().sum())
    wrong += complaints(folder, failures=2 if what == "process" else 0)
    wrong += [f"clean only after {s:.1f} s" for s in (killer.clean_s, end_s) if s > LIMIT_S]
    spoilt = len(list(folder.path.glob("spoilt/*")))
    print(
        f"{name}: {killer.victim} killed after {killer.steps} steps, clean after {killer.clean_s:.1f} s, "
        f"{spoilt} trials spoilt, {failed} failed: {'; '.join(wrong) or 'good'}",
        flush=True,
    )
    return not wrong


if __name__ == "__main__":
    sys.exit(main())
