"""A fleet of Dask workers: reached, asked, given blocks; workers that end, and processes of their own at each host."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fakes import FakeBench

from benchlib.errors import InputError, PreflightError
from benchlib.host.facts import identity
from benchlib.host.lock import LOCK_VARIABLE
from benchlib.plan.fleet import Fleet, FleetHost
from benchlib.plan.model import Load
from benchlib.study import at_host, driver, fleet_check
from benchlib.study.driver import run_on_fleet
from benchlib.study.fleet import Hosts, make_certificates, read_fleet
from benchlib.study.results import trials_frame
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


def test_nothing_of_dask_is_imported_before_a_fleet_is_connected_to() -> None:
    code = "import sys, benchlib.cli, benchlib.notebook, benchlib.study.runs; sys.exit('dask' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


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
    monkeypatch.setattr(driver, "_AGAIN_S", 0.1)
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
    assert errors == ["db9: no worker of this host is connected"]
    with pytest.raises(PreflightError, match=r"^db9: no worker of this host is connected$"):
        hosts.asked(identity)


def test_what_does_not_fit_is_said_of_each_host_in_a_line(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = fleet_check.library()
    cases = {"0": (here, 9000, "x"), "1": ("0.0.1", 10, "y"), "2": (here, 9000, "x")}

    def about() -> dict[str, Any]:
        library, free, identity = cases[str(sys.modules["distributed"].get_worker().name)]
        return {
            "benchlib": library, "server": "PostgreSQL 18.4", "load_tool": "pgbench", "servers_run_as": "postgres", "processors": 8,
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
        "3: no worker of this host is connected",
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


@pytest.mark.slow
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
        self, start: Any, certificates: Path, folder_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(driver, "_AGAIN_S", 1.0)
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

    @pytest.mark.pg
    def test_two_generators_drive_one_server_of_a_third_host(
        self, start: Any, certificates: Path, folder_of: Any, plan_of: Any, scratch: Path
    ) -> None:
        start("scheduler", "--protocol=tls", "--host=127.0.0.1", "--port=18788")
        roles = {"db": "server", "gen1": "load", "gen2": "load"}
        hosts = {}
        for name, role in roles.items():
            hosts[name] = FleetHost(roles=(role,), address="127.0.0.1", scratch=str(scratch / name))
            worker = ("worker", "tls://127.0.0.1:18788", "--nthreads=1", "--no-nanny", "--host=127.0.0.1")
            start(*worker, f"--name={name}", lock=str(scratch / f"{name}.lock"))
        fleet = Fleet(scheduler="tls://127.0.0.1:18788", tls=str(certificates), hosts=hosts)
        load = Load(
            clients=3, threads=2, duration_s=2, warmup_s=1, transaction_log=True, generators=("gen1", "gen2")
        )
        folder = folder_of(1, plan=plan_of(load=load))
        fleet_hosts = Hosts(fleet)
        with fleet_hosts.connected():
            while len(fleet_hosts.addresses()) < 3:
                time.sleep(0.1)
        run_on_fleet(folder, fleet_hosts)
        trials = trials_frame(folder)
        assert trials["error"].isna().all()
        assert set(trials["clients"]) == {3}
        assert trials["latency_p99_ms"].notna().all(), "as many transactions in the logs as in the reports"
        assert [g.host for m in folder.kept().values() for g in m.generators] == ["gen1", "gen2"] * 3

    def test_a_cluster_does_not_let_in_whoever_has_no_certificate(self, start: Any, tmp_path: Path) -> None:
        start("scheduler", "--protocol=tls", "--host=127.0.0.1", "--port=18787")
        make_certificates(tmp_path / "others")
        fleet = Fleet(scheduler="tls://127.0.0.1:18787", tls=str(tmp_path / "others"))
        with pytest.raises(PreflightError, match="cannot be reached"), Hosts(fleet).connected():
            pass


def environment(lock: str = "") -> dict[str, str]:
    own = {LOCK_VARIABLE: lock} if lock else {}
    return {**os.environ, **own, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'tests' / 'study'}"}
