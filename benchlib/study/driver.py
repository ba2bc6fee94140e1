"""The driver of a study on a fleet.

It hands blocks to hosts, and alone writes their trials. A lost block runs again; of two copies the first counts.
"""

import contextlib
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from benchlib.errors import BenchlibError, HostBusyError, StudyError
from benchlib.host import files
from benchlib.plan.fleet import Fleet, elsewhere_of, pinned
from benchlib.plan.model import Measurement, Study
from benchlib.study.bench import open_bench
from benchlib.study.calls import PASSING, SCHEDULER, Send, UnwantedError, failure
from benchlib.study.fleet import Hosts
from benchlib.study.loop import Enough, OpenBench, Progress, Tell, missing, run_study
from benchlib.study.store import StudyFolder

T = TypeVar("T")

MOST_LOSSES = 5
"""Number of losses in a row after which a host ends the run."""
_PAUSE_S = 0.1
_LOOK_S = 2.0
"""Interval at which the scheduler is asked for its workers."""


def run_on_fleet(
    folder: StudyFolder,
    hosts: Hosts,
    tell: Tell = lambda line: None,
    enough: Enough = lambda: None,
    open_bench: OpenBench | None = None,
) -> None:
    """Run the incomplete blocks on their hosts, and save each.

    ``enough`` is called at each look.

    Raises:
        Interrupted: Ctrl-C; blocks under way are dropped.
        StudyError: the run cannot continue.

    """
    study, kept = folder.read(), folder.kept()
    blocks = sorted({trial.block for trial in missing(study, kept)})
    if not blocks or enough():
        return
    for trial_id, measurement in kept.items():
        if measurement.trial.block in blocks:  # a block runs on one host at one time
            folder.set_aside(trial_id)
    looks = [look for look in study.plan.looks if look < study.blocks]
    with (
        hosts.connected(),
        hosts.queue() as queue,
        contextlib.closing(_Driver(folder, hosts, queue, tell, open_bench)) as driver,
    ):
        try:
            for after, until in itertools.pairwise([0, *looks, study.blocks]):
                if part := [block for block in blocks if after < block <= until]:
                    if reason := enough():
                        driver.progress.report(f"done early: {reason}")
                        return
                    driver.run(part)
        except KeyboardInterrupt:
            raise driver.progress.interrupted() from None
        driver.progress.report("done")


@dataclass
class _Share:
    """A host's unsaved blocks and task; ``away_s``: since when it is lost."""

    blocks: list[int] = field(default_factory=list)
    task: Any = None
    address: str = ""
    losses: int = 0
    away_s: float | None = None
    why: str = ""


