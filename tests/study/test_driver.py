"""A study on many hosts: each trial is kept once, whatever dies and whatever is sent twice."""

import secrets
from contextlib import nullcontext
from itertools import count
from math import inf
from unittest.mock import Mock

import pytest
from fakes import FakeBench
from hosts import ending, ids, spoilt

from benchlib.errors import HostBusyError, Interrupted, StudyError
from benchlib.plan.fleet import Fleet
from benchlib.study import driver
from benchlib.study.calls import UnwantedError
from benchlib.study.driver import MOST_ATTEMPTS, run_on_fleet
from benchlib.study.loop import set_failed_aside
from benchlib.study.store import StudyFolder

KILLED = UnwantedError("killed")


class Queue(list):
    name = "messages"

    def get(self, batch):
        messages, self[:] = list(self), []
        return messages


class FakeHosts:
    """Hosts that run what they are given at once; ``script`` says how a call ends early.

    Its keys are numbers of calls (from 1), its values how many messages come through, and what ends the call. ``there`` are
    the hosts that are connected, or what the scheduler answers.
    """

    def __init__(self, *names, script=None, back_within_s=999, there=None, lost=None):
        self.fleet = Fleet(scheduler="inproc://", insecure=True, back_within_s=back_within_s)
        self.script = script or {}
        self.there = {name: f"{name}:1" for name in names} if there is None else there
        self.servers, self.addresses = (
            lambda: list(names),
            Mock(side_effect=lost or (lambda: dict(self.there))),
        )
        self.messages, self.sent, self.calls, self.tasks = Queue(), [], [], []
        self.connected, self.queue = (lambda: nullcontext(self)), (lambda: nullcontext(self.messages))
        self.before, self.twice = (lambda call: None), False

    def submit(self, host, address, call, queue, number):
        self.calls.append((host, sorted({trial.block for trial in call.args[0].trials})))
        self.before(len(self.calls))
        limit, reason = self.script.get(len(self.calls), (inf, None))
        tag, trials = {"host": host, "number": number, "sender": secrets.token_hex(4)}, count()

        def send(message):
            if "measurement" in message and next(trials) == limit:
                raise reason
            self.messages.append({**tag, **message})
            self.sent.append({**tag, **message})
            if self.twice and "files" in message:
                other = {"sender": "again", "files": {"stdout": b"other"}}
                self.messages.append({**tag, **message, **other})

        task = Mock(status="finished", done=lambda: True)
        try:
            call(send)
        except Exception as end:
            task.configure_mock(status="error", **{"exception.return_value": end})
        self.tasks.append(task)
        return task


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a study on fake hosts with fake benches, to its end or until an error; the lines that it tells."""
    for name in ("_PAUSE_S", "_LOOK_S"):
        monkeypatch.setattr(driver, name, 0)

    def make(folder, hosts, ends=None, failing=None, unready=None, **options):
        bench, lines = FakeBench(folder.read().plan, tmp_path, failing=failing, unready=unready), list[str]()
        with ending(ends):
            run_on_fleet(folder, hosts, **{"tell": lines.append, "open_bench": bench.open, **options})
            assert "enough" in options or list(folder.kept()) == ids(folder)
        return lines

    return make


def hosts_of_blocks(folder: StudyFolder) -> dict[int, str]:
    """Each block's one host."""
    pairs = {(m.trial.block, m.ran_on) for m in folder.kept().values()}
    assert len(dict(pairs)) == len(pairs)
    return dict(sorted(pairs))


def test_each_host_runs_the_blocks_that_the_plan_pins_to_it_once(folder_of, run):
    folder, hosts = folder_of(6), FakeHosts("a", "b")
    run(folder, hosts)
    assert "".join(hosts_of_blocks(folder).values()) == "aaabbb"
    run(folder, hosts)
    assert (len(hosts.calls), spoilt(folder)) == (2, []), "nothing is handed out where nothing is missing"


@pytest.mark.parametrize(
    ("hosts", "calls", "n_spoilt"),
    [
        (FakeHosts("a", "b", script={1: (4, KILLED)}), [("a", [1, 3]), ("b", [2, 4]), ("a", [3])], 1),
        (FakeHosts("a", script={call: (0, HostBusyError("busy")) for call in range(1, MOST_ATTEMPTS + 3)}),
         [("a", [1, 2, 3, 4])] * (MOST_ATTEMPTS + 3), 0),  # which counts as no attempt
    ],
    ids=["lost and back", "busy"],
)  # fmt: skip
def test_an_unfinished_block_runs_again_whole(folder_of, run, hosts, calls, n_spoilt):
    folder = folder_of(4)
    run(folder, hosts)
    assert (hosts.calls, len(spoilt(folder))) == (calls, n_spoilt)


