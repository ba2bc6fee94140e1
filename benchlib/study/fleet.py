"""The hosts of a fleet: the cluster that they are, how it is reached, and what each of them is asked.

A fleet is a Dask cluster with one worker a host, whoever started it. Dask is imported when a fleet is connected to, not before.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import yaml

from benchlib.errors import BenchlibError, InputError, PreflightError
from benchlib.host.guardian import SCRATCH_VARIABLE
from benchlib.plan.fleet import CERTIFICATES, Fleet, FleetHost, parse_fleet
from benchlib.study.at_host import Call, answer, at_host

CONNECT_LIMIT_S = 30
_ASK_LIMIT_S = 300
_NO_WORKER_S = 60.0
# Dask's own way with failures is to run a task again, elsewhere, without a word. A task of ours that is lost is ours to give
# again. Its profiler wakes every 10 ms. Source: distributed.yaml, "Configuration Reference" of Dask.
_SETTINGS = {
    "distributed.scheduler.work-stealing": False,
    "distributed.worker.profile.enabled": False,
}


def read_fleet(path: Path) -> Fleet:
    """The fleet that a YAML file describes; the folder of its certificates is one beside the file, unless it begins with ``/``.

    Raises:
        InputError: it cannot be read, or describes none.

    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        fleet = parse_fleet(values)
    except (OSError, UnicodeDecodeError) as reason:
        raise InputError(f"{path.name}: cannot be read: {reason}") from None
    except yaml.YAMLError as reason:
        raise InputError(f"{path.name}: not YAML: {str(reason).splitlines()[0]}") from None
    except InputError as reason:
        raise InputError(f"{path.name}: {reason}") from None
    return fleet.model_copy(update={"tls": str(path.absolute().parent / fleet.tls)}) if fleet.tls else fleet


def hosts_of(values: Mapping[str, Any]) -> Hosts | None:
    """The hosts that a notebook's parameter ``fleet`` names; None where the study runs here.

    Raises:
        InputError: its file cannot be read, or describes no fleet.

    """
    return Hosts(read_fleet(Path(values["fleet"]))) if values.get("fleet") else None


def make_certificates(folder: Path) -> None:
    """Make what TLS needs: one certificate that is its own authority, and its key, which whoever has it belongs to the fleet by.

    Raises:
        InputError: the folder is there already, or cannot be made.

    """
    security = _dask().Security.temporary()
    contents = (security.tls_ca_file, security.tls_client_cert, security.tls_client_key)
    try:
        folder.mkdir(mode=0o700, parents=True)
        for name, content in zip(CERTIFICATES, contents, strict=True):
            path = folder / name
            path.touch(mode=0o600)
            path.write_text(content)
    except OSError as reason:
        raise InputError(f"cannot make {folder}: {reason.strerror}") from None


def _dask() -> Any:
    try:
        import distributed
    except ImportError:
        raise PreflightError("a fleet needs Dask: pip install -e '.[fleet]'") from None
    return distributed


