"""The one sampler of a trial: what the host counts, once a second, and what the load waits for, more often.

It keeps what it reads and derives nothing, so that a mended derivation (:mod:`benchlib.host.telemetry`)
needs no rerun.
"""

from __future__ import annotations

import gzip
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchlib.errors import ServerError
from benchlib.host.proc import TICKS_PER_S, cpu_ticks, host_counters, network_interfaces
from benchlib.server.server import Server
from benchlib.server.waits import Waits

TELEMETRY = "telemetry.json.gz"
"""The sampler's file among the raw files of a trial."""

TOOLS = ("pgbench", "sysbench")


class Sampler:
    """To be entered around a load; ``raw`` is then what was read, ``warnings`` what was not, and why.

    ``servers`` tells the pids of the trial's postmasters (none where they run elsewhere), ``devices``
    are those that data and WAL lie on, and ``server`` is asked for wait events ``waits_hz`` times a second
    (0 for never). The load tool is found as a child of ours with one of the names ``tools``.

    ``raw`` holds plain JSON types: ``started`` (``monotonic_s``, and ``epoch_s`` for the clock on the wall),
    ``cpus``, ``ticks_per_s``, ``readings`` of :func:`~benchlib.host.proc.host_counters` with the ``server_ticks`` and
    ``tool_ticks`` of :func:`~benchlib.host.proc.cpu_ticks`, and ``waits``, null where they were not asked for.
    ``at_s`` in both is seconds since ``started``.
    """

    def __init__(
        self,
        *,
        servers: Callable[[], Sequence[int]],
        devices: Sequence[str] = (),
        server: Server | None = None,
        tools: Sequence[str] = TOOLS,
        interval_s: float = 1.0,
        waits_hz: float = 10.0,
    ) -> None:
        self.raw: dict[str, Any] = {}
        self.warnings: list[str] = []
        self._servers = servers
        self._devices = tuple(devices)
        self._server = server if waits_hz else None
        self._tools = tuple(tools)
        self._interval_s = interval_s
        self._waits_hz = waits_hz
        self._interfaces = network_interfaces()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        waits = None
        if self._server:
            try:
                waits = Waits(self._server)
            except ServerError as reason:  # no reason to lose the trial
                self.warnings.append(f"wait events were not sampled: {reason}")
        self._started = time.monotonic()
        self.raw |= {
            "started": {"monotonic_s": self._started, "epoch_s": time.time()},
            "interval_s": self._interval_s,
            "cpus": os.cpu_count(),
            "ticks_per_s": TICKS_PER_S,
            "readings": [],
            "waits": [] if waits else None,
        }
        self._read()  # before the load has begun
        self._spawn("the host's counters", self._read, self._interval_s, nullcontext())
        if waits:
            self._spawn("wait events", lambda: self._ask(waits), 1 / self._waits_hz, waits)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(5)  # one that hangs ends with its server
        self._read()

    def keep(self, folder: Path) -> None:
        """Write what was read into a trial's folder."""
        (folder / TELEMETRY).write_bytes(gzip.compress(json.dumps(self.raw).encode(), compresslevel=6))

    def _spawn(
        self, what: str, act: Callable[[], None], every_s: float, resource: AbstractContextManager[Any]
    ) -> None:
        def run() -> None:
            beat = 0
            with resource:
                try:
                    while True:
                        elapsed_s = time.monotonic() - self._started
                        beat = max(beat, int(elapsed_s / every_s)) + 1  # what comes too late is left out
                        if self._over.wait(beat * every_s - elapsed_s):
                            return
                        act()
                except (ServerError, OSError) as reason:
                    self.warnings.append(f"{what} were not sampled to the end: {reason}")

        self._threads.append(threading.Thread(target=run, name=what, daemon=True))
        self._threads[-1].start()

    def _read(self) -> None:
        at_s = time.monotonic() - self._started
        counters = host_counters(self._devices, self._interfaces)
        servers, tools = cpu_ticks(self._servers(), self._tools)
        self.raw["readings"].append({"at_s": at_s, **counters, "server_ticks": servers, "tool_ticks": tools})

    def _ask(self, waits: Waits) -> None:
        at_s = time.monotonic() - self._started
        self.raw["waits"].append({"at_s": at_s, "sessions": waits.sample()})
