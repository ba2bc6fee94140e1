"""The hosts of a fleet: a Dask cluster with one worker each."""

import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from benchlib.errors import BenchlibError, InputError, PreflightError, StudyError, os_errors_as
from benchlib.host import files
from benchlib.host.guardian import SCRATCH_VARIABLE
from benchlib.host.shell import ticks
from benchlib.plan.fleet import CERTIFICATES, Fleet, FleetHost
from benchlib.plan.level import Values, first_problem
from benchlib.plan.parameters import from_yaml
from benchlib.study.calls import Call, answer
from benchlib.study.worker import worker_task

_CONNECT_LIMIT_S = 30
_PATIENCE = {"connect_timeout": 30, "login_timeout": 30, "keepalive_interval": 15, "keepalive_count_max": 20}
"""Options of asyncssh that a fleet may change."""
_ASK_LIMIT_S = 300
_NO_WORKER_S = 60.0
# By default Dask silently runs a lost task again elsewhere; here the driver decides. Its profiler wakes every
# 10 ms. Source: distributed.yaml, "Configuration Reference" of Dask.
_SETTINGS = {"distributed.scheduler.work-stealing": False, "distributed.worker.profile.enabled": False}


def read_fleet(path: Path) -> Fleet:
    """Return a fleet from YAML (else InputError); ``tls`` is relative to the file."""
    try:
        fleet = Fleet.model_validate(from_yaml(files.read_plain(path), path.name))
    except OSError as reason:
        raise InputError(f"{path.name}: cannot be read: {reason.strerror}") from None
    except ValidationError as reason:
        raise InputError(f"{path.name}: {first_problem(reason)}") from None
    return fleet.changed(tls=str(path.absolute().parent / fleet.tls)) if fleet.tls else fleet


def make_certificates(folder: Path) -> None:
    """Create a fleet's self-signed certificate and key; InputError if the folder exists."""
    security = _distributed().Security.temporary()
    contents = (security.tls_ca_file, security.tls_client_cert, security.tls_client_key)
    with os_errors_as(InputError, f"cannot make {folder}"):
        files.make(folder, mode=0o700, new=True)
        for name, content in zip(CERTIFICATES, contents, strict=True):
            files.write(folder / name, content, mode=0o600)


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise PreflightError("a fleet needs Dask: pip install -e '.[fleet]'") from None
    return distributed


