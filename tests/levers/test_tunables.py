"""Kernel tunables: set on this machine's kernel and seen from outside, restored whatever the state was before."""

import contextlib
import os
from pathlib import Path

import pytest

from benchlib.errors import PreflightError, SettingError
from benchlib.host.journal import Journal
from benchlib.levers.host import RATIOS as PAIRS
from benchlib.levers.host import apply, check

pytestmark = pytest.mark.root

PAGES = Path("/sys/kernel/mm/transparent_hugepage")


def sysctl(name):
    return Path("/proc/sys") / name.replace(".", "/")


def value_of(name):
    return " ".join(sysctl(name).read_text().split())


def texts(level):
    return {name: str(value) for name, value in level.items()}


def needs(level, *devices):
    """Skip the test where these cannot be set."""
    if words := check({f"{name}?": value for name, value in level.items()}, devices):
        pytest.skip("; ".join(words))


# --- two views of one knob -----------------------------------------------------------------


def set_view(ratio, state):
    """Bring a knob into a state that the kernel can be in: the ratio, the amount, or neither in force."""
    sysctl(ratio).write_text("1")
    sysctl(ratio).write_text(str(state[0]))
    if state[1]:
        sysctl(PAIRS[ratio]).write_text(str(state[1]))


def view(ratio):
    return int(value_of(ratio)), int(value_of(PAIRS[ratio]))


@pytest.fixture(params=PAIRS)
def ratio(request):
    """A knob with two views, brought back afterwards without the help of what is tested."""
    name = request.param
    needs({each: value_of(each) for each in (name, PAIRS[name])})
    before = view(name)
    yield name
    set_view(name, before)


STATES = pytest.mark.parametrize("state", [(15, 0), (0, 300 << 20), (0, 0)], ids=str)


# values of the ratio and the amount
@pytest.mark.parametrize("level", [(12,), (None, 400 << 20), (0, 400 << 20), (12, 0)], ids=str)
@STATES
def test_the_view_that_was_in_force_is_restored(ratio, state, level, journal):
    pairs = zip((ratio, PAIRS[ratio]), level, strict=False)
    wanted = {name: value for name, value in pairs if value is not None}
    set_view(ratio, state)
    in_force = apply(wanted, [], journal.scope())
    assert in_force == {name: value_of(name) for name in wanted} == texts(wanted)
    assert Journal(journal.path).undo() == []  # as after a crash: by what is on disk
    assert view(ratio) == state


@STATES
def test_a_note_whose_change_was_never_made_does_no_harm(ratio, state, journal, monkeypatch):
    scope = journal.scope()
    note = scope.note

    def killed(change):
        note(change)
        raise KeyboardInterrupt

    monkeypatch.setattr(scope, "note", killed)
    set_view(ratio, state)
    with pytest.raises(KeyboardInterrupt):
        apply({PAIRS[ratio]: 400 << 20}, [], scope)
    assert Journal(journal.path).undo() == []
    assert view(ratio) == state


# --- queues --------------------------------------------------------------------------------


def queue_state(device):
    """All that the queue's folder says, the scheduler's own settings too."""
    queue, found = Path("/sys/class/block") / device / "queue", {}
    for path in queue.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file():
                found[str(path.relative_to(queue))] = path.read_text().strip()
    return found


def set_queue(device, values):
    for name, value in values.items():
        (Path("/sys/class/block") / device / "queue" / name).write_text(str(value))


@pytest.fixture
def disk(loop):
    """A loop device whose queue is ours to turn about: devices keep theirs when they are attached anew."""
    for scheduler in ("none", "mq-deadline", "kyber", "bfq"):
        needs({"scheduler": scheduler}, loop)
    before = queue_state(loop)
    yield loop
    offered = before["scheduler"].replace("[", "").replace("]", "").split()
    chosen = before["scheduler"].partition("[")[2].partition("]")[0]
    for scheduler in (*offered, chosen):  # each choice of another makes its settings anew
        set_queue(loop, {"scheduler": scheduler})
    set_queue(loop, {"nr_requests": before["nr_requests"]})
    assert queue_state(loop) == before


@pytest.mark.parametrize(
    ("scheduler", "own"),
    [
        ("none", {"nr_requests": 64}),
        ("mq-deadline", {"nr_requests": 64, "iosched/async_depth": 20, "iosched/read_expire": 400}),
        ("kyber", {"nr_requests": 32, "iosched/read_lat_nsec": 1000000}),
        ("bfq", {"iosched/slice_idle_us": 8500, "iosched/low_latency": 0}),
    ],
)
def test_a_scheduler_comes_back_with_its_own_settings(scheduler, own, disk, journal):
    set_queue(disk, {"scheduler": scheduler, **own})
    before = queue_state(disk)
    assert before.items() >= texts(own).items()
    several = {"nr_requests": 48, "scheduler": "kyber"}
    for level in (several, {"scheduler": "bfq"}, {"nr_requests": 48}, {"scheduler": "none"}):
        assert apply(level, [disk], journal.scope()).items() >= texts(level).items()
        assert "nr_requests" not in level or queue_state(disk)["nr_requests"] == "48"
        assert journal.undo() == []
        assert queue_state(disk) == before


# --- all kinds -----------------------------------------------------------------------------

ALL_KINDS = {
    **{"vm.swappiness": 7, "transparent_hugepage": "never", "transparent_hugepage.defrag": "madvise"},
    **{"scheduler": "bfq", "read_ahead_kb": 256, "rq_affinity": 2, "nomerges": 1},
}


def test_all_kinds_of_tunables_are_set_and_restored(disk, journal):
    def state():
        files = (sysctl("vm.swappiness"), PAGES / "enabled", PAGES / "defrag")
        return [file.read_text() for file in files], queue_state(disk)

    needs(ALL_KINDS, disk)
    before = state()
    assert apply(ALL_KINDS, [disk], journal.scope()) == texts(ALL_KINDS)
    assert journal.undo() == []
    assert state() == before


@pytest.mark.parametrize(
    ("name", "value"), [("vm.dirty_bytes", 100), ("vm.swappiness", 1000), ("vm.vfs_cache_pressure", "much")]
)
def test_what_the_kernel_refuses_ends_the_trial_in_its_own_words(name, value, scope):
    needs({name: value})
    before = value_of(name)
    with pytest.raises(SettingError, match=rf"the kernel refuses {name} {value} \(Invalid argument"):
        apply({name: value}, [], scope)
    scope.undo()
    assert value_of(name) == before


def test_an_ordinary_user_is_told_that_only_root_may():
    level = {"vm.swappiness": 0, "transparent_hugepage": "never"}
    needs(level)
    os.seteuid(65534)
    try:
        with pytest.raises(PreflightError, match=r"vm.*\(only root.*\), trans.*\(only root may set it\);"):
            check(level, [])
    finally:
        os.seteuid(0)
