"""What a level may name, in whole trials on real servers: seen from outside, and nothing left behind."""

import gzip
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchlib.errors import PreflightError
from benchlib.host.devices import block_devices
from benchlib.host.telemetry import telemetry
from benchlib.load.workloads import load_workload
from benchlib.plan.design import Trial
from benchlib.plan.level import Level
from benchlib.plan.model import Factor, Load, Measurement, Plan
from benchlib.server.cluster import Cluster
from benchlib.study.bench import Bench, open_bench
from benchlib.study.preflight import preflight
from benchlib.study.records import Flushes, Samples

pytestmark = pytest.mark.pg
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

TUNABLE = Path("/proc/sys/vm/page-cluster")


def plan(level: dict[str, Any], load: dict[str, Any] | None = None, **more: Any) -> Plan:
    levels = {"plain": {}, "other": level}
    workloads = {"select-only": load_workload("select-only")}
    return Plan(
        factor=Factor(question="?", baseline="plain", levels={k: Level.model_validate(v) for k, v in levels.items()}),
        workload=load_workload("insert"),
        workloads=workloads,
        load=Load.model_validate({"clients": 2, "threads": 1, "duration_s": 1, "warmup_s": 0, **(load or {})}),
        scale=1,
        seed=7,
        **{"arrangement": "fresh", **more},
    )  # fmt: skip


class During:
    """Looks every few milliseconds while a trial runs, and keeps each new answer."""

    def __init__(self, look: Callable[[], Any]) -> None:
        self.look, self.seen, self._over = look, [], threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.wait(0.01):
            try:
                found = self.look()
            except OSError:  # what is looked at goes while it is looked at
                continue
            if found is not None and found not in self.seen:
                self.seen.append(found)

    def __enter__(self) -> "During":
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Callable[..., tuple[Measurement, Path]]]:
    """Runs one trial of the level “other” on a bench that is closed after the test."""
    with ExitStack() as stack:
        benches: list[Bench] = []
        numbers = iter(range(1, 99))

        def run(its_plan: Plan | None = None) -> tuple[Measurement, Path]:
            if its_plan:
                benches.append(stack.enter_context(open_bench(its_plan, "test")))
            number = next(numbers)
            folder = tmp_path / f"raw-{number}"
            folder.mkdir()
            benches[-1].prepare(1)
            return benches[-1].measure(Trial(1, number, "other", number), folder), folder

        yield run


