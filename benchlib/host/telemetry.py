"""From the sampler's raw readings to what the host, its devices and the server's sessions did in a trial.

Rates come from the differences of two readings. What a kernel or a server does not tell is null, never 0,
and so is a rate over a counter that was reset or has wrapped.

Sources: devices as iostat of sysstat 12 defines them (man page iostat(1), functions ``write_plain_ext_stat``
and ``compute_ext_disk_stats``); CPU shares as vmstat's; the kernel's documentation, accounting/psi.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Raw = Mapping[str, Any]
Figures = dict[str, float | None]
Arrays = dict[str, NDArray[np.float64]]

ON_CPU = "CPU"
"""The wait event, and its type, of a session that waits for nothing."""

HOST = (
    "cpu_user_percent", "cpu_system_percent", "cpu_iowait_percent", "context_switches_per_s", "dirty_mib",
    "pressure_io_some_percent", "network_mib_s",
)  # fmt: skip
DEVICE = ("r_iops", "r_mib_s", "r_await_ms", "w_iops", "w_mib_s", "w_await_ms", "f_iops", "aqu_sz")

_CPU = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
# the kernel's own order; those before 5.5 do not count flushes
_FIELDS = (
    "r_requests", "r_merged", "r_sectors", "r_ms", "w_requests", "w_merged", "w_sectors", "w_ms", "in_flight", "busy_ms",
    "queue_ms", "d_requests", "d_merged", "d_sectors", "d_ms", "f_requests",
)  # fmt: skip


def telemetry(raw: Raw) -> pd.DataFrame:
    """What was sampled in one trial: a row per interval, which ended at ``at_s`` seconds from just before the load's start.

    :data:`HOST`: shares of all CPUs in percent (user with nice, system with interrupts), the share of time in which some
    task waited for I/O (``pressure_*``), what the host moved over its network, and more.
    :data:`DEVICE`: of all devices together, as iostat has it of one: reads, writes and flushes (``r_``, ``w_``, ``f_``)
    per second, what they moved, how long one took (null if there was none), and the mean queue; null where a device does not tell.
    """
    return pd.DataFrame(_figures(_readings(raw)))


def sessions(raw: Raw) -> dict[int, dict[str, float]]:
    """The load's mean sessions by wait event in each second that has a sample; :data:`ON_CPU` are those that waited for nothing."""
    return {
        sample["at_s"]: {
            ON_CPU if {kind, event} <= {None, ON_CPU} else f"{kind}: {event}": n / sample["samples"]
            for kind, event, n in sample["sessions"]
        }
        for sample in thinned(raw).get("waits") or ()
    }


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

    Switches are the whole host's, traffic and flushes those of the devices together. All are null where the sampling
    ended before the load.
    """
    ends = first, last = raw["readings"][0], raw["readings"][-1]
    moved = _device_rises(ends)
    # which only the readings before and after the load have
    told = transactions if "server_ticks" in last else None
    costs = {
        "server_cpu_ms": 1000 * _ticks(first, last, "server_ticks") / raw["ticks_per_s"],
        "pooler_cpu_ms": 1000 * _ticks(first, last, "pooler_ticks") / raw["ticks_per_s"],
        "context_switches": _host_rises(ends)["context_switches"][0],
        "read_kib": moved["r_sectors"][0] / 2,
        "written_kib": moved["w_sectors"][0] / 2,
        "flushes": moved["f_requests"][0],
    }
    return {
        f"{name}_per_transaction": float(cost / told) if told and pd.notna(cost) else None
        for name, cost in costs.items()
    }


def processors_share(raw: Raw) -> float:
    """The share of all processors' time that was busy from the first reading to the last; NaN where the kernel does not tell."""
    whole = _figures((raw["readings"][0], raw["readings"][-1]))
    return float(whole["cpu_user_percent"][0] + whole["cpu_system_percent"][0]) / 100


def _ticks(first: Raw, last: Raw, of: str) -> float:
    """The CPU ticks that the servers, or the poolers, took between; null if one has ended, since nobody saw its last."""
    before, after = first.get(of, {}), last.get(of)
    if not after or before.keys() - after.keys():
        return math.nan
    return float(sum(ticks - before.get(pid, 0) for pid, ticks in after.items()))


def _readings(raw: Raw) -> Sequence[Raw]:
    """The readings, without the last but one where the last follows too soon for a rate."""
    readings: list[Raw] = list(raw["readings"])
    if len(readings) > 2 and readings[-1]["at_s"] - readings[-2]["at_s"] < raw["interval_s"] / 2:
        del readings[-2]
    return readings


@np.errstate(all="ignore")
def _rises(rows: Iterable[Raw], names: Sequence[str]) -> Arrays:
    """How far each counter rose from a row to the next; null where it fell, or a row lacks it."""
    rises = np.diff(np.array([[row.get(name) for name in names] for row in rows], dtype=float), axis=0)
    rises[~(rises >= 0)] = np.nan
    return dict(zip(names, rises.T, strict=True))


def _host_rises(readings: Sequence[Raw]) -> Arrays:
    rows = []
    for of in readings:
        ticks = dict(zip(_CPU, of["cpu"] or (), strict=False))
        rows.append({**of, **ticks, "io_stalled_us": of["pressure"]["io"].get("some")})
    return _rises(rows, ("at_s", *_CPU, "context_switches", "io_stalled_us", "network_bytes"))


def _device_rises(readings: Sequence[Raw]) -> Arrays:
    """The same of all devices together; null where one of them does not tell."""
    each = [
        # a disk may be added meanwhile
        _rises([dict(zip(_FIELDS, of["devices"].get(name) or (), strict=False)) for of in readings], _FIELDS)
        for name in readings[-1]["devices"]
    ]
    missing = np.full(len(readings) - 1, np.nan)
    return {name: np.sum([of[name] for of in each], axis=0) if each else missing for name in _FIELDS}


@np.errstate(all="ignore")
def _figures(readings: Sequence[Raw]) -> Arrays:
    rises, moved = _host_rises(readings), _device_rises(readings)
    ticks, seconds = np.sum([rises[name] for name in _CPU], axis=0), rises["at_s"]
    percent = 100 / np.where(ticks > 0, ticks, np.nan)
    figures = {
        "at_s": np.array([reading["at_s"] for reading in readings[1:]], dtype=float),
        "cpu_user_percent": percent * (rises["user"] + rises["nice"]),
        "cpu_system_percent": percent * (rises["system"] + rises["irq"] + rises["softirq"]),
        "cpu_iowait_percent": percent * rises["iowait"],
        "context_switches_per_s": rises["context_switches"] / seconds,
        "dirty_mib": np.array([reading["dirty_kib"] for reading in readings[1:]], dtype=float) / 1024,
        "pressure_io_some_percent": rises["io_stalled_us"] / seconds / 1e4,
        "network_mib_s": rises["network_bytes"] / seconds / (1 << 20),
    }
    for way in "rw":
        requests = moved[f"{way}_requests"]
        figures[f"{way}_iops"] = requests / seconds
        figures[f"{way}_mib_s"] = moved[f"{way}_sectors"] / seconds / 2048
        figures[f"{way}_await_ms"] = moved[f"{way}_ms"] / np.where(requests > 0, requests, np.nan)
    return figures | {"f_iops": moved["f_requests"] / seconds, "aqu_sz": moved["queue_ms"] / seconds / 1000}
