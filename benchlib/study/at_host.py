"""What runs at a host of a fleet: a process of its own for each call, and what that sends.

A Dask worker only starts the process (``python -m benchlib.study.at_host``) and passes on what it sends, so nothing of Dask
runs where trials are measured, and a call is stopped as Ctrl-C stops it: when the worker is gone, however it went, or
nobody wants the call any more, the process loses its pipe and interrupts itself; should that take too long it ends
at once, and its guardian cleans up.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Container, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchlib.errors import BenchlibError, HostBusyError, StudyError
from benchlib.plan.fleet import Fleet, Role
from benchlib.plan.model import Measurement, Plan, Study
from benchlib.study.loop import Bench, OpenBench, Tell, run_study
from benchlib.study.store import StudyFolder

Send = Callable[[Mapping[str, Any]], None]
"""Sends a message of JSON types and bytes to whoever started the call; what it raises ends the call."""
Call = Callable[[Send], Any]
_SCHEDULER = "DASK_SCHEDULER_ADDRESS"
_TLS = "DASK_DISTRIBUTED__COMM__TLS__"
"""How Dask's settings of that name are called in the environment."""
_LOOK_S = 1.0
_PATIENCE_S = 6.0
"""How long an interrupted call may take to undo what it did; the guardian, which needs a few seconds, has the rest of ten."""
_PUT_LIMIT_S = 60


class UnwantedError(StudyError):
    """Nobody waits for this call any more, or its process has been killed: the block runs again elsewhere or later."""


PASSING = (HostBusyError, UnwantedError)


class Outbox(StudyFolder):
    """Where the loop leaves its trials at a host: they are sent, nothing is kept there."""

    def __init__(self, study: Study, send: Send) -> None:
        super().__init__(study.name, Path())
        self._study, self._send = study, send

    def read(self) -> Study:
        """The part of the study that this host runs."""
        return self._study

    def kept(self) -> dict[str, Measurement]:
        """Nothing: it goes to the driver."""
        return {}

    def keep(self, measurement: Measurement, folder: Path) -> None:
        """Send a trial with its raw files."""
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        self._send({"measurement": measurement.model_dump_json(), "files": files})


def ended(task: Any) -> BenchlibError | None:
    """Why a call at a host did not end well; None where it goes on, or has ended well.

    Of Dask's own words, which speak of its workers, the kind. Where the host was busy or its worker is gone, another
    attempt may mend it: these are :data:`PASSING`.
    """
    if task.status in ("pending", "finished"):
        return None
    reason = task.exception() if task.status == "error" else None
    if isinstance(reason, BenchlibError):
        return reason
    return UnwantedError(f"its worker is gone{f' ({type(reason).__name__})' if reason else ''}")


def measure(
    study: Study,
    open_bench: OpenBench | None,
    fleet: Fleet,
    host: str,
    working: Container[str],
    send: Send,
) -> None:
    """Run the trials of a part of a study at this ``host``, whole blocks, by the loop that runs every study.

    Levels that are ``working`` have succeeded there before.

    Raises:
        BenchlibError: as :func:`benchlib.study.loop.run_study`.

    """
    from benchlib.study import bench  # who only asks a host needs none
    from benchlib.study.fleet import Hosts

    hosts = Hosts(fleet.changed(scheduler=os.environ.get(_SCHEDULER), tls=None), host)

    def own_bench(report: Tell) -> contextlib.AbstractContextManager[Bench]:
        return bench.open_bench(study.plan, study.name, report, hosts)

    def tell(line: str) -> None:
        send({"line": line.partition(" · ")[2]})

    with hosts.connected() if elsewhere_of(study.plan) else contextlib.nullcontext():
        run_study(Outbox(study, send), open_bench or own_bench, tell, working=working)


def elsewhere_of(plan: Plan) -> list[tuple[Role, str]]:
    """The hosts that levels of a plan have their load from, or their replicas on, with the role of each."""
    uses = list[tuple[Role, str]]()
    for name in plan.factor.levels:
        uses += [("load", host) for host in plan.level_load(name).generators]
        uses += [("follower", host) for host in plan.level(name).part("replication").get("on") or ()]
    return uses


