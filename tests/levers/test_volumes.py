"""Places are made for real, bear what was asked for, and go without a trace, however the run ends."""

import contextlib
import os
import pwd
import signal
import stat
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from clusters import begun, eventually, remains

from benchlib.errors import PreflightError, TrialError
from benchlib.host.changes import loop_devices
from benchlib.host.guardian import guarded_run
from benchlib.host.journal import Chapter, Journal
from benchlib.host.lock import LOCK_VARIABLE
from benchlib.host.shell import Shell, server_user
from benchlib.levers import volumes
from benchlib.levers.volumes import FileSystem, Place

pytestmark = pytest.mark.root
SIZES = {"ext4": "32MB", "xfs": "304MB", "btrfs": "128MB", "tmpfs": "16MB"}
GIVEN = [Place(file_system=kind, size=size, mount_options="noatime") for kind, size in SIZES.items()]


@pytest.fixture(scope="module")
def possible() -> None:
    """Skips where no file system can be made, with the reason."""
    try:
        volumes.check(GIVEN[3], Path("/var/tmp"))
    except PreflightError as reason:
        pytest.skip(str(reason))


@pytest.fixture
def root_only(possible: None) -> None:
    pass


@pytest.fixture
def disk(scratch: Path) -> Path:
    """A folder as a user would name one, outside the run's."""
    folder = scratch / "disk"
    folder.mkdir(mode=0o755)
    return folder


@pytest.fixture
def run(scratch: Path) -> Path:
    folder = scratch / "run-x"
    folder.mkdir(mode=0o711)
    return folder


@pytest.fixture
def chapter(run: Path) -> Iterator[Chapter]:
    with Journal(run / "journal").chapter() as chapter:
        yield chapter


def mount_line(folder: Path) -> list[str]:
    """Device, type and options of the file system that is mounted on a folder."""
    lines = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return next([words[0], words[2], words[3]] for words in lines if words[1] == str(folder))


def hidden_loops() -> list[str]:
    """Loop devices over a trial's image, which is no path that anyone else sees."""
    texts = []
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # detached between the two looks
            texts.append(file.read_text().strip())
    return [text for text in texts if text == "/tmp/image"]


def test_a_given_folder_gets_a_private_subfolder_which_goes(disk: Path, run: Path, chapter: Chapter) -> None:
    place = Place(path=f"{disk}/../{disk.name}")
    volumes.check(place, run)
    shell = Shell(server_user())
    (disk / "theirs").write_text("kept")
    first, second = (volumes.provide(place, "data", run, shell, chapter) for _ in range(2))
    assert first != second
    for folder in (first, second):
        assert folder.is_relative_to(disk)
        assert list(folder.iterdir()) == []
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert shell.run(["touch", folder / "file"]).returncode == 0
    chapter.undo()
    assert [path.name for path in disk.iterdir()] == ["theirs"]


@pytest.mark.parametrize("place", GIVEN, ids=SIZES)
def test_a_file_system_is_made_as_asked_and_goes(
    place: Place, root_only: None, scratch: Path, disk: Path, run: Path, chapter: Chapter
) -> None:
    if place.file_system == "ext4":
        place = place.model_copy(update={"path": str(disk)})
    try:
        volumes.check(place, run)
    except PreflightError as reason:
        pytest.skip(str(reason))
    shell = Shell(server_user())
    folder = volumes.provide(place, "data", run, shell, chapter)
    device, kind, options = mount_line(folder.parent)
    assert kind == place.file_system
    assert "noatime" in options.split(",")
    assert folder.is_relative_to(run)
    assert list(folder.iterdir()) == []
    found = folder.stat()
    assert stat.S_IMODE(found.st_mode) == 0o700
    assert pwd.getpwuid(found.st_uid).pw_name == server_user()
    assert shell.run(["touch", folder / "file"]).returncode == 0
    room = os.statvfs(folder)
    assert 0.2 * int(place.size or 0) < room.f_blocks * room.f_frsize <= int(place.size or 0)
    if kind != "tmpfs":
        assert Path(f"/sys/block/{Path(device).name}/loop/dio").read_text().strip() == "1"
        (image,) = Path(place.path or run).rglob("image-*")
        assert image.stat().st_blocks * 512 >= int(place.size or 0), "no block of it is still to be had"
        assert stat.S_IMODE(image.stat().st_mode) == 0o600, "the server's data are nobody else's business"
        assert loop_devices(image) == [Path(device)]
    chapter.undo()
    assert list(disk.iterdir()) == remains(scratch) == []


def test_the_file_below_a_file_system_that_has_gone_serves_the_next_of_its_size(
    root_only: None, run: Path
) -> None:
    images = []
    for sizes in (["16MB", "24MB"], ["16MB"], ["24MB", "16MB"], ["32MB"]):
        with Journal(run / "journal").chapter() as one:
            for size in sizes:
                place = Place(file_system="ext4", size=size)
                folder = volumes.provide(place, "data", run, Shell(server_user()), one)
                assert list(folder.iterdir()) == []
                (folder / "file").write_text("theirs")
        images.append({(image.stat().st_size >> 20, image.name) for image in run.glob("image-*")})
    assert images[0] == images[1] == images[2]
    assert [size for size, _ in images[3]] == [32], "what none of a level's places can use makes room"


