"""Figures of a trial's host, devices and sessions, from the sampler's raw readings.

A rate is null, never 0, where a counter is missing, was reset or has wrapped.

Sources: devices as iostat of sysstat 12 (man page iostat(1), functions ``write_plain_ext_stat`` and
``compute_ext_disk_stats``); CPU shares as vmstat; the kernel's documentation, accounting/psi.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Raw = Mapping[str, Any]
Figures = dict[str, float | None]
Array = NDArray[np.float64]

ON_CPU = "CPU"
"""The wait event, and its type, of a session that waits for nothing."""

HOST = (
    "cpu_user_percent", "cpu_system_percent", "cpu_iowait_percent", "context_switches_per_s", "dirty_mib",
    "pressure_io_some_percent", "network_mib_s",
)  # fmt: skip
DEVICE = ("r_iops", "r_mib_s", "r_await_ms", "w_iops", "w_mib_s", "w_await_ms", "f_iops", "aqu_sz")

_CPU = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
# in the kernel's order; kernels before 5.5 do not count flushes
_FIELDS = (
    "r_requests", "r_merged", "r_sectors", "r_ms", "w_requests", "w_merged", "w_sectors", "w_ms", "in_flight", "busy_ms",
    "queue_ms", "d_requests", "d_merged", "d_sectors", "d_ms", "f_requests",
)  # fmt: skip
_COUNTERS = ("at_s", *_CPU, "context_switches", "io_stalled_us", "network_bytes", *_FIELDS)


def telemetry(raw: Raw) -> pd.DataFrame:
    """Return a row per interval of a trial; ``at_s`` is its end, in seconds after the sampler's start.

    - :data:`HOST`: percent of all CPUs (user with nice, system with interrupts), or of the time (``pressure_*``).
    - :data:`DEVICE`: all devices together, as iostat; a mean duration is null without requests.
    """
    return pd.DataFrame(_figures(_readings(raw)))


def samples(raw: Raw, counters: Collection[str]) -> pd.DataFrame:
    """Return the values ``query.column`` of a user's queries; of ``counters`` the rise per second, ``NAME_per_s``."""
    rows = raw.get("samples") or []
    frame = pd.DataFrame([row["values"] for row in rows], dtype=float)
    at_s = np.array([row["at_s"] for row in rows], dtype=float)
    rising = [name for name in frame if str(name).partition(".")[0] in counters]
    rises = frame[rising].diff()
    rates = rises.where(rises >= 0).iloc[1:].div(np.diff(at_s), axis=0).add_suffix("_per_s")
    gauges = frame.drop(columns=rising).iloc[1:]
    return pd.concat([gauges, rates], axis=1).reset_index(drop=True).assign(at_s=at_s[1:])


def sessions(raw: Raw) -> dict[int, dict[str, float]]:
    """Return the mean number of sessions by wait event, for each sampled second."""
    return {
        sample["at_s"]: {
            ON_CPU if {kind, event} <= {None, ON_CPU} else f"{kind}: {event}": n / sample["samples"]
            for kind, event, n in sample["sessions"]
        }
        for sample in thinned(raw).get("waits") or ()
    }


def thinned(raw: Raw) -> Raw:
    """Return the readings with the samples of waits summed by second."""
    if not raw.get("waits"):
        return raw
    waits = []
    for second, samples in groupby(raw["waits"], lambda sample: math.ceil(sample["at_s"])):
        number, counts = 0, Counter[tuple[str | None, str | None]]()
        for sample in samples:
            number += sample.get("samples", 1)
            counts.update({(kind, event): n for kind, event, n in sample["sessions"]})
        rows = [[*event, n] for event, n in counts.items()]
        waits.append({"at_s": second, "samples": number, "sessions": rows})
    return {**raw, "waits": waits}


