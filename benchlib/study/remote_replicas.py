"""Followers elsewhere: a replica that lives on another host of the fleet, and how the bench of its primary has it.

It is one long call at that host, which makes the replica, says once a second what the host counts, and ends when nobody
wants it any more. It is asked over the network, as its primary is by it: at one address, with this run's password.
"""

import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchlib.errors import ServerError
from benchlib.host.facts import block_devices
from benchlib.host.sampler import host_counters, kernel_files, network_bytes, server_ticks
from benchlib.host.shell import ticks
from benchlib.levers import server_settings
from benchlib.levers.lever import Site
from benchlib.levers.replication import replica_beside, replication_of
from benchlib.plan.level import Level
from benchlib.server.cluster import Cluster, Door, superuser_session
from benchlib.server.installations import find_installation
from benchlib.server.replica import Replica, Source
from benchlib.server.server import Session, asking
from benchlib.server.templates import workshop
from benchlib.study.calls import CLOCK, PASSING, OtherHosts, Send, clock_offset, ended
from benchlib.study.records import Away

_INTERVAL_S = 1.0
_COPY_LIMIT_S = 3600.0


def follow(whom: str, level: Level, number: int, primary: Door, address: str, send: Send) -> None:
    """Have the replica of a number for ``whom`` at this host, listening at ``address``, until the call is ended.

    Sent are its ``port`` and ``round_trip_s``, the way to its primary and back, when it runs; then a ``reading`` each second, with
    the primary's time. Its files, places and caps go with the call.

    Raises:
        BenchlibError: the host is busy, the replica cannot be had, or has ended.

    """
    way = {"PGPASSWORD": primary.password}
    with workshop(f"a replica for {whom}", 1, environment=way) as templates:
        run, shell = templates.run, templates.shell
        beside = Cluster(shell, templates.reach(find_installation(level.postgres)), run.folder)
        program, chapter = partial(templates.program, level=level), run.journal.chapter()
        site = Site(level, "f", run.folder, shell, chapter, program, beside)
        delay_ms = replication_of(level).delay_ms
        source = Source(primary.address, primary.port, server_settings(level), delay_ms)
        replica = replica_beside(site, number, source)
        replica.copy()
        replica.open_door(replace(Door.at(address, [primary.address]), password=primary.password))
        replica.stream()
        with (
            asking(),
            superuser_session(replica.upstream, primary.port, "postgres", primary.password) as asked,
        ):
            trip_s, offset_s = clock_offset(lambda: float(asked.execute(CLOCK).fetchall()[0][0]))
        send({"port": replica.port, "round_trip_s": trip_s})
        folders = (replica.placed, *replica.places.values())
        devices = tuple(dict.fromkeys(device for folder in folders for device in block_devices(folder)))
        while replica.running:
            for check in site.checks:
                check()
            counts = {**host_counters(kernel_files(), devices), "network_bytes": network_bytes()}
            processes = server_ticks([replica.pid] if replica.pid else [])
            send({"reading": {"at_s": time.time() + offset_s, **counts, "server_ticks": processes}})
            time.sleep(_INTERVAL_S)
        raise ServerError(replica.loss())


class ReplicaElsewhere(Replica):
    """A replica on another ``host``, as its primary's bench has it; the files in its folder are there."""

    def __init__(self, hosts: OtherHosts, site: Site, number: int, host: str) -> None:
        primary, address = site.cluster.door, hosts.reached_at(host)
        assert primary
        super().__init__(site.cluster, number, Source(primary.address, primary.port, {}), Path())
        self.host, self._hosts, self._at = host, hosts, replace(primary, address=address)
        self._call = partial(follow, site.scratch.name, site.level, number, primary, address)
        self._open = ExitStack()
        self._queue: Any = None
        self._task: Any = None
        self._round_trip_s = 0.0
        self._readings: list[dict[str, Any]] = []

    @property
    def running(self) -> bool:
        """Whether the call at the host has not ended."""
        return self._task is not None and not self._task.done()

    def connect(self, dbname: str | None = None) -> Session:
        """A connection of the superuser, over the network."""
        return superuser_session(self._at.address, self.port, dbname or self.database, self._at.password)

    def follow(self) -> None:
        """Have the host copy the primary and stream from it.

        Raises:
            ServerError: it could not, or not in time; in its own words.
            StudyError: its worker is gone, or not there.

        """
        self._queue = self._open.enter_context(self._hosts.queue())
        self._task = self._hosts.submit(
            self.host, self._hosts.address(self.host), self._call, self._queue.name
        )
        for _ in ticks(_COPY_LIMIT_S, 0.2):
            self._listen()
            if self.door:
                return
            if not self.running:
                break
        raise ServerError(self.loss())

    def _listen(self) -> None:
        for message in self._queue.get(batch=True):
            if "reading" in message:
                self._readings.append(message["reading"])
            else:
                self.door = replace(self._at, port=message["port"])
                self._round_trip_s = message["round_trip_s"]

    def loss(self) -> str:
        """That it is lost, and why, in a few words.

        Raises:
            HostBusyError: another run is under way there.
            StudyError: its worker is gone, so that another attempt may mend it.

        """
        if isinstance(reason := ended(self._task), PASSING):
            raise type(reason)(f"{self.host}: {reason}")
        return f"{self.name} on {self.host} {f'ended ({reason})' if reason else 'does not stream'}"

    def sampled(self, since_s: float) -> Away:
        """How far away it is, and what its host has counted since a time; ``at_s`` is in seconds from then."""
        self._listen()
        rows = [{**row, "at_s": row["at_s"] - since_s} for row in self._readings]
        rows = [row for row in rows if row["at_s"] > -_INTERVAL_S]
        return Away(host=self.host, round_trip_s=self._round_trip_s, readings=rows)

    def stop(self, *, immediately: bool = False) -> None:
        """Have the call ended at the host, which undoes all that it did there."""
        if self._task is not None:
            self._task.cancel()
        self._open.close()
