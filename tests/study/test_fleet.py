"""A fleet of Dask workers: reached, asked, given blocks; workers that end, and processes of their own at each host."""

import os
import pwd
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from clusters import eventually
from fakes import FakeBench

from benchlib.errors import InputError, PreflightError
from benchlib.host.facts import identity
from benchlib.host.lock import LOCK_VARIABLE
from benchlib.host.shell import known
from benchlib.load.workloads import load_workload
from benchlib.plan.fleet import Fleet, FleetHost
from benchlib.plan.level import Level
from benchlib.plan.model import Load
from benchlib.study import at_host, driver, fleet, fleet_check
from benchlib.study.driver import run_on_fleet
from benchlib.study.experiment import shown
from benchlib.study.fleet import Hosts, clock_offset, make_certificates, read_fleet
from benchlib.study.records import ReplicaReadings
from benchlib.study.store import StudyFolder

ROOT = Path(__file__).parents[2]


def test_the_certificates_lie_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text("scheduler: tls://10.0.0.1:8786\ntls: certificates\nhosts: {db1: {}}\n")
    assert read_fleet(path).tls == str(tmp_path / "certificates")


@pytest.mark.parametrize("text", ["scheduler: [", "scheduler: tcp://x:1", "\x00"])
def test_a_file_that_is_no_fleet_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"^fleet\.yaml: "):
        read_fleet(path)


def test_without_dask_a_fleet_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(PreflightError, match=r"pip install -e '\.\[fleet\]'"), Hosts(anywhere()).connected():
        pass


def test_another_clocks_offset_is_that_of_the_fastest_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    now, ahead = 1_700_000_000.0, 2.5
    answers = iter([(0.4, 0.0), (0.001, 0.003), *[(0.2, 0.2)] * 18])  # seconds to there, and back

    def ask() -> float:
        nonlocal now
        there, back = next(answers)
        reading = now + there + ahead
        now += there + back
        return reading

    monkeypatch.setattr(fleet, "time", SimpleNamespace(time=lambda: now))
    trip_s, offset_s = clock_offset(ask)
    assert trip_s == pytest.approx(0.004, abs=1e-6)
    assert offset_s == pytest.approx(ahead, abs=trip_s / 2), "half a trip is what it may be off"
    assert next(answers, None) is None


def anywhere(address: str = "tcp://127.0.0.1:1", **changes: Any) -> Fleet:
    return Fleet(**{"scheduler": address, "insecure": True, **changes})


# --- workers in threads ------------------------------------------------------------------


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Three workers in threads of this process, called 0, 1 and 2, which make their calls themselves."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(at_host, "_apart", lambda call, send, *_: call(send))
    with distributed.LocalCluster(
        n_workers=3, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0", silence_logs=50
    ) as cluster:
        yield cluster


def hosts_of(cluster: Any, **changes: Any) -> Hosts:
    return Hosts(anywhere(cluster.scheduler_address, **changes))


class SlowBench(FakeBench):
    """A bench whose trials take a while; each host has its own."""

    def measure(self, trial: Any, folder: Path) -> Any:
        time.sleep(0.05)
        return super().measure(trial, folder)


def open_slow(workspace: str, plan: Any, tell: Any) -> Any:
    return SlowBench(plan, Path(workspace)).open(tell)


def ids(folder: StudyFolder) -> list[str]:
    return [trial.id for trial in folder.read().trials]


def test_a_study_runs_on_all_hosts_each_trial_once(cluster: Any, folder_of: Any, tmp_path: Path) -> None:
    folder = folder_of(9)
    run_on_fleet(folder, hosts_of(cluster), open_bench=partial(open_slow, str(tmp_path), folder.read().plan))
    kept = folder.kept()
    assert list(kept) == ids(folder)
    assert [m.ran_on for m in kept.values()] == [*["0"] * 9, *["1"] * 9, *["2"] * 9]


