"""Calls to other hosts: what they send, how they end, and what a host that measures needs of the others.

What runs on a host knows nothing of a fleet: it is given :class:`OtherHosts`, which a fleet is.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from benchlib.errors import BenchlibError, HostBusyError, StudyError

Send = Callable[[Mapping[str, Any]], None]
"""Sends a message of JSON types and bytes to whoever started the call; what it raises ends the call."""
Call = Callable[[Send], Any]
SCHEDULER = "DASK_SCHEDULER_ADDRESS"
QUESTIONS = 20
"""The number of round trips, of which the fastest counts."""
CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"


class UnwantedError(StudyError):
    """Nobody waits for this call any more, or its process has been killed: the block runs again elsewhere or later."""


PASSING = (HostBusyError, UnwantedError)


class OtherHosts(Protocol):
    """The other hosts, as a host that measures reaches them."""

    @property
    def here(self) -> str:
        """This host's name."""

    def address(self, host: str) -> str:
        """Return where calls to a host go."""

    def reached_at(self, host: str) -> str:
        """Return the address at which a host's servers are reached."""

    def submit(self, host: str, address: str, call: Call, queue: str = "", **tag: Any) -> Any:
        """Have a host make a call, once and nowhere else; return the task."""

    def queue(self) -> contextlib.closing[Any]:
        """Return a queue for the messages of calls."""


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


def answer(function: Callable[..., Any], arguments: tuple[Any, ...], send: Send) -> Any:
    """What a function gives at this host."""
    return function(*arguments)


def clock_offset(ask: Callable[[], float]) -> tuple[float, float]:
    """The fastest of twenty round trips to another clock, and by how much it was ahead of this host's in it; seconds."""

    def trip() -> tuple[float, float]:
        before = time.time()
        there = ask()
        after = time.time()
        return after - before, there - (before + after) / 2

    return min(trip() for _ in range(QUESTIONS))
