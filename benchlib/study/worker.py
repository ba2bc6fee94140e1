"""A process for each call on a host, so that Dask does not disturb trials.

Without its worker, it interrupts itself; its guardian cleans up.
"""

import contextlib
import os
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
"""Prefix of Dask's TLS settings in the environment."""
_LOOK_S = 1.0
_PATIENCE_S = 6.0
"""Time for an interrupted call to clean up; the guardian has the rest of ten seconds."""
_PUT_LIMIT_S = 300


# --- the worker's side ------------------------------------------------------------------


def worker_task(call: Call, queue: str, host: str, variables: Mapping[str, str]) -> Any:
    """Run a call in its own process, as a Dask task; its messages go into a queue.

    Raises:
        UnwantedError: the task was cancelled, or a process was killed.
        BenchlibError: the error of the call.

    """
    from distributed import Client, Queue, Security, get_worker
    from distributed.core import Status

    worker = get_worker()
    key = worker.get_current_task()

    def check_wanted() -> None:
        task, alive = worker.state.tasks.get(key), worker.status in (Status.running, Status.paused)
        if not alive or task is None or task.state != "executing":
            raise UnwantedError("the call was cancelled")

    def send(message: Mapping[str, Any]) -> None:
        check_wanted()
        messages.put({"host": host, **message}, timeout=_PUT_LIMIT_S)

    # not the worker's client, which may be shared and end earlier; a worker
    # started by hand has no certificate for clients
    tls = worker.security.get_tls_config_for_role("worker")
    security = Security(
        require_encryption=worker.security.require_encryption,
        tls_ca_file=tls["ca_file"], tls_client_cert=tls["cert"], tls_client_key=tls["key"],
    )  # fmt: skip
    # for calls to other hosts
    files = {"CA_FILE": tls["ca_file"], "CLIENT__CERT": tls["cert"], "CLIENT__KEY": tls["key"]}
    environment = {_TLS + name: str(Path(file).absolute()) for name, file in files.items() if file}
    with (
        Client(worker.scheduler.address, security=security, set_as_default=False) as client,
        contextlib.closing(Queue(queue, client=client)) as messages,
    ):
        return _in_process(
            call, send, check_wanted, {**variables, **environment, SCHEDULER: worker.scheduler.address}
        )


def _in_process(
    call: Call, send: Send, check_wanted: Callable[[], None], environment: Mapping[str, str]
) -> Any:
    pipe, child_pipe = Pipe()
    with child_pipe:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchlib.study.worker", str(child_pipe.fileno())],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **environment},
            cwd=Path(__file__).parents[2],
            start_new_session=True,
            pass_fds=[child_pipe.fileno()],
        )

    try:
        with contextlib.suppress(OSError):  # the process is gone: recv() raises
            pipe.send(call)
        while True:
            try:
                while not pipe.poll(_LOOK_S):
                    check_wanted()
                kind, value = pipe.recv()
            except (EOFError, OSError):
                raise UnwantedError(f"its process ended with status {process.wait()}") from None
            if kind == "error":
                raise value
            if kind == "value":
                return value
            send(value)
    finally:
        pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_S + 2)
        process.kill()
        process.wait()


# --- the process's side -----------------------------------------------------------------


def main() -> None:
    """Run the call from the pipe; send its result."""
    pipe: Connection = Connection(int(sys.argv[1]))
    call = pipe.recv()
    threading.Thread(target=_end_without_caller, args=[pipe], daemon=True).start()
    with contextlib.suppress(ConnectionError, KeyboardInterrupt):
        try:
            pipe.send(("value", call(lambda message: pipe.send(("message", message)))))
        except BenchlibError as reason:
            pipe.send(("error", reason))
        except Exception as reason:
            traceback.print_exc()
            pipe.send(("error", StudyError(f"{type(reason).__name__}: {reason}")))


def _end_without_caller(pipe: Connection) -> None:
    pipe.poll(None)  # returns when the pipe closes
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(_PATIENCE_S)
    os._exit(1)


if __name__ == "__main__":
    main()
