"""From the sampler's raw readings to what the host, its devices and the server's sessions did in a trial.

Rates come from the differences of two readings. What a kernel or a server does not tell is null, never 0,
and so is a rate over a counter that was reset or has wrapped.

Sources: devices as iostat of sysstat 12 defines them (man page iostat(1), functions ``write_plain_ext_stat``
and ``compute_ext_disk_stats``); CPU shares as vmstat's; the kernel's documentation, accounting/psi.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pandas as pd

Raw = Mapping[str, Any]
Figures = dict[str, float | None]

ON_CPU = "CPU"
"""The wait event, and its type, of a session that waits for nothing."""

HOST = (
    "cpu_user_percent", "cpu_system_percent", "cpu_iowait_percent", "context_switches_per_s", "dirty_mib",
    "pressure_io_some_percent", "network_mib_s",
)  # fmt: skip
DEVICE = ("r_iops", "r_mib_s", "r_await_ms", "w_iops", "w_mib_s", "w_await_ms", "f_iops", "aqu_sz")

_COUNTERS = ("context_switches", "io_stalled_us", "network_bytes")
_CPU = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
# places in a file /sys/class/block/*/stat; kernels before 5.5 do not count flushes
_FIELDS = {
    "r_requests": 0, "r_sectors": 2, "r_ms": 3, "w_requests": 4, "w_sectors": 6, "w_ms": 7, "queue_ms": 10, "f_requests": 15,
}  # fmt: skip


@dataclass(frozen=True)
class Telemetry:
    """What was sampled in one trial; ``at_s`` is seconds since just before the load's start.

    ``host`` has a row per interval, which ended at ``at_s``: shares of all CPUs in percent (user with nice,
    system with interrupts), the share of time in which some task waited for I/O (``pressure_*``), what the host
    moved over its network, and more.

    ``devices`` has a row per interval and ``device``, as iostat has: reads, writes and flushes (``r_``, ``w_``, ``f_``)
    per second, what they moved, how long one took (null if there was none), and the mean queue.

    ``waits`` has a row per sample and wait event: how many of the load's sessions (``n``) waited for it, or
    for nothing (``CPU``). What nobody waited for has no row. Of a trimmed trial it is a row per second, with the sum of
    its samples.
    """

    host: pd.DataFrame
    devices: pd.DataFrame
    waits: pd.DataFrame


def telemetry(raw: Raw) -> Telemetry:
    """The frames of one trial, from what :class:`benchlib.host.sampler.Sampler` kept."""
    readings = _readings(raw)
    devices = [_device(readings, name) for name in readings[-1]["devices"]]
    waits = [
        (sample["at_s"], kind or ON_CPU, event or ON_CPU, n)
        for sample in raw.get("waits") or ()
        for kind, event, n in sample["sessions"]
    ]
    return Telemetry(
        host=_host(readings),
        devices=pd.concat(devices) if devices else pd.DataFrame(columns=["at_s", "device", *DEVICE]),
        waits=pd.DataFrame(waits, columns=["at_s", "wait_event_type", "wait_event", "n"]),
    )


def thinned(raw: Raw) -> Raw:
    """The same without the single samples of waits: a sample per second that has their sum, and how many ``samples`` they were.

    What is derived from it second by second stays the same.
    """
    if not raw.get("waits"):
        return raw
    waits = []
    for second, samples in groupby(raw["waits"], lambda sample: math.ceil(sample["at_s"])):
        number, sessions = 0, Counter[tuple[str | None, str | None]]()
        for sample in samples:
            number += sample.get("samples", 1)
            sessions.update({(kind, event): n for kind, event, n in sample["sessions"]})
        counts = [[*event, n] for event, n in sessions.items()]
        waits.append({"at_s": second, "samples": number, "sessions": counts})
    return {**raw, "waits": waits}


def transaction_costs(raw: Raw, transactions: int | None) -> Figures:
    """What a transaction cost, from at least two readings: CPU time of the servers, context switches, traffic, flushes.

    Switches are the whole host's, traffic and flushes those of the devices together.
    """
    ends = first, last = raw["readings"][0], raw["readings"][-1]
    host = _host_rises(ends).iloc[0]
    devices = [_device_rises(ends, name).iloc[0] for name in last["devices"]]
    moved = pd.DataFrame(devices, columns=list(_FIELDS), dtype=float).sum(skipna=False, min_count=1)
    costs = {
        "server_cpu_ms": 1000 * _server_ticks(first, last) / raw["ticks_per_s"],
        "context_switches": host["context_switches"],
        "read_kib": moved["r_sectors"] / 2,
        "written_kib": moved["w_sectors"] / 2,
        "flushes": moved["f_requests"],
    }
    return {
        f"{name}_per_transaction": float(cost / transactions) if transactions and pd.notna(cost) else None
        for name, cost in costs.items()
    }


def processors_share(raw: Raw) -> float:
    """The share of all processors' time that was busy from the first reading to the last; NaN where the kernel does not tell."""
    (whole,) = _host((raw["readings"][0], raw["readings"][-1])).to_dict("records")
    return float(whole["cpu_user_percent"] + whole["cpu_system_percent"]) / 100


