"""Brakes: bounds that end a load on a server in use."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from pydantic import PositiveFloat, PositiveInt

from benchlib.errors import BrakeError
from benchlib.plan.level import Model
from benchlib.server.server import Session, asking, fetch, read_sql

_INTERVAL_S = 0.4
_ANSWER_MS = 1000
_SHARE = 0.8
"""Share of ``max_connections`` that is the default bound."""
_GROWTH, _LEAST_ACTIVE = 2, 10
_LOOKS = 5
_SILENT = "the load was ended: the server did not answer"
_WORDS = {
    "connections": "connections in use: {value:.0f}",
    "active": "active sessions of others: {value:.0f}",
    "lag_s": "replay lag of a replica: {value:.1f} s",
}


class Brakes(Model):
    """Bounds of a server in use; above one, the load ends and the study stops.

    - ``connections``: by default 80 % of ``max_connections``;
    - ``active``: sessions of others, by default twice those at the start, at least 10;
    - ``lag_s``: replay lag of any replica.
    """

    connections: PositiveInt | None = None
    active: PositiveInt | None = None
    lag_s: PositiveFloat = 10.0

    def bounds(self, connection: Session) -> dict[str, float]:
        """Return all bounds, with this server's defaults."""
        looks = []
        for _ in range(_LOOKS):
            looks += fetch(connection, read_sql("brakes"))
            time.sleep(_INTERVAL_S / _LOOKS)
        active = max(_LEAST_ACTIVE, _GROWTH * max(look["active"] for look in looks))
        return {
            "connections": self.connections or int(_SHARE * looks[0]["most"]),
            "active": self.active or active,
            "lag_s": self.lag_s,
        }


@contextlib.contextmanager
def _limited(connection: Session) -> Iterator[None]:
    """Shut the connection down if the server is silent: a stopped one does not apply statement_timeout."""
    with socket.socket(fileno=os.dup(connection.fileno())) as line:
        timer = threading.Timer(2 * _ANSWER_MS / 1000, line.shutdown, [socket.SHUT_RDWR])
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


@contextlib.contextmanager
def braking(connection: Session, bounds: Mapping[str, float]) -> Iterator[Callable[[], None]]:
    """Check the bounds; yield a function that checks them again during a load.

    Raises:
        BrakeError: a bound is exceeded, or the server does not answer; also from the function.

    """
    due, look = 0.0, read_sql("brakes")

    def check() -> None:
        nonlocal due
        if (now := time.monotonic()) < due:
            return
        due = now + _INTERVAL_S
        with asking(_SILENT, BrakeError), _limited(connection):
            (seen,) = fetch(connection, look)
        for name, bound in bounds.items():
            if seen[name] > bound:
                words = _WORDS[name].format(value=seen[name])
                raise BrakeError(f"the load was ended: {words}, the bound is {bound:g} (brakes: {name})")

    with asking(_SILENT, BrakeError), _limited(connection):
        connection.execute(f"SET statement_timeout = {_ANSWER_MS}")
    check()
    yield check
