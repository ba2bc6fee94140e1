"""Files are touched by descriptor, in trusted folders, and no link is followed."""

import os
from collections.abc import Callable
from pathlib import Path

import needs
import pytest

from benchlib.errors import PreflightError
from benchlib.host import files

STRANGER = 65534
ACTS: dict[str, Callable[[Path], object]] = {
    "write": lambda path: files.write(path, "x"),
    "make": files.make,
    "give": lambda path: files.give(path, user=STRANGER),
    "remove": files.remove,
    "rename": lambda path: files.rename(path, path.with_name("other")),
    "opened": files.opened,
    "listed": lambda path: files.listed(path.parent),
}


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A folder beside a link to it, with a file."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("before")
    (tmp_path / "link").symlink_to("real")
    return tmp_path


def test_a_file_is_written_whole_and_replaces_a_link(linked: Path) -> None:
    (linked / "name").symlink_to("real/file")
    files.write(linked / "name", "after")
    assert (linked / "name").read_text() == "after"
    assert not (linked / "name").is_symlink()
    assert (linked / "real" / "file").read_text() == "before"
    assert sorted(path.name for path in linked.iterdir()) == ["link", "name", "real"], (
        "nothing pending is left"
    )


def test_what_fails_leaves_the_former_content(linked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(OSError, match="No space left"):
        files.write(linked / "real" / "file", "after")
    assert [path.name for path in (linked / "real").iterdir()] == ["file"]
    assert (linked / "real" / "file").read_text() == "before"


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_APPEND])
def test_a_file_that_is_a_link_or_has_two_names_is_not_opened(linked: Path, flags: int) -> None:
    (linked / "name").symlink_to("real/file")
    with pytest.raises(OSError, match="symbolic link"):
        files.opened(linked / "name", flags)
    (linked / "twin").hardlink_to(linked / "real" / "file")
    with pytest.raises(PreflightError, match="one name"):
        files.opened(linked / "twin", flags)
    os.mkfifo(linked / "pipe")
    with pytest.raises((PreflightError, OSError)):
        os.close(files.opened(linked / "pipe", flags))


def test_what_is_removed_is_the_link_and_not_what_it_leads_to(linked: Path) -> None:
    (linked / "real" / "inner").symlink_to(linked)
    files.remove(linked / "link")
    files.remove(linked / "never")
    assert (linked / "real" / "file").exists()
    files.remove(linked / "real")
    assert [*linked.iterdir()] == []


def test_a_linked_folder_is_not_trusted(linked: Path) -> None:
    assert files.trusted(linked / "real")
    assert not files.trusted(linked / "link")
    assert not files.trusted(linked / "never")
    assert not files.trusted(linked / "real" / "file")


def test_a_folder_that_others_may_write_to_is_not_trusted(linked: Path) -> None:
    (linked / "real").chmod(0o777)
    assert not files.trusted(linked / "real")
    (linked / "real").chmod(0o1777)
    assert files.trusted(linked / "real"), "a sticky one, as /tmp"


@needs.root
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("way", ["theirs", "below theirs", "their link"])
def test_root_acts_in_no_folder_of_somebody_else_s(act: str, way: str, linked: Path) -> None:
    target = {
        "theirs": linked / "real",
        "below theirs": linked / "real" / "deep",
        "their link": linked / "link",
    }[way]
    (linked / "real" / "deep").mkdir()
    (linked / "real" / "deep" / "file").write_text("before")
    os.chown(linked / ("link" if way == "their link" else "real"), STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises((PreflightError, OSError)):
        ACTS[act](target / "file")
    assert (linked / "real" / "file").read_text() == "before"
    assert sorted(os.listdir(linked / "real")) == ["deep", "file"]  # noqa: PTH208


@needs.root
def test_files_of_another_user_are_read_without_following_that_user_s_links(linked: Path) -> None:
    (linked / "secret").write_text("secret")
    (linked / "secret").chmod(0o600)
    theirs = linked / "real"
    (theirs / "log").symlink_to(linked / "secret")
    (theirs / "inner").symlink_to(linked)
    os.chown(theirs / "file", STRANGER, STRANGER)
    os.chown(theirs, STRANGER, STRANGER)
    for path in (theirs / "log", theirs / "inner" / "secret"):
        with pytest.raises(OSError, match=r"symbolic link|Not a directory"):
            files.opened(path, owner=STRANGER)
    with os.fdopen(files.opened(theirs / "file", owner=STRANGER)) as file:
        assert file.read() == "before"
    assert len([*files.plain_files(theirs)]) == 1