def test_a_failed_trial_that_is_set_aside_counts_as_failed_no_more(folder_of, run):
    lines = run(folder_of(1), FakeHosts("a", script={1: (2, KILLED)}), failing={1: "no space"})
    assert any(line.startswith("small: trial 1/3, 1 failed, ") for line in lines)
    assert [line[:17] for line in lines if "has lost" in line] == ["small: trial 0/3,"]
    assert "failed" not in lines[-1], lines


def test_the_blocks_of_a_host_that_stays_away_go_to_the_others(folder_of, run):
    folder = folder_of(4)
    hosts = FakeHosts("a", "b", script={1: (2, RuntimeError("the worker died"))}, back_within_s=0)
    hosts.before = lambda call: hosts.there.pop("a", None)
    run(folder, hosts)
    assert hosts_of_blocks(folder) == dict.fromkeys((1, 2, 3, 4), "b")
    assert len(spoilt(folder)) == 2


@pytest.mark.parametrize(
    ("hosts", "failing", "message"),
    [
        (FakeHosts("a", script=dict.fromkeys(range(99), (1, UnwantedError("out of memory")))), (),
         f"block 1 was lost {MOST_ATTEMPTS} times, at last on a: out of memory"),
        (FakeHosts("a", back_within_s=0, there={}), (), "no host is left for the blocks of a "),
        (FakeHosts("a", lost=OSError("closed")), (), r"the fleet's scheduler is lost \(OSError\)"),
        (FakeHosts("a", "b"), ("defaults", "control", "tuned"), "a: every trial of block 1 failed"),
    ],
    ids=["lost again and again", "no host", "no scheduler", "cannot do it"],
)  # fmt: skip
def test_what_cannot_go_on_ends_the_run_in_words(folder_of, run, hosts, failing, message):
    folder = folder_of(1)
    run(folder, hosts, ends=(StudyError, message), failing=dict.fromkeys(failing, "no space"))
    assert len(spoilt(folder)) == (MOST_ATTEMPTS if hosts.script else 0)


def test_a_level_that_cannot_run_on_a_host_ends_the_study_until_that_is_mended(folder_of, run):
    folder, hosts, ends = folder_of(4), FakeHosts("a", "b"), (StudyError, ".*“tuned” .*no such library")
    run(folder, hosts, ends=(StudyError, "a: .*no such library"), unready={"tuned": "no such library"})
    assert len(folder.kept()) == 6, "the first block of each host"
    run(folder, hosts, ends=ends)
    assert len(hosts.calls) <= 2
    set_failed_aside(folder)
    run(folder, hosts)
    hosts, gone = FakeHosts("a", script={1: (4, KILLED)}), dict[str, str]()
    hosts.before = lambda call: gone.update({"tuned": "did not start"} if call > 1 else {})
    run(folder_of(4, name="unlucky"), hosts, unready=gone)  # it has succeeded there before


def test_what_an_earlier_attempt_sends_later_is_discarded(folder_of, run):
    folder, hosts = folder_of(1), FakeHosts("a", script={1: (1, KILLED)})
    hosts.before = lambda call: hosts.messages.extend(hosts.sent)
    run(folder, hosts)
    starts = [m.started_s - 1_700_000_000 for m in folder.kept().values()]
    assert starts == [60, 80, 100], "the first attempt had two calls"


def test_a_second_execution_under_the_same_number_is_discarded(folder_of, run):
    folder, hosts = folder_of(1), FakeHosts("a")
    hosts.twice = True
    run(folder, hosts)
    assert all(folder.raw(trial_id, "stdout") != b"other" for trial_id in ids(folder))


def test_a_block_that_was_left_half_done_is_set_aside_before_it_runs(folder_of, run):
    folder, hosts = folder_of(2), FakeHosts("a")
    run(folder, hosts)
    folder.set_aside(ids(folder)[4])
    run(folder, hosts)
    assert hosts.calls[1:] == [("a", [2])]
    assert len(spoilt(folder)) == 3


def test_an_interruption_keeps_what_has_come_and_calls_the_others_off(folder_of, run):
    folder, hosts = folder_of(3), FakeHosts("a", "b", "c")

    def tell(line):
        if "trial 4/9" in line:
            raise KeyboardInterrupt

    run(folder, hosts, ends=(Interrupted, "stopped: 4 of 9 trials are kept in data/small"), tell=tell)
    assert all(task.cancel.called for task in hosts.tasks)
    run(folder, hosts)


def test_a_study_that_is_looked_at_stops_at_a_look(folder_of, plan_of, run):
    folder, hosts = folder_of(9, plan=plan_of(looks=(3, 5, 7, 9))), FakeHosts("a", "b", "c")
    lines = run(folder, hosts, enough=lambda: "enough" if len(folder.kept()) == 15 else None)
    assert list(hosts_of_blocks(folder)) == [1, 2, 3, 4, 5]
    assert lines[-1].endswith("done early: enough")
