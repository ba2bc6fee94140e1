"""Which block devices a folder is on: seen on real file systems over loop devices, and in a made-up sysfs."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchlib.errors import PreflightError
from benchlib.host import devices
from benchlib.host.devices import block_devices, number, queue_of


def run(*argv: str | Path) -> str:
    return subprocess.run([*map(str, argv)], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Attaches loop devices over files of 320 MiB; gives their names."""
    if os.geteuid() != 0:
        pytest.skip("only root can attach loop devices")
    attached: list[str] = []

    def attach() -> str:
        file = tmp_path / f"disk{len(attached)}"
        with file.open("wb") as out:
            out.truncate(320 << 20)
        try:
            attached.append(run("losetup", "--find", "--show", file))
        except (OSError, subprocess.CalledProcessError) as reason:
            pytest.skip(f"no loop devices here: {reason}")
        return Path(attached[-1]).name

    yield attach
    for device in attached:
        run("losetup", "--detach", device)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    folders: list[Path] = []

    def make(kind: str, source: str) -> Path:
        folder = tmp_path / f"mounted{len(folders)}"
        folder.mkdir()
        try:
            run("mount", "-t", kind, source, folder)
        except subprocess.CalledProcessError as reason:
            pytest.skip(f"cannot mount {kind} here: {reason.stderr.strip()}")
        folders.append(folder)
        return folder

    yield make
    for folder in folders:
        run("umount", folder)


def make_file_system(kind: str, *names: str) -> None:
    try:
        run(f"mkfs.{kind}", "-q", *(f"/dev/{name}" for name in names))
    except FileNotFoundError:
        pytest.skip(f"no mkfs.{kind} here")


def test_a_file_system_is_on_the_device_that_it_was_made_on(
    loop: Callable[[], str], mount: Callable[..., Path]
) -> None:
    name = loop()
    make_file_system("ext4", name)
    folder = mount("ext4", f"/dev/{name}")
    (folder / "below").mkdir()
    assert block_devices(folder / "below") == [name]
    device = Path(f"/dev/{name}").stat().st_rdev
    assert number(name) == f"{os.major(device)}:{os.minor(device)}"
    assert queue_of(name) == name


def test_btrfs_over_two_devices_is_on_both(loop: Callable[[], str], mount: Callable[..., Path]) -> None:
    names = [loop(), loop()]
    make_file_system("btrfs", *names)
    folder = mount("btrfs", f"/dev/{names[1]}")
    run("btrfs", "subvolume", "create", folder / "volume")
    for path in (folder, folder / "volume"):  # a subvolume has a device number of its own
        assert block_devices(path) == sorted(names)


def test_what_the_kernel_makes_up_is_on_no_device() -> None:
    folder = next((path for path in map(Path, ("/proc", "/dev/shm")) if path.exists()), None)
    assert folder is None or block_devices(folder) == []


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match=r"absent: No such file"):
        block_devices(tmp_path / "absent")
    for ask in (queue_of, number):
        with pytest.raises(PreflightError, match="there is no block device 'sdzz' here"):
            ask("sdzz")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A sysfs with a disk ``sda`` and its partition ``sda1``."""
    disk = tmp_path / "root/sys/devices/pci/block/sda"
    (disk / "sda1").mkdir(parents=True)
    (disk / "dev").write_text("8:0\n")
    (disk / "sda1/dev").write_text("8:1\n")
    (disk / "sda1/partition").write_text("1\n")
    for folder in ("class/block", "dev/block"):
        (tmp_path / "root/sys" / folder).mkdir(parents=True)
    for place in (disk, disk / "sda1"):
        (tmp_path / "root/sys/class/block" / place.name).symlink_to(place)
        (tmp_path / "root/sys/dev/block" / (place / "dev").read_text().strip()).symlink_to(place)
    return tmp_path / "root"


def test_a_partition_is_named_itself_and_its_queue_is_its_disks(root: Path, tmp_path: Path) -> None:
    here = tmp_path.stat().st_dev
    (root / f"sys/dev/block/{os.major(here)}:{os.minor(here)}").symlink_to(
        (root / "sys/class/block/sda1").resolve()
    )
    assert block_devices(tmp_path, root=root) == ["sda1"]
    assert queue_of("sda1", root=root) == "sda"
    assert queue_of("sda", root=root) == "sda"
    assert number("sda1", root=root) == "8:1"


def test_a_mount_hides_the_one_before_it(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overlays name no device, and neither does what merely looks like a path."""
    (tmp_path / "inner").mkdir()
    parts = [("/", "/dev/sda1"), (str(tmp_path), str(tmp_path)), (str(tmp_path), "overlay")]
    mounts = [SimpleNamespace(mountpoint=point, device=device) for point, device in parts]
    monkeypatch.setattr(devices.psutil, "disk_partitions", lambda all: mounts)
    assert block_devices(tmp_path / "inner", root=root) == []
    mounts.pop()
    assert block_devices(tmp_path / "inner", root=root) == [], "a folder is no device"
