"""Kernel tunables: set on this machine's kernel and seen from outside, restored whatever the state was before."""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchlib.errors import PreflightError, SettingError
from benchlib.host.journal import Chapter, Journal
from benchlib.levers.tunables import apply, check, survey

pytestmark = pytest.mark.root

PAIRS = {
    "vm.dirty_ratio": "vm.dirty_bytes",
    "vm.dirty_background_ratio": "vm.dirty_background_bytes",
    "vm.overcommit_ratio": "vm.overcommit_kbytes",
}
STUDY = {  # the operating system study's own, as far as every kernel has them
    "vm.swappiness": 0,
    "vm.dirty_background_ratio": 0,
    "vm.dirty_ratio": 0,
    "vm.dirty_background_bytes": 67108864,
    "vm.dirty_bytes": 536870912,
    "fs.file-max": 30000000,
    "fs.suid_dumpable": 0,
    "kernel.randomize_va_space": 2,
}
LADDER = {"vm.vfs_cache_pressure": 50, "scheduler": "mq-deadline", "read_ahead_kb": 256}


def sysctl(name: str) -> Path:
    return Path("/proc/sys") / name.replace(".", "/")


def value_of(name: str) -> str:
    return " ".join(sysctl(name).read_text().split())


def needs(*names: str, devices: tuple[str, ...] = ()) -> None:
    """Skip the test where these cannot be set."""
    if words := check({f"{name}?": value_of(name) for name in names}, devices):
        pytest.skip("; ".join(words))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """A journal of the test's own; whatever happens, it is undone."""
    kept = Journal(tmp_path / "journal")
    yield kept
    assert kept.undo() == []


