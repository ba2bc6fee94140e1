"""The hosts of a fleet: the cluster that they are, how it is reached, and what each of them is asked.

A fleet is a Dask cluster with one worker a host, whoever started it. Dask is imported when a fleet is connected to, not before.
"""

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
_ASK_LIMIT_S = 300
_NO_WORKER_S = 60.0
# Dask's own way with failures is to run a task again, elsewhere, without a word. A task of ours that is lost is ours to give
# again. Its profiler wakes every 10 ms. Source: distributed.yaml, "Configuration Reference" of Dask.
_SETTINGS = {"distributed.scheduler.work-stealing": False, "distributed.worker.profile.enabled": False}


def read_fleet(path: Path) -> Fleet:
    """The fleet that a YAML file describes; the folder of its certificates is one beside the file, unless it begins with ``/``.

    Raises:
        InputError: it cannot be read, or describes none.

    """
    try:
        fleet = Fleet.model_validate(from_yaml(files.read_plain(path), path.name))
    except OSError as reason:
        raise InputError(f"{path.name}: cannot be read: {reason.strerror}") from None
    except ValidationError as reason:
        raise InputError(f"{path.name}: {first_problem(reason)}") from None
    return fleet.changed(tls=str(path.absolute().parent / fleet.tls)) if fleet.tls else fleet


