"""The one sampler of a trial: what the host counts, once a second, and what the load's sessions wait for meanwhile.

It keeps what it reads and derives nothing, so that a mended derivation (:mod:`benchlib.host.telemetry`)
needs no rerun. Sources: man pages proc_stat(5), proc_meminfo(5); the kernel's documentation,
admin-guide/iostats and accounting/psi.
"""

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil

from benchlib.errors import ServerError
from benchlib.host.facts import ROOT, read
from benchlib.host.shell import known

Sample = dict[str, Any]
"""Figures of one moment, in plain JSON types."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(kw_only=True)
class Sampler:
    """To be entered around a load; ``raw`` is then what was read, ``warnings`` what was not, and why.

    ``servers`` tells the pids of the trial's postmasters (none where they run elsewhere), ``devices``
    are those that data and WAL lie on. ``waits`` opens what is asked ``waits_hz`` times a second (0 for never), such as
    :func:`benchlib.server.statistics.waits`; it may raise a :class:`ServerError`, as may what it gives.

    ``raw`` holds plain JSON types: ``started`` (``epoch_s``), ``ticks_per_s``, ``readings`` of
    :func:`host_counters`, the first and the last of them with the ``server_ticks`` of :func:`server_ticks`, and the
    samples of ``waits``, null if it could not be opened. ``at_s`` in all of them is seconds since ``started``.
    """

    servers: Callable[[], Sequence[int]]
    devices: Sequence[str] = ()
    waits: Callable[[], AbstractContextManager[Callable[[], Sample]]] | None = None
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
        self._keep("readings", self._host_and_servers)  # before the load has begun
        if self.waits and self.waits_hz:
            self.raw["waits"], connection = None, ExitStack()
            try:
                sample = connection.enter_context(self.waits())
                self.raw["waits"] = []
                self._start("waits", "wait events", 1 / self.waits_hz, sample, connection)
            except ServerError as reason:  # no reason to lose the trial
                self.warnings.append(f"wait events were not sampled: {reason}")
        host = functools.partial(host_counters, self.devices)
        self._start("readings", "the host's counters", self.interval_s, host, ExitStack())
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(5)  # one that hangs ends with its server
        self._keep("readings", self._host_and_servers)

    def _host_and_servers(self) -> Sample:
        return {**host_counters(self.devices), "server_ticks": server_ticks(self.servers())}

    def _keep(self, key: str, sample: Callable[[], Sample]) -> None:
        at_s = time.monotonic() - self._started
        self.raw[key].append({"at_s": at_s, **sample()})

    def _start(
        self, key: str, what: str, every_s: float, sample: Callable[[], Sample], open_until_end: ExitStack
    ) -> None:
        def run() -> None:
            beat = 0
            with open_until_end:
                try:
                    while True:
                        elapsed_s = time.monotonic() - self._started
                        beat = max(beat, int(elapsed_s / every_s)) + 1  # what comes too late is left out
                        if self._over.wait(beat * every_s - elapsed_s):
                            return
                        self._keep(key, sample)
                except (ServerError, OSError) as reason:
                    self.warnings.append(f"{what} were not sampled to the end: {reason}")

        self._threads.append(threading.Thread(target=run, name=what, daemon=True))
        self._threads[-1].start()


def host_counters(devices: Sequence[str], *, root: Path = ROOT) -> Sample:
    """What Linux has counted until now; null where a kernel lacks, hides or does not count it.

    ``cpu`` are the ticks of all CPUs (user, nice, system, idle, iowait, irq, softirq, steal), ``pressure`` the
    microseconds in which some task waited for I/O, ``devices`` the fields of each device's ``stat`` file, ``network_bytes``
    what all interfaces received and sent, what the host sent to itself once.
    ``root`` is where ``proc`` and ``sys`` are found.
    """
    stat, memory, io = (_table(root / "proc" / name) for name in ("stat", "meminfo", "pressure/io"))
    cpu, switches, dirty = stat.get("cpu"), stat.get("ctxt"), memory.get("Dirty:")
    disks = {name: (read(root / "sys/class/block" / name / "stat") or "").split() for name in devices}
    return {
        "cpu": cpu and [int(ticks) for ticks in cpu[:8]],
        "context_switches": switches and int(switches[0]),
        "dirty_kib": dirty and int(dirty[0]),
        "pressure": {"io": {kind: int(row[-1].removeprefix("total=")) for kind, row in io.items()}},
        "devices": {name: [*map(int, fields)] or None for name, fields in disks.items()},
        "network_bytes": _network_bytes(root),
    }


def _network_bytes(root: Path) -> int | None:
    """Source: man page proc_net(5), ``/proc/net/dev``: after two lines of headings an interface a line."""
    lines = (read(root / "proc/net/dev") or "").splitlines()[2:]
    interfaces = {name.strip(): rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    moved = [int(of[8]) + (0 if name == "lo" else int(of[0])) for name, of in interfaces.items()]
    return sum(moved) if moved else None


def server_ticks(pids: Sequence[int]) -> dict[str, int]:
    """The CPU ticks of servers since their start, with all their processes, by the postmaster's pid as text.

    A server that is not there is left out. No process that ends is lost: the kernel adds its time to that of its
    parent's ended children when the parent waits for it, as a postmaster does for each of its backends.
    """
    ticks = {}
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            ticks[str(pid)] = round(_tree_seconds(psutil.Process(pid)) * _TICKS_PER_S)
    return ticks


def _tree_seconds(server: psutil.Process) -> float:
    for _ in range(3):
        own = server.cpu_times()[:4]  # user, system, and both of the children that have ended
        children = server.children(recursive=True)
        seconds = sum(own) + sum(sum((known(child.cpu_times) or ())[:4]) for child in children)
        if own[2:] == server.cpu_times()[2:4]:
            break  # else a child that ended meanwhile may have been seen neither living nor among the ended
    return float(seconds)


def _table(path: Path) -> dict[str, list[str]]:
    """The lines of a file by their first word."""
    return {row[0]: row[1:] for line in (read(path) or "").splitlines() if (row := line.split())}
