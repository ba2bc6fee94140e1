"""What a level may name, in whole trials on real servers: seen from outside, and nothing left behind."""

import gzip
import json
import os
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from clusters import Trials, bench_plan

from benchlib.errors import PreflightError
from benchlib.host.facts import block_devices
from benchlib.host.sweep import processes_of
from benchlib.host.telemetry import telemetry
from benchlib.plan.model import Load, Measurement, Plan
from benchlib.plan.workload import Workload
from benchlib.study.bench import Bench
from benchlib.study.preflight import preflight
from benchlib.study.records import Flushes, Samples
from benchlib.study.stand import Stand

pytestmark = [pytest.mark.pg, pytest.mark.usefixtures("ready_clusters")]
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

TUNABLE = Path("/proc/sys/vm/page-cluster")


def plan(level: dict[str, Any], load: dict[str, Any] | None = None, **more: Any) -> Plan:
    return bench_plan({"plain": {}, "other": level}, load=load, **{"arrangement": "fresh", **more})


class During:
    """Looks every few milliseconds while a trial runs, and keeps each new answer."""

    def __init__(self, look: Callable[[], Any]) -> None:
        self.look, self.seen, self._over = look, [], threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.wait(0.01):
            with suppress(OSError):  # what is looked at goes while it is looked at
                value = self.look()
                if value is not None and value not in self.seen:
                    self.seen.append(value)

    def __enter__(self) -> "During":
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture
def trial(trials: Trials) -> Callable[[Plan], tuple[Measurement, Path]]:
    """Runs one trial of the level “other” on a bench that is closed after the test."""
    return lambda its_plan: trials.run(trials.bench(its_plan), "other")


def writes_capped_at_50() -> bool:
    """Whether a loop device's writes are, in a control group of ours or in the one of all."""
    groups = Path("/sys/fs/cgroup")
    files = [*groups.rglob("io.max"), *groups.rglob("blkio.throttle.write_iops_device")]
    lines = [line for file in files for line in file.read_text().splitlines()]
    return any(line.startswith("7:") and line.endswith((" 50", "wiops=50")) for line in lines)


