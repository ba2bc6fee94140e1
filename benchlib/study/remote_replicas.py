"""Replicas on other hosts of a fleet, one long call for each."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchlib.errors import ServerError
from benchlib.host.sampler import host_counters, kernel_files, network_bytes
from benchlib.host.shell import ticks
from benchlib.levers import server_settings
from benchlib.levers.lever import Site
from benchlib.levers.replication import replica_beside, replication_of
from benchlib.plan.level import Level
from benchlib.server.cluster import Cluster, NetworkAccess, open_cluster
from benchlib.server.installations import find_installation
from benchlib.server.replica import Replica, Source
from benchlib.server.server import asking
from benchlib.server.templates import workshop
from benchlib.study.calls import CLOCK, Send, clock_offset, failure
from benchlib.study.fleet import Hosts
from benchlib.study.records import Away

_INTERVAL_S = 1.0
_COPY_LIMIT_S = 3600.0


def follow(
    run_name: str, level: Level, number: int, primary: NetworkAccess, address: str, send: Send
) -> None:
    """Run a replica on this host until the call ends; then remove it.

    Sends ``port`` and ``round_trip_s``.

    Raises:
        BenchlibError: the host is busy, or the replica fails or ends.

    """
    credentials = {"PGPASSWORD": primary.password}
    with workshop(f"a replica for {run_name}", 1, environment=credentials) as templates:
        run, shell = templates.run, templates.shell
        cluster = Cluster(shell, templates.reach(find_installation(level.postgres)), run.folder)
        program, scope = partial(templates.program, level=level), run.journal.scope()
        site = Site(level, "f", run.folder, shell, scope, program, cluster)
        delay_ms = replication_of(level).delay_ms
        source = Source(primary.address, primary.port, server_settings(level), delay_ms)
        replica = replica_beside(site, number, source)
        replica.copy()
        replica.listen(replace(NetworkAccess.at(address, [primary.address]), password=primary.password))
        replica.stream()
        with (
            asking(),
            open_cluster(replica.upstream, primary.port, "postgres", primary.password) as session,
        ):
            trip_s, _ = clock_offset(lambda: float(session.execute(CLOCK).fetchall()[0][0]))
        send({"port": replica.port, "round_trip_s": trip_s})
        while replica.running:
            for check in site.checks:
                check()
            time.sleep(_INTERVAL_S)
        raise ServerError(replica.loss())


def host_reading() -> dict[str, Any]:
    """Return this host's counters and the time."""
    return {"at_s": time.time(), **host_counters(kernel_files()), "network_bytes": network_bytes()}


class RemoteReplica(Replica):
    """A replica on another ``host``, seen from its primary."""

    def __init__(self, hosts: Hosts, site: Site, number: int, host: str) -> None:
        primary, address = site.cluster.network, hosts.reached_at(host)
        assert primary
        super().__init__(site.cluster, number, Source(primary.address, primary.port, {}), Path())
        self.host, self._hosts, self._at = host, hosts, replace(primary, address=address)
        self._call = partial(follow, site.scratch.name, site.level, number, primary, address)
        self._address = ""
        self._task: Any = None
        self._round_trip_s = 0.0

    @property
    def running(self) -> bool:
        """Whether the call on the host is active."""
        return self._task is not None and not self._task.done()

    @property
    def reached_at(self) -> tuple[str, str | None]:
        """The address and the password of the network."""
        return self._at.address, self._at.password

    def follow(self) -> None:
        """Start the replica and wait until it streams, else raise ServerError or StudyError."""
        self._address = self._hosts.address(self.host)
        with self._hosts.queue() as queue:
            self._task = self._hosts.submit(self.host, self._address, self._call, queue.name)
            for _ in ticks(_COPY_LIMIT_S, 0.2):
                for message in queue.get(batch=True):
                    self.network = replace(self._at, port=message["port"])
                    self._round_trip_s = message["round_trip_s"]
                    return
                if not self.running:
                    break
        raise ServerError(self.loss())

    def loss(self) -> str:
        """Return why the replica is lost; see :func:`benchlib.study.calls.failure`."""
        reason = failure(self.host, self._task)
        return f"{self.name} on {self.host} {f'ended ({reason})' if reason else 'does not stream'}"

    def reading(self) -> dict[str, Any] | None:
        """Return the host's counters, or None without an answer."""
        try:
            return dict(self._hosts.run_inside(self._address, host_reading))
        except Exception:  # Dask raises many types
            return None

    def sampled(self, first: dict[str, Any] | None) -> Away:
        """Return the ``first`` and a new reading of the host."""
        readings = [reading for reading in (first, self.reading()) if reading]
        return Away(host=self.host, round_trip_s=self._round_trip_s, readings=readings)

    def stop(self, *, immediately: bool = False) -> None:
        """End the call, which removes the replica."""
        if self._task is not None:
            self._task.cancel()
