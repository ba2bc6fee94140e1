"""Places are made for real, bear what was asked for, and go without a trace, however the run ends."""

import os
import signal
import stat
from pathlib import Path

import needs
import pytest
from clusters import begun, remains

from benchlib.errors import PreflightError, TrialError
from benchlib.host.changes import loop_devices
from benchlib.host.journal import Journal
from benchlib.host.shell import Shell, server_user
from benchlib.levers import volumes
from benchlib.levers.volumes import Place

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("possible")]
SIZES = {"ext4": "32MB", "xfs": "304MB", "btrfs": "128MB", "tmpfs": "16MB"}
MEMORY = {"file_system": "tmpfs", "size": "16MB"}
IMAGE = {"file_system": "ext4", "size": "16MB"}


@pytest.fixture(scope="module")
def possible():
    """Skips where no file system can be made, with the reason."""
    needs.possible(volumes.check, Place(**MEMORY), Path("/var/tmp"))


@pytest.fixture
def disk(scratch):
    """A folder as a user would name one, outside the run's."""
    folder = scratch / "disk"
    folder.mkdir(mode=0o755)
    return folder


@pytest.fixture
def run(scratch):
    folder = scratch / "run-x"
    folder.mkdir(mode=0o711)
    return folder


@pytest.fixture
def scope(run):
    with Journal(run / "journal").scope() as scope:
        yield scope


def provided(place, run, scope, name="data"):
    """A place that is empty, and that the servers' user alone may use."""
    shell = Shell(server_user())
    folder = volumes.provide(place, name, run, shell, scope)
    assert list(folder.iterdir()) == []
    assert (stat.S_IMODE(folder.stat().st_mode), folder.owner()) == (0o700, server_user())
    shell.do("touch", folder / "file")
    return folder


def test_a_given_folder_gets_a_private_subfolder_which_goes(disk, run, scope):
    place = Place(path=f"{disk}/../{disk.name}")
    volumes.check(place, run)
    (disk / "theirs").write_text("kept")
    first, second = (provided(place, run, scope) for _ in range(2))
    assert first != second
    assert all(disk in folder.parents for folder in (first, second))
    scope.undo()
    assert [path.name for path in disk.iterdir()] == ["theirs"]


@pytest.mark.parametrize("kind", SIZES)
def test_a_file_system_is_made_as_asked_and_goes(kind, scratch, disk, run, scope):
    path = str(disk) if kind == "ext4" else None
    place = Place(file_system=kind, size=SIZES[kind], mount_options="noatime", path=path)
    needs.possible(volumes.check, place, run)
    folder = provided(place, run, scope)
    assert run in folder.parents
    mounts = map(str.split, Path("/proc/mounts").read_text().splitlines())
    ((device, found, options),) = ((m[0], m[2], m[3]) for m in mounts if m[1] == str(folder.parent))
    assert found == kind
    assert "noatime" in options.split(",")
    room, size = os.statvfs(folder), place.size or 0
    assert 0.2 * size < room.f_blocks * room.f_frsize <= size
    if kind != "tmpfs":
        assert Path(f"/sys/block/{Path(device).name}/loop/dio").read_text().strip() == "1"
        (image,) = Path(path or run).rglob("image-*")
        assert image.stat().st_blocks * 512 >= size, "no block of it is still to be had"
        assert stat.S_IMODE(image.stat().st_mode) == 0o600, "the server's data are nobody else's business"
        assert loop_devices(image) == [Path(device)]
    scope.undo()
    assert list(disk.iterdir()) == remains(scratch) == []


def test_the_file_below_a_file_system_that_has_gone_serves_the_next_of_its_size(run):
    images = []
    for sizes in (["16MB", "24MB"], ["16MB"], ["24MB", "16MB"], ["32MB"]):
        with Journal(run / "journal").scope() as one:
            for size in sizes:
                provided(Place(file_system="ext4", size=size), run, one)
        images.append({(image.stat().st_size >> 20, image.name) for image in run.glob("image-*")})
    assert images[0] == images[1] == images[2]
    assert [size for size, _ in images[3]] == [32], "what none of a level's places can use makes room"


def dying(run, steps):
    """Make a place, and be gone after so many steps; in a process of its own."""
    run_program = volumes._run

    def dies(*args):
        nonlocal steps
        steps -= 1
        if steps < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return run_program(*args)

    volumes._run = dies
    provided(Place(**IMAGE, path=str(run)), run, Journal(run / "journal").scope())
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("steps", "remaining"), [(3, 1), (5, 2), (6, 3)])
def test_a_kill_at_any_step_leaves_nothing_that_the_journal_does_not_undo(steps, remaining, scratch, run):
    doomed = begun(dying, run, steps)
    doomed.join()
    assert doomed.exitcode == -signal.SIGKILL
    assert len(remains(scratch)) == remaining
    assert Journal(run / "journal").undo() == []
    assert remains(scratch) == []


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ({**IMAGE, "mount_options": "noatime,nonsense=1"}, r"mount: .*mount are needed"),
        ({**MEMORY, "mount_options": "noatime,nonsense=1"}, r"mount: .*mount are needed"),
        ({**IMAGE, "size": "900TB"}, r"does not fit: [\d,]+ MiB free under "),
        ({**MEMORY, "size": "900TB"}, r"does not fit: [\d,]+ MiB free in memory"),
        ({"path": "/nowhere/at/all"}, "/nowhere/at/all is not a writable directory"),
        ({"path": "/etc/passwd"}, "/etc/passwd is not a writable directory"),
    ],
)
def test_what_cannot_be_provided_is_refused_beforehand(place, why, run):
    with pytest.raises(PreflightError, match=why):
        volumes.check(Place(**place), run)
    assert list(run.iterdir()) == []


def test_a_folder_that_the_servers_user_cannot_enter_is_refused(disk, run):
    disk.chmod(0o700)
    with pytest.raises(PreflightError, match=f"user {server_user()} cannot enter {disk}"):
        volumes.check(Place(path=str(disk)), run)
    volumes.check(Place(**IMAGE, path=str(disk)), run)


def test_a_disk_that_is_full_by_then_is_told_and_left_as_it_was(disk, run, scope):
    small = provided(Place(**IMAGE, path=str(disk)), run, scope, "small")
    (small / "file").unlink()
    os.chown(small, 0, 0)  # the servers' own would be refused
    place = Place(path=str(small), file_system="ext4", size="32MB")
    with pytest.raises(PreflightError, match=f"does not fit: .*under {small}"):
        volumes.check(place, run)
    inner = Journal(run / "inner").scope()
    with pytest.raises(TrialError, match=r"no space for the server's files.*No space left on device"):
        provided(place, run, inner)
    inner.undo()
    assert list(small.iterdir()) == []