def answer(function: Callable[..., Any], arguments: tuple[Any, ...], send: Send) -> Any:
    """What a function gives at this host."""
    return function(*arguments)


# --- the worker's side ------------------------------------------------------------------


def at_host(call: Call, queue: str, tag: Mapping[str, Any], own: Mapping[str, str]) -> Any:
    """The task of a Dask worker: make a call in a process of its own, and put what it sends into a queue with ``tag``.

    ``sender`` is added to each message, another for each execution: Dask may run a task again. ``own`` are variables of its
    environment.

    Raises:
        UnwantedError: the task has been cancelled, the worker is closing, or the process has been killed.
        BenchlibError: what the call raised.

    """
    from distributed import Client, Queue, Security, get_worker
    from distributed.core import Status

    worker, sender = get_worker(), secrets.token_hex(8)
    key = worker.get_current_task()

    def check_wanted() -> None:
        task, alive = worker.state.tasks.get(key), worker.status in (Status.running, Status.paused)
        if not alive or task is None or task.state != "executing":
            raise UnwantedError("the block has been given to somebody else")

    def send(message: Mapping[str, Any]) -> None:
        check_wanted()
        messages.put({**tag, "sender": sender, **message}, timeout=_PUT_LIMIT_S)

    # a client of its own: that of the worker may be shared, and end before this; a worker that is
    # started by hand knows no certificate for clients
    tls = worker.security.get_tls_config_for_role("worker")
    security = Security(
        require_encryption=worker.security.require_encryption,
        tls_ca_file=tls["ca_file"], tls_client_cert=tls["cert"], tls_client_key=tls["key"],
    )  # fmt: skip
    # a call that reaches other hosts does so in the worker's way
    files = {"CA_FILE": tls["ca_file"], "CLIENT__CERT": tls["cert"], "CLIENT__KEY": tls["key"]}
    way = {_TLS + name: str(Path(file).absolute()) for name, file in files.items() if file}
    with (
        Client(worker.scheduler.address, security=security, set_as_default=False) as client,
        contextlib.closing(Queue(queue, client=client)) as messages,
    ):
        return _apart(call, send, check_wanted, {**own, **way, _SCHEDULER: worker.scheduler.address})


def _apart(call: Call, send: Send, check_wanted: Callable[[], None], environment: Mapping[str, str]) -> Any:
    ours, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchlib.study.at_host", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **environment},
            cwd=Path(__file__).parents[2],
            start_new_session=True,
            pass_fds=[theirs.fileno()],
        )

    try:
        with contextlib.suppress(OSError):  # it is gone: what is received says so
            ours.send(call)
        while True:
            try:
                while not ours.poll(_LOOK_S):
                    check_wanted()
                kind, value = ours.recv()
            except (EOFError, OSError):
                raise UnwantedError(f"its process ended with status {process.wait()}") from None
            if kind == "error":
                raise value
            if kind == "value":
                return value
            send(value)
    finally:
        ours.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_S + 2)
        process.kill()
        process.wait()


# --- the process's side -----------------------------------------------------------------


def main() -> None:
    """Make the call that comes through the pipe; send messages back, then its value or error."""
    pipe: Connection = Connection(int(sys.argv[1]))
    call = pipe.recv()
    threading.Thread(target=_end_when_left, args=[pipe], daemon=True).start()
    with contextlib.suppress(ConnectionError, KeyboardInterrupt):
        try:
            pipe.send(("value", call(lambda message: pipe.send(("message", message)))))
        except BenchlibError as reason:
            pipe.send(("error", reason))
        except Exception as reason:
            traceback.print_exc()
            pipe.send(("error", StudyError(f"{type(reason).__name__}: {reason}")))


def _end_when_left(pipe: Connection) -> None:
    pipe.poll(None)  # nothing comes but its end
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(_PATIENCE_S)
    os._exit(1)


if __name__ == "__main__":
    main()
