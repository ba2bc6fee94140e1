"""A study on many hosts: each block is saved once and whole."""

from contextlib import nullcontext
from itertools import count
from math import inf
from unittest.mock import Mock

import pytest
from fakes import FakeBench
from hosts import ending, hosts_of_blocks, ids, spoilt

from benchlib.errors import HostBusyError, Interrupted, StudyError
from benchlib.plan.fleet import Fleet
from benchlib.study import driver
from benchlib.study.calls import UnwantedError
from benchlib.study.driver import MOST_LOSSES, run_on_fleet

KILLED = UnwantedError("killed")
BUSY = MOST_LOSSES + 2


class Queue(list):
    name = "messages"

    def get(self, batch):
        messages, self[:] = list(self), []
        return messages


class FakeHosts:
    """Hosts that make each call at once.

    ``script`` has, by number of the call (from 1), the number of blocks that arrive and the error that then
    ends it. ``there`` are the connected hosts, ``lost`` the scheduler's error, ``copies`` the raw files with which
    a block arrives, None for its own.
    """

    def __init__(self, *names, script=None, back_within_s=999, there=None, lost=None):
        self.fleet = Fleet(scheduler="inproc://", insecure=True, back_within_s=back_within_s)
        self.script = script or {}
        self.there = {name: f"{name}:1" for name in names} if there is None else there
        self.servers = lambda: list(names)
        self.addresses = Mock(side_effect=lost or (lambda: dict(self.there)))
        self.messages, self.calls, self.tasks = Queue(), [], []
        self.connected, self.queue = (lambda: nullcontext(self)), (lambda: nullcontext(self.messages))
        self.before, self.copies = (lambda call: None), [None]

    def submit(self, host, address, call, queue):
        self.calls.append((host, sorted({trial.block for trial in call.args[0].trials})))
        self.before(len(self.calls))
        limit, reason = self.script.get(len(self.calls), (inf, None))
        blocks = count()

        def send(message):
            trials = message.get("trials", ())
            if trials and next(blocks) == limit:
                raise reason
            for raw in self.copies if trials else [None]:
                bent = {"trials": [(measurement, raw) for measurement, _ in trials]} if raw else {}
                self.messages.append({"host": host, **message, **bent})

        task = Mock(status="finished", done=lambda: True)
        try:
            call(send)
        except Exception as end:
            task.configure_mock(status="error", **{"exception.return_value": end})
        self.tasks.append(task)
        return task


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a study on fake hosts with fake benches, to its end or until an error; returns the reported lines."""
    monkeypatch.setattr(driver, "_LOOK_S", 0)

    def make(folder, hosts, ends=None, failing=None, unready=None, **options):
        bench, lines = FakeBench(folder.read().plan, tmp_path, failing=failing, unready=unready), list[str]()
        with ending(ends):
            run_on_fleet(folder, hosts, **{"tell": lines.append, "open_bench": bench.open, **options})
            assert "enough" in options or list(folder.kept()) == ids(folder)
        return lines

    return make


def test_each_host_runs_the_blocks_of_the_plan_once(folder_of, run):
    folder, hosts = folder_of(6), FakeHosts("a", "b")
    run(folder, hosts)
    assert "".join(hosts_of_blocks(folder).values()) == "aaabbb"
    run(folder, hosts)
    assert (len(hosts.calls), spoilt(folder)) == (2, []), "nothing is handed out where nothing is missing"


@pytest.mark.parametrize(
    ("hosts", "calls"),
    [
        (FakeHosts("a", "b", script={1: (1, KILLED)}), [("a", [1, 3]), ("b", [2, 4]), ("a", [3])]),
        # a busy host has lost nothing
        (FakeHosts("a", script=dict.fromkeys(range(1, BUSY), (0, HostBusyError("busy")))), [("a", [1, 2, 3, 4])] * BUSY),
    ],
    ids=["lost and back", "busy"],
)  # fmt: skip
def test_a_block_that_did_not_arrive_runs_again(folder_of, run, hosts, calls):
    folder = folder_of(4)
    run(folder, hosts)
    assert (hosts.calls, spoilt(folder)) == (calls, [])


def test_the_others_finish_before_a_lost_host_ends_the_run(folder_of, run):
    folder = folder_of(4)
    hosts = FakeHosts("a", "b", script={1: (0, RuntimeError("the worker died"))}, back_within_s=0)
    hosts.before = lambda call: hosts.there.pop("a", None)
    run(folder, hosts, ends=(StudyError, r"a: its worker is gone \(RuntimeError\): start"))
    assert hosts_of_blocks(folder) == {2: "b", 4: "b"}
    run(folder, FakeHosts("a", "b"))
    assert hosts_of_blocks(folder) == {1: "a", 2: "b", 3: "a", 4: "b"}


@pytest.mark.parametrize(
    ("hosts", "failing", "message"),
    [
        (FakeHosts("a", script=dict.fromkeys(range(99), (0, UnwantedError("out of memory")))), (),
         f"block 1 was lost {MOST_LOSSES} times: a: out of memory"),
        (FakeHosts("a", back_within_s=0, there={}), (), "a: no worker of it is connected: start"),
        (FakeHosts("a", lost=OSError("closed")), (), r"the fleet's scheduler is lost \(OSError\)"),
        (FakeHosts("a", "b"), ("defaults", "control", "tuned"), "a: every trial of block 1 failed"),
    ],
    ids=["lost again and again", "no host", "no scheduler", "every trial fails"],
)  # fmt: skip
def test_a_run_that_cannot_continue_ends_with_an_error(folder_of, run, hosts, failing, message):
    run(folder_of(1), hosts, ends=(StudyError, message), failing=dict.fromkeys(failing, "no space"))


def test_the_first_copy_of_a_block_counts(folder_of, run):
    folder, hosts = folder_of(1), FakeHosts("a")
    hosts.copies = [None, {"stdout": b"other"}]
    run(folder, hosts)
    assert all(folder.raw(trial_id, "stdout") != b"other" for trial_id in ids(folder))


def test_a_file_that_leaves_its_folder_is_refused(folder_of, run):
    hosts = FakeHosts("a")
    hosts.copies = [{"../x": b""}]
    run(folder_of(1), hosts, ends=(StudyError, "a sent a file named ../x: want a plain name"))


def test_a_partly_saved_block_is_set_aside_before_it_runs_unless_the_study_may_stop(folder_of, run):
    folder, hosts = folder_of(2), FakeHosts("a")
    run(folder, hosts)
    folder.set_aside(ids(folder)[4])
    run(folder, hosts, enough=lambda: "settled")
    assert (len(folder.kept()), len(spoilt(folder)), len(hosts.calls)) == (5, 1, 1)
    run(folder, hosts)
    assert hosts.calls[1:] == [("a", [2])]
    assert len(spoilt(folder)) == 3


def test_an_interruption_keeps_saved_trials_and_cancels_the_others(folder_of, run):
    folder, hosts = folder_of(3), FakeHosts("a", "b", "c")

    def tell(line):
        if "trial 4 of 9" in line:
            raise KeyboardInterrupt

    run(folder, hosts, ends=(Interrupted, "stopped: 3 of 9 trials are saved in data/small"), tell=tell)
    assert all(task.cancel.called for task in hosts.tasks)
    run(folder, hosts)


def test_a_study_with_looks_stops_at_a_look(folder_of, plan_of, run):
    folder, hosts = folder_of(9, plan=plan_of(looks=(3, 5, 7, 9))), FakeHosts("a", "b", "c")
    lines = run(folder, hosts, enough=lambda: "enough" if len(folder.kept()) == 15 else None)
    assert list(hosts_of_blocks(folder)) == [1, 2, 3, 4, 5]
    assert lines[-1].endswith("done early: enough")


def test_a_level_that_always_fails_on_a_host_ends_the_study_or_is_left_out(folder_of, run, monkeypatch):
    folder, hosts, ends = folder_of(4), FakeHosts("a"), (StudyError, ".*“tuned” .*no such library")
    for unready in ({"tuned": "no such library"}, None):
        run(folder, hosts, ends=ends, unready=unready)
        assert len(folder.kept()) == 6
    folder.write(folder.read().changed(parameters={"leave_out": True}))
    opened = Mock(side_effect=StudyError("opened"))
    monkeypatch.setattr(driver, "open_bench", opened)
    run(folder, hosts, ends=(StudyError, "a: opened"), open_bench=None)
    assert opened.call_args.args[0].parameters["leave_out"]
    run(folder, hosts)
    failed = [m.error for m in folder.kept().values() if m.error]
    assert [error.startswith("left out") for error in failed] == [False, False, True, True]
