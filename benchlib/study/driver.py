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
_LOOK_S = 2.0
"""Interval at which the scheduler is asked for its workers and messages."""


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
    progress = Progress(folder, study, folder.kept(), tell)
    looks = [look for look in study.plan.looks if look < study.blocks]
    with (
        progress.interruptible(),
        hosts.connected(),
        hosts.queue() as queue,
        contextlib.closing(_Driver(folder, study, hosts, queue, progress, open_bench)) as driver,
    ):
        for after, until in itertools.pairwise([0, *looks, study.blocks]):
            if part := [block for block in blocks if after < block <= until]:
                if reason := enough():
                    progress.report(f"done early: {reason}")
                    return
                driver.run(part)
        progress.report("done")


@dataclass
class _Share:
    """A host's unsaved blocks and task; ``away_s``: since when it is lost."""

    blocks: list[int] = field(default_factory=list)
    task: Any = None
    address: str = ""
    losses: int = 0
    away_s: float | None = None
    why: str = ""


@dataclass
class _Driver:
    folder: StudyFolder
    study: Study
    hosts: Hosts
    queue: Any
    progress: Progress
    open_bench: OpenBench | None
    shares: dict[str, _Share] = field(default_factory=dict)

    def run(self, blocks: Sequence[int]) -> None:
        """Run these blocks, or raise StudyError."""
        plan, servers = self.study.plan, self.hosts.servers()
        pins = pinned(self.study.blocks, len(plan.factor.levels), servers, plan.looks)
        self.shares = {host: _Share([block for block in blocks if pins[block] == host]) for host in servers}
        # remote load and external servers serve one host at a time
        one_at_a_time = bool(elsewhere_of(plan)) or plan.abroad
        self.progress.report("starting")
        limit_s, lost, looked = self.hosts.fleet.back_within_s, list[str](), time.monotonic()
        while waiting := {host: share for host, share in self.shares.items() if share.blocks or share.task}:
            addresses, now = _of_scheduler(self.hosts.addresses), time.monotonic()
            for host, share in waiting.items():
                if share.task:
                    if share.task.done() or addresses.get(host) != share.address:
                        self._end(host, share)
                elif host in addresses and one_at_a_time and any(other.task for other in waiting.values()):
                    if share.away_s is not None:  # it only waits for its turn
                        share.away_s += now - looked
                elif share.away_s is not None and now - share.away_s > limit_s:
                    lost.append(share.why)
                    share.blocks = []
                elif host in addresses:
                    self._start(host, share, addresses[host])
                elif share.away_s is None:
                    share.away_s, share.why = now, f"{host}: no worker of it is connected"
                    self.progress.report(f"{share.why}: waiting for it")
            looked = now
            time.sleep(_LOOK_S)
            self._receive()
        if lost:
            raise StudyError(f"{'; '.join(lost)}: start it and repeat the command; saved trials are safe")

    def close(self) -> None:
        """Cancel all tasks."""
        for share in self.shares.values():
            if share.task:
                _of_scheduler(share.task.cancel)

    def _start(self, host: str, share: _Share, address: str) -> None:
        trials = tuple(trial for trial in self.study.trials if trial.block in share.blocks)
        study = self.study.changed(trials=trials, provenance={})
        earlier = {name: m for name, m in self.folder.kept().items() if m.ran_on == host}
        call = partial(run_blocks, study, self.open_bench, self.hosts.fleet, host, earlier)
        share.task, share.address = self.hosts.submit(host, address, call, self.queue.name), address

    def _receive(self) -> None:
        for message in _of_scheduler(partial(self.queue.get, batch=True)):
            host = message["host"]
            share = self.shares.get(host, _Share())
            if "line" in message:
                self.progress.report(f"{host}: {message['line']}")
            elif message["block"] in share.blocks:  # else a second copy
                for measurement, raw in message["trials"]:
                    self._save(host, Measurement.model_validate_json(measurement), raw)
                share.blocks.remove(message["block"])
                share.losses, share.away_s = 0, None

    def _save(self, host: str, measurement: Measurement, raw: Mapping[str, bytes]) -> None:
        with self.folder.disk(), tempfile.TemporaryDirectory(prefix="benchlib-") as folder:
            for name, content in raw.items():
                if name.startswith(".") or "/" in name:
                    raise StudyError(f"{host} sent a file named {files.one_line(name)}: want a plain name")
                files.write(Path(folder) / name, content)
            self.folder.keep(measurement.changed(ran_on=host), Path(folder))
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
        if not share.blocks:
            return
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

    real = partial(open_bench, study, hosts=hosts)
    with hosts.connected() if elsewhere_of(study.plan) else contextlib.nullcontext():
        run_study(Outbox(study, earlier, send), bench or real, tell)