class _Driver:
    def __init__(
        self, folder: StudyFolder, hosts: Hosts, queue: Any, tell: Tell, open_bench: OpenBench | None
    ) -> None:
        self._folder, self._hosts, self._queue, self._open_bench = folder, hosts, queue, open_bench
        self._study = folder.read()
        self.progress = Progress(folder, self._study, folder.kept(), tell)
        self._shares: dict[str, _Share] = {}

    def run(self, blocks: Sequence[int]) -> None:
        plan, servers = self._study.plan, self._hosts.servers()
        pins = pinned(self._study.blocks, len(plan.factor.levels), servers, plan.looks)
        self._shares = {host: _Share() for host in servers}
        for block in blocks:
            self._shares[pins[block]].blocks.append(block)
        # remote load and external servers serve one host at a time
        one_at_a_time = bool(elsewhere_of(plan)) or plan.abroad
        self.progress.report("starting")
        next_look, limit_s, lost = 0.0, self._hosts.fleet.back_within_s, list[str]()
        while waiting := {host: share for host, share in self._shares.items() if share.blocks or share.task}:
            now = time.monotonic()
            if look := now >= next_look:
                addresses, next_look = _of_scheduler(self._hosts.addresses), now + _LOOK_S
            for host, share in waiting.items():
                if share.task:
                    if share.task.done() or addresses.get(host) != share.address:
                        self._end(host, share)
                elif share.away_s is not None and now - share.away_s > limit_s:
                    lost.append(share.why)
                    share.blocks = []
                elif host in addresses:
                    if look and not (one_at_a_time and any(other.task for other in waiting.values())):
                        self._start(host, share, addresses[host])
                elif share.away_s is None:
                    share.away_s, share.why = now, f"{host}: no worker of it is connected"
                    self.progress.report(f"{share.why}: waiting for it")
            time.sleep(_PAUSE_S)
            self._receive()
        if lost:
            raise StudyError(f"{'; '.join(lost)}: start it and repeat the command; saved trials are safe")

    def close(self) -> None:
        for share in self._shares.values():
            if share.task:
                _of_scheduler(share.task.cancel)

    def _start(self, host: str, share: _Share, address: str) -> None:
        trials = tuple(trial for trial in self._study.trials if trial.block in share.blocks)
        study = self._study.changed(trials=trials, provenance={})
        earlier = {name: m for name, m in self._folder.kept().items() if m.ran_on == host}
        call = partial(run_blocks, study, self._open_bench, self._hosts.fleet, host, earlier)
        share.task, share.address = self._hosts.submit(host, address, call, self._queue.name), address

    def _receive(self) -> None:
        for message in _of_scheduler(partial(self._queue.get, batch=True)):
            host = message["host"]
            share = self._shares.get(host, _Share())
            if "line" in message:
                self.progress.report(f"{host}: {message['line']}")
            elif message["block"] in share.blocks:  # else a second copy
                for measurement, raw in message["trials"]:
                    self._save(host, Measurement.model_validate_json(measurement), raw)
                share.blocks.remove(message["block"])
                share.losses, share.away_s = 0, None

    def _save(self, host: str, measurement: Measurement, raw: Mapping[str, bytes]) -> None:
        with tempfile.TemporaryDirectory(prefix="benchlib-") as folder:
            for name, content in raw.items():
                if name.startswith(".") or "/" in name:
                    raise StudyError(f"{host} sent a file named {files.one_line(name)}: want a plain name")
                files.write(Path(folder) / name, content)
            self._folder.keep(measurement.changed(ran_on=host), Path(folder))
        self.progress.add(measurement)

    def _end(self, host: str, share: _Share) -> None:
        """Handle a task's end or loss."""
        self._receive()
        reason: BenchlibError = UnwantedError(f"{host}: its worker is gone")
        try:
            if error := failure(host, share.task):
                raise type(error)(f"{host}: {error}")
        except PASSING as passing:
            reason = passing
        share.task.cancel()
        share.task = None
        if share.blocks:
            share.why = str(reason)
            self.progress.report(f"{reason}; block {share.blocks[0]} runs again")
            busy = isinstance(reason, HostBusyError)
            share.losses += not busy
            if not busy or share.away_s is None:
                share.away_s = time.monotonic()
            if share.losses >= MOST_LOSSES:
                raise StudyError(f"block {share.blocks[0]} was lost {MOST_LOSSES} times: {reason}")


def _of_scheduler(ask: Callable[[], T]) -> T:
    """Return the scheduler's answer; StudyError if it is gone."""
    try:
        return ask()
    except BenchlibError:
        raise
    except Exception as reason:  # Dask raises many types
        raise StudyError(
            f"the fleet's scheduler is lost ({type(reason).__name__}): start it and its workers, and repeat the "
            "command; saved trials are safe"
        ) from reason


# --- on a host of the fleet -------------------------------------------------------------


class Outbox(StudyFolder):
    """A study folder that sends complete blocks to the driver."""

    def __init__(self, study: Study, earlier: dict[str, Measurement], send: Send) -> None:
        super().__init__(study.name, Path())
        self._study, self._earlier, self._send = study, earlier, send
        self._trials = list[tuple[str, dict[str, bytes]]]()

    def exists(self) -> bool:
        """Return True."""
        return True

    def read(self) -> Study:
        """Return this host's part."""
        return self._study

    def kept(self) -> dict[str, Measurement]:
        """Return its earlier trials."""
        return self._earlier

    def keep(self, measurement: Measurement, folder: Path) -> None:
        """Take a trial; send a complete block."""
        raw = {path.name: path.read_bytes() for path in folder.iterdir()}
        self._trials.append((measurement.model_dump_json(), raw))
        if len(self._trials) == len(self._study.plan.factor.levels):
            self._send({"block": measurement.trial.block, "trials": self._trials})
            self._trials = []


def run_blocks(
    study: Study,
    bench: OpenBench | None,
    fleet: Fleet,
    host: str,
    earlier: dict[str, Measurement],
    send: Send,
) -> None:
    """Run blocks of a study on ``host``, as :func:`benchlib.study.loop.run_study`."""
    hosts = Hosts(fleet.changed(scheduler=os.environ.get(SCHEDULER), tls=None), host)

    def tell(line: str) -> None:
        send({"line": line.rpartition(" · ")[2]})

    patient = bool(study.parameters.get("leave_out"))
    real = partial(open_bench, study.plan, study.name, hosts=hosts, patient=patient)
    with hosts.connected() if elsewhere_of(study.plan) else contextlib.nullcontext():
        run_study(Outbox(study, earlier, send), bench or real, tell)
