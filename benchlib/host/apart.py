"""Work on untrusted input, each item in its own process with limits of time and memory.

An item that breaks a limit loses only its own result.
"""

import contextlib
import multiprocessing
import os
import resource
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import psutil

from benchlib.errors import BenchlibError, StudyError

MOST_S, MOST_MEMORY = 300.0, 4 << 30
"""The limits of an item: seconds, and bytes of data in each process."""
_AT_A_TIME = 2

_FORK = multiprocessing.get_context("fork")


def apart(
    work: Callable[[str], Any],
    names: Sequence[str],
    *,
    most_s: float = MOST_S,
    most_memory: int = MOST_MEMORY,
) -> Iterator[tuple[str, Any]]:
    """Yield each name with its result, or the error, in the given order."""
    waiting, running, results = deque(names), list[_Job](), dict[str, Any]()
    try:
        for name in names:
            while name not in results:
                while waiting and len(running) < _AT_A_TIME:
                    running.append(_Job(work, waiting.popleft(), most_s, most_memory))
                remaining_s = min(job.deadline for job in running) - time.monotonic()
                events = [event for job in running for event in (job.pipe, job.process.sentinel)]
                wait(events, max(remaining_s, 0.0))
                for job in [*running]:
                    if (result := job.result()) is not _UNFINISHED:
                        results[job.name] = result
                        running.remove(job)
                        job.end()
            yield name, results.pop(name)
    finally:
        for job in running:
            job.end()


_UNFINISHED = object()


class _Job:
    def __init__(self, work: Callable[[str], Any], name: str, most_s: float, most_memory: int) -> None:
        self.name, self.most_s, self.deadline = name, most_s, time.monotonic() + most_s
        self.pipe, inner = _FORK.Pipe(duplex=False)
        self.process = _FORK.Process(target=_serve, args=(inner, work, name, most_memory))
        self.process.start()
        inner.close()

    def result(self) -> Any:
        """Return :data:`_UNFINISHED` while the process works."""
        alive = self.process.is_alive()  # before the pipe is read: it may send its result and end meanwhile
        with contextlib.suppress(EOFError, OSError):
            if self.pipe.poll():
                return self.pipe.recv()
        if not alive:
            return StudyError(f"{self.name}: its process ended with status {self.process.exitcode}")
        if time.monotonic() >= self.deadline:
            return StudyError(f"{self.name}: takes longer than {self.most_s:g} s")
        return _UNFINISHED

    def end(self) -> None:
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    process.kill()
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Connection, work: Callable[[str], Any], name: str, most_memory: int) -> None:
    """Run the work; send its result."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    # a limit of data: the addresses that threads and allocators reserve grow with the number of processors
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (most_memory if most < 0 else min(most, most_memory), most))
    try:
        result = work(name)
    except BenchlibError as reason:
        result = reason
    except (Exception, MemoryError) as reason:
        result = StudyError(f"{name}: unexpected {type(reason).__name__}: {reason}")
    pipe.send(result)
