"""Which block devices a folder is on: seen on real file systems over loop devices, and in a made-up sysfs."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchlib.errors import PreflightError
from benchlib.host import facts
from benchlib.host.facts import block_devices, counted_once, disks_below, number, queue_of


@pytest.fixture
def file_system(
    run: Callable[..., str], mount: Callable[..., Path], tmp_path: Path
) -> Iterator[Callable[[str, int], tuple[list[str], Path]]]:
    """Makes a file system over so many loop devices; gives their names and where it is mounted."""
    loops: list[str] = []

    def make(kind: str, disks: int) -> tuple[list[str], Path]:
        for file in (tmp_path / f"disk{n}" for n in range(disks)):
            file.touch()
            os.truncate(file, 320 << 20)
            loops.append(run("losetup", "--find", "--show", file))
        run(f"mkfs.{kind}", "-q", *loops)
        return [Path(loop).name for loop in loops], mount(tmp_path / "mounted", loops[-1])

    yield make
    for loop in loops:
        run("losetup", "--detach", loop)  # goes with the mount


def test_a_file_system_is_on_the_device_that_it_was_made_on(
    file_system: Callable[[str, int], tuple[list[str], Path]], tmp_path: Path
) -> None:
    (name,), folder = file_system("ext4", 1)
    (folder / "below").mkdir()
    assert block_devices(folder / "below") == [name]
    device = Path(f"/dev/{name}").stat().st_rdev
    assert number(name) == f"{os.major(device)}:{os.minor(device)}"
    assert queue_of(name) == name
    disks = {queue_of(device) for device in block_devices(tmp_path)}
    assert disks_below(name) == sorted(disks)
    below = tuple(block_devices(tmp_path))
    assert counted_once([name, *below]) == (below or (name,))
    assert counted_once([name]) == (name,)
    assert [disks_below(disk) for disk in disks if not disk.startswith(("loop", "dm-", "md"))] in ([], [[]])


def test_btrfs_over_two_devices_is_on_both(
    file_system: Callable[[str, int], tuple[list[str], Path]], run: Callable[..., str]
) -> None:
    names, folder = file_system("btrfs", 2)
    run("btrfs", "subvolume", "create", folder / "volume")
    for path in (folder, folder / "volume"):  # a subvolume has a device number of its own
        assert block_devices(path) == sorted(names)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match=r"absent \(No such file"):
        block_devices(tmp_path / "absent")
    for ask in (queue_of, number):
        with pytest.raises(PreflightError, match="there is no block device 'sdzz' here"):
            ask("sdzz")


def test_a_partition_is_named_itself_and_its_queue_is_its_disks(kernel_root: Path) -> None:
    root, here = kernel_root, kernel_root.stat().st_dev
    disk, partition = root / "sys/class/block/sda", root / "sys/class/block/sda1"
    (root / "real/sda/sda1").mkdir(parents=True)
    (root / "real/sda/sda1/dev").write_text("8:1\n")
    (root / "real/sda/sda1/partition").write_text("1\n")
    for folder in (disk.parent, root / "sys/dev/block"):
        folder.mkdir(parents=True)
    disk.symlink_to(root / "real/sda")
    partition.symlink_to(root / "real/sda/sda1")
    (root / f"sys/dev/block/{os.major(here)}:{os.minor(here)}").symlink_to(partition.resolve())
    assert block_devices(root) == ["sda1"]
    assert queue_of("sda1") == queue_of("sda") == "sda"
    assert number("sda1") == "8:1"


@pytest.mark.parametrize("source", ["overlay", "/"])
def test_what_is_mounted_of_no_device_is_on_none(
    source: str, kernel_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = [SimpleNamespace(mountpoint="/", device=source)]
    monkeypatch.setattr(facts.psutil, "disk_partitions", lambda all: mounts)
    assert block_devices(kernel_root) == []