def _server_ticks(first: Raw, last: Raw) -> float:
    """The CPU ticks that the servers took between; null if one has ended, since nobody saw its last."""
    before, after = first["server_ticks"], last["server_ticks"]
    if not after or before.keys() - after.keys():
        return math.nan
    return float(sum(ticks - before.get(pid, 0) for pid, ticks in after.items()))


def _readings(raw: Raw) -> Sequence[Raw]:
    """The readings, without the last but one where the last follows too soon for a rate."""
    readings: list[Raw] = list(raw["readings"])
    if len(readings) > 2 and readings[-1]["at_s"] - readings[-2]["at_s"] < raw["interval_s"] / 2:
        del readings[-2]
    return readings


def _rises(readings: Sequence[Raw], counters: pd.DataFrame) -> pd.DataFrame:
    """How far each counter rose until a reading since the one before, in how many ``seconds``; null where it fell."""
    rises = counters.assign(seconds=[reading["at_s"] for reading in readings]).diff().iloc[1:]
    return rises.where(rises >= 0)


def _host_rises(readings: Sequence[Raw]) -> pd.DataFrame:
    rows = [
        {
            **dict(zip(_CPU, reading["cpu"] or (), strict=False)),
            "context_switches": reading["context_switches"],
            "io_stalled_us": reading["pressure"]["io"].get("some"),
            "network_bytes": reading.get("network_bytes"),  # earlier versions did not read it
        }
        for reading in readings
    ]
    return _rises(readings, pd.DataFrame(rows, columns=[*_CPU, *_COUNTERS], dtype=float))


def _device_rises(readings: Sequence[Raw], name: str) -> pd.DataFrame:
    # a disk may be added meanwhile
    rows = [dict(enumerate(reading["devices"].get(name) or ())) for reading in readings]
    frame = pd.DataFrame(rows, columns=list(_FIELDS.values()), dtype=float)
    return _rises(readings, frame.set_axis(list(_FIELDS), axis=1))


def _host(readings: Sequence[Raw]) -> pd.DataFrame:
    rises = _host_rises(readings)
    ticks, seconds = rises[list(_CPU)].sum(axis=1, skipna=False), rises["seconds"]
    percent = 100 / ticks.where(ticks > 0)
    figures = {
        "at_s": [reading["at_s"] for reading in readings[1:]],
        "cpu_user_percent": percent * (rises["user"] + rises["nice"]),
        "cpu_system_percent": percent * (rises["system"] + rises["irq"] + rises["softirq"]),
        "cpu_iowait_percent": percent * rises["iowait"],
        "context_switches_per_s": rises["context_switches"] / seconds,
        "dirty_mib": pd.Series([reading["dirty_kib"] for reading in readings], dtype=float) / 1024,
        "pressure_io_some_percent": rises["io_stalled_us"] / seconds / 1e4,
        "network_mib_s": rises["network_bytes"] / seconds / (1 << 20),
    }
    return pd.DataFrame(figures, index=rises.index).reset_index(drop=True)


def _device(readings: Sequence[Raw], name: str) -> pd.DataFrame:
    rises = _device_rises(readings, name)
    seconds = rises["seconds"]
    at_s = [reading["at_s"] for reading in readings[1:]]
    frame = pd.DataFrame({"at_s": at_s, "device": name}, index=rises.index)
    for way in "rw":
        requests = rises[f"{way}_requests"]
        frame[f"{way}_iops"] = requests / seconds
        frame[f"{way}_mib_s"] = rises[f"{way}_sectors"] / seconds / 2048
        frame[f"{way}_await_ms"] = rises[f"{way}_ms"] / requests.where(requests > 0)
    frame["f_iops"] = rises["f_requests"] / seconds
    frame["aqu_sz"] = rises["queue_ms"] / seconds / 1000
    return frame
