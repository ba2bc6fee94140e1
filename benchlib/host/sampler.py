"""The sampler of a trial: the host's counters once a second, and the wait events of the load's sessions.

It derives nothing, so that a corrected :mod:`benchlib.host.telemetry` needs no rerun.

Sources: man pages proc_stat(5), proc_meminfo(5); the kernel's documentation, admin-guide/iostats and accounting/psi.
"""

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, Self

import psutil

from benchlib.errors import ServerError, StudyError
from benchlib.host import facts
from benchlib.host.shell import known

Sample = dict[str, Any]
"""Figures of one moment, in plain JSON types."""

Ask = Callable[[], Sample]
Files = Mapping[str, str | None]
"""The content of kernel files by their names below ``/proc``; None for a missing one."""

FILES = ("stat", "meminfo", "pressure/io", "diskstats")
"""The files that are read below a host's ``/proc``."""

_TITLES = {"waits": "wait events", "readings": "the host's counters", "samples": "the queries"}
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_FIELDS_BEFORE_FLUSHES = 15
_DISK = re.compile(r"(sd|vd|xvd|hd|dasd)[a-z]+|nvme\d+n\d+|mmcblk\d+")
"""The names of disks. Partitions and mapped, RAID and loop devices lie on them and would count twice."""


@dataclass(kw_only=True)
class Sampler:
    """A context manager around a load.

    - ``servers`` returns the process numbers of local postmasters, ``poolers`` are those of poolers.
    - ``waits``, ``samples`` and ``files`` open functions of :mod:`benchlib.server.statistics`. The trial goes on after a
      :class:`ServerError` of ``waits`` or ``files``.

    ``raw`` holds JSON types: ``readings`` of :func:`host_counters`, and the samples of ``waits``, null if it could not be
    opened. The first and last reading have :func:`server_ticks`. ``at_s`` counts from ``started``. With ``of_target`` the
    readings are of the server's host, except ``network_bytes``.
    """

    servers: Callable[[], Sequence[int]]
    poolers: Sequence[int] = ()
    devices: Sequence[str] = ()
    waits: Callable[[], AbstractContextManager[Ask]] | None = None
    files: Callable[[], AbstractContextManager[Callable[[], Files]]] | None = None
    samples: Callable[[], AbstractContextManager[Ask]] | None = None
    waits_hz: float = 10.0
    interval_s: float = 1.0
    raw: dict[str, Any] = field(default_factory=dict, init=False)
    warnings: list[str] = field(default_factory=list, init=False)
    _over: threading.Event = field(default_factory=threading.Event, init=False)
    _threads: list[threading.Thread] = field(default_factory=list, init=False)

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        self.raw |= {
            "started": {"epoch_s": time.time()},
            "interval_s": self.interval_s,
            "ticks_per_s": _TICKS_PER_S,
            "readings": [],
        }
        files: Callable[[], Files] = kernel_files
        devices: Sequence[str] | None = self.devices
        host_resources, waits_resources, own_resources = ExitStack(), ExitStack(), ExitStack()
        own = own_resources.enter_context(self.samples()) if self.samples else None  # first: it may refuse
        if self.files:
            with contextlib.suppress(ServerError):  # not permitted: this host is read instead
                files, devices = host_resources.enter_context(self.files()), None
                self.raw["of_target"] = True

        def host() -> Sample:
            return {**host_counters(files(), devices), "network_bytes": network_bytes()}

        def host_and_servers() -> Sample:
            ticks = {"server_ticks": self.servers(), "pooler_ticks": self.poolers}
            return {**host(), **{name: server_ticks(pids) for name, pids in ticks.items()}}

        self._keep("readings", host_and_servers)  # before the load begins
        if self.waits and self.waits_hz:
            self.raw["waits"] = None
            try:
                sample = waits_resources.enter_context(self.waits())
                self.raw["waits"] = []
                self._start("waits", 1 / self.waits_hz, sample, waits_resources)
            except ServerError as reason:  # no reason to lose the trial
                self.warnings.append(f"wait events were not sampled: {reason}")
        if own:
            self.raw["samples"] = []
            self._keep("samples", own)
            self._start("samples", self.interval_s, own, own_resources, own)
        self._start("readings", self.interval_s, host, host_resources, host_and_servers)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(20)  # a thread that hangs ends with its server

    def _keep(self, key: str, sample: Ask) -> None:
        at_s = time.monotonic() - self._started
        self.raw[key].append({"at_s": at_s, **sample()})

    def _start(
        self, key: str, every_s: float, sample: Ask, resources: ExitStack, at_end: Ask | None = None
    ) -> None:
        def run() -> None:
            beat = 0
            with resources:
                try:
                    while True:
                        elapsed_s = time.monotonic() - self._started
                        beat = max(beat, int(elapsed_s / every_s)) + 1  # a late sample is left out
                        if self._over.wait(beat * every_s - elapsed_s):
                            break
                        self._keep(key, sample)
                    if at_end:
                        self._keep(key, at_end)
                except (ServerError, StudyError, OSError) as reason:
                    self.warnings.append(f"{_TITLES[key]} were not sampled to the end: {reason}")

        self._threads.append(threading.Thread(target=run, name=_TITLES[key], daemon=True))
        self._threads[-1].start()


