"""Each change to the host is undone for real, twice over, and when it was never made."""

import os
import subprocess
from pathlib import Path

import pytest
from clusters import eventually
from host_parts import GROUPS
from needs import root
from pydantic import ValidationError

from benchlib.errors import StudyError
from benchlib.host import changes
from benchlib.host.changes import Attached, Grouped, Made, Mounted, Written, loop_devices, write_kernel_file

CAPS = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")


@pytest.fixture
def folder(tmp_path):
    """A run's folder."""
    (tmp_path / "run-x").mkdir(mode=0o700)
    return tmp_path / "run-x"


# --- what is noted ------------------------------------------------------------------

NOT_OURS = ("/", "/sys/fs/cgroup", "/tmp/benchlib-x/..", "benchlib-here", "/benchlib/x")


@pytest.mark.parametrize(
    "change",
    [
        Written(path=Path("/proc/sys/vm/never-was"), former="1", value="2"),
        Written(path=Path("/sys/block/gone9/queue/scheduler"), former="1", value="2"),
        Mounted(target=Path("/never/run-x/mount")),
        Attached(file=Path("/benchlib-never/file")),
        Grouped(folder=Path("/sys/fs/cgroup/benchlib-never")),
        Made(folder=Path("/benchlib-never")),
    ],
    ids=str,
)
def test_what_was_never_made_or_has_gone_needs_nothing(change):
    change.undo()


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Written, {"path": "/etc/passwd", "former": "theirs", "value": "x"}),
        (Written, {"path": "/proc/sys/../../etc/passwd", "former": "theirs", "value": "x"}),
        (Written, {"path": "/sys/kernel/uevent_helper", "former": "", "value": "x"}),
        # to slow a disk for all
        (Written, {"path": CAPS, "former": "254:0 0", "value": "254:0 4096"}),
        (Written, {"path": CAPS, "former": "7:1 0", "value": "7:2 4096"}),
        (Written, {"path": CAPS, "former": "0", "value": "7:1 4096"}),
        (Written, {"path": CAPS.parent / "group" / CAPS.name, "former": "7:1 0", "value": "7:1 4096"}),
        (Mounted, {"target": "/proc"}),
        (Mounted, {"target": "/benchlib-x"}),
        (Attached, {"file": "/etc/passwd"}),
        (Grouped, {"folder": "/somewhere/benchlib-x"}),
        *((kind, {"folder": folder}) for kind in (Grouped, Made) for folder in NOT_OURS),
    ],
)
def test_no_note_can_have_us_touch_what_is_not_ours(kind, fields):
    with pytest.raises(ValidationError, match=r"begins with|files that levers set|for a loop device"):
        kind.model_validate(fields)


# --- kernel files -------------------------------------------------------------------


@root
@pytest.mark.skipif(not CAPS.exists(), reason="no control groups of version 1 here")
def test_a_loop_device_that_is_capped_for_all_is_free_again(disk):
    number = (Path("/sys/class/block") / loop_devices(disk)[0].name / "dev").read_text().strip()
    change = Written(path=CAPS, former=f"{number} 0", value=f"{number} 4096")
    for undo in (change.undo, change.lift):
        write_kernel_file(CAPS, f"{number} 8192")
        undo()
        assert f"{number} 8192" in CAPS.read_text().splitlines(), "somebody else's by now"
        write_kernel_file(CAPS, change.value)
        for _ in range(2):
            undo()
            assert f"{number} " not in CAPS.read_text()


# --- mounts -------------------------------------------------------------------------


@root
@pytest.mark.parametrize(
    ("name", "times", "held"),
    [("m", 1, True), ("twice", 2, False), ("a space, back\\slash, tab\t, line\n and ümlaut", 1, False)],
)
def test_a_mount_is_undone_even_a_held_one(name, times, held, mount, folder, start, monkeypatch):
    monkeypatch.setattr(changes, "_PATIENCE_S", 0.5)
    for _ in range(times):
        mount(folder / name)
    assert changes.mounts_below(folder) == [folder / name] * times
    holder = start("sleep", "99", cwd=folder / name if held else folder)
    for _ in range(2):
        Mounted(target=folder / name).undo()
        assert not changes.is_mounted(folder / name)
    assert holder.poll() is None, "without harm"