@pytest.mark.parametrize("seed", range(3))
def test_a_worker_that_ends_at_any_moment_loses_nothing(
    cluster: Any, folder_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(driver, "_LOOK_S", 0.1)
    random = Random(seed)
    folder, moment = folder_of(9), random.randrange(1, 20)
    worker = cluster.workers[random.randrange(3)]

    def tell(line: str) -> None:
        nonlocal moment
        moment -= "“" in line
        if moment == 0 and worker.status.name == "running":
            cluster.sync(worker.close, nanny=False, executor_wait=False)

    bench = partial(open_slow, str(tmp_path), folder.read().plan)
    run_on_fleet(folder, hosts_of(cluster, back_within_s=0.3), tell, open_bench=bench)
    kept = folder.kept()
    assert list(kept) == ids(folder)
    assert not any(m.error for m in kept.values())
    by_block: dict[int, set[str | None]] = {}
    for m in kept.values():
        by_block.setdefault(m.trial.block, set()).add(m.ran_on)
    assert all(len(hosts) == 1 for hosts in by_block.values()), "a block is compared inside its host"


def test_hosts_are_asked_and_one_that_is_not_there_says_so(cluster: Any) -> None:
    fleet = {"hosts": {"0": FleetHost(), "1": FleetHost(), "db9": FleetHost()}}
    hosts = hosts_of(cluster, **fleet)
    answers, errors = hosts.ask(hosts.servers(), identity)
    assert answers == {"0": identity(), "1": identity()}
    assert errors == ["db9: no worker of it is connected"]
    with pytest.raises(PreflightError, match=r"^db9: no worker of it is connected$"):
        hosts.asked(identity)


def test_what_does_not_fit_is_said_of_each_host_in_a_line(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = fleet_check.library()
    cases = {"0": (here, 9000, "x"), "1": ("0.0.1", 10, "y"), "2": (here, 9000, "x")}

    def about() -> dict[str, Any]:
        library, free, identity = cases[str(sys.modules["distributed"].get_worker().name)]
        return {
            "benchlib": library, "server": "PostgreSQL 18.4", "installed": "18.4", "rights": "root's", "load_tool": "pgbench", "servers_run_as": "postgres", "processors": 8,
            "failing": [], "scratch_mib": free, "memory_available_mib": 9000, "load": 0.1, "under_way": "none",
            "identity": identity, "addresses": ["10.0.0.1"],
        }  # fmt: skip

    monkeypatch.setattr(fleet_check, "about", about)
    fleet = {
        "0": FleetHost(address="10.0.0.1"),
        "1": FleetHost(),
        "2": FleetHost(address="10.0.0.2"),
        "3": FleetHost(),
    }
    with hosts_of(cluster, hosts=fleet).connected() as hosts:
        rows, misfits = fleet_check.check(hosts)
    assert list(rows) == ["0", "1", "2"]
    assert re.fullmatch(r"round trip [\d.]+ ms, [\d,]+ MB/s", rows["0"]["to 2"])
    assert re.fullmatch(r"[+-][\d.]+ ms from the driver's, give or take [\d.]+ ms", rows["1"]["clock"])
    assert misfits == [
        "3: no worker of it is connected",
        f"1: runs benchlib 0.0.1, the driver {here}",
        "1: only 10 MiB of disk are free",
        "2: 10.0.0.2 is none of its own addresses",
        "2: is the same machine as 0: they would measure each other",
    ]


# --- processes, encrypted ------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("distributed")
    folder = tmp_path_factory.mktemp("fleet") / "tls"
    make_certificates(folder)
    return folder


def test_certificates_are_closed_to_others_and_never_overwritten(certificates: Path) -> None:
    assert {path.stat().st_mode & 0o777 for path in certificates.iterdir()} == {0o600}
    assert certificates.stat().st_mode & 0o777 == 0o700
    with pytest.raises(InputError, match="cannot make"):
        make_certificates(certificates)


@pytest.mark.fleet
class TestEncrypted:
    """A scheduler and workers as somebody would start them by hand."""

    @pytest.fixture
    def start(self, certificates: Path, tmp_path: Path) -> Iterator[Any]:
        started: list[subprocess.Popen[bytes]] = []
        files = [
            f"--tls-ca-file={certificates}/ca.pem",
            f"--tls-cert={certificates}/cert.pem",
            f"--tls-key={certificates}/key.pem",
        ]

        def start(*words: str, lock: str = "") -> subprocess.Popen[bytes]:
            argv = [sys.executable, "-m", "dask", *words, *files, "--no-dashboard"]
            with (tmp_path / f"{len(started)}.log").open("wb") as log:
                started.append(
                    subprocess.Popen(argv, cwd=tmp_path, stdout=log, stderr=log, env=environment(lock))
                )
            return started[-1]

        yield start
        for process in reversed(started):
            process.kill()
            process.wait()

    def test_a_worker_that_is_killed_and_started_again_goes_on(
        self, start: Any, certificates: Path, folder_of: Any, tmp_path: Path
    ) -> None:
        start("scheduler", "--protocol=tls", "--host=127.0.0.1", "--port=18786")
        worker = ("worker", "tls://127.0.0.1:18786", "--nthreads=1", "--no-nanny", "--host=127.0.0.1")
        workers = {name: start(*worker, f"--name={name}") for name in ("a", "b")}
        fleet = Fleet(
            scheduler="tls://127.0.0.1:18786", tls=str(certificates), hosts=dict.fromkeys("ab", FleetHost())
        )
        hosts = Hosts(fleet)
        with hosts.connected():
            while len(hosts.addresses()) < 2:
                time.sleep(0.1)
        folder, killed = folder_of(6), []

        def tell(line: str) -> None:
            if "trial 4/" in line and not killed:
                killed.append(workers["a"].kill())
                start(*worker, "--name=a")

        run_on_fleet(folder, hosts, tell, open_bench=partial(open_slow, str(tmp_path), folder.read().plan))
        assert list(folder.kept()) == ids(folder)
        assert {m.ran_on for m in folder.kept().values()} == {"a", "b"}
        assert killed

    @pytest.fixture
    def fleet(self, start: Any, certificates: Path, scratch: Path) -> Any:
        """Makes a fleet of hosts by their roles."""

        def make(port: int, **roles: Any) -> Hosts:
            scheduler, hosts = f"tls://127.0.0.1:{port}", {}
            start("scheduler", "--protocol=tls", "--host=127.0.0.1", f"--port={port}")
            for name, role in roles.items():
                hosts[name] = FleetHost(roles=(role,), address="127.0.0.1", scratch=str(scratch / name))
                worker = ("worker", scheduler, "--nthreads=1", "--no-nanny", "--host=127.0.0.1")
                start(*worker, f"--name={name}", lock=str(scratch / f"{name}.lock"))
            fleet = Hosts(Fleet(scheduler=scheduler, tls=str(certificates), hosts=hosts))
            with fleet.connected():
                while len(fleet.addresses()) < len(hosts):
                    time.sleep(0.1)
            return fleet

        return make

    @pytest.mark.pg
    def test_two_generators_drive_one_server_of_a_third_host(
        self, fleet: Any, folder_of: Any, plan_of: Any
    ) -> None:
        load = Load(
            clients=3, threads=2, duration_s=2, warmup_s=1, transaction_log=True, generators=("gen1", "gen2")
        )
        folder = folder_of(1, plan=plan_of(load=load))
        run_on_fleet(folder, fleet(18788, db="server", gen1="load", gen2="load"))
        trials = shown(folder).trials
        assert trials["error"].isna().all()
        assert set(trials["clients"]) == {3}
        assert trials["latency_p99_ms"].notna().all(), "as many transactions in the logs as in the reports"
        assert [g.host for m in folder.kept().values() for g in m.generators] == ["gen1", "gen2"] * 3

    @pytest.mark.pg
    def test_a_synchronous_replica_on_another_host_keeps_its_promise_and_no_password_is_kept(
        self, fleet: Any, folder_of: Any, plan_of: Any, scratch: Path, tmp_path: Path
    ) -> None:
        level = Level(
            replication={"on": ["db2"], "quorum": "FIRST 1", "delay_ms": 2},
            settings={"synchronous_commit": "remote_apply"},
        )
        load = Load(clients=2, threads=1, duration_s=2, warmup_s=1)
        folder = folder_of(
            1, plan=plan_of(load=load, levels={"far": level}, workload=load_workload("insert"))
        )
        run_on_fleet(folder, fleet(18789, db1="server", db2="follower"))
        kept = folder.kept()
        assert [m.error for m in kept.values()] == [None] * 3
        (far,) = [trial_id for trial_id, m in kept.items() if m.trial.level == "far"]
        readings = ReplicaReadings.read(folder, far)
        assert readings is not None
        assert readings.verified is not None
        assert readings.verified["held"] == ["replica1"]
        assert readings.verified["count"] > 0
        away = readings.elsewhere["replica1"]
        assert away.host == "db2"
        assert 0.004 < away.round_trip_s < 1, "there and back"
        assert len(away.readings) >= 2
        assert eventually(lambda: not list(scratch.glob("db*/run-*")))
        files = [path for root in (folder.path, tmp_path) for path in root.rglob("*") if path.is_file()]
        assert not [
            path
            for path in files
            if b"PGPASSWORD" in path.read_bytes() or b"SCRAM-SHA-256$" in path.read_bytes()
        ]

    def test_a_fleet_is_started_over_ssh_and_ends_with_the_run(
        self, sshd: dict[str, Any], certificates: Path, folder_of: Any, tmp_path: Path
    ) -> None:
        hosts = dict.fromkeys("ab", FleetHost(ssh="127.0.0.1"))
        folder = folder_of(6)
        bench = partial(open_slow, str(tmp_path), folder.read().plan)
        run_on_fleet(folder, Hosts(Fleet(ssh=sshd, tls=str(certificates), hosts=hosts)), open_bench=bench)
        assert list(folder.kept()) == ids(folder)
        assert {m.ran_on for m in folder.kept().values()} == {"a", "b"}
        assert eventually(lambda: not started_over_ssh(tmp_path))
        with pytest.raises(PreflightError, match="cluster over SSH cannot be reached"):
            Hosts(Fleet(ssh={**sshd, "port": 9}, tls=str(certificates), hosts=hosts)).addresses()

    def test_a_cluster_does_not_let_in_whoever_has_no_certificate(self, start: Any, tmp_path: Path) -> None:
        start("scheduler", "--protocol=tls", "--host=127.0.0.1", "--port=18787")
        make_certificates(tmp_path / "others")
        fleet = Fleet(scheduler="tls://127.0.0.1:18787", tls=str(tmp_path / "others"))
        with pytest.raises(PreflightError, match="cannot be reached"), Hosts(fleet).connected():
            pass


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A server for SSH that lets this user in, by a key; how it is connected to."""
    pytest.importorskip("asyncssh")
    program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None or not shutil.which("ssh-keygen"):
        pytest.skip("no sshd here: install openssh-server")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # else made when the machine starts it
    for name in ("host", "user"):
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name]
        subprocess.run(keygen, check=True, stdin=subprocess.DEVNULL)
    own = f"PYTHONPATH={environment()['PYTHONPATH']} {MARK}={tmp_path}"
    lines = [
        "Port 18722", "ListenAddress 127.0.0.1", f"HostKey {tmp_path}/host", f"AuthorizedKeysFile {tmp_path}/user.pub",
        "StrictModes no", "UsePAM no", "PidFile none", "PasswordAuthentication no", f"SetEnv {own}",
    ]  # fmt: skip
    (tmp_path / "sshd_config").write_text("\n".join([*lines, ""]))
    with (tmp_path / "sshd.log").open("wb") as log:
        server = subprocess.Popen([program, "-D", "-e", "-f", tmp_path / "sshd_config"], stderr=log)
    try:
        assert eventually(lambda: b"listening" in (tmp_path / "sshd.log").read_bytes())
        user = pwd.getpwuid(os.geteuid()).pw_name
        yield {"port": 18722, "username": user, "client_keys": [str(tmp_path / "user")], "known_hosts": None}
    finally:
        server.kill()
        server.wait()
        for process in started_over_ssh(tmp_path):
            process.kill()


MARK = "BENCHLIB_STARTED_BY"


def started_over_ssh(folder: Path) -> list[psutil.Process]:
    processes = psutil.process_iter()
    return [p for p in processes if (known(p.environ) or {}).get(MARK) == str(folder)]


def environment(lock: str = "") -> dict[str, str]:
    own = {LOCK_VARIABLE: lock} if lock else {}
    return {**os.environ, **own, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'tests' / 'study'}"}
