"""Samples of trials, from raw files whose figures are known; bottlenecks by them and by the activity of sessions."""

import json
from math import isnan, nan
from typing import Any

import pandas as pd
import pytest
from fakes import seal
from kept import place, ran

from benchlib.plan.level import Level
from benchlib.study.experiment import Experiment, shown
from benchlib.study.instruments import NO_STATEMENT, SECONDS, WORKS, activity, bottleneck, nearest_cap
from benchlib.study.records import ReplicaReadings, Samples
from benchlib.study.results import COSTS
from benchlib.study.store import StudyFolder


@pytest.fixture
def folder(folder_of, tmp_path):
    """A study of two blocks with all instruments."""
    return ran(folder_of(2), tmp_path, instruments=True)


def read(folder: StudyFolder) -> Experiment:
    seal(folder)
    return shown(folder)


def of_tuned(frame: pd.DataFrame) -> Any:
    """Its rows of the trial whose files tests exchange."""
    return frame.query("level == 'tuned' and block == 1")


@pytest.fixture
def change(folder):
    """Changes what was sampled in that trial."""

    def make(change_raw):
        raw = dict(Samples.from_bytes((place(folder) / Samples.FILE).read_bytes()))
        change_raw(raw)
        Samples.model_validate(raw).write(place(folder))

    return make


def test_host_and_devices_have_a_row_a_second_for_each_trial(folder):
    seconds = read(folder).recorded.seconds
    assert list(seconds.columns) == list(SECONDS)
    assert seconds.groupby(["level", "block"])["second"].apply(list).tolist() == [[1.0, 2.0, 3.0]] * 6
    assert seconds["w_iops"].between(700, 2500).all()
    assert seconds["w_mib_s"].div(seconds["w_iops"]).round(4).unique() == [0.0078]
    assert seconds["r_await_ms"].isna().all()  # nothing is read after the start


def test_several_devices_are_added_up(folder, change):
    def add_a_device(raw):
        for reading in raw["readings"]:
            fields = list(reading["devices"]["sda"])
            fields[4] *= 3  # three times the writes, each three times as long
            fields[7] *= 9
            reading["devices"]["sdb"] = fields

    before = of_tuned(read(folder).recorded.seconds).iloc[0]
    change(add_a_device)
    after = of_tuned(read(folder).recorded.seconds).iloc[0]
    for figure, times in {"w_iops": 4, "aqu_sz": 2, "w_await_ms": 2.5}.items():
        assert after[figure] == pytest.approx(times * before[figure])
    assert pd.isna(after["r_await_ms"])


def test_waits_are_mean_sessions_by_event_the_most_frequent_first(folder):
    waits = read(folder).recorded.waits
    assert list(waits.columns) == ["level", "block", "second", "IO: WALSync", "CPU", "LWLock: WALWrite"]
    assert len(waits) == 6 * 3
    assert waits["CPU"].eq(1).all()
    assert (waits["IO: WALSync"] + waits["LWLock: WALWrite"]).round(9).eq(4).all()


def test_a_wait_event_has_one_name_in_all_versions(folder, change):
    old_names = [["LWLock", "WALWriteLock", 3], ["IO", "WalSync", 1], ["LWLock", "lock_manager", 2]]
    change(lambda raw: [sample.update(sessions=old_names) for sample in raw["waits"]])
    waits = read(folder).recorded.waits
    assert {*waits.columns[3:]} == {"IO: WALSync", "CPU", "LWLock: WALWrite", "LWLock: lock_manager"}
    assert of_tuned(waits)["LWLock: WALWrite"].eq(3).all()


def test_a_wait_event_that_a_trial_did_not_have_is_0(folder, change):
    lock: list[Any] = [["Lock", "tuple", 2]]
    at = {0.5: lock, 0.8: [], 2.5: [], 3.05: lock}  # at the last the load is as good as over
    change(lambda raw: raw.update(waits=[{"at_s": at_s, "sessions": of} for at_s, of in at.items()]))
    waits = read(folder).recorded.waits
    mine = of_tuned(waits)
    assert mine[["second", "Lock: tuple", "CPU"]].to_numpy().tolist() == [[1, 1, 0], [3, 0, 0]]
    assert waits.drop(mine.index)["Lock: tuple"].eq(0).all()


def test_checkpoints_are_those_within_the_load(folder):
    found = read(folder).recorded.checkpoints
    assert found[["start_s", "end_s", "kind"]].to_numpy().tolist() == [[1.0, 2.5, "wal"]] * 6
    (place(folder) / "server.log").unlink()
    assert len(read(folder).recorded.checkpoints) == 5


