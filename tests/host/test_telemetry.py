"""From readings to figures, by hand-made readings whose figures can be told by heart, and a second that iostat saw too."""

import copy

import pandas as pd
import pytest

from benchlib.host.telemetry import DEVICE, HOST, samples, sessions, telemetry, thinned, transaction_costs

# in two seconds: reads, merged, sectors, ms; writes; in flight, busy, queue; discards; flushes
DEVICE_AFTER = [200, 9, 4096, 100, 400, 9, 8192, 800, 5, 1000, 3000, 10, 9, 2048, 30, 60, 90]
FIGURES = dict(zip(DEVICE, (100.0, 1.0, 0.5, 200.0, 2.0, 2.0, 30.0, 1.5), strict=True))


REST = {
    "cpu": [0] * 8, "context_switches": 0, "dirty_kib": 1024, "pressure": {"io": {"some": 0, "full": 0}},
    "devices": {"sda": [0] * 17}, "server_ticks": {"17": 100}, "network_bytes": 0,
}  # fmt: skip
AFTER = {
    "cpu": [90, 10, 50, 140, 60, 4, 6, 40],  # user, nice, system, idle, iowait, irq, softirq, steal: 400 ticks
    "context_switches": 8000, "dirty_kib": 3072, "pressure": {"io": {"some": 500_000, "full": 200_000}},
    "devices": {"sda": DEVICE_AFTER},
    "server_ticks": {"17": 300, "18": 20},  # a server that was not there before counts from its start on
    "network_bytes": 3 << 20,
}  # fmt: skip


def reading(at_s, **changes):
    return {"at_s": at_s, **copy.deepcopy(REST), **changes}


def raw(*readings, **more):
    return {"interval_s": 2.0, "ticks_per_s": 100, "readings": list(readings), **more}


@pytest.fixture
def trial():
    return raw(reading(0.0), reading(2.0, **copy.deepcopy(AFTER)))


def test_the_host_and_a_device(trial):
    frame = telemetry(trial)
    assert list(frame.columns) == ["at_s", *HOST, *DEVICE]
    host = dict(zip(HOST, (25.0, 15.0, 15.0, 4000.0, 3.0, 25.0, 1.5), strict=True))
    assert frame.to_dict("records") == [{"at_s": 2.0, **host, **FIGURES}]


def test_a_device_is_seen_as_iostat_sees_it():
    """A second of a disk's counters, and what iostat 12.6 told of just about the same second."""
    before = [52427, 5597, 2503152, 19410, 330810, 212552, 34460950, 280988, 1, 22300, 316752]
    after = [54168, 5606, 2537344, 19849, 332231, 212598, 34506683, 281175, 0, 22336, 317404]
    unseen = [83713, 46, 16660056, 14033]
    first = reading(0.0202, devices={"vda": [*before, *unseen, 37249, 2319]})
    last = reading(1.0193, devices={"vda": [*after, *unseen, 37709, 2344]})
    iostat = (1744, 17144 / 1024, 0.25, 1429, 23002.5 / 1024, 0.13, 464, 0.65)
    assert telemetry(raw(first, last))[[*DEVICE]].iloc[0].tolist() == pytest.approx(iostat, rel=0.013)


@pytest.mark.parametrize(
    ("before", "after", "null"),
    [
        (slice(0, 17), [0] * 17, {"r_await_ms", "w_await_ms"}),  # it rests
        (slice(0, 11), DEVICE_AFTER[:11], {"f_iops"}),  # an older kernel
        (None, DEVICE_AFTER, {*DEVICE}),  # it was added meanwhile
    ],
)
def test_what_a_device_does_not_tell_is_null(before, after, null, trial):
    first, last = trial["readings"]
    first["devices"] = {"sda": first["devices"]["sda"][before]} if before else {}
    last["devices"]["sda"] = after
    row = telemetry(trial).iloc[0]
    assert {name for name in DEVICE if pd.isna(row[name])} == null


def test_a_counter_that_went_back_gives_null_and_nothing_else(trial):
    first = trial["readings"][0]
    first["devices"]["sda"][3] = 4_294_967_295  # ms spent reading, of 32 bits
    first["context_switches"] = 10_000
    first["cpu"][4] = 61  # iowait, of 60 after
    row = telemetry(trial).iloc[0]
    assert set(row.index[row.isna()]) == {"r_await_ms", "context_switches_per_s", "cpu_iowait_percent"}
    assert (row["r_iops"], row["cpu_user_percent"]) == (100, pytest.approx(100 * 100 / 339))
    assert transaction_costs(trial, 100)["context_switches_per_transaction"] is None