def dying(run: Path, steps: int) -> None:
    """Make a place, and be gone after so many steps; in a process of its own."""
    run_program = volumes._run

    def dies(*args: Any) -> Any:
        nonlocal steps
        steps -= 1
        if steps < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return run_program(*args)

    volumes._run = dies
    place, chapter = Place(path=str(run), file_system="ext4", size="16MB"), Journal(run / "journal").chapter()
    volumes.provide(place, "data", run, Shell(server_user()), chapter)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("steps", "remaining"), [(3, 1), (5, 2), (6, 3)])
def test_a_kill_at_any_step_leaves_nothing_that_the_journal_does_not_undo(
    steps: int, remaining: int, root_only: None, scratch: Path, run: Path
) -> None:
    doomed = begun(dying, run, steps)
    doomed.join()
    assert doomed.exitcode == -signal.SIGKILL
    assert len(remains(scratch)) == remaining
    assert Journal(run / "journal").undo() == []
    assert remains(scratch) == []


def provide_again_and_again(runs: Path, disk: Path, ready: Connection) -> None:
    """Make places in a guarded run."""
    place = Place(path=str(disk), file_system="ext4", size="256MB")
    with guarded_run(runs, "doomed") as run:
        ready.send(None)
        while True:
            with run.journal.chapter() as chapter:
                volumes.provide(place, "data", run.folder, Shell(server_user()), chapter)


def test_the_guardian_leaves_nothing_of_a_place_that_is_being_made(
    root_only: None, scratch: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOCK_VARIABLE, str(scratch / "lock"))
    told, ready = Pipe(duplex=False)
    doomed = begun(provide_again_and_again, scratch / "runs", disk, ready)
    told.recv()
    time.sleep(0.2)
    doomed.kill()
    doomed.join()
    assert eventually(lambda: not list((scratch / "runs").glob("run-*")))
    assert remains(scratch) == []
    assert list(disk.iterdir()) == []


def test_trying_leaves_nothing_even_when_killed(root_only: None, scratch: Path, run: Path) -> None:
    doomed = begun(volumes.check, Place(file_system="ext4", size="64MB"), run)
    time.sleep(0.03)
    doomed.kill()
    doomed.join()
    assert eventually(lambda: not hidden_loops())
    assert remains(scratch) == []
    assert list(run.iterdir()) == []


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_options_that_the_file_system_refuses_are_told_in_its_words(
    kind: FileSystem, root_only: None, run: Path
) -> None:
    place = Place(file_system=kind, size="32MB", mount_options="noatime,nonsense=1")
    with pytest.raises(PreflightError, match=r"mount: .*mount options"):
        volumes.check(place, run)
    assert list(run.iterdir()) == []


@pytest.mark.parametrize("path", ["/nowhere/at/all", "/etc/passwd"])
def test_a_folder_that_will_not_do_is_refused(path: str, run: Path) -> None:
    with pytest.raises(PreflightError, match=f"the place {path} is no folder that we can write to: make it"):
        volumes.check(Place(path=path), run)


def test_a_folder_that_the_servers_user_cannot_enter_is_refused(
    root_only: None, disk: Path, run: Path
) -> None:
    disk.chmod(0o700)
    with pytest.raises(
        PreflightError, match=f"the servers' user {server_user()} cannot enter the place {disk}"
    ):
        volumes.check(Place(path=str(disk)), run)
    volumes.check(Place(path=str(disk), file_system="ext4", size="16MB"), run)


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_more_than_there_is_room_for_is_refused(kind: FileSystem, root_only: None, run: Path) -> None:
    with pytest.raises(
        PreflightError, match=r"does not fit: [\d,]+ MiB (under|of memory).* are free: name a smaller"
    ):
        volumes.check(Place(file_system=kind, size="900TB"), run)


def test_a_disk_that_is_full_by_then_is_told_and_left_as_it_was(
    root_only: None, scratch: Path, disk: Path, run: Path, chapter: Chapter
) -> None:
    shell = Shell(server_user())
    small = volumes.provide(
        Place(path=str(disk), file_system="ext4", size="16MB"), "small", run, shell, chapter
    )
    os.chown(small, 0, 0)  # the servers' own would be refused
    place = Place(path=str(small), file_system="ext4", size="32MB")
    with pytest.raises(PreflightError, match=f"does not fit: .*under {small}"):
        volumes.check(place, run)
    inner = Journal(run / "inner").chapter()
    with pytest.raises(
        TrialError, match=r"there is no place for the server, so make room .*No space left on device"
    ):
        volumes.provide(place, "data", run, shell, inner)
    inner.undo()
    assert list(small.iterdir()) == []
