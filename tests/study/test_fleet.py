"""Fleets of real Dask workers: connections, calls, blocks, lost workers."""

import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from clusters import eventually
from fakes import FakeBench
from hosts import anywhere, hosts_of_blocks, ids

from benchlib.errors import InputError, PreflightError, StudyError
from benchlib.host.facts import identity
from benchlib.host.lock import LOCK_VARIABLE
from benchlib.load.workloads import load_workload
from benchlib.plan.fleet import CERTIFICATES, Fleet, FleetHost
from benchlib.plan.level import Level
from benchlib.plan.model import Load
from benchlib.study import calls, driver, fleet_check, worker
from benchlib.study.calls import clock_offset
from benchlib.study.driver import run_on_fleet
from benchlib.study.experiment import shown
from benchlib.study.fleet import Hosts, make_certificates, read_fleet
from benchlib.study.records import ReplicaReadings

ROOT = Path(__file__).parents[2]
PATHS = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'tests' / 'study'}"}
WORDS = ("ca-file", "cert", "key")
CLOSED = ("--no-dashboard", "--dashboard-address=127.0.0.1:0")


def test_the_certificates_are_relative_to_the_file_which_is_named_if_it_is_invalid(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text("scheduler: tls://10.0.0.1:8786\ntls: certificates\nhosts: {db1: {}}\n")
    assert read_fleet(path).tls == str(tmp_path / "certificates")
    for text in ("scheduler: [", "scheduler: tcp://x:1", "\x00"):
        path.write_text(text)
        with pytest.raises(InputError, match=r"^fleet\.yaml: "):
            read_fleet(path)


def test_without_dask_the_error_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(PreflightError, match=r"pip install -e '\.\[fleet\]'"), anywhere().connected():
        pass


def test_a_clock_offset_comes_from_the_fastest_round_trip(monkeypatch):
    now, ahead = 1_700_000_000.0, 2.5
    answers = iter([(0.4, 0.0), (0.001, 0.003), *[(0.2, 0.2)] * 18])  # seconds to there, and back

    def ask():
        nonlocal now
        there, back = next(answers)
        reading = now + there + ahead
        now += there + back
        set_back.append(3600.0 * (len(set_back) == 5))
        return reading

    set_back = [0.0]
    clock = SimpleNamespace(time=lambda: now - sum(set_back), perf_counter=lambda: now)
    monkeypatch.setattr(calls, "time", clock)
    trip_s, offset_s = clock_offset(ask)
    assert trip_s == pytest.approx(0.004, abs=1e-6)
    assert offset_s == pytest.approx(ahead, abs=trip_s / 2), "half a trip is what it may be off"
    assert next(answers, None) is None


def test_ssh_starts_a_scheduler_on_the_first_host_and_a_worker_on_each(monkeypatch):
    started = Mock(side_effect=OSError("no route"))
    monkeypatch.setattr(pytest.importorskip("distributed"), "SpecCluster", started)
    hosts = {name: FleetHost(ssh=f"{name}.lan") for name in "ab"}
    with pytest.raises(PreflightError, match="cluster over SSH cannot be reached: no route"):
        Hosts(Fleet(ssh={"port": 9}, tls="/tls", hosts=hosts)).addresses()
    workers, scheduler = started.call_args.args
    each = [(of["cls"].__name__, of["options"]["address"]) for of in (scheduler, *workers.values())]
    assert each == [("Scheduler", "a.lan"), ("Worker", "a.lan"), ("Worker", "b.lan")]
    encrypted = {"dashboard": False, "dashboard_address": "127.0.0.1:0", "protocol": "tls://"}
    patient = {
        "connect_timeout": 30,
        "login_timeout": 30,
        "keepalive_interval": 15,
        "keepalive_count_max": 20,
    }
    own = {"connect_options": {**patient, "port": 9}, "kwargs": {**encrypted, "name": "b", "nthreads": 1}}
    assert workers["b"]["options"] == {"address": "b.lan", **own}


# --- workers in threads ------------------------------------------------------------------


@pytest.fixture
def cluster(monkeypatch):
    """Three workers in threads of this process, called 0, 1 and 2, which make their calls themselves."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(worker, "_in_process", lambda call, send, *_: call(send))
    with distributed.LocalCluster(
        n_workers=3, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0", silence_logs=50
    ) as cluster:
        yield cluster


class SlowBench(FakeBench):
    """A bench whose trials take a while; each host has its own."""

    def measure(self, trial: Any, folder: Path) -> Any:
        time.sleep(0.05)
        return super().measure(trial, folder)


@pytest.fixture
def run(tmp_path):
    """Runs a study on hosts, by default with slow benches; who ran each block, all trials being kept once and good."""

    def make(folder, hosts, *tell, real=False):
        bench = None if real else SlowBench(folder.read().plan, tmp_path).open
        run_on_fleet(folder, hosts, *tell, open_bench=bench)
        assert list(folder.kept()) == ids(folder)
        assert {m.error for m in folder.kept().values()} == {None}
        return hosts_of_blocks(folder)

    return make


@pytest.mark.parametrize(("moment", "number"), [(0, 0), (2, 0), (9, 1), (16, 2)])
def test_a_study_runs_on_all_hosts_and_a_lost_worker_loses_no_saved_trial(
    cluster, folder_of, run, monkeypatch, moment, number
):
    monkeypatch.setattr(driver, "_LOOK_S", 0.1)
    worker, lines = cluster.workers[number], count(1)

    def tell(line):
        if "“" in line and next(lines) == moment:
            cluster.sync(worker.close, nanny=False, executor_wait=False)

    folder, hosts = folder_of(9), anywhere(cluster.scheduler_address, back_within_s=0.3 if moment else 999)
    if moment:
        with suppress(StudyError):  # unless its last block was saved
            run(folder, hosts, tell)
    ran_on = run(folder, hosts)
    assert moment or ran_on == {block: str((block - 1) // 3) for block in range(1, 10)}


def test_a_host_without_worker_is_reported(cluster):
    hosts = anywhere(cluster.scheduler_address, hosts=dict.fromkeys(("0", "1", "db9"), FleetHost()))
    missing = "db9: no worker of it is connected"
    assert hosts.ask(hosts.servers(), identity) == ({"0": identity(), "1": identity()}, [missing])
    with pytest.raises(PreflightError, match=f"^{missing}$"):
        hosts.ask_servers(identity)


def test_each_misfit_of_a_host_is_one_line(cluster, monkeypatch):
    here = fleet_check.library()
    cases = {"0": (here, 9000, "x"), "1": ("0.0.1", 10, "y"), "2": (here, 9000, "x")}

    def about():
        library, free, identity = cases[str(sys.modules["distributed"].get_worker().name)]
        return {
            "benchlib": library, "server": "PostgreSQL 18.4", "installed": "18.4", "rights": "root's", "load_tool": "pgbench", "servers_run_as": "postgres", "processors": 8,
            "failing": [], "scratch_mib": free, "memory_available_mib": 9000, "load": 0.1, "under_way": "none",
            "identity": identity, "addresses": ["10.0.0.1"],
        }  # fmt: skip

    monkeypatch.setattr(fleet_check, "about", about)
    at = {"0": "10.0.0.1", "1": None, "2": "10.0.0.2", "3": None}
    fleet = {name: FleetHost(address=address) for name, address in at.items()}
    with anywhere(cluster.scheduler_address, hosts=fleet).connected() as hosts:
        rows, misfits = fleet_check.check(hosts)
    assert list(rows) == ["0", "1", "2"]
    assert re.fullmatch(r"[+-][\d.]+ ms from the driver's, round trip [\d.]+ ms", rows["1"]["clock"])
    assert misfits == [
        "3: no worker of it is connected",
        f"1: runs benchlib 0.0.1, the driver {here}",
        "1: only 10 MiB of disk are free",
        "2: 10.0.0.2 is not an address of this host",
        "2: is the same machine as 0; they would disturb each other",
    ]


# --- processes, encrypted ------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    pytest.importorskip("distributed")
    folder = tmp_path_factory.mktemp("fleet") / "tls"
    make_certificates(folder)
    return folder


def test_certificates_are_private_and_never_overwritten(certificates):
    assert {path.stat().st_mode & 0o777 for path in certificates.iterdir()} == {0o600}
    assert certificates.stat().st_mode & 0o777 == 0o700
    with pytest.raises(InputError, match="cannot make"):
        make_certificates(certificates)


@pytest.fixture
def start(certificates, tmp_path):
    """Starts a scheduler at a port or, of a name, a worker there, as somebody would by hand; a former one of it is killed."""
    running = {}

    def end(name):
        running[name].kill()
        running.pop(name).wait()

    def start(port, name=""):
        worker = "worker", f"tls://127.0.0.1:{port}", "--nthreads=1", "--no-nanny", f"--name={name}"
        words = worker if name else ("scheduler", "--protocol=tls", f"--port={port}")
        tls = [f"--tls-{what}={certificates}/{file}" for what, file in zip(WORDS, CERTIFICATES, strict=True)]
        argv = [sys.executable, "-m", "dask", *words, *tls, *CLOSED, "--host=127.0.0.1"]
        if name in running:
            end(name)
        with (tmp_path / f"{name}.log").open("ab") as log:
            own = {**os.environ, **PATHS, LOCK_VARIABLE: str(tmp_path / f"{name}.lock")}
            running[name] = subprocess.Popen(argv, cwd=tmp_path, stdout=log, stderr=log, env=own)
        return f"tls://127.0.0.1:{port}"

    yield start
    for name in reversed([*running]):
        end(name)


@pytest.fixture
def fleet_of_roles(start, certificates, scratch):
    """Makes a fleet of hosts by their roles, which are all connected."""

    def make(port, **roles):
        scheduler, at = start(port), {"address": "127.0.0.1"}
        hosts = {
            name: FleetHost(roles=(role,), scratch=str(scratch / name), **at) for name, role in roles.items()
        }
        for name in hosts:
            start(port, name)
        fleet = Hosts(Fleet(scheduler=scheduler, tls=str(certificates), hosts=hosts))
        with fleet.connected():
            assert eventually(lambda: len(fleet.addresses()) == len(hosts), within_s=600)
        return fleet

    return make


@pytest.mark.fleet
class TestEncrypted:
    def test_a_killed_and_restarted_worker_continues(self, fleet_of_roles, start, folder_of, run):
        hosts, moments = fleet_of_roles(18786, db1="server", db2="server"), ["trial 4 of "]

        def tell(line):
            if moments and moments[0] in line:
                moments.clear()
                start(18786, "db1")

        assert set(run(folder_of(6), hosts, tell).values()) == {"db1", "db2"}
        assert not moments

    @pytest.mark.pg
    def test_two_generators_drive_one_server_of_a_third_host(self, fleet_of_roles, folder_of, plan_of, run):
        shared = {"transaction_log": True, "generators": ("gen1", "gen2")}
        folder = folder_of(
            1, plan=plan_of(load=Load(clients=3, threads=2, duration_s=2, warmup_s=1, **shared))
        )
        run(folder, fleet_of_roles(18788, db="server", gen1="load", gen2="load"), real=True)
        trials = shown(folder).trials
        assert set(trials["clients"]) == {3}
        assert trials["latency_p99_ms"].notna().all(), "as many transactions in the logs as in the reports"
        assert [g.host for m in folder.kept().values() for g in m.generators] == ["gen1", "gen2"] * 3

    @pytest.mark.pg
    def test_a_synchronous_replica_on_another_host_has_the_committed_rows_and_no_password_is_saved(
        self, fleet_of_roles, folder_of, plan_of, run, scratch, tmp_path
    ):
        replication = {"on": ["db2"], "quorum": "FIRST 1", "delay_ms": 2}
        far = Level(replication=replication, settings={"synchronous_commit": "remote_apply"})
        load = Load(clients=2, threads=1, duration_s=2, warmup_s=1)
        folder = folder_of(1, plan=plan_of(load=load, levels={"far": far}, workload=load_workload("insert")))
        run(folder, fleet_of_roles(18789, db1="server", db2="follower"), real=True)
        (trial_id,) = [trial_id for trial_id, m in folder.kept().items() if m.trial.level == "far"]
        readings = ReplicaReadings.read(folder, trial_id)
        assert readings.verified["held"] == ["replica1"]
        assert readings.verified["count"] > 0
        away = readings.elsewhere["replica1"]
        assert away.host == "db2"
        assert 0.004 < away.round_trip_s < 1, "there and back"
        assert len(away.readings) >= 2
        assert eventually(lambda: not list(scratch.glob("db*/run-*")))
        for path in [*folder.path.rglob("*"), *tmp_path.rglob("*")]:
            content = path.read_bytes() if path.is_file() else b""
            assert not re.search(rb"PGPASSWORD|SCRAM-SHA-256\$", content), path

    def test_a_client_without_certificate_is_refused(self, start, tmp_path):
        make_certificates(tmp_path / "others")
        others = Hosts(Fleet(scheduler=start(18787), tls=str(tmp_path / "others")))
        with pytest.raises(PreflightError, match="cannot be reached"), others.connected():
            pass


def test_another_library_has_other_code_or_sql(tmp_path, monkeypatch):
    monkeypatch.setattr(fleet_check.benchlib, "__file__", str(tmp_path / "__init__.py"))
    seen = [fleet_check.library()]
    for name in ("a.pyc", "a.sql", "a.toml"):
        (tmp_path / name).write_text("SELECT 1")
        seen.append(fleet_check.library())
    assert (seen[0] == seen[1], len({*seen})) == (True, 3)