def kernel_files() -> Files:
    """Return this host's :data:`FILES`."""
    return {name: facts.read(facts.ROOT / "proc" / name) for name in FILES}


def host_counters(files: Files, devices: Sequence[str] | None = None) -> Sample:
    """Return a Linux host's counters; null for unknown.

    ``cpu`` are ticks (user, nice, system, idle, iowait, irq, softirq, steal), ``pressure`` is in microseconds.
    """
    stat, memory, io = (_table(files.get(name)) for name in ("stat", "meminfo", "pressure/io"))
    cpu, switches, dirty = stat.get("cpu"), stat.get("ctxt"), memory.get("Dirty:")
    # each line begins with the device's two numbers and its name
    disks = {row[2]: row[3:] for row in map(str.split, (files.get("diskstats") or "").splitlines())}
    named = [name for name in disks if _DISK.fullmatch(name)] if devices is None else devices
    return {
        "cpu": cpu and [int(ticks) for ticks in cpu[:8]],
        "context_switches": switches and int(switches[0]),
        "dirty_kib": dirty and int(dirty[0]),
        "pressure": {"io": {kind: int(row[-1].removeprefix("total=")) for kind, row in io.items()}},
        "devices": {name: _counts(name, disks.get(name, ()), local=devices is not None) for name in named},
    }


def _counts(name: str, row: Sequence[str], *, local: bool) -> list[int] | None:
    device = facts.ROOT / "sys/class/block" / name
    # no flushes of partitions and mapped devices: the kernel's documentation, admin-guide/iostats.rst, field 16
    whole = not local or not ((device / "partition").exists() or any((device / "slaves").glob("*")))
    return [*map(int, row if whole else row[:_FIELDS_BEFORE_FLUSHES])] or None


def network_bytes() -> int | None:
    """Return the bytes received and sent, loopback traffic once; None if nothing is counted."""
    interfaces = psutil.net_io_counters(pernic=True, nowrap=False)
    moved = [of.bytes_sent + (name != "lo") * of.bytes_recv for name, of in interfaces.items()]
    return sum(moved) if moved else None


def server_ticks(pids: Sequence[int]) -> dict[str, int]:
    """Return the CPU ticks of servers with all their processes, by the postmaster's number.

    Ended backends count: the kernel adds their time to the postmaster's total.
    """
    ticks = {}
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            ticks[str(pid)] = round(_tree_seconds(psutil.Process(pid)) * _TICKS_PER_S)
    return ticks


def _tree_seconds(server: psutil.Process) -> float:
    for _ in range(3):
        own = server.cpu_times()[:4]  # user, system, and both of ended children
        children = server.children(recursive=True)
        seconds = sum(own) + sum(sum((known(child.cpu_times) or ())[:4]) for child in children)
        if own[2:] == server.cpu_times()[2:4]:
            break  # otherwise a child that ended meanwhile may be missing in both sums
    return float(seconds)


def _table(text: str | None) -> dict[str, list[str]]:
    return {row[0]: row[1:] for line in (text or "").splitlines() if (row := line.split())}
