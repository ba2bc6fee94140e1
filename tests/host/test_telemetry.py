"""From readings to figures, by hand-made readings whose figures can be told by heart."""

import copy
import json
import math
from typing import Any

import pandas as pd
import pytest

from benchlib.host.telemetry import DEVICE, HOST, summary, telemetry

# in two seconds: reads, merged, sectors, ms; writes; in flight, busy, queue; discards; flushes
DEVICE_AFTER = [200, 9, 4096, 100, 400, 9, 8192, 800, 5, 1000, 3000, 10, 9, 2048, 30, 60, 90]


def reading(at_s: float, **changes: Any) -> dict[str, Any]:
    return {
        "at_s": at_s,
        "cpu": [0] * 8,
        "context_switches": 0,
        "dirty_kib": 1024,
        "writeback_kib": 0,
        "pressure": {
            "cpu": {"some": 0, "full": 0},
            "io": {"some": 0, "full": 0},
            "memory": {"some": 0, "full": 0},
        },
        "devices": {"sda": [0] * 17},
        "network": {"eth0": [0, 0], "eth1": [0, 0]},
        "server_ticks": {"17": 100},
        "tool_ticks": {},
        **changes,
    }


def raw(*readings: dict[str, Any], waits: Any = None) -> dict[str, Any]:
    return {
        "started": {"monotonic_s": 5.0, "epoch_s": 1e9},
        "interval_s": 2.0,
        "cpus": 2,
        "ticks_per_s": 100,
        "readings": list(readings),
        "waits": waits,
    }


@pytest.fixture
def trial() -> dict[str, Any]:
    return raw(
        reading(0.0),
        reading(
            2.0,
            # user, nice, system, idle, iowait, irq, softirq, steal: 400 ticks
            cpu=[90, 10, 50, 140, 60, 4, 6, 40],
            context_switches=8000,
            dirty_kib=3072,
            pressure={
                "cpu": {"some": 1_000_000, "full": 0},
                "io": {"some": 500_000, "full": 200_000},
                "memory": {"some": 0, "full": 0},
            },
            devices={"sda": DEVICE_AFTER},
            network={"eth0": [2000, 4000], "eth1": [0, 10]},
            server_ticks={"17": 300, "18": 20},
            tool_ticks={"99": 40},
        ),
    )


def test_the_host(trial: dict[str, Any]) -> None:
    host = telemetry(trial).host
    assert list(host.columns) == ["at_s", *HOST]
    assert host.to_dict("records") == [
        {
            "at_s": 2.0,
            "cpu_user_percent": 25.0,
            "cpu_system_percent": 15.0,
            "cpu_iowait_percent": 15.0,
            "cpu_steal_percent": 10.0,
            "cpu_idle_percent": 35.0,
            "server_cores": 1.1,  # a server that was not there before counts from its start on
            "tool_cores": 0.2,
            "context_switches_per_s": 4000.0,
            "dirty_mib": 3.0,
            "writeback_mib": 0.0,
            "pressure_cpu_some_percent": 50.0,
            "pressure_io_some_percent": 25.0,
            "pressure_io_full_percent": 10.0,
            "pressure_memory_some_percent": 0.0,
            "pressure_memory_full_percent": 0.0,
            "received_bytes_per_s": 1000.0,
            "sent_bytes_per_s": 2005.0,
        }
    ]


def test_a_device(trial: dict[str, Any]) -> None:
    result = telemetry(trial)
    expected = {
        "r_iops": 100.0,
        "r_mib_s": 1.0,
        "r_await_ms": 0.5,
        "w_iops": 200.0,
        "w_mib_s": 2.0,
        "w_await_ms": 2.0,
        "d_iops": 5.0,
        "d_mib_s": 0.5,
        "d_await_ms": 3.0,
        "f_iops": 30.0,
        "f_await_ms": 1.5,
        "aqu_sz": 1.5,
        "util_percent": 50.0,
    }
    assert result.devices.to_dict("records") == [{"at_s": 2.0, "device": "sda", **expected}]
    assert result.mean_devices.to_dict("records") == [{"device": "sda", **expected}]


def test_a_device_at_rest_has_no_waiting_time(trial: dict[str, Any]) -> None:
    trial["readings"][1]["devices"]["sda"] = [0] * 17
    row = telemetry(trial).devices.iloc[0]
    assert row["r_iops"] == row["w_iops"] == row["util_percent"] == 0
    assert row[["r_await_ms", "w_await_ms", "d_await_ms", "f_await_ms"]].isna().all()


@pytest.mark.parametrize(("fields", "missing"), [(11, "df"), (15, "f")])
def test_what_older_kernels_do_not_count_of_a_device_is_null(
    trial: dict[str, Any], fields: int, missing: str
) -> None:
    for each in trial["readings"]:
        each["devices"]["sda"] = each["devices"]["sda"][:fields]
    row = telemetry(trial).devices.iloc[0]
    null = {name for name in DEVICE if pd.isna(row[name])}
    assert null == {name for name in DEVICE if name[:2] in {f"{way}_" for way in missing}}


