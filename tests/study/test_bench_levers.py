"""The keys of a level in whole trials on real servers, seen from outside."""

import json
import os
import re
from pathlib import Path
from typing import Any

import psutil
import pytest
from clusters import bench_plan, remains
from hosts import ending, meanwhile

from benchlib.errors import PreflightError
from benchlib.host.facts import block_devices
from benchlib.host.sweep import processes_of
from benchlib.host.telemetry import telemetry
from benchlib.plan.model import Plan
from benchlib.plan.workload import Beside, Workload
from benchlib.study.bench import Bench
from benchlib.study.preflight import preflight
from benchlib.study.records import Flushes, Samples

pytestmark = [pytest.mark.pg, pytest.mark.usefixtures("ready_clusters")]
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

TUNABLE = Path("/proc/sys/vm/page-cluster")
GROUPS = Path("/sys/fs/cgroup")
CAPS = GROUPS / "blkio/blkio.throttle.write_bps_device"


def plan(level: dict[str, Any], load: dict[str, Any] | None = None, **more: Any) -> Plan:
    return bench_plan({"plain": {}, "other": level}, load=load, **{"arrangement": "fresh", **more})


@pytest.fixture
def trial(trials):
    """Runs one trial, a good one, of the level “other” on a bench that is closed after the test."""

    def run(its_plan):
        measurement, folder = trials.run(trials.bench(its_plan), "other")
        assert measurement.error is None
        return measurement, folder

    return run


def writes_capped_at_50() -> bool:
    """Whether a loop device's writes are, in a control group of ours or in the one of all."""
    files = [*GROUPS.rglob("io.max"), *GROUPS.rglob("blkio.throttle.write_iops_device")]
    lines = [line for file in files for line in file.read_text().splitlines()]
    return any(line.startswith("7:") and line.endswith((" 50", "wiops=50")) for line in lines)


