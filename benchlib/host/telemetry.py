"""From the sampler's raw readings to what the host, its devices and the server's sessions did in a trial.

Rates come from the differences of two readings. What a kernel or a server does not tell is null, never 0,
and so is a rate over a counter that was reset or has wrapped.

Sources: devices as iostat of sysstat 12 defines them (man page iostat(1), functions ``write_plain_ext_stat``
and ``compute_ext_disk_stats``); CPU shares as vmstat's; the kernel's documentation, accounting/psi.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

Raw = Mapping[str, Any]
Figures = dict[str, float | None]

ON_CPU = "CPU"
"""The wait event, and its type, of a session that waits for nothing."""

HOST = (
    "cpu_user_percent", "cpu_system_percent", "cpu_iowait_percent", "cpu_steal_percent", "cpu_idle_percent",
    "server_cores", "tool_cores", "context_switches_per_s", "dirty_mib", "writeback_mib",
    "pressure_cpu_some_percent", "pressure_io_some_percent", "pressure_io_full_percent",
    "pressure_memory_some_percent", "pressure_memory_full_percent",
    "received_bytes_per_s", "sent_bytes_per_s",
)  # fmt: skip
DEVICE = (
    "r_iops", "r_mib_s", "r_await_ms", "w_iops", "w_mib_s", "w_await_ms",
    "d_iops", "d_mib_s", "d_await_ms", "f_iops", "f_await_ms", "aqu_sz", "util_percent",
)  # fmt: skip
# of a file in /sys/class/block/*/stat, in its order
_FIELDS = (
    "r_requests", "r_merged", "r_sectors", "r_ms", "w_requests", "w_merged", "w_sectors", "w_ms",
    "in_flight", "busy_ms", "queue_ms", "d_requests", "d_merged", "d_sectors", "d_ms", "f_requests", "f_ms",
)  # fmt: skip
# cpu "full" does not exist for a whole host: kernels show 0 there, for compatibility
_PRESSURES = (("cpu", "some"), ("io", "some"), ("io", "full"), ("memory", "some"), ("memory", "full"))


@dataclass(frozen=True)
class Telemetry:
    """What was sampled in one trial; ``at_s`` is seconds since just before the load's start.

    ``host`` has a row per interval, which ended at ``at_s``: shares of all CPUs in percent (user with nice,
    system with interrupts), CPU seconds per second of the servers and of the load tool (``*_cores``), the share of
    time in which some or all tasks were stalled (``pressure_*``), and more; units are in the names.

    ``devices`` has a row per interval and ``device``, as iostat has: reads, writes, discards and flushes
    (``r_``, ``w_``, ``d_``, ``f_``) per second, what they moved, how long one took (null if there was none), the mean
    queue and the utilisation. ``mean_devices`` has a row per device, of the whole time.

    ``waits`` has a row per sample and wait event: how many of the load's sessions (``n``) waited for it, or
    for nothing (``CPU``). What nobody waited for has no row. Of a trimmed trial it is a row per second, with the sum of
    its samples. ``mean_waits`` has a row per event, the most frequent
    first: ``sessions``, the mean of all samples.
    """

    host: pd.DataFrame
    devices: pd.DataFrame
    mean_devices: pd.DataFrame
    waits: pd.DataFrame
    mean_waits: pd.DataFrame


def telemetry(raw: Raw) -> Telemetry:
    """The frames of one trial, from what :class:`benchlib.host.sampler.Sampler` kept."""
    readings = _readings(raw)
    whole = [(readings[0], readings[-1])]
    waits = [
        (sample["at_s"], kind or ON_CPU, event or ON_CPU, n)
        for sample in raw["waits"] or ()
        for kind, event, n in sample["sessions"]
    ]
    events = pd.DataFrame(waits, columns=["at_s", "wait_event_type", "wait_event", "n"])
    total = events.groupby(["wait_event_type", "wait_event"], as_index=False)["n"].sum()
    asked = sum(sample.get("samples", 1) for sample in raw["waits"] or ())
    mean = total.assign(sessions=total["n"] / max(1, asked)).drop(columns="n")
    return Telemetry(
        host=_frame((_host(raw, *pair) for pair in pairwise(readings)), ("at_s", *HOST)),
        devices=_devices(pairwise(readings)),
        mean_devices=_devices(whole).drop(columns="at_s"),
        waits=events,
        mean_waits=mean.sort_values("sessions", ascending=False, ignore_index=True),
    )


def thinned(raw: Raw) -> Raw:
    """The same without the single samples of waits: a sample per second that has their sum, and how many ``samples`` they were.

    What is derived from it second by second, and of the whole time, stays the same.
    """
    if raw["waits"] is None:
        return raw
    seconds: dict[int, tuple[int, Counter[tuple[str | None, str | None]]]] = {}
    for sample in raw["waits"]:
        second = math.ceil(sample["at_s"])
        samples, sessions = seconds.get(second, (0, Counter()))
        sessions.update({(kind, event): n for kind, event, n in sample["sessions"]})
        seconds[second] = samples + sample.get("samples", 1), sessions
    waits = [
        {"at_s": second, "samples": samples, "sessions": [[*event, n] for event, n in sessions.items()]}
        for second, (samples, sessions) in seconds.items()
    ]
    return {**raw, "waits": waits}


def summary(raw: Raw, *, transactions: int | None = None, tool_cpu_s: float | None = None) -> Figures:
    """The figures of a whole trial: those of the host frame, and what one transaction cost.

    ``tool_cpu_s`` is the CPU time of the load tool, which nobody can sample once that has ended. The
    context switches and the traffic of the devices are the whole host's.
    """
    readings = _readings(raw)
    first, last = readings[0], readings[-1]
    seconds = last["at_s"] - first["at_s"]
    figures = {name: value for name, value in _host(raw, first, last).items() if name != "at_s"}
    for name in ("dirty", "writeback"):
        known = [reading[f"{name}_kib"] for reading in readings if reading[f"{name}_kib"] is not None]
        figures[f"{name}_mib"] = sum(known) / len(known) / 1024 if known else None
    server_s = _scaled(figures["server_cores"], seconds)
    switches = _scaled(figures["context_switches_per_s"], seconds)
    moved = [_device(first, last, name) for name in last["devices"]]
    figures["tool_cores"] = _ratio(tool_cpu_s, seconds)
    costs = {
        "server_cpu_ms": _scaled(server_s, 1000),
        "tool_cpu_ms": _scaled(tool_cpu_s, 1000),
        "context_switches": switches,
        "read_kib": _scaled(_total(device["r_mib_s"] for device in moved), 1024 * seconds),
        "written_kib": _scaled(_total(device["w_mib_s"] for device in moved), 1024 * seconds),
        "flushes": _scaled(_total(device["f_iops"] for device in moved), seconds),
    }
    return {
        **figures,
        **{f"{name}_per_transaction": _ratio(cost, transactions) for name, cost in costs.items()},
    }


def _readings(raw: Raw) -> Sequence[Raw]:
    """The readings, without the last but one where the last follows too soon for a rate."""
    readings: list[Raw] = list(raw["readings"])
    if len(readings) > 2 and readings[-1]["at_s"] - readings[-2]["at_s"] < raw["interval_s"] / 2:
        del readings[-2]
    return readings


def _host(raw: Raw, a: Raw, b: Raw) -> Figures:
    seconds = b["at_s"] - a["at_s"]
    spent = [_difference(*pair) for pair in zip(a["cpu"] or [None] * 8, b["cpu"] or [None] * 8, strict=True)]
    user, nice, system, idle, iowait, irq, softirq, steal = spent
    shares = {
        "user": [user, nice], "system": [system, irq, softirq], "iowait": [iowait], "steal": [steal], "idle": [idle],
    }  # fmt: skip
    cpu = _total(spent)
    figures: Figures = {"at_s": b["at_s"]}
    figures |= {f"cpu_{name}_percent": _ratio(_total(ticks), cpu, 100) for name, ticks in shares.items()}
    for who in ("server", "tool"):
        figures[f"{who}_cores"] = _ratio(
            _taken(a[f"{who}_ticks"], b[f"{who}_ticks"]), raw["ticks_per_s"] * seconds
        )
    switches = _difference(a["context_switches"], b["context_switches"])
    figures["context_switches_per_s"] = _ratio(switches, seconds)
    figures |= {f"{name}_mib": _ratio(b[f"{name}_kib"], 1024) for name in ("dirty", "writeback")}
    for what, kind in _PRESSURES:
        stalled_us = _difference(a["pressure"][what].get(kind), b["pressure"][what].get(kind))
        figures[f"pressure_{what}_{kind}_percent"] = _ratio(stalled_us, seconds * 1e6, 100)
    for way, name in enumerate(("received", "sent")):
        moved = _total(
            _difference(a["network"][i] and a["network"][i][way], b["network"][i] and b["network"][i][way])
            for i in b["network"]
        )
        figures[f"{name}_bytes_per_s"] = _ratio(moved, seconds)
    return figures


def _taken(a: Mapping[str, int], b: Mapping[str, int]) -> float | None:
    """The CPU ticks that process trees took between; null if one has ended, since nobody saw its last."""
    if a.keys() - b.keys():
        return None
    return _total(_difference(a.get(pid, 0), ticks) for pid, ticks in b.items())


def _devices(pairs: Iterable[tuple[Raw, Raw]]) -> pd.DataFrame:
    rows = (
        {"at_s": b["at_s"], "device": name, **_device(a, b, name)} for a, b in pairs for name in b["devices"]
    )
    return _frame(rows, ("at_s", "device", *DEVICE))


def _device(a: Raw, b: Raw, name: str) -> Figures:
    """The figures of one device. Kernels before 4.18 do not count discards, those before 5.5 no flushes."""
    seconds = b["at_s"] - a["at_s"]
    fields: dict[str, float | None] = dict.fromkeys(_FIELDS)
    fields |= {
        field: _difference(*pair)
        for field, *pair in zip(_FIELDS, a["devices"][name] or (), b["devices"][name] or (), strict=False)
    }
    figures: Figures = {}
    for way in "rwdf":
        requests = fields[f"{way}_requests"]
        figures[f"{way}_iops"] = _ratio(requests, seconds)
        if way != "f":
            figures[f"{way}_mib_s"] = _ratio(fields[f"{way}_sectors"], seconds, 512 / (1 << 20))
        figures[f"{way}_await_ms"] = _ratio(fields[f"{way}_ms"], requests)
    figures["aqu_sz"] = _ratio(fields["queue_ms"], seconds * 1000)
    figures["util_percent"] = _ratio(fields["busy_ms"], seconds * 1000, 100)
    return figures


def _difference(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None or b < a else b - a


def _total(values: Iterable[float | None]) -> float | None:
    """The sum; null if a part is, or if there is none."""
    known = list(values)
    return sum(value for value in known if value is not None) if known and None not in known else None


def _ratio(value: float | None, by: float | None, times: float = 1) -> float | None:
    return None if value is None or not by else value / by * times


def _scaled(value: float | None, times: float) -> float | None:
    return None if value is None else value * times


def _frame(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    told, figures = list(rows), [name for name in columns if name != "device"]
    # by numpy, in half the time: a page reads the frames of tens of trials
    values = np.array([[row[name] for name in figures] for row in told], dtype=float)
    frame = pd.DataFrame(values.reshape(len(told), len(figures)), columns=figures)
    if "device" in columns:
        frame.insert(columns.index("device"), "device", pd.Series([row["device"] for row in told], dtype=str))
    return frame
