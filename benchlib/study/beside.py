"""What runs beside a measured load: clients whose transactions do not count, each script by a pgbench of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchlib.errors import LoadError, ServerError
from benchlib.host.shell import Process, stop
from benchlib.load.parse.text import Text, faults
from benchlib.load.tool import ending
from benchlib.server.statistics import BESIDE, end_beside
from benchlib.study.stand import Stand


@contextlib.contextmanager
def running_beside(
    stand: Stand, commands: Sequence[Sequence[str]], output: Path
) -> Iterator[Callable[[], None]]:
    """Run the command lines until it is left, what they print together in one file; then no session of theirs is left.

    What it gives raises if one of them has ended: it is to be called a few times a second.

    Raises:
        LoadError: one has ended by itself, or has lost a client.
        ServerError: the server has, or a session of theirs goes on.

    """
    # a name by which their sessions are told from the load's
    client = replace(stand.client, environment={**stand.client.environment, "PGAPPNAME": BESIDE})
    processes: list[Process] = []

    def check() -> None:
        for process in processes:
            if (status := process.poll()) is not None:
                stand.check_running()
                raise LoadError(ending("pgbench beside the load", status, output.read_text(errors="replace")))

    ended = True
    try:
        processes.extend(client.start(command, log=output) for command in commands)
        yield check
        check()
        if lost := faults(Text(output.read_text(errors="replace")).lines if commands else ()):
            raise LoadError(f"pgbench beside the load: {lost[0]}")
    finally:
        for process in processes:
            stop(process)
        with contextlib.suppress(ServerError):  # it is gone: whoever asks it next says so
            ended = not processes or end_beside(stand.server)
    if not ended:
        raise ServerError("a session beside the load does not end")
