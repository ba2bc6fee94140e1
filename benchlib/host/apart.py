"""Work on what strangers made, in a process of its own with limits of time and memory: what breaks there costs itself alone.

A worker is given one item after the other. One that takes too long, or ends its process, is killed with all that it has
started, such as the kernel of a notebook, which inherits the limit of memory; the rest goes on in a new one.
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
"""What one item may take, in seconds and in bytes of data of each process."""


def apart(
    work: Callable[[str], Any],
    names: Sequence[str],
    at_a_time: int = 1,
    *,
    most_s: float = MOST_S,
    most_memory: int = MOST_MEMORY,
) -> Iterator[tuple[str, Any]]:
    """Do work on each name, so many at a time; yield them in their order, each with what came of it or the error that it ended with."""
    waiting, done, asked = deque(names), dict[str, Any](), deque(names)
    workers: list[_Worker] = []
    try:
        while asked:
            while waiting and len(workers) < at_a_time:
                workers.append(_Worker(work, most_memory))
            for worker in workers:
                if worker.name is None and waiting:
                    worker.give(waiting.popleft(), most_s)
            busy = [worker for worker in workers if worker.name is not None]
            patience = min((worker.until for worker in busy), default=0.0) - time.monotonic()
            ready = wait([thing for worker in busy for thing in worker.things], max(patience, 0.0))
            for worker in busy:
                if (outcome := worker.outcome(ready, most_s)) is None:
                    continue
                name, worker.name = worker.name, None
                assert name is not None
                done[name], alive = outcome
                if not alive:
                    worker.end()
                    workers.remove(worker)
            while asked and asked[0] in done:
                yield (name := asked.popleft()), done.pop(name)
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """A process that works on what it is given; ``name`` is what it is at, ``until`` when that has to be done."""

    def __init__(self, work: Callable[[str], Any], most_memory: int) -> None:
        self.name: str | None = None
        self.until = 0.0
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(
            target=_serve, args=(theirs, work, most_memory)
        )
        self._process.start()
        theirs.close()

    @property
    def things(self) -> list[Any]:
        """What is ready when the worker has said something, or is gone."""
        return [self._pipe, self._process.sentinel]

    def give(self, name: str, most_s: float) -> None:
        """Have it work on a name."""
        self.name, self.until = name, time.monotonic() + most_s
        with contextlib.suppress(OSError):  # it is gone: its end says so
            self._pipe.send(name)

    def outcome(self, ready: Sequence[Any], most_s: float) -> tuple[Any, bool] | None:
        """Return what came of the work and whether the worker can go on; None while it is at it."""
        if self._pipe in ready:
            with contextlib.suppress(EOFError, OSError):
                return self._pipe.recv(), True
        if not self._process.is_alive():
            self._process.join()
            return StudyError(f"{self.name}: its process ended with status {self._process.exitcode}"), False
        if time.monotonic() >= self.until:
            return StudyError(f"{self.name}: takes longer than {most_s:g} s"), False
        return None

    def end(self) -> None:
        """End the process, and what it has started, at once."""
        with contextlib.suppress(psutil.Error):
            for process in [*psutil.Process(self._process.pid).children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _serve(pipe: Connection, work: Callable[[str], Any], most_memory: int) -> None:
    """Work on what comes through a pipe: hear no Ctrl-C, and end with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    # of data, since the addresses that threads and allocators reserve grow with the processors
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (most_memory if most < 0 else min(most, most_memory), most))
    with contextlib.suppress(EOFError, OSError):
        while True:
            name = pipe.recv()
            pipe.send(_outcome(work, name))


def _outcome(work: Callable[[str], Any], name: str) -> Any:
    try:
        return work(name)
    except BenchlibError as reason:
        return reason
    except (Exception, MemoryError) as reason:
        return StudyError(f"{name}: unexpected {type(reason).__name__}: {reason}")