@pytest.fixture
def chapter(journal: Journal) -> Chapter:
    return journal.chapter()


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A loop device that nobody uses: its queue is ours to turn about."""
    if os.geteuid() != 0:
        pytest.skip("only root can attach loop devices")
    file = tmp_path_factory.mktemp("disk") / "file"
    with file.open("wb") as out:
        out.truncate(16 << 20)
    attached = subprocess.run(["losetup", "--find", "--show", file], capture_output=True, text=True)
    if attached.returncode != 0:
        pytest.skip(f"no loop devices here: {attached.stderr.strip()}")
    device = attached.stdout.strip()
    name = Path(device).name
    before = queue_state(name)
    yield name
    after = queue_state(name)
    default_scheduler(name, before)
    set_queue(name, {key: before[key] for key in ("read_ahead_kb", "rq_affinity", "nomerges")})
    subprocess.run(["losetup", "--detach", device], check=True)
    assert after == before


def queue_state(device: str) -> dict[str, str]:
    """All that the queue's folder says, the scheduler's own settings too."""
    queue = Path("/sys/class/block") / device / "queue"
    found = {}
    for path in queue.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file():
                found[str(path.relative_to(queue))] = path.read_text().strip()
    return found


def set_queue(device: str, values: Mapping[str, int | str]) -> None:
    for name, value in values.items():
        (Path("/sys/class/block") / device / "queue" / name).write_text(str(value))


def default_scheduler(device: str, state: Mapping[str, str]) -> None:
    """The scheduler of a state, with settings of its own that nobody has touched."""
    chosen = state["scheduler"].partition("[")[2].partition("]")[0]
    for scheduler in [*state["scheduler"].replace("[", "").replace("]", "").split(), chosen]:
        set_queue(device, {"scheduler": scheduler})  # each choice of another makes its settings anew
    set_queue(device, {"nr_requests": state["nr_requests"]})


def offered(device: str, *schedulers: str) -> None:
    text = (Path("/sys/class/block") / device / "queue/scheduler").read_text()
    if lacking := [s for s in schedulers if s not in text.replace("[", " ").replace("]", " ").split()]:
        pytest.skip(f"this kernel has no {lacking[0]}")


def set_view(ratio: str, state: tuple[int, int]) -> None:
    """Bring a knob into a state that the kernel can be in: the ratio, the amount, or neither in force."""
    sysctl(ratio).write_text("1")
    sysctl(ratio).write_text(str(state[0]))
    if state[1]:
        sysctl(PAIRS[ratio]).write_text(str(state[1]))


@pytest.fixture(params=PAIRS)
def ratio(request: pytest.FixtureRequest) -> Iterator[str]:
    """A knob with two views, brought back afterwards without the help of what is tested."""
    name: str = request.param
    needs(name, PAIRS[name])
    before = int(value_of(name)), int(value_of(PAIRS[name]))
    yield name
    set_view(name, before)


LEVELS = [
    {"ratio": 12},
    {"amount": 400 << 20},
    {"ratio": 0, "amount": 400 << 20},
    {"amount": 400 << 20, "ratio": 0},
    {"ratio": 12, "amount": 0},
    {"amount": 0, "ratio": 12},
]


@pytest.mark.parametrize("level", LEVELS, ids=str)
@pytest.mark.parametrize("state", [(15, 0), (0, 300 << 20), (0, 0)], ids=str)
def test_the_view_that_was_in_force_is_restored(
    ratio: str, state: tuple[int, int], level: dict[str, int], journal: Journal
) -> None:
    names = {"ratio": ratio, "amount": PAIRS[ratio]}
    wanted = {names[key]: value for key, value in level.items()}
    set_view(ratio, state)
    told = apply(wanted, [], journal.chapter())
    assert told == {name: value_of(name) for name in wanted} == {k: str(v) for k, v in wanted.items()}
    # as after a crash: by what is on disk
    assert Journal(journal.path).undo() == []
    assert (int(value_of(ratio)), int(value_of(PAIRS[ratio]))) == state


def test_a_note_whose_change_was_never_made_does_no_harm(ratio: str, tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    class Dying(Journal):
        def _append(self, entry: object) -> None:
            super()._append(entry)  # type: ignore[arg-type]
            raise Killed

    for state in [(15, 0), (0, 300 << 20), (0, 0)]:
        set_view(ratio, state)
        path = tmp_path / f"journal{state}"
        with pytest.raises(Killed):
            apply({PAIRS[ratio]: 400 << 20}, [], Dying(path).chapter())
        assert Journal(path).undo() == []
        assert (int(value_of(ratio)), int(value_of(PAIRS[ratio]))) == state


@pytest.mark.parametrize(
    ("name", "value"), [("vm.dirty_bytes", 100), ("vm.swappiness", 1000), ("vm.vfs_cache_pressure", "much")]
)
def test_what_the_kernel_refuses_ends_the_trial_in_its_own_words(
    name: str, value: int | str, chapter: Chapter
) -> None:
    needs(name)
    before = value_of(name)
    with pytest.raises(SettingError, match=rf"the kernel refuses {name} {value} \(Invalid argument"):
        apply({name: value}, [], chapter)
    chapter.undo()
    assert value_of(name) == before


@pytest.mark.parametrize(
    ("scheduler", "own"),
    [
        ("none", {"nr_requests": 64}),
        ("mq-deadline", {"nr_requests": 64, "iosched/async_depth": 20, "iosched/read_expire": 400}),
        ("kyber", {"nr_requests": 32, "iosched/read_lat_nsec": 1000000}),
        ("bfq", {"iosched/slice_idle_us": 8500, "iosched/low_latency": 0}),
    ],
)
@pytest.mark.parametrize(
    "level",
    [
        {"nr_requests": 48, "scheduler": "kyber"},
        {"scheduler": "bfq"},
        {"nr_requests": 48},
        {"scheduler": "none"},
    ],
    ids=str,
)
def test_a_scheduler_comes_back_with_its_own_settings(
    scheduler: str, own: dict[str, int], level: dict[str, int | str], disk: str, journal: Journal
) -> None:
    offered(disk, "none", "mq-deadline", "kyber", "bfq")
    pristine = queue_state(disk)
    try:
        set_queue(disk, {"scheduler": scheduler, **own})
        before = queue_state(disk)
        assert {name: before[name] for name in own} == {name: str(value) for name, value in own.items()}
        told = apply(level, [disk], journal.chapter())
        assert told.items() >= {name: str(value) for name, value in level.items()}.items()
        assert journal.undo() == []
        assert queue_state(disk) == before
    finally:
        default_scheduler(disk, pristine)


@pytest.mark.parametrize("name", ["transparent_hugepage", "transparent_hugepage.defrag"])
def test_huge_pages(name: str, chapter: Chapter) -> None:
    file = Path("/sys/kernel/mm/transparent_hugepage") / ("defrag" if "." in name else "enabled")
    if words := check({f"{name}?": "never"}, []):
        pytest.skip(words[0])
    before = file.read_text()
    for choice in ("never", "madvise", "always"):
        assert apply({name: choice}, [], chapter) == {name: choice}
        assert f"[{choice}]" in file.read_text()
    chapter.undo()
    assert file.read_text() == before
    with pytest.raises(PreflightError, match=f"{name} .it offers always, .*, not sometimes"):
        check({name: "sometimes"}, [])


NUMBERS = {
    "vm.swappiness": (0, 100),
    "vm.vfs_cache_pressure": (1, 200),
    "vm.zone_reclaim_mode": (0, 3),
    "read_ahead_kb": (1, 50),
    "nr_requests": (4, 100),
    "rq_affinity": (0, 2),
    "nomerges": (0, 2),
}
CHANGES = st.lists(
    st.one_of(
        st.sampled_from(list(NUMBERS)).flatmap(
            # read-ahead is in whole pages
            lambda n: st.integers(*NUMBERS[n]).map(lambda v: {n: v * 64 if n == "read_ahead_kb" else v})
        ),
        st.sampled_from(["none", "mq-deadline", "kyber", "bfq"]).map(lambda v: {"scheduler": v}),
        st.sampled_from(["always", "madvise", "never"]).map(lambda v: {"transparent_hugepage": v}),
        st.integers(5, 50).map(lambda v: {"vm.dirty_background_ratio": v}),
        st.integers(1 << 20, 1 << 30).map(lambda v: {"vm.dirty_background_bytes": v & ~4095}),
    ),
    max_size=5,
)


@given(first=CHANGES, second=CHANGES)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_set_in_whatever_state_undoing_it_brings_that_state_back(
    first: list[dict[str, int | str]], second: list[dict[str, int | str]], disk: str, tmp_path: Path
) -> None:
    needs(*(name for name in NUMBERS if "." in name), *PAIRS, *PAIRS.values())
    offered(disk, "none", "mq-deadline", "kyber", "bfq")
    if words := check({"transparent_hugepage?": "never"}, []):
        pytest.skip(words[0])

    def state() -> object:
        names = [*(n for n in NUMBERS if "." in n), *PAIRS, *PAIRS.values()]
        pages = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
        return {name: value_of(name) for name in names}, queue_state(disk), pages

    journal = Journal(tmp_path / "journal")
    seen = []
    with contextlib.ExitStack() as stack:
        for changes in (first, second):
            seen.append(state())
            chapter = stack.enter_context(journal.chapter())
            for change in changes:
                apply(change, [disk], chapter)
        chapter.undo()
        assert state() == seen[1]
    assert state() == seen[0]
    assert journal.standing() == []


@contextlib.contextmanager
def ordinary_user() -> Iterator[None]:
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(was)


def test_an_ordinary_user_is_told_that_only_root_may(tmp_path: Path) -> None:
    names = ["vm.swappiness", "transparent_hugepage"]
    if lacking := [name for name, why in survey([]) if name in names and why and "lacks" in why]:
        pytest.skip(f"this kernel lacks {lacking[0]}")
    level = {"vm.swappiness": 0, "transparent_hugepage": "never"}
    with (
        ordinary_user(),
        pytest.raises(
            PreflightError,
            match=r": vm.*\(only root.*\), trans.*\(only root may set it\);",
        ),
    ):
        check(level, [])
