"""The process that makes a call at a host of a fleet, and what it sends.

A Dask worker only starts the process (``python -m benchlib.study.worker``) and passes on what it sends, so nothing of Dask
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
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchlib.errors import BenchlibError, StudyError
from benchlib.study.calls import SCHEDULER, Call, Send, UnwantedError

_TLS = "DASK_DISTRIBUTED__COMM__TLS__"
"""How Dask's settings of that name are called in the environment."""
_LOOK_S = 1.0
_PATIENCE_S = 6.0
"""How long an interrupted call may take to undo what it did; the guardian, which needs a few seconds, has the rest of ten."""
_PUT_LIMIT_S = 60


# --- the worker's side ------------------------------------------------------------------


def worker_task(call: Call, queue: str, tag: Mapping[str, Any], own: Mapping[str, str]) -> Any:
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
        return _apart(call, send, check_wanted, {**own, **way, SCHEDULER: worker.scheduler.address})


def _apart(call: Call, send: Send, check_wanted: Callable[[], None], environment: Mapping[str, str]) -> Any:
    ours, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchlib.study.worker", str(theirs.fileno())],
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