@dataclass
class Hosts:
    """The hosts of a fleet; ``here`` is this host's name in it."""

    fleet: Fleet
    here: str = ""
    _client: Any = None

    @contextlib.contextmanager
    def connected(self) -> Iterator[Self]:
        """Connect to the scheduler, or start one over SSH (else PreflightError)."""
        if self._client:  # a capacity study runs inside a study
            yield self
            return
        distributed = _distributed()
        import dask  # required by distributed

        # benchlib reports errors itself
        for name in ("distributed", "distributed.client"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, self, "_client", None)
            try:
                stack.enter_context(dask.config.set(_SETTINGS | self._tls()))
                security = None if self.fleet.insecure else distributed.Security()
                cluster = self.fleet.scheduler or stack.enter_context(self._over_ssh(security))
                limited = {"timeout": _CONNECT_LIMIT_S, "set_as_default": False}
                self._client = stack.enter_context(distributed.Client(cluster, security=security, **limited))
                self._client.run_on_scheduler(_prepare_scheduler)
                self._client.run(_stop_profiler, on_error="ignore")
            except Exception as reason:  # Dask and SSH raise many types
                raise PreflightError(
                    f"the fleet's cluster {self.fleet.scheduler or 'over SSH'} cannot be reached: "
                    f"{' '.join(str(reason).split()) or type(reason).__name__}"
                ) from reason
            yield self

    def _tls(self) -> dict[str, Any]:
        if self.fleet.insecure or not self.fleet.tls:
            return {}
        authority, certificate, key = (str(Path(self.fleet.tls) / name) for name in CERTIFICATES)
        files_of_role = {"cert": certificate, "key": key}
        return {
            "distributed.comm.require-encryption": True,
            "distributed.comm.tls.ca-file": authority,
            **{f"distributed.comm.tls.{role}": files_of_role for role in ("client", "scheduler", "worker")},
        }

    def _over_ssh(self, security: Any) -> Any:
        from distributed.deploy import ssh

        # HTTP is served even without a dashboard: local port only
        common = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
        common |= {} if self.fleet.insecure else {"protocol": "tls://"}

        def node(cls: Any, address: str | None, **extra: Any) -> dict[str, Any]:
            options = {
                "address": address,
                "connect_options": _PATIENCE | self.fleet.ssh,
                "kwargs": common | extra,
            }
            return {"cls": cls, "options": options}

        hosts = self.fleet.hosts
        workers = {name: node(ssh.Worker, host.ssh, name=name, nthreads=1) for name, host in hosts.items()}
        scheduler = node(ssh.Scheduler, next(iter(hosts.values())).ssh)
        return _distributed().SpecCluster(workers, scheduler, security=security, name="benchlib")

    def addresses(self) -> dict[str, str]:
        """Return the connected workers by host."""
        with self.connected():
            rows = self._client.run_on_scheduler(_workers)
        hosts = self.fleet.hosts or {name: FleetHost() for name, _, _ in rows}
        known = {host.address or name: name for name, host in hosts.items()} | {name: name for name in hosts}
        named = [(known.get(name) or known.get(ip), address) for name, ip, address in rows]
        return {name: address for name, address in named if name}

    def address(self, host: str) -> str:
        """Return a host's worker within ``back_within_s``, else raise StudyError."""
        for _ in ticks(max(self.fleet.back_within_s, 1.0), 1.0):
            if address := self.addresses().get(host):
                return address
        raise StudyError(f"no worker of {host} is connected: start it and repeat the command")

    def reached_at(self, host: str) -> str:
        """Return a host's address for PostgreSQL; PreflightError without one."""
        if address := self.fleet.hosts.get(host, FleetHost()).address:
            return address
        raise PreflightError(f"the fleet file has no address for host {host}")

    def servers(self) -> list[str]:
        """Return the hosts that run blocks."""
        return self.fleet.with_role("server") or sorted(self.addresses())

    def all(self) -> list[str]:
        """Return all hosts."""
        return list(self.fleet.hosts) or sorted(self.addresses())

    def ask(
        self, hosts: Sequence[str], function: Callable[..., Any], *arguments: Any
    ) -> tuple[dict[str, Any], list[str]]:
        """Call a function on hosts, each in its own process; return values and errors."""
        with self.connected():
            at, call = self.addresses(), partial(answer, function, arguments)
            values = dict[str, Any]()
            errors = [f"{host}: no worker of it is connected" for host in hosts if host not in at]
            tasks = {host: self.submit(host, at[host], call) for host in hosts if host in at}
            end = time.monotonic() + _ASK_LIMIT_S
            for host, task in tasks.items():
                try:
                    values[host] = task.result(max(end - time.monotonic(), 0.1))
                except BenchlibError as reason:
                    errors.append(f"{host}: {reason}")
                except TimeoutError:
                    task.cancel()
                    errors.append(f"{host}: no answer within {_ASK_LIMIT_S} s: is it busy with another run?")
                except Exception as reason:  # Dask raises many types
                    errors.append(f"{host}: its worker does not answer: {type(reason).__name__}: {reason}")
        return values, errors

    def ask_servers(self, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        """Call a function on all hosts that run blocks (else PreflightError)."""
        values, errors = self.ask(self.servers(), function, *arguments)
        if errors:
            raise PreflightError("; ".join(errors))
        return values

    def submit(self, host: str, address: str, call: Call, queue: str = "") -> Any:
        """Submit a call that runs once, there only; return the Dask future."""
        scratch = self.fleet.hosts.get(host, FleetHost()).scratch
        return self._client.submit(
            worker_task, call, queue, host, {SCRATCH_VARIABLE: scratch} if scratch else {},
            workers=[address], allow_other_workers=False, pure=False, retries=0,
        )  # fmt: skip

    def queue(self) -> contextlib.closing[Any]:
        """Return a queue for messages from hosts."""
        name = f"benchlib-{secrets.token_hex(8)}"
        return contextlib.closing(_distributed().Queue(name, client=self._client))

    def run_inside(self, address: str, function: Callable[..., Any], **arguments: Any) -> Any:
        """Return a function's or coroutine's value inside a worker."""
        return self._client.run(function, workers=[address], **arguments)[address]


def hosts_of(values: Values) -> Hosts | None:
    """Return the hosts of the notebook's parameter ``fleet``, if set."""
    return Hosts(read_fleet(Path(values["fleet"]))) if values.get("fleet") else None


def _prepare_scheduler(dask_scheduler: Any) -> None:
    dask_scheduler.allowed_failures, dask_scheduler.no_workers_timeout = 0, _NO_WORKER_S


def _stop_profiler(dask_worker: Any) -> None:
    if profiler := dask_worker.periodic_callbacks.pop("profile", None):
        profiler.stop()


def _workers(dask_scheduler: Any) -> list[tuple[str, str, str]]:
    return [(str(worker.name), worker.host, worker.address) for worker in dask_scheduler.workers.values()]