def test_costs_are_per_transaction(folder):
    before = 9.0  # the first reading tells of what was before the load
    lags = [{"at_s": s, "replay_lag_s": lag} for s, lag in enumerate([before, 0.002, None, 0.004])]
    (place(folder) / ReplicaReadings.FILE).write_text(json.dumps({"lag": lags}))
    rows = read(folder).figures
    assert {"level", "block", *COSTS} <= {*rows}
    assert len(rows) == 6
    tuned = of_tuned(rows).iloc[0]
    assert (tuned["wal_bytes_per_transaction"], tuned["checkpoints"]) == (512, 1)
    assert tuned["server_cpu_ms_per_transaction"] == pytest.approx(0.6 * 3.1 / 6000 * 1000, rel=0.01)
    assert tuned["written_kib_per_transaction"] == pytest.approx(8, rel=0.3)
    assert tuned["replay_lag_ms"] == pytest.approx(3)
    assert pd.isna(tuned["full_page_images_per_transaction"])  # this server does not tell
    assert rows["replay_lag_ms"].notna().sum() == 1


def test_a_trial_without_telemetry_has_no_rows_and_its_costs_are_null(folder):
    (place(folder) / Samples.FILE).unlink()
    found = read(folder)
    for frame in (found.recorded.seconds, found.recorded.waits, found.recorded.checkpoints):
        assert len(of_tuned(frame)) == 0 < len(frame)
    tuned = of_tuned(found.figures).iloc[0]
    assert pd.isna(tuned["server_cpu_ms_per_transaction"])
    assert tuned["wal_bytes_per_transaction"] == 512
    assert tuned["tool_cpu_ms_per_transaction"] == pytest.approx(0.25 / 6000 * 1000)


def test_a_study_without_instruments_has_frames_without_rows(folder_of, tmp_path):
    found = read(ran(folder_of(1), tmp_path, failing={"tuned": "gone"}))
    assert found.recorded.seconds.empty
    assert list(found.recorded.seconds.columns) == list(SECONDS)
    assert found.recorded.waits.empty
    assert found.recorded.checkpoints is None
    assert set(found.figures["level"]) == {"defaults", "control"}


# --- bottlenecks ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("processors", "tool", "cap", "sessions", "rate_held", "name"),
    [
        (0.98, 0.95, 1.0, {"disk": 9}, False, "load tool"),
        (0.15, 0.02, 1.0, {"disk": 5, "locks": 2}, False, "disk's cap"),
        (0.99, 0.24, nan, {NO_STATEMENT: 7.4, WORKS: 0.6}, False, "processors"),
        (0.9, 0.2, 0.5, {NO_STATEMENT: 4, "disk": 3}, False, "processors"),
        (0.75, 0.1, nan, {"disk": 5.5, NO_STATEMENT: 1.7}, False, "waits for the disk"),
        (0.7, 0.1, nan, {"replica": 5, "disk": 3}, False, "replica"),
        (0.2, 0.1, 1.0, {"replica": 5, "disk": 3}, False, "replica"),
        (0.2, 0.1, 1.0, {"replica": 2, "disk": 5}, False, "disk's cap"),
        (0.6, 0.1, nan, {"locks": 5, "disk": 3}, False, "waits for locks"),
        (0.4, 0.1, nan, {WORKS: 0.4, NO_STATEMENT: 0.4}, False, "too few clients"),
        (nan, nan, nan, {WORKS: 2}, False, WORKS),
        (nan, nan, nan, {}, False, "not known"),
        (0.4, 0.1, nan, {"disk": 1}, True, "the rate that was set"),
        (0.97, 0.1, nan, {"disk": 1}, True, "processors"),
    ],
)
def test_a_saturated_resource_comes_before_the_activity_of_sessions(
    processors, tool, cap, sessions, rate_held, name
):
    assert bottleneck(processors, tool, cap, sessions, rate_held=rate_held) == name


@pytest.mark.parametrize(
    ("reads", "mib_s", "nearest"), [(300, 1, (0.5, "requests")), (30, 15, (0.75, "bytes"))]
)
def test_the_nearest_cap_has_its_kind(reads, mib_s, nearest):
    level = Level(storage={"read_iops": 600, "read_bytes": 20 << 20})
    seconds = pd.DataFrame({"r_iops": [reads] * 3, "r_mib_s": [mib_s] * 3})
    assert nearest_cap(level, seconds) == nearest
    assert isnan(nearest_cap(Level(), seconds)[0])


def test_wait_events_are_grouped_by_activity():
    wanted = {
        "CPU": WORKS, "Client: ClientRead": NO_STATEMENT, "LWLock: WALWrite": "disk", "IO: WalSync": "disk",
        "Lock: tuple": "locks", "IPC: SyncRep": "replica", "Timeout: SpinDelay": "locks",
        "IPC: MessageQueueSend": "other waits",
    }  # fmt: skip
    assert {event: activity(event) for event in wanted} == wanted