def mounts_of(scratch: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [" ".join(line.split()[2:4]) for line in lines if str(scratch) in line]


def postmasters(scratch: Path) -> list[psutil.Process]:
    processes = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if len(words) > 2 and words[1] == "-D" and str(scratch) in words[2]:
            processes.append(process)
    return processes


@root_only
def test_tunables_and_places_hold_during_the_trial_and_no_longer(trial, scratch: Path) -> None:
    former = TUNABLE.read_text()
    wanted = "4" if former.strip() != "4" else "5"
    storage = {
        "data": {"file_system": "ext4", "size": "300MB", "mount_options": "noatime"},
        "wal": {"file_system": "tmpfs", "size": "200MB"},
    }
    settings = {"min_wal_size": "32MB", "max_wal_size": "64MB"}
    level = {"storage": storage, "settings": settings, "host": {"vm.page-cluster": int(wanted)}}
    with During(lambda: mounts_of(scratch) or None) as mounted, During(lambda: TUNABLE.read_text()) as tuned:
        measurement, _ = trial(plan(level))
    assert measurement.error is None
    assert measurement.host == {"vm.page-cluster": wanted}
    assert f"{wanted}\n" in tuned.seen
    assert TUNABLE.read_text() == former
    seen = [mount for mounts in mounted.seen for mount in mounts]
    assert any(mount.startswith("ext4") and "noatime" in mount for mount in seen)
    assert any(mount.startswith("tmpfs") for mount in seen)
    assert mounts_of(scratch) == []
    assert str(scratch) not in subprocess.run(["losetup", "-a"], capture_output=True, text=True).stdout


def test_the_folder_that_a_level_names_holds_the_data_and_the_instruments_read_its_device(
    trial, scratch: Path
) -> None:
    elsewhere = scratch / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    level = {"storage": {"data": str(elsewhere)}}
    with During(lambda: [p.name for p in elsewhere.rglob("PG_VERSION")] or None) as during:
        measurement, folder = trial(plan(level, load={"duration_s": 2, "waits_hz": 20}))
    assert measurement.error is None
    assert during.seen
    assert list(elsewhere.iterdir()) == [], "it is left as it was"
    raw = json.loads(gzip.decompress((folder / Samples.FILE).read_bytes()))
    assert raw["waits"]
    assert raw["readings"][-1]["server_ticks"]
    assert telemetry(raw)["w_iops"].notna().all() or block_devices(folder) == []


@pytest.mark.long
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


@root_only
@pytest.mark.parametrize(("data_mib", "capped"), [(255, [True]), (257, [False, True])])
def test_a_memory_that_the_data_exceed_is_filled_before_the_warm_up_without_the_disks_caps(
    data_mib: int, capped: list[bool], trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    caps = list[bool]()
    warm = Bench._warm

    def recorded(bench: Bench, stand: Stand, load: Load, *, seed: int) -> None:
        caps.append(writes_capped_at_50())
        warm(bench, stand, load, seed=seed)

    monkeypatch.setattr(Bench, "_warm", recorded)
    monkeypatch.setattr(Workload, "data_mib", lambda self, scale: data_mib)
    disk = {"data": {"file_system": "ext4", "size": "300MB"}, "write_iops": 50, "memory": "256MB"}
    measurement, _ = trial(plan({"storage": disk}))
    assert measurement.error is None
    assert caps == capped


def test_a_synchronous_trial_keeps_its_lag_and_its_promise(trial) -> None:
    settings = {"synchronous_commit": "remote_apply"}
    measurement, folder = trial(plan({"replication": "synchronous", "settings": settings}))
    assert measurement.error is None
    kept = json.loads((folder / "replication.json").read_text())
    assert {row["replica"] for row in kept["lag"]} == {"replica1"}
    assert kept["verified"]["held"] == ["replica1"]
    assert kept["verified"]["count"] > 0


CAPS = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")


@root_only
def test_replicas_have_places_caps_and_a_way_of_their_own_for_as_long_as_they_stand(
    trial, scratch: Path
) -> None:
    disk = {"data": {"file_system": "ext4", "size": "176MB"}}
    level = {
        "storage": {**disk, "write_bytes": "40MB"},
        "replication": {
            "replicas": 2,
            "quorum": "FIRST 2",
            "delay_ms": 3,
            "storage": [{"wal": disk["data"]}, {**disk, "write_bytes": "30MB"}],
        },
        "settings": {"min_wal_size": "32MB", "max_wal_size": "64MB"},
    }
    caps = During(lambda: [line.split()[1] for line in CAPS.read_text().splitlines()] or None)
    with caps, During(lambda: len(mounts_of(scratch)) or None) as mounted:
        measurement, folder = trial(plan(level))
    assert measurement.error is None
    assert max(mounted.seen) == 3
    if CAPS.exists():
        ours = {"41943040", "31457280"}
        assert any(ours <= set(seen) for seen in caps.seen)
        assert not ours & set(CAPS.read_text().split())
        assert not [w for w in measurement.warnings if "caps on writing" in w]
    kept = json.loads((folder / "replication.json").read_text())
    assert kept["verified"]["held"] == ["replica1", "replica2"]
    assert max(row["replay_lag_s"] or 0 for row in kept["lag"]) >= 0.006, "there and back"
    assert mounts_of(scratch) == []
    assert processes_of(scratch) == []
    assert str(scratch) not in subprocess.run(["losetup", "-a"], capture_output=True, text=True).stdout


@pytest.mark.long
def test_flushes_of_the_wal_s_place_are_measured_once_for_each_place(trials: Trials, scratch: Path) -> None:
    elsewhere = scratch / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    settings = {"wal_sync_method": "open_datasync", "fsync": "on"}
    level = {"storage": {"wal": str(elsewhere)}, "settings": settings}
    bench = trials.bench(plan(level, load={"fsync_test": True}))
    measurement, folder = trials.run(bench, "other")
    assert measurement.error is None
    flushes = Flushes.from_bytes((folder / Flushes.FILE).read_bytes())
    assert flushes.durability["wal_sync_method"] == "open_datasync"
    assert (flushes.used_per_s() or 0) > 0
    assert trials.run(bench, "other")[0].error is None
    assert list(elsewhere.glob("*")) == []


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
        (
            {"replication": {"replicas": 2}, "settings": {"max_wal_senders": "2"}},
            r"max_wal_senders = 2: 2 replica\(s\) take 3",
        ),
        (
            {"settings": {"work_mem": "8 pigs", "jit": "perhaps"}},
            'refuses its settings: invalid value for parameter "work_mem": "8 pigs"; parameter "jit"',
        ),
        (
            {"postgres": "16", "settings": {"io_method": "worker"}},
            'unrecognized configuration parameter "io_method"',
        ),
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
    monkeypatch.setattr("benchlib.host.facts.available_memory_mib", lambda: 3000)
    monkeypatch.setattr("benchlib.levers.storage.volumes.check", lambda place, scratch: None)
    both = {"storage": {kind: {"file_system": "tmpfs", "size": "2GB"} for kind in ("data", "wal")}}
    one = {"storage": {"wal": {"file_system": "tmpfs", "size": "2GB"}}}
    preflight(plan(one))
    with pytest.raises(PreflightError, match=r"\(tmpfs\) take 4,096 MiB together, 3,000 are available"):
        preflight(plan(both))
    two = bench_plan({"plain": {}, "a": one, "b": one}, arrangement="fresh")
    preflight(two)  # one after the other
    with pytest.raises(PreflightError, match="take 4,096 MiB together"):
        preflight(two.model_copy(update={"arrangement": "standing"}))
