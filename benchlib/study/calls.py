"""Calls to other hosts."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from benchlib.errors import BenchlibError, HostBusyError, StudyError

Send = Callable[[Mapping[str, Any]], None]
"""Sends a message of JSON types and bytes to the caller; an exception ends the call."""
Call = Callable[[Send], Any]
SCHEDULER = "DASK_SCHEDULER_ADDRESS"
QUESTIONS = 20
"""Number of round trips; the fastest one counts."""
CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"


class UnwantedError(StudyError):
    """A call that was cancelled or killed; its block runs again."""


PASSING = (HostBusyError, UnwantedError)
"""Errors after which a retry may help: the host is busy, or its worker is gone."""


def failure(host: str, task: Any) -> BenchlibError | None:
    """Return a call's error, or None.

    Raises:
        HostBusyError, UnwantedError: a retry may help.

    """
    if task.status in ("pending", "finished"):
        return None
    reason = task.exception() if task.status == "error" else None
    if isinstance(reason, PASSING):
        raise type(reason)(f"{host}: {reason}")
    if isinstance(reason, BenchlibError):
        return reason
    raise UnwantedError(f"{host}: its worker is gone{f' ({type(reason).__name__})' if reason else ''}")


def answer(function: Callable[..., Any], arguments: tuple[Any, ...], send: Send) -> Any:
    """Return a function's value as a :data:`Call`."""
    return function(*arguments)


def clock_offset(ask: Callable[[], float]) -> tuple[float, float]:
    """Return the fastest round trip to another clock, and its lead (seconds)."""

    def trip() -> tuple[float, float]:
        here, began = time.time(), time.perf_counter()
        there = ask()
        trip_s = time.perf_counter() - began
        return trip_s, there - here - trip_s / 2

    return min(trip() for _ in range(QUESTIONS))