# --- loop devices -------------------------------------------------------------------


@pytest.fixture
def disk(run, folder):
    """A file with two loop devices over it."""
    file = folder / "a disk"
    file.touch()
    os.truncate(file, 8 << 20)
    for _ in range(2):
        run("losetup", "--find", file)
    yield file
    for device in loop_devices(file):
        subprocess.run(["losetup", "--detach", device], check=True)


@root
@pytest.mark.parametrize("deleted", [False, True])
def test_loop_devices_over_a_file_go_and_a_used_one_is_named(deleted, disk, run, mount, monkeypatch):
    used, unused = loop_devices(disk)
    run("mkfs.ext4", "-q", used)
    target = mount(disk.parent / "m", str(used))
    if deleted:
        disk.unlink()
    with monkeypatch.context() as impatient:
        impatient.setattr(changes, "_PATIENCE_S", 1.0)
        with pytest.raises(StudyError, match=f"{used} over .* cannot be detached") as caught:
            Attached(file=disk).undo()
    assert str(unused) not in str(caught.value)
    Mounted(target=target).undo()
    for _ in range(2):
        Attached(file=disk).undo()
        assert loop_devices(disk) == []


# --- control groups -----------------------------------------------------------------


@root
@pytest.mark.parametrize("above", GROUPS, ids=str)
def test_a_control_group_goes_with_all_in_it(above, group, start):
    outer = group(above)
    inner = outer / "inner" / "innermost"
    inner.mkdir(parents=True)
    sleepers = [start("sleep", "99") for _ in range(3)]
    for sleeper, folder in zip(sleepers, (inner, inner, inner.parent), strict=True):
        (folder / "cgroup.procs").write_text(str(sleeper.pid))
    for _ in range(2):
        Grouped(folder=outer).undo()
        assert not outer.exists()
    assert [sleeper.wait(60) for sleeper in sleepers] == [-9, -9, -9]


@root
@pytest.mark.skipif(not CAPS.exists(), reason="no control groups of version 1 here")
def test_what_waits_for_its_share_of_the_disk_dies_at_once(group, tmp_path, start):
    capped, device = group(CAPS.parent), tmp_path.stat().st_dev
    try:
        cap = f"{os.major(device)}:{os.minor(device)} 1"
        write_kernel_file(capped / "blkio.throttle.write_iops_device", cap)
    except OSError as reason:
        pytest.skip(f"no cap on the disk of {tmp_path}: {reason}")
    script = 'echo $$ > $1/cgroup.procs; exec dd if=/dev/zero of="$2" bs=64k count=1000 oflag=direct'
    writers = [start("sh", "-c", script, "sh", capped, tmp_path / str(n)) for n in range(9)]
    assert eventually(lambda: len((capped / "cgroup.procs").read_text().split()) == 9)
    assert [writer.poll() for writer in writers] == [None] * 9
    # without the caps lifted it would give up: each waits a second for its turn
    Grouped(folder=capped).undo()
    assert [writer.wait(60) for writer in writers] == [-9] * 9


# --- folders ------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path):
    change = Made(folder=tmp_path / "benchlib-x")
    change.make()
    return change


def test_a_folder_of_ours_goes_with_all_in_it_and_no_link_is_followed(made, tmp_path):
    with pytest.raises(StudyError, match=r"cannot make the folder .*benchlib-x \(File exists\)"):
        made.make()  # it is never taken over
    outside = tmp_path / "somebody's"
    outside.mkdir()
    (outside / "file").touch()
    (made.folder / "data" / "deep").mkdir(parents=True)
    for link in ("link", "data/link"):
        (made.folder / link).symlink_to(outside)
    for _ in range(2):
        made.undo()
        assert not made.folder.exists()
    made.folder.symlink_to(outside)
    made.undo()
    assert (outside / "file").exists()


@root
def test_a_folder_with_a_mount_in_it_is_not_removed(made, mount):
    target = mount(made.folder / "m")
    (target / "precious").touch()
    with pytest.raises(StudyError, match=f"a file system is mounted on {target}"):
        made.undo()
    assert (target / "precious").exists()
    Mounted(target=target).undo()
    made.undo()