def transaction_costs(raw: Raw, transactions: int | None) -> Figures:
    """Return a transaction's mean costs, from at least two readings; null if the sampling ended before the load.

    Context switches are the whole host's.
    """
    first, last = raw["readings"][0], raw["readings"][-1]
    rises = _rises((first, last))
    # only the readings before and after the load have the servers' ticks
    divisor = transactions if "server_ticks" in last else None
    costs = {
        "server_cpu_ms": 1000 * _ticks(first, last, "server_ticks") / raw["ticks_per_s"],
        "pooler_cpu_ms": 1000 * _ticks(first, last, "pooler_ticks") / raw["ticks_per_s"],
        "context_switches": rises["context_switches"][0],
        "read_kib": rises["r_sectors"][0] / 2,
        "written_kib": rises["w_sectors"][0] / 2,
        "flushes": rises["f_requests"][0],
    }
    return {
        f"{name}_per_transaction": float(cost / divisor) if divisor and pd.notna(cost) else None
        for name, cost in costs.items()
    }


def processors_share(raw: Raw) -> float:
    """Return the busy share of all processors over the readings; NaN if unknown."""
    whole = _figures((raw["readings"][0], raw["readings"][-1]))
    return float(whole["cpu_user_percent"][0] + whole["cpu_system_percent"][0]) / 100


def _ticks(first: Raw, last: Raw, of: str) -> float:
    before, after = first.get(of, {}), last.get(of)
    if not after or before.keys() - after.keys():  # the last ticks of one that has ended are unknown
        return math.nan
    return float(sum(ticks - before.get(pid, 0) for pid, ticks in after.items()))


def _readings(raw: Raw) -> Sequence[Raw]:
    readings: list[Raw] = list(raw["readings"])
    if len(readings) > 2 and readings[-1]["at_s"] - readings[-2]["at_s"] < raw["interval_s"] / 2:
        del readings[-2]  # the last follows too soon for a rate
    return readings


def _rises(readings: Sequence[Raw]) -> dict[str, Array]:
    """Return each counter's rises, devices summed."""
    host = _differences([*map(_host_counters, readings)])
    # by the last reading, since a disk may be added meanwhile
    devices = [
        _differences([_padded(reading["devices"].get(name), 16) for reading in readings])
        for name in readings[-1]["devices"]
    ]
    moved = np.sum(devices, axis=0) if devices else np.full((len(readings) - 1, 16), np.nan)
    return dict(zip(_COUNTERS, np.hstack([host, moved]).T, strict=True))


def _host_counters(reading: Raw) -> list[Any]:
    pressure, network = reading["pressure"]["io"].get("some"), reading.get("network_bytes")
    return [reading["at_s"], *_padded(reading["cpu"], 8), reading["context_switches"], pressure, network]


def _padded(values: Iterable[int] | None, length: int) -> list[int | None]:
    return [*(values or ()), *[None] * length][:length]


@np.errstate(all="ignore")
def _differences(rows: Sequence[Any] | Array) -> Array:
    differences = np.diff(np.array(rows, dtype=float), axis=0)
    differences[~(differences >= 0)] = np.nan
    return differences


@np.errstate(all="ignore")
def _figures(readings: Sequence[Raw]) -> dict[str, Array]:
    rises = _rises(readings)
    # with iowait as it is: it may fall, and idle then rises by as much (proc(5))
    cpu = np.array([_padded(reading["cpu"], len(_CPU)) for reading in readings], dtype=float)
    ticks = np.diff(cpu.sum(axis=1))
    seconds = rises["at_s"]
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
        requests = rises[f"{way}_requests"]
        figures[f"{way}_iops"] = requests / seconds
        figures[f"{way}_mib_s"] = rises[f"{way}_sectors"] / seconds / 2048
        figures[f"{way}_await_ms"] = rises[f"{way}_ms"] / np.where(requests > 0, requests, np.nan)
    return figures | {"f_iops": rises["f_requests"] / seconds, "aqu_sz": rises["queue_ms"] / seconds / 1000}