def mounts_of(scratch: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [" ".join(line.split()[2:4]) for line in lines if str(scratch) in line]


def postmasters(scratch: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if len(words) > 2 and words[1] == "-D" and str(scratch) in words[2]:
            found.append(process)
    return found


@root_only
def test_tunables_hold_during_the_trial_and_no_longer(trial) -> None:
    former = TUNABLE.read_text()
    wanted = "4" if former.strip() != "4" else "5"
    with During(lambda: TUNABLE.read_text().strip()) as during:
        measurement, _ = trial(plan({"host": {"vm.page-cluster": int(wanted)}}))
    assert measurement.error is None
    assert measurement.host == {"vm.page-cluster": wanted}
    assert wanted in during.seen
    assert TUNABLE.read_text() == former


@root_only
def test_data_and_wal_lie_where_the_level_says_and_nothing_stays_mounted(trial, scratch: Path) -> None:
    storage = {
        "data": {"file_system": "ext4", "size": "300MB", "mount_options": "noatime"},
        "wal": {"file_system": "tmpfs", "size": "200MB"},
    }
    settings = {"min_wal_size": "32MB", "max_wal_size": "64MB"}
    with During(lambda: mounts_of(scratch) or None) as during:
        measurement, _ = trial(plan({"storage": storage, "settings": settings}))
    assert measurement.error is None
    seen = during.seen[-1] if len(during.seen[-1]) == 2 else during.seen[-2]
    assert any(words.startswith("ext4") and "noatime" in words for words in seen)
    assert any(words.startswith("tmpfs") for words in seen)
    assert mounts_of(scratch) == []
    assert str(scratch) not in subprocess.run(["losetup", "-a"], capture_output=True, text=True).stdout


def test_the_folder_that_a_level_names_holds_the_data_and_is_left_as_it_was(trial, scratch: Path) -> None:
    elsewhere = scratch / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    with During(lambda: [p.name for p in elsewhere.rglob("PG_VERSION")] or None) as during:
        measurement, _ = trial(plan({"storage": {"data": str(elsewhere)}}))
    assert measurement.error is None
    assert during.seen
    assert list(elsewhere.iterdir()) == []


@pytest.mark.slow
@root_only
def test_a_capped_server_runs_inside_a_control_group_with_all_its_processes(trial, scratch: Path) -> None:
    def group() -> str | None:
        for process in postmasters(scratch):
            try:
                lines = Path(f"/proc/{process.pid}/cgroup").read_text()
            except OSError:
                return None
            return lines if "benchlib" in lines else None
        return None

    with During(group) as during:
        measurement, _ = trial(plan({"storage": {"memory": "256MB"}}))
    assert measurement.error is None
    ours = [line.rpartition("/")[2] for line in during.seen[-1].splitlines() if "benchlib" in line]
    assert ours
    assert [p for name in ours for p in Path("/sys/fs/cgroup").rglob(name)] == []


def test_a_synchronous_trial_keeps_its_lag_and_its_promise(trial) -> None:
    settings = {"synchronous_commit": "remote_apply"}
    measurement, folder = trial(plan({"replication": "synchronous", "settings": settings}))
    assert measurement.error is None
    assert measurement.warnings == ()
    kept = json.loads((folder / "replication.json").read_text())
    assert {row["replica"] for row in kept["lag"]} == {"replica1"}
    assert kept["verified"]["held"] == ["replica1"]
    assert kept["verified"]["count"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["asynchronous", "synchronous"])
def test_a_replica_that_dies_is_said_or_ends_the_trial(mode: str, trial, scratch: Path) -> None:
    def kill() -> None:
        while not (found := [p for p in postmasters(scratch) if "/r1/" in p.cmdline()[2]]):
            time.sleep(0.05)
        while not driving(scratch):
            time.sleep(0.05)
        time.sleep(0.5)
        found[0].send_signal(signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    started = time.monotonic()
    measurement, _ = trial(plan({"replication": mode}, load={"duration_s": 6}))
    assert time.monotonic() - started < 40
    if mode == "asynchronous":
        assert measurement.error is None
        assert "replica1" in measurement.warnings[0]
    else:
        assert "replica1" in (measurement.error or "")
    assert "\n" not in (measurement.error or "")


def driving(scratch: Path) -> bool:
    """Whether a load of more than a warm-up runs."""
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if words and words[0].endswith("pgbench") and str(scratch) in " ".join(words):
            return True
    return False


def test_what_the_host_and_the_sessions_did_is_kept_with_the_trial(trial) -> None:
    measurement, folder = trial(plan({}, load={"duration_s": 2, "waits_hz": 20}))
    assert measurement.error is None
    raw = json.loads(gzip.decompress((folder / Samples.FILE).read_bytes()))
    assert len(raw["waits"]) >= 20
    assert raw["readings"][-1]["server_ticks"]
    assert not telemetry(raw).devices.empty or block_devices(folder) == []


@pytest.mark.slow
def test_flushes_of_the_wal_s_place_are_measured_once_for_each_place(trial, scratch: Path) -> None:
    elsewhere = scratch / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    level = {"storage": {"wal": str(elsewhere)}, "settings": {"wal_sync_method": "open_datasync"}}
    measurement, folder = trial(plan(level, load={"fsync_test": True}))
    assert measurement.error is None
    flushes = Flushes.from_bytes((folder / Flushes.FILE).read_bytes())
    assert flushes.durability.wal_sync_method == "open_datasync"
    assert (flushes.used_per_s() or 0) > 0
    assert trial()[0].error is None
    assert list(elsewhere.glob("*")) == []


@pytest.fixture
def somebody_elses(
    new_cluster: Callable[..., Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Cluster:
    """A server that is not the bench's, under the service name ``elsewhere``."""
    cluster = new_cluster("18")
    cluster.configure({})
    cluster.start()
    cluster.execute("CREATE ROLE visitor SUPERUSER LOGIN PASSWORD 'planted-secret'", dbname="postgres")
    service = f"[elsewhere]\nhost={cluster.sockets}\nport=5432\nuser=visitor\ndbname=postgres\n"
    (tmp_path / "services").write_text(service)
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    monkeypatch.setenv("PGPASSWORD", "planted-secret")
    return cluster


def test_a_server_that_is_not_ours_is_as_it_was_before(somebody_elses: Cluster, trial) -> None:
    databases = "SELECT string_agg(datname, ' ' ORDER BY datname) FROM pg_database"
    before = somebody_elses.value(databases, "postgres")
    level = {"target": "elsewhere", "settings": {"work_mem": "9MB"}}
    with During(lambda: somebody_elses.value("SHOW work_mem", "postgres")) as during:
        measurement, folder = trial(plan(level, arrangement="standing"))
    assert measurement.error is None
    assert measurement.settings == {"work_mem": "9216 kB"}
    assert "9MB" in during.seen
    assert somebody_elses.value("SHOW work_mem", "postgres") == "4MB"
    assert not (folder / "server.log").exists()
    assert b"planted-secret" not in b"".join(p.read_bytes() for p in folder.iterdir())
    assert before != somebody_elses.value(databases, "postgres"), "the bench is still open"


@pytest.mark.parametrize(
    ("level", "words"),
    [
        ({"postgres": "9.1"}, "is not installed here"),
        (
            {"replication": "asynchronous", "settings": {"wal_level": "minimal", "max_wal_senders": 0}},
            "wal_level",
        ),
        ({"storage": {"data": "/no/such/folder"}}, "/no/such/folder"),
        ({"host": {"vm.no_such_thing": 1}}, "vm.no_such_thing"),
        ({"target": "no-such-service"}, "no-such-service"),
    ],
)
def test_what_cannot_be_had_is_said_before_anything_starts(level: dict[str, Any], words: str) -> None:
    with pytest.raises(PreflightError, match=words) as refusal:
        preflight(plan(level))
    assert str(refusal.value).startswith("level “other”: ")
    assert "\n" not in str(refusal.value)


def test_images_made_in_the_scratch_folder_count_against_its_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchlib.host.facts.free_mib", lambda path: 6000)
    monkeypatch.setattr("benchlib.levers.storage.volumes.check", lambda place, scratch: None)
    image = {"storage": {"data": {"file_system": "ext4", "size": "4GB"}}}
    preflight(plan(image, arrangement="standing"))
    image["storage"]["wal"] = {"file_system": "xfs", "size": "1GB"}
    with pytest.raises(PreflightError, match=r"needs about 6,\d+ MiB under .*, 6,000 are free"):
        preflight(plan(image, arrangement="standing"))


def test_file_systems_in_memory_that_stand_at_once_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchlib.levers.storage.available_memory_mib", lambda: 3000)
    monkeypatch.setattr("benchlib.levers.storage.volumes.check", lambda place, scratch: None)
    both = {"storage": {kind: {"file_system": "tmpfs", "size": "2GB"} for kind in ("data", "wal")}}
    one = {"storage": {"wal": {"file_system": "tmpfs", "size": "2GB"}}}
    preflight(plan(one))
    with pytest.raises(PreflightError, match=r"\(tmpfs\) take 4,096 MiB together, 3,000 are available"):
        preflight(plan(both))
    two = plan(one).model_copy(
        update={
            "factor": Factor(
                question="?",
                baseline="plain",
                levels={"plain": Level(), "a": Level(**one), "b": Level(**one)},
            )
        }
    )
    preflight(two)  # one after the other
    with pytest.raises(PreflightError, match="take 4,096 MiB together"):
        preflight(two.model_copy(update={"arrangement": "standing"}))