class Hosts:
    """The hosts of a fleet. Without ``apart`` they work in threads of their workers, which only tests want."""

    def __init__(self, fleet: Fleet, *, apart: bool = True) -> None:
        self.fleet = fleet
        self._apart = apart
        self._client: Any = None

    @contextlib.contextmanager
    def connected(self) -> Iterator[Self]:
        """Be connected to the cluster; one without a scheduler of its own is started, and ends with this.

        Raises:
            PreflightError: it cannot be reached or started.

        """
        if self._client:  # a pilot runs inside a study's run
            yield self
            return
        dask = _dask()
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(_configured(_SETTINGS | self._tls()))
                security = None if self.fleet.insecure else dask.Security()
                cluster = self.fleet.scheduler or stack.enter_context(self._over_ssh(dask, security))
                self._client = stack.enter_context(
                    dask.Client(cluster, security=security, timeout=CONNECT_LIMIT_S, set_as_default=False)
                )
                self._client.run_on_scheduler(_prepare_scheduler)
                self._client.run(_stop_profiler, on_error="ignore")
            except (OSError, RuntimeError, ValueError) as reason:
                raise PreflightError(
                    f"the fleet's cluster {self.fleet.scheduler or 'over SSH'} cannot be reached: "
                    f"{' '.join(str(reason).split()) or type(reason).__name__}"
                ) from reason
            try:
                yield self
            finally:
                self._client = None

    def _tls(self) -> dict[str, Any]:
        """Dask's settings for TLS, the same for all who take part."""
        if self.fleet.insecure:
            return {}
        authority, certificate, key = (str(Path(self.fleet.tls or "") / name) for name in CERTIFICATES)
        parts = [("cert", certificate), ("key", key)]
        roles = {
            f"distributed.comm.tls.{role}.{part}": path
            for role in ("client", "scheduler", "worker")
            for part, path in parts
        }
        return {
            "distributed.comm.require-encryption": True,
            "distributed.comm.tls.ca-file": authority,
            **roles,
        }

    def _over_ssh(self, dask: Any, security: Any) -> Any:
        """A cluster that is started over SSH: the scheduler at the first host, a worker at each."""
        addresses = [host.ssh for host in self.fleet.hosts.values()]
        protocol = {} if self.fleet.insecure else {"protocol": "tls://"}
        return dask.SSHCluster(
            [addresses[0], *addresses], connect_options=self.fleet.ssh, security=security,
            scheduler_options={"dashboard": False, **protocol},
            worker_options={"nthreads": 1, "n_workers": 1, "dashboard": False, **protocol},
        )  # fmt: skip

    def addresses(self) -> dict[str, str]:
        """The workers that are connected, by host."""
        with self.connected():
            rows = self._client.run_on_scheduler(_workers)
        if not self.fleet.hosts:
            return {name: address for name, _, address in rows}
        # workers that are started over SSH are numbered
        numbered = {} if self.fleet.scheduler else {str(n): name for n, name in enumerate(self.fleet.hosts)}
        reached = {host.address: name for name, host in self.fleet.hosts.items() if host.address}
        hosts = ((numbered.get(name, name), ip, address) for name, ip, address in rows)
        named = [
            (name if name in self.fleet.hosts else reached.get(ip), address) for name, ip, address in hosts
        ]
        return {name: address for name, address in named if name}

    def servers(self) -> list[str]:
        """The hosts that blocks are pinned to."""
        return self.fleet.with_role("server") or sorted(self.addresses())

    def all(self) -> list[str]:
        """All hosts of the fleet."""
        return list(self.fleet.hosts) or sorted(self.addresses())

    def ask(self, hosts: Iterable[str], function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        """What a function gives at each of these hosts, in a process of its own there; of a host that cannot say, the error."""
        with self.connected():
            addresses, call = self.addresses(), partial(answer, function, arguments)
            tasks = {
                host: self.submit(host, addresses[host], call) if host in addresses else None
                for host in hosts
            }
            return {host: _answered(task) for host, task in tasks.items()}

    def asked(self, hosts: Iterable[str], function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        """The same, where all have to say.

        Raises:
            PreflightError: a host cannot; each of them with its reason.

        """
        values = self.ask(hosts, function, *arguments)
        if errors := [
            f"{host}: {value}" for host, value in values.items() if isinstance(value, BenchlibError)
        ]:
            raise PreflightError("; ".join(errors))
        return values

    def submit(self, host: str, address: str, call: Call, queue: str = "", **tag: Any) -> Any:
        """Have a host make a call, once and nowhere else; a Dask future."""
        scratch = self.fleet.hosts.get(host, FleetHost()).scratch
        return self._client.submit(
            at_host, call, queue, {"host": host, **tag}, {SCRATCH_VARIABLE: scratch} if scratch else {}, self._apart,
            workers=[address], allow_other_workers=False, pure=False, retries=0,
        )  # fmt: skip

    @contextlib.contextmanager
    def queue(self) -> Iterator[Any]:
        """A queue of the scheduler's that hosts put their messages into."""
        queue = _dask().Queue(f"benchlib-{secrets.token_hex(8)}", client=self._client)
        try:
            yield queue
        finally:
            queue.close()

    def run_inside(self, address: str, function: Callable[..., Any], **arguments: Any) -> Any:
        """What a function gives, or a coroutine function, that is run inside a worker."""
        return self._client.run(function, workers=[address], **arguments)[address]


def _answered(task: Any) -> Any:
    """What a task gave, or the error that ended it."""
    if task is None:
        return PreflightError("no worker of this host is connected")
    try:
        return task.result(_ASK_LIMIT_S)
    except BenchlibError as reason:
        return reason
    except Exception as reason:  # of Dask's many
        return PreflightError(f"its worker does not answer: {type(reason).__name__}: {reason}")


def _configured(settings: Mapping[str, Any]) -> Any:
    import dask

    return dask.config.set(settings)


def _prepare_scheduler(dask_scheduler: Any) -> None:
    """Settings of a scheduler that somebody else has started."""
    dask_scheduler.allowed_failures, dask_scheduler.no_workers_timeout = 0, _NO_WORKER_S


def _stop_profiler(dask_worker: Any) -> None:
    if profiler := dask_worker.periodic_callbacks.pop("profile", None):
        profiler.stop()


def _workers(dask_scheduler: Any) -> list[tuple[str, str, str]]:
    return [(str(worker.name), worker.host, worker.address) for worker in dask_scheduler.workers.values()]