def test_a_counter_that_went_back_gives_null_and_nothing_else(trial: dict[str, Any]) -> None:
    first = trial["readings"][0]
    first["devices"]["sda"][3] = 4_294_967_295  # ms spent reading, of 32 bits
    first["context_switches"] = 10_000
    result = telemetry(trial)
    assert math.isnan(result.devices["r_await_ms"].iloc[0])
    assert result.devices["r_iops"].iloc[0] == 100
    assert math.isnan(result.host["context_switches_per_s"].iloc[0])
    assert result.host["cpu_user_percent"].iloc[0] == 25
    assert summary(trial, transactions=100)["context_switches_per_transaction"] is None


def test_a_server_that_ended_leaves_its_cpu_time_unknown(trial: dict[str, Any]) -> None:
    trial["readings"][1]["server_ticks"] = {"18": 20}
    assert math.isnan(telemetry(trial).host["server_cores"].iloc[0])


def test_without_anything_all_is_null() -> None:
    nothing = {
        "cpu": None,
        "context_switches": None,
        "dirty_kib": None,
        "writeback_kib": None,
        "pressure": {"cpu": {}, "io": {}, "memory": {}},
        "devices": {"sda": None},
        "network": {},
        "server_ticks": {},
        "tool_ticks": {},
    }
    bare = raw(reading(0.0, **nothing), reading(2.0, **nothing))
    result = telemetry(bare)
    assert result.host[list(HOST)].isna().all(axis=None)
    assert result.devices[list(DEVICE)].isna().all(axis=None)
    assert result.waits.empty
    assert result.mean_waits.empty
    assert set(summary(bare, transactions=100, tool_cpu_s=None).values()) == {None}


def test_the_last_reading_takes_in_an_interval_that_is_too_short(trial: dict[str, Any]) -> None:
    last = copy.deepcopy(trial["readings"][1])
    last["at_s"] = 2.5
    trial["readings"].append(last)
    assert telemetry(trial).host["at_s"].tolist() == [2.5]
    last["at_s"] = 3.5
    assert telemetry(trial).host["at_s"].tolist() == [2.0, 3.5]


def test_one_reading_gives_no_rate(trial: dict[str, Any]) -> None:
    del trial["readings"][1]
    result = telemetry(trial)
    assert result.host.empty
    assert result.devices.empty
    assert summary(trial, transactions=1)["server_cpu_ms_per_transaction"] is None


def test_what_a_transaction_cost(trial: dict[str, Any]) -> None:
    figures = summary(trial, transactions=1000, tool_cpu_s=0.5)
    assert figures["server_cpu_ms_per_transaction"] == pytest.approx(2.2)
    assert figures["tool_cpu_ms_per_transaction"] == pytest.approx(0.5)
    assert figures["tool_cores"] == 0.25
    assert figures["context_switches_per_transaction"] == 8
    assert figures["read_kib_per_transaction"] == pytest.approx(2.048)
    assert figures["written_kib_per_transaction"] == pytest.approx(4.096)
    assert figures["flushes_per_transaction"] == pytest.approx(0.06)
    assert figures["dirty_mib"] == 2  # the mean of the readings
    assert figures["cpu_user_percent"] == 25
    without = summary(trial, transactions=0)
    assert {v for name, v in without.items() if name.endswith("_per_transaction")} == {None}


def test_devices_together(trial: dict[str, Any]) -> None:
    for each in trial["readings"]:
        each["devices"]["sdb"] = each["devices"]["sda"]
    assert summary(trial, transactions=1000)["read_kib_per_transaction"] == pytest.approx(2 * 2.048)
    trial["readings"][0]["devices"]["sdb"] = None
    assert summary(trial, transactions=1000)["read_kib_per_transaction"] is None


def test_waits() -> None:
    waits = [
        {"at_s": 0.1, "sessions": [["LWLock", "WALWrite", 3], [None, None, 1]]},
        {"at_s": 0.2, "sessions": [["LWLock", "WALWrite", 1], ["Client", "ClientRead", 3]]},
        {"at_s": 0.3, "sessions": []},
        {"at_s": 0.4, "sessions": [[None, None, 4]]},
    ]
    result = telemetry(raw(reading(0.0), reading(2.0), waits=waits))
    assert result.waits.iloc[:2].to_dict("records") == [
        {"at_s": 0.1, "wait_event_type": "LWLock", "wait_event": "WALWrite", "n": 3},
        {"at_s": 0.1, "wait_event_type": "CPU", "wait_event": "CPU", "n": 1},
    ]
    assert result.mean_waits.set_index("wait_event")["sessions"].to_dict() == {
        "CPU": 1.25,
        "WALWrite": 1.0,
        "ClientRead": 0.75,
    }
    assert result.mean_waits["wait_event"].iloc[0] == "CPU"


def test_json_changes_nothing(trial: dict[str, Any]) -> None:
    again = json.loads(json.dumps(trial))
    pd.testing.assert_frame_equal(telemetry(trial).host, telemetry(again).host)
