"""A study on many hosts: each trial is kept once, whatever dies and whatever is sent twice."""

import contextlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeBench

from benchlib.errors import HostBusyError, Interrupted, StudyError
from benchlib.plan.fleet import Fleet
from benchlib.study import driver
from benchlib.study.at_host import UnwantedError
from benchlib.study.driver import MOST_ATTEMPTS, run_on_fleet
from benchlib.study.store import StudyFolder


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_PAUSE_S", "_LOOK_S"):
        monkeypatch.setattr(driver, name, 0)


class Task:
    """A task that has been run when it was given out."""

    def __init__(self, reason: BaseException | None = None) -> None:
        self.reason, self.status = reason, "error" if reason else "finished"

    def done(self) -> bool:
        return True

    def exception(self) -> BaseException | None:
        return self.reason

    def cancel(self) -> None:
        self.status = "cancelled"


class Queue(list):
    name = "messages"

    def get(self, batch: bool) -> list[Any]:
        messages = list(self)
        self.clear()
        return messages


class FakeHosts:
    """Hosts that run what they are given at once; ``script`` says how a call ends early.

    Its keys are numbers of calls (from 1), its values how many messages come through, and what ends the call.
    """

    def __init__(
        self, *names: str, script: dict[int, tuple[int, Any]] | None = None, back_within_s: float = 999
    ) -> None:
        self.fleet = Fleet(scheduler="inproc://", insecure=True, back_within_s=back_within_s)
        self.names, self.script = list(names), script or {}
        self.there = {name: f"{name}:1" for name in names}
        self.messages = Queue()
        self.sent: list[dict[str, Any]] = []
        self.calls: list[tuple[str, list[int]]] = []
        self.before: Callable[[int], None] = lambda call: None

    @contextlib.contextmanager
    def connected(self) -> Iterator["FakeHosts"]:
        yield self

    @contextlib.contextmanager
    def queue(self) -> Iterator[Queue]:
        yield self.messages

    def servers(self) -> list[str]:
        return self.names

    def addresses(self) -> dict[str, str]:
        return dict(self.there)

    def submit(self, host: str, address: str, call: Any, queue: str, number: int) -> Task:
        study = call.args[0]
        self.calls.append((host, sorted({trial.block for trial in study.trials})))
        self.before(len(self.calls))
        limit, reason = self.script.get(len(self.calls), (9999, None))
        tag, sent = {"host": host, "number": number, "sender": secrets.token_hex(4)}, 0

        def send(message: Any) -> None:
            nonlocal sent
            if "measurement" in message:
                if sent == limit:
                    raise reason
                sent += 1
            self.messages.append({**tag, **message})
            self.sent.append({**tag, **message})

        try:
            call(send)
        except Exception as end:
            return Task(end)
        return Task(reason if limit == 9999 else None)