@pytest.mark.parametrize("devices", [{"sda": None}, {}])
def test_without_anything_all_is_null(devices):
    counters = {"cpu": None, "context_switches": None, "dirty_kib": None, "pressure": {"io": {}}}
    nothing = {**counters, "devices": devices, "server_ticks": {}}
    bare = raw(reading(0.0, **nothing), reading(2.0, **nothing), waits=None)
    for each in bare["readings"]:
        del each["network_bytes"]  # as earlier versions kept it
    assert telemetry(bare)[[*HOST, *DEVICE]].isna().all(axis=None)
    assert sessions(bare) == {}
    assert set(transaction_costs(bare, 100).values()) == {None}


@pytest.mark.parametrize(("last", "ends"), [(2.5, [2.5]), (3.5, [2.0, 3.5])])
def test_too_short_an_interval_goes_into_the_last(last, ends, trial):
    trial["readings"].append({**trial["readings"][1], "at_s": last})
    assert telemetry(trial)["at_s"].tolist() == ends


def test_what_a_transaction_cost(trial):
    costs = {
        "server_cpu_ms": 2.2, "pooler_cpu_ms": None, "context_switches": 8,
        "read_kib": 2.048, "written_kib": 4.096, "flushes": 0.06,
    }  # fmt: skip
    expected = {f"{name}_per_transaction": cost for name, cost in costs.items()}
    assert transaction_costs(trial, 1000) == pytest.approx(expected)
    assert set(transaction_costs(trial, 0).values()) == set(transaction_costs(trial, None).values()) == {None}
    for ticks, each in zip((100, 150), trial["readings"], strict=True):
        each["pooler_ticks"] = {"9": ticks}
    assert transaction_costs(trial, 1000)["pooler_cpu_ms_per_transaction"] == 0.5
    trial["readings"][1]["server_ticks"] = {"18": 20}  # the other has ended, and nobody saw its last
    assert transaction_costs(trial, 1000)["server_cpu_ms_per_transaction"] is None
    del trial["readings"][1]["server_ticks"]  # the sampling ended before the load
    assert set(transaction_costs(trial, 1000).values()) == {None}


def test_traffic_is_of_all_devices_together(trial):
    for each in trial["readings"]:
        each["devices"]["sdb"] = each["devices"]["sda"]
    row = telemetry(trial).iloc[0]
    assert (row["r_iops"], row["r_await_ms"], row["aqu_sz"]) == (200, 0.5, 3)
    assert transaction_costs(trial, 1000)["read_kib_per_transaction"] == pytest.approx(2 * 2.048)
    trial["readings"][0]["devices"]["sdb"] = None
    assert transaction_costs(trial, 1000)["read_kib_per_transaction"] is None


def test_waits_and_their_sums_by_the_second():
    write = ["LWLock", "WALWrite"]
    seen = [(0.1, [[*write, 3], [None, None, 1]]), (0.2, [[*write, 1]]), (0.3, []), (1.4, [[None, None, 4]])]
    samples = [{"at_s": at_s, "sessions": of} for at_s, of in seen]
    sampled = raw(reading(0.0), reading(2.0), waits=samples)
    assert sessions(sampled) == {1: {"LWLock: WALWrite": 4 / 3, "CPU": 1 / 3}, 2: {"CPU": 4.0}}
    thin = thinned(sampled)
    assert thin["waits"] == [
        {"at_s": 1, "samples": 3, "sessions": [[*write, 4], [None, None, 1]]},
        {"at_s": 2, "samples": 1, "sessions": [[None, None, 4]]},
    ]
    assert thinned(thin) == thin
    assert sessions(thin) == sessions(sampled)
    assert thinned({**sampled, "waits": None})["waits"] is None


def test_of_own_queries_a_gauge_is_a_value_and_a_counter_its_rise():
    values = [(1, 100.0), (5, 300.0), (None, 200.0), (2, None)]
    rows = [{"at_s": 2.0 * n, "values": {"locks.n": n_, "wal.bytes": b}} for n, (n_, b) in enumerate(values)]
    frame = samples(raw(samples=rows), {"wal"})
    assert list(frame.columns) == ["locks.n", "wal.bytes_per_s", "at_s"]
    assert frame["locks.n"].fillna(-1).tolist() == [5, -1, 2]
    assert frame["wal.bytes_per_s"].fillna(-1).tolist() == [100, -1, -1], "it fell, then it was null"
    for few in ({}, {"samples": rows[:1]}):
        assert samples(raw(**few), {"wal"}).empty