def mounts_of(scratch: Path) -> list[str]:
    """Types and options of what is mounted below."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [" ".join(line.split()[2:4]) for line in lines if str(scratch) in line]


@root_only
def test_mounts_caps_delays_and_tunables_last_as_long_as_the_trial(trial, scratch, monkeypatch):
    former, seen = TUNABLE.read_text(), dict[str, Any]()
    wanted = "4" if former.strip() != "4" else "5"
    disk = {"data": {"file_system": "ext4", "size": "176MB", "mount_options": "noatime"}}
    of_replicas = [{"wal": {"file_system": "tmpfs", "size": "200MB"}}, {**disk, "write_bytes": "30MB"}]
    level = {
        "storage": {**disk, "write_bytes": "40MB"},
        "replication": {"replicas": 2, "quorum": "FIRST 2", "delay_ms": 3, "storage": of_replicas},
        "settings": {"min_wal_size": "32MB", "max_wal_size": "64MB"},
        "host": {"vm.page-cluster": int(wanted)},
    }

    def look(environment):
        caps = CAPS.read_text().split() if CAPS.exists() else []
        seen.update(tunable=TUNABLE.read_text().strip(), mounts=mounts_of(scratch), caps=caps)

    meanwhile(monkeypatch, look)
    measurement, folder = trial(plan(level))
    assert (measurement.host, seen["tunable"]) == ({"vm.page-cluster": wanted}, wanted)
    assert TUNABLE.read_text() == former
    assert sorted(mount.partition(" ")[0] for mount in seen["mounts"]) == ["ext4", "ext4", "tmpfs"]
    assert any("noatime" in mount for mount in seen["mounts"])
    if CAPS.exists():
        ours = {"41943040", "31457280"}
        assert ours <= {*seen["caps"]}
        assert not ours & {*CAPS.read_text().split()}
        assert not [words for words in measurement.warnings if "caps on writing" in words]
    kept = json.loads((folder / "replication.json").read_text())
    assert kept["verified"]["held"] == ["replica1", "replica2"]
    assert max(row["replay_lag_s"] or 0 for row in kept["lag"]) >= 0.006, "there and back"
    assert [mounts_of(scratch), processes_of(scratch)] == [[], []]
    assert not [left for left in remains(scratch) if "image" in left]


def test_a_synchronous_replica_in_a_given_folder_has_the_committed_rows(trial, scratch, monkeypatch):
    elsewhere, seen = scratch / "elsewhere", []
    elsewhere.mkdir(mode=0o755)
    meanwhile(monkeypatch, lambda environment: seen.extend(elsewhere.rglob("PG_VERSION")))
    settings = {"synchronous_commit": "remote_apply"}
    level = {"storage": {"data": str(elsewhere)}, "replication": "synchronous", "settings": settings}
    _, folder = trial(plan(level, load={"duration_s": 2, "waits_hz": 20}))
    assert seen
    assert list(elsewhere.iterdir()) == [], "it is left as it was"
    raw = dict(Samples.from_bytes((folder / Samples.FILE).read_bytes()))
    assert raw["waits"]
    assert raw["readings"][-1]["server_ticks"]
    assert telemetry(raw)["w_iops"].notna().all() or block_devices(folder) == []
    kept = json.loads((folder / "replication.json").read_text())
    assert {row["replica"] for row in kept["lag"]} == {"replica1"}
    assert kept["verified"]["held"] == ["replica1"]
    assert kept["verified"]["count"] > 0


@pytest.mark.long
def test_flushes_are_measured_on_the_device_of_the_wal(trial, scratch):
    (scratch / "elsewhere").mkdir(mode=0o755)
    settings = {"wal_sync_method": "open_datasync", "fsync": "on"}
    level = {"storage": {"wal": str(scratch / "elsewhere")}, "settings": settings}
    _, folder = trial(plan(level, load={"fsync_test": True}))
    flushes = Flushes.from_bytes((folder / Flushes.FILE).read_bytes())
    assert flushes.durability["wal_sync_method"] == "open_datasync"
    assert (flushes.used_per_s() or 0) > 0
    assert list((scratch / "elsewhere").iterdir()) == []


@root_only
@pytest.mark.parametrize(("data_mib", "capped"), [(255, [True]), (257, [False, True])])
def test_memory_smaller_than_the_data_is_filled_before_the_warm_up_without_caps(
    data_mib, capped, trial, monkeypatch
):
    caps, groups, warm = list[bool](), set[str](), Bench._warm

    def recorded(bench, environment, load, *, seed):
        caps.append(writes_capped_at_50())
        groups.update(
            re.findall(r"benchlib-[^/\n]+", Path(f"/proc/{environment.server.pid}/cgroup").read_text())
        )
        warm(bench, environment, load, seed=seed)

    monkeypatch.setattr(Bench, "_warm", recorded)
    monkeypatch.setattr(Workload, "data_mib", lambda self, scale: data_mib)
    disk = {"data": {"file_system": "ext4", "size": "300MB"}, "write_iops": 50, "memory": "256MB"}
    trial(plan({"storage": disk}))
    assert caps == capped
    assert groups, "the server runs inside a control group"
    assert [folder for name in groups for folder in GROUPS.rglob(name)] == []


@pytest.mark.parametrize(
    ("level", "words"),
    [
        ({"postgres": "9.1"}, "is not installed here"),
        ({"storage": {"data": "/no/such/folder"}}, "/no/such/folder"),
        ({"replication": "asynchronous", "settings": {"wal_level": "minimal", "max_wal_senders": 0}}, "wal_level"),
        ({"host": {"vm.no_such_thing": 1}}, "vm.no_such_thing"),
        ({"target": "no-such-service"}, "no-such-service"),
        ({"replication": {"replicas": 2}, "settings": {"max_wal_senders": "2"}}, r"max_wal_senders = 2: .* need 3"),
        ({"settings": {"work_mem": "8 pigs", "jit": "perhaps"}}, 'refuses .* "work_mem": "8 pigs"; parameter "jit"'),
        ({"postgres": "16", "settings": {"io_method": "worker"}}, 'unrecognized .* "io_method"'),
    ],
)  # fmt: skip
def test_a_level_that_cannot_run_is_refused_before_anything_starts(level, words):
    with pytest.raises(PreflightError, match=rf"\Alevel “other”: .*{words}.*\Z"):
        preflight(plan(level))


EXT4, XFS, TMPFS = (
    {"file_system": kind, "size": size} for kind, size in (("ext4", "4GB"), ("xfs", "1GB"), ("tmpfs", "2GB"))
)


@pytest.mark.parametrize(
    ("levels", "arrangement", "refusal"),
    [
        ({"a": {"data": EXT4}}, "standing", None),
        ({"a": {"data": EXT4, "wal": XFS}}, "standing", r"needs about 6,\d+ MiB under .*, 6,000 MiB are free"),
        ({"a": {"wal": TMPFS}}, "fresh", None),
        ({"a": {"wal": TMPFS, "data": TMPFS}}, "fresh", r"need 4,096 MiB, 3,000 MiB are available"),
        ({"a": {"wal": TMPFS}, "b": {"wal": TMPFS}}, "fresh", None),  # one after the other
        ({"a": {"wal": TMPFS}, "b": {"wal": TMPFS}}, "standing", "need 4,096 MiB"),
    ],
)  # fmt: skip
def test_mounts_that_exist_at_once_are_added_up(monkeypatch, levels, arrangement, refusal):
    monkeypatch.setattr("benchlib.host.facts.free_mib", lambda path: 6000)
    monkeypatch.setattr("benchlib.host.facts.available_memory_mib", lambda: 3000)
    monkeypatch.setattr("benchlib.levers.storage.volumes.check", lambda place, scratch: None)
    storage = {name: {"storage": places} for name, places in levels.items()}
    with ending(refusal and (PreflightError, f".*{refusal}")):
        preflight(bench_plan({"plain": {}, **storage}, arrangement=arrangement))


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_server_and_loads_run_on_their_own_cores(trial, monkeypatch):
    seen = dict[str, set[str]]()

    def look(environment):
        for process in psutil.process_iter(["cmdline"]):
            command = " ".join(process.info["cmdline"] or ())
            if command.startswith("/") and f"--host={environment.server.sockets}" in command:
                kind = "background" if "--time=604800" in command else "load"
                seen.setdefault(kind, set()).add(str(os.sched_getaffinity(process.pid)))
        server = psutil.Process(environment.server.pid)
        for process in (server, *server.children()):
            seen.setdefault("server", set()).add(str(os.sched_getaffinity(process.pid)))

    meanwhile(monkeypatch, look)
    level = {"cpu": {"server": "0", "load": "1", "background": "0-1"}}
    its_plan = plan(level)
    beside = its_plan.workload.changed(beside=(Beside(sql="SELECT 1;\n"),))
    measurement, _ = trial(its_plan.changed(workload=beside))
    assert seen == {"server": {"{0}"}, "load": {"{1}"}, "background": {"{0, 1}"}}
    assert measurement.host == {"cores: server": "0", "cores: load": "1", "cores: background": "0-1"}
