"""The driver of a study on many hosts: it hands out whole blocks, and alone writes what comes back.

Each host is given the blocks that the plan pins to it. What is given has a number; what a host sends under an earlier one, or
a second time, is discarded. A host that is lost takes its unfinished block with it: what of it has come is set aside as
spoilt, and the block runs again, whole.
"""

import contextlib
import itertools
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from benchlib.errors import BenchlibError, HostBusyError, StudyError
from benchlib.host import files
from benchlib.plan.fleet import elsewhere_of, pinned
from benchlib.plan.model import Measurement
from benchlib.study.calls import PASSING, UnwantedError, ended
from benchlib.study.fleet import Hosts
from benchlib.study.loop import Enough, OpenBench, Progress, Tell, check_levels, missing
from benchlib.study.remote_blocks import measure
from benchlib.study.store import StudyFolder

T = TypeVar("T")

MOST_ATTEMPTS = 5
"""How often a block is tried that is lost again and again."""
_PAUSE_S = 0.1
_LOOK_S = 2.0
"""How often the scheduler is asked which workers there are; until then a host that was lost, or was busy, is left alone."""


def run_on_fleet(
    folder: StudyFolder,
    hosts: Hosts,
    tell: Tell = lambda line: None,
    enough: Enough = lambda: None,
    open_bench: OpenBench | None = None,
) -> None:
    """Run the blocks that are not whole, on the hosts that the plan pins them to, and keep each trial as it comes.

    Of a block that is not whole, what is kept is set aside first: it ran at another hour, or on another host. ``enough``
    is asked before the first block and at each look that the plan has. ``open_bench`` stands for the bench of a host.

    Raises:
        Interrupted: Ctrl-C; blocks under way are dropped.
        StudyError: nothing more can be measured, or kept.

    """
    study = folder.read()
    kept = folder.kept()
    blocks = sorted({trial.block for trial in missing(study, kept)})
    if not blocks:
        return
    working = defaultdict[str, set[str]](set)  # on each host
    for host in {measurement.ran_on or "" for measurement in kept.values()}:
        own = [measurement for measurement in kept.values() if (measurement.ran_on or "") == host]
        check_levels(own)
        working[host] = {measurement.trial.level for measurement in own if measurement.error is None}
    for trial_id, measurement in kept.items():
        if measurement.trial.block in blocks:
            folder.set_aside(trial_id)
    looks = [look for look in study.plan.looks if look < study.blocks]
    with (
        hosts.connected(),
        hosts.queue() as queue,
        contextlib.closing(_Driver(folder, hosts, queue, tell, open_bench, working)) as driver,
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
    """Blocks that a host has been given together. ``sender`` is who runs them there, once it has sent something."""

    host: str
    address: str
    blocks: list[int]
    number: int
    task: Any
    sender: str | None = None


class _Driver:
    """Hands out blocks and keeps what comes back."""

    def __init__(
        self,
        folder: StudyFolder,
        hosts: Hosts,
        queue: Any,
        tell: Tell,
        open_bench: OpenBench | None,
        working: dict[str, set[str]],
    ) -> None:
        self._working = working
        self._folder, self._hosts, self._queue, self._open_bench = folder, hosts, queue, open_bench
        self._study = folder.read()
        self.progress = Progress(folder, self._study, folder.kept(), tell)
        self._report = self.progress.report
        self._sizes = Counter(trial.block for trial in self._study.trials)
        self._kept = defaultdict[int, set[str]](set)  # of the blocks under way
        self._todo: dict[str, list[int]] = {}
        self._shares: dict[str, _Share] = {}
        self._numbers = itertools.count(1)
        self._attempts = Counter[int]()
        self._absent: dict[str, tuple[float, str]] = {}  # since when a host has given nothing, and why
        self._addresses: dict[str, str] = {}
        self._next_look = 0.0

    def run(self, blocks: Sequence[int]) -> None:
        """Have these blocks run, and keep all that they give."""
        plan = self._study.plan
        pins = pinned(self._study.blocks, len(plan.factor.levels), self._hosts.servers(), plan.looks)
        for block in blocks:
            self._todo.setdefault(pins[block], []).append(block)
        self._report("starting")
        while self._todo or self._shares:
            self._look()
            self._hand_out()
            time.sleep(_PAUSE_S)
            self._hear()
            for share in list(self._shares.values()):
                if share.task.done() or self._addresses.get(share.host) != share.address:
                    self._settle(share)

    def close(self) -> None:
        """Have nobody work on."""
        for share in self._shares.values():
            _of_scheduler(share.task.cancel)
        self._shares.clear()

    def _look(self) -> None:
        if (now := time.monotonic()) >= self._next_look:
            self._addresses, self._next_look = _of_scheduler(self._hosts.addresses), now + _LOOK_S

    def _hand_out(self) -> None:
        """Give every host that is there and idle its blocks, and those of one that stays away to others."""
        now = time.monotonic()
        # whoever generates load does so for one server at a time, and a server that is not ours has one load at a time
        plan = self._study.plan
        alone = bool(elsewhere_of(plan)) or plan.abroad
        for host in [host for host in self._todo if host not in self._shares]:
            if alone and self._shares:
                return
            since, why = self._absent.get(host, (now, ""))
            if now - since > self._hosts.fleet.back_within_s:
                self._give_to_others(host, why)
            elif host in self._addresses:
                self._give(host, self._todo.pop(host))
            elif not why:
                self._absent[host] = now, "no worker of it is connected"
                self._report(f"{host} is not connected: waiting for it")

    def _give(self, host: str, blocks: list[int]) -> None:
        number, own = next(self._numbers), set(blocks)
        part = tuple(trial for trial in self._study.trials if trial.block in own)
        # of the rest, which names what is published, a host needs nothing
        study = self._study.changed(trials=part, provenance={}, parameters={})
        call = partial(
            measure, study, self._open_bench, self._hosts.fleet, host, frozenset(self._working[host])
        )
        task = self._hosts.submit(host, self._addresses[host], call, self._queue.name, number=number)
        self._shares[host] = _Share(host, self._addresses[host], blocks, number, task)

    def _give_to_others(self, host: str, why: str) -> None:
        connected = [name for name in self._hosts.servers() if name in self._addresses]
        if others := [name for name in connected if name not in self._absent]:
            for block in self._todo.pop(host):
                other = min(others, key=lambda name: len(self._todo.get(name, ())))
                self._todo.setdefault(other, []).append(block)
            self._report(f"{host} stays away: its blocks go to {', '.join(others)}")
            if host not in self._addresses:  # should it come back, it is as good as any
                del self._absent[host]
        elif not self._shares:
            raise StudyError(
                f"no host is left for the blocks of {host} ({why}): mend that and run the same again, "
                "the trials already kept are safe"
            )

    def _hear(self) -> None:
        """Keep what hosts have sent, in its order."""
        for message in _of_scheduler(partial(self._queue.get, batch=True)):
            share = self._shares.get(message["host"])
            if share is None or message["number"] != share.number:
                continue  # of an attempt that has been given up
            share.sender = share.sender or message["sender"]
            if message["sender"] != share.sender:
                continue  # Dask has run it a second time
            if "line" in message:
                self._report(f"{share.host}: {message['line']}")
            else:
                self._keep(share, Measurement.model_validate_json(message["measurement"]), message["files"])

    def _keep(self, share: _Share, measurement: Measurement, left: Mapping[str, bytes]) -> None:
        with tempfile.TemporaryDirectory(prefix="benchlib-") as raw:
            for name, content in left.items():
                if name.startswith(".") or "/" in name:
                    raise StudyError(
                        f"{share.host} sent a file named {files.one_line(name)}: want a plain name"
                    )
                files.write(Path(raw) / name, content)
            self._folder.keep(measurement.changed(ran_on=share.host), Path(raw))
        self._kept[measurement.trial.block].add(measurement.trial.id)
        self.progress.add(measurement)
        if measurement.error is None:
            self._working[share.host].add(measurement.trial.level)
        block = measurement.trial.block
        if len(self._kept[block]) == self._sizes[block]:  # one trial more may be all that it can give
            self._absent.pop(share.host, None)

    def _settle(self, share: _Share) -> None:
        """See to what a host leaves that has ended its share, or is gone: blocks that are not whole are to run again.

        Raises:
            StudyError: it ended with a reason that another attempt would not mend.

        """
        self._hear()
        reason = ended(share.task) or UnwantedError("its worker is gone")
        share.task.cancel()
        del self._shares[share.host]
        left = [block for block in share.blocks if len(self._kept[block]) < self._sizes[block]]
        if not isinstance(reason, PASSING):
            raise type(reason)(f"{share.host}: {reason}")
        if not left:
            return
        # from which on it may come back; but one that is busy is so from when it was first met
        now = time.monotonic()
        since = self._absent.get(share.host, (now, ""))[0] if isinstance(reason, HostBusyError) else now
        self._absent[share.host] = since, str(reason)
        self._addresses.pop(share.host, None)  # it is left alone until the next look
        self._todo[share.host] = left + self._todo.get(share.host, [])
        for block in left:  # its levels are to be compared with neighbours of one hour
            for trial_id in self._kept.pop(block):
                self._folder.set_aside(trial_id)
                self.progress.drop(trial_id)
        self._report(f"{share.host} has lost block {left[0]} ({reason}): it runs again")
        self._attempts[left[0]] += not isinstance(reason, HostBusyError)
        if self._attempts[left[0]] >= MOST_ATTEMPTS:
            lost = f"block {left[0]} was lost {MOST_ATTEMPTS} times"
            raise StudyError(f"{lost}, at last on {share.host}: {reason}")


def _of_scheduler(ask: Callable[[], T]) -> T:
    """What the scheduler says.

    Raises:
        StudyError: it is gone, or has begun anew.

    """
    try:
        return ask()
    except BenchlibError:
        raise
    except Exception as reason:  # of Dask's many
        raise StudyError(
            f"the fleet's scheduler is lost ({type(reason).__name__}): start it and its workers, and run the same again; "
            "the trials already kept are safe"
        ) from reason