Run = Callable[..., None]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a study on fake hosts with fake benches."""

    def make(folder: StudyFolder, hosts: FakeHosts, **options: Any) -> None:
        bench = FakeBench(
            folder.read().plan, tmp_path, tps=options.pop("tps", None), failing=options.pop("failing", None)
        )
        run_on_fleet(folder, hosts, open_bench=bench.open, **options)  # type: ignore[arg-type]

    return make


def hosts_of_blocks(folder: StudyFolder) -> dict[int, set[str | None]]:
    hosts: dict[int, set[str | None]] = {}
    for measurement in folder.kept().values():
        hosts.setdefault(measurement.trial.block, set()).add(measurement.ran_on)
    return hosts


def ids(folder: StudyFolder) -> list[str]:
    return [trial.id for trial in folder.read().trials]


def spoilt(folder: StudyFolder) -> list[str]:
    return sorted(path.name for path in folder.path.glob("spoilt/*"))


def test_each_host_runs_the_blocks_that_the_plan_pins_to_it_and_says_so(folder_of, run: Run) -> None:
    folder, hosts = folder_of(6), FakeHosts("a", "b")
    run(folder, hosts)
    assert list(folder.kept()) == ids(folder)
    assert hosts_of_blocks(folder) == {1: {"a"}, 2: {"a"}, 3: {"a"}, 4: {"b"}, 5: {"b"}, 6: {"b"}}
    assert spoilt(folder) == []


def test_nothing_is_connected_to_where_nothing_is_missing(folder_of, run: Run) -> None:
    folder, hosts = folder_of(2), FakeHosts("a")
    run(folder, hosts)
    run(folder, hosts)
    assert len(hosts.calls) == 1


def test_a_host_that_is_lost_and_back_runs_its_unfinished_block_again_whole(folder_of, run: Run) -> None:
    folder, hosts = folder_of(4), FakeHosts("a", "b", script={1: (4, UnwantedError("killed"))})
    run(folder, hosts)
    assert hosts.calls == [("a", [1, 3]), ("b", [2, 4]), ("a", [3])]
    assert list(folder.kept()) == ids(folder)
    assert spoilt(folder) == [f"{ids(folder)[6]}.1"]


def test_a_failed_trial_that_is_set_aside_counts_as_failed_no_more(folder_of, run: Run) -> None:
    folder, hosts = folder_of(1), FakeHosts("a", script={1: (2, UnwantedError("killed"))})
    lines: list[str] = []
    run(folder, hosts, tell=lines.append, failing={1: "no space"})
    assert any(line.startswith("small: trial 1/3, 1 failed, ") for line in lines)
    assert "failed" not in lines[-1], lines


def test_the_blocks_of_a_host_that_stays_away_go_to_the_others(folder_of, run: Run) -> None:
    folder = folder_of(4)
    hosts = FakeHosts("a", "b", script={1: (2, RuntimeError("the worker died"))}, back_within_s=0)
    hosts.before = lambda call: hosts.there.pop("a", None)
    run(folder, hosts)
    assert hosts_of_blocks(folder) == {block: {"b"} for block in (1, 2, 3, 4)}
    assert len(spoilt(folder)) == 2


def test_a_busy_host_is_asked_again_and_counts_as_no_attempt(folder_of, run: Run) -> None:
    busy = {call: (0, HostBusyError("another run is here")) for call in range(1, MOST_ATTEMPTS + 3)}
    folder, hosts = folder_of(1), FakeHosts("a", script=busy)
    run(folder, hosts)
    assert list(folder.kept()) == ids(folder)
    assert len(hosts.calls) == MOST_ATTEMPTS + 3


def test_a_block_that_is_lost_again_and_again_ends_the_run(folder_of, run: Run) -> None:
    always = {call: (1, UnwantedError("out of memory")) for call in range(1, 99)}
    folder = folder_of(1)
    with pytest.raises(
        StudyError, match=rf"block 1 was lost {MOST_ATTEMPTS} times, at last on a: out of memory"
    ):
        run(folder, FakeHosts("a", script=always))
    assert folder.kept() == {}
    assert len(spoilt(folder)) == MOST_ATTEMPTS


def test_no_host_at_all_ends_the_run_in_words(folder_of, run: Run) -> None:
    hosts = FakeHosts("a", back_within_s=0)
    hosts.there = {}
    with pytest.raises(
        StudyError, match=r"no host is left for the blocks of a \(no worker of it is connected\)"
    ):
        run(folder_of(1), hosts)


def test_a_scheduler_that_is_lost_is_told_in_words(folder_of, run: Run) -> None:
    folder, hosts = folder_of(2), FakeHosts("a")

    def lost() -> dict[str, str]:
        raise OSError("connection closed")

    hosts.addresses = lost  # type: ignore[method-assign]
    with pytest.raises(StudyError, match=r"^the fleet's scheduler is lost \(OSError\): start it"):
        run(folder, hosts)


def test_what_a_host_cannot_do_ends_the_run_with_its_name(folder_of, run: Run) -> None:
    folder, hosts = folder_of(2), FakeHosts("a", "b")
    failing = dict.fromkeys(folder.read().plan.factor.levels, "no space")
    with pytest.raises(StudyError, match=r"^a: every trial of block 1 failed"):
        run(folder, hosts, failing=failing)


def test_what_an_earlier_attempt_sends_later_is_discarded(folder_of, run: Run) -> None:
    folder, hosts = folder_of(1), FakeHosts("a", script={1: (1, UnwantedError("gone"))})
    hosts.before = lambda call: hosts.messages.extend(hosts.sent)
    run(folder, hosts)
    first_of_the_second_attempt = 1_700_000_000 + 20 * 3
    assert [m.started_s for m in folder.kept().values()] == [
        first_of_the_second_attempt + 20 * n for n in range(3)
    ]


def test_a_second_execution_under_the_same_number_is_discarded(folder_of, run: Run, monkeypatch) -> None:
    folder, hosts = folder_of(1), FakeHosts("a")
    get = Queue.get

    def twice(self: Queue, batch: bool) -> list[Any]:
        messages = get(self, batch)
        return [
            *messages,
            *({**m, "sender": "again", "files": {"stdout": b"other"}} for m in messages if "files" in m),
        ]

    monkeypatch.setattr(Queue, "get", twice)
    run(folder, hosts)
    assert list(folder.kept()) == ids(folder)
    assert all(folder.raw(trial_id, "stdout") != b"other" for trial_id in ids(folder))


def test_a_block_that_was_left_half_done_is_set_aside_before_it_runs(folder_of, run: Run) -> None:
    folder = folder_of(2)
    run(folder, FakeHosts("a"))
    folder.set_aside(ids(folder)[4])
    hosts = FakeHosts("a")
    run(folder, hosts)
    assert hosts.calls == [("a", [2])]
    assert len(spoilt(folder)) == 3
    assert list(folder.kept()) == ids(folder)


def test_an_interruption_keeps_what_has_come_and_calls_the_others_off(folder_of, run: Run) -> None:
    folder, hosts = folder_of(3), FakeHosts("a", "b", "c")
    tasks: list[Task] = []

    def tell(line: str) -> None:
        if "trial 4/9" in line:
            raise KeyboardInterrupt

    submit = hosts.submit
    hosts.submit = lambda *a, **k: tasks.append(submit(*a, **k)) or tasks[-1]  # type: ignore[func-returns-value,method-assign,return-value]
    with pytest.raises(Interrupted, match="stopped: 4 of 9 trials are kept in data/small"):
        run(folder, hosts, tell=tell)
    assert {task.status for task in tasks} == {"cancelled"}
    run(folder, FakeHosts("a", "b", "c"))
    assert list(folder.kept()) == ids(folder)


def test_a_study_that_is_looked_at_stops_at_a_look(folder_of, plan_of, run: Run) -> None:
    folder, hosts = folder_of(9, plan=plan_of(looks=(3, 5, 7, 9))), FakeHosts("a", "b", "c")
    lines: list[str] = []
    run(
        folder,
        hosts,
        tell=lines.append,
        enough=lambda: "all verdicts are in" if len(folder.kept()) == 15 else None,
    )
    assert sorted(hosts_of_blocks(folder)) == [1, 2, 3, 4, 5]
    assert lines[-1].endswith("done early: all verdicts are in")