def make_certificates(folder: Path) -> None:
    """Make what TLS needs: one certificate that is its own authority, and its key, which whoever has it belongs to the fleet by.

    Raises:
        InputError: the folder is there already, or cannot be made.

    """
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
    """The hosts of a fleet, of which ``here`` is this one, if it is one of them."""

    fleet: Fleet
    here: str = ""
    _client: Any = None

    @contextlib.contextmanager
    def connected(self) -> Iterator[Self]:
        """Be connected to the cluster; one without a scheduler of its own is started, and ends with this.

        Raises:
            PreflightError: it cannot be reached or started.

        """
        if self._client:  # a pilot runs inside a study's run
            yield self
            return
        distributed = _distributed()
        import dask  # which that needs

        # what ends a run is said in a line of ours
        for name in ("distributed", "distributed.client"):  # each has a level of its own
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
            except Exception as reason:  # of Dask's and SSH's many
                raise PreflightError(
                    f"the fleet's cluster {self.fleet.scheduler or 'over SSH'} cannot be reached: "
                    f"{' '.join(str(reason).split()) or type(reason).__name__}"
                ) from reason
            yield self

    def _tls(self) -> dict[str, Any]:
        """Dask's settings for TLS, the same for all who take part; at a host of the fleet they are in the environment."""
        if self.fleet.insecure or not self.fleet.tls:
            return {}
        authority, certificate, key = (str(Path(self.fleet.tls) / name) for name in CERTIFICATES)
        own = {"cert": certificate, "key": key}
        return {
            "distributed.comm.require-encryption": True,
            "distributed.comm.tls.ca-file": authority,
            **{f"distributed.comm.tls.{role}": own for role in ("client", "scheduler", "worker")},
        }

    def _over_ssh(self, security: Any) -> Any:
        """A cluster that is started over SSH: the scheduler at the first host, a worker at each, by the host's name."""
        from distributed.deploy import ssh

        # without a dashboard, too, each answers HTTP: on a port that nobody else reaches
        common = {
            "dashboard": False,
            "dashboard_address": "127.0.0.1:0",
            **({} if self.fleet.insecure else {"protocol": "tls://"}),
        }

        def at(cls: Any, address: str | None, **own: Any) -> dict[str, Any]:
            options = {"address": address, "connect_options": self.fleet.ssh, "kwargs": {**common, **own}}
            return {"cls": cls, "options": options}

        hosts = self.fleet.hosts
        workers = {name: at(ssh.Worker, host.ssh, name=name, nthreads=1) for name, host in hosts.items()}
        scheduler = at(ssh.Scheduler, next(iter(hosts.values())).ssh)
        return _distributed().SpecCluster(workers, scheduler, security=security, name="benchlib")

    def addresses(self) -> dict[str, str]:
        """The workers that are connected, by host."""
        with self.connected():
            rows = self._client.run_on_scheduler(_workers)
        hosts = self.fleet.hosts or {name: FleetHost() for name, _, _ in rows}
        known = {host.address or name: name for name, host in hosts.items()} | {name: name for name in hosts}
        named = [(known.get(name) or known.get(ip), address) for name, ip, address in rows]
        return {name: address for name, address in named if name}

    def address(self, host: str) -> str:
        """The worker of a host, which is waited for as long as the fleet's file says.

        Raises:
            StudyError: it does not come.

        """
        for _ in ticks(max(self.fleet.back_within_s, 1.0), 1.0):
            if address := self.addresses().get(host):
                return address
        raise StudyError(f"no worker of {host} is connected: start it, and run the same again")

    def reached_at(self, host: str) -> str:
        """The address of a host for PostgreSQL.

        Raises:
            PreflightError: the fleet's file names none.

        """
        if address := self.fleet.hosts.get(host, FleetHost()).address:
            return address
        raise PreflightError(f"the fleet names no address of {host}")

    def servers(self) -> list[str]:
        """The hosts that blocks are pinned to."""
        return self.fleet.with_role("server") or sorted(self.addresses())

    def all(self) -> list[str]:
        """All hosts of the fleet."""
        return list(self.fleet.hosts) or sorted(self.addresses())

    def ask(
        self, hosts: Sequence[str], function: Callable[..., Any], *arguments: Any
    ) -> tuple[dict[str, Any], list[str]]:
        """What a function gives at each of these hosts, in a process of its own there; a line for each that cannot say."""
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
                    errors.append(
                        f"{host}: no answer within {_ASK_LIMIT_S:g} s: is it busy with another run?"
                    )
                except Exception as reason:  # of Dask's many
                    errors.append(f"{host}: its worker does not answer: {type(reason).__name__}: {reason}")
        return values, errors

    def asked(self, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        """The same of the servers, which all have to say.

        Raises:
            PreflightError: a host cannot; each of them with its reason.

        """
        values, errors = self.ask(self.servers(), function, *arguments)
        if errors:
            raise PreflightError("; ".join(errors))
        return values

    def submit(self, host: str, address: str, call: Call, queue: str = "", **tag: Any) -> Any:
        """Have a host make a call, once and nowhere else; a Dask future."""
        scratch = self.fleet.hosts.get(host, FleetHost()).scratch
        return self._client.submit(
            worker_task, call, queue, {"host": host, **tag}, {SCRATCH_VARIABLE: scratch} if scratch else {},
            workers=[address], allow_other_workers=False, pure=False, retries=0,
        )  # fmt: skip

    def queue(self) -> contextlib.closing[Any]:
        """A queue of the scheduler's that hosts put their messages into, to be entered."""
        name = f"benchlib-{secrets.token_hex(8)}"
        return contextlib.closing(_distributed().Queue(name, client=self._client))

    def run_inside(self, address: str, function: Callable[..., Any], **arguments: Any) -> Any:
        """What a function gives, or a coroutine function, that is run inside a worker."""
        return self._client.run(function, workers=[address], **arguments)[address]


def hosts_of(values: Values) -> Hosts | None:
    """The hosts that a notebook's parameter ``fleet`` names; None where the study runs here.

    Raises:
        InputError: its file cannot be read, or describes no fleet.

    """
    return Hosts(read_fleet(Path(values["fleet"]))) if values.get("fleet") else None


def _prepare_scheduler(dask_scheduler: Any) -> None:
    """Settings of a scheduler that somebody else has started."""
    dask_scheduler.allowed_failures, dask_scheduler.no_workers_timeout = 0, _NO_WORKER_S


def _stop_profiler(dask_worker: Any) -> None:
    if profiler := dask_worker.periodic_callbacks.pop("profile", None):
        profiler.stop()


def _workers(dask_scheduler: Any) -> list[tuple[str, str, str]]:
    return [(str(worker.name), worker.host, worker.address) for worker in dask_scheduler.workers.values()]
