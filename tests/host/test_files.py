"""Files are touched by descriptor, in trusted folders, and no link is followed."""

import os
from unittest.mock import Mock

import needs
import pytest
from host_parts import NOBODY

from benchlib.errors import PreflightError
from benchlib.host import files, page_cache

ACTS = {
    "write": lambda path: files.write(path, "x"),
    "make": files.make,
    "give": lambda path: files.give(path, user=NOBODY),
    "remove": files.remove,
    "rename": lambda path: files.rename(path, path.with_name("other")),
    "opened": files.opened,
    "listed": lambda path: files.listed(path.parent),
}


@pytest.fixture
def linked(tmp_path):
    """A folder beside a link to it, with a file, and beside a link to that file."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("before")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "name").symlink_to("real/file")
    return tmp_path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_whole_and_replaces_a_link(linked):
    files.write(linked / "name", "after")
    assert not (linked / "name").is_symlink()
    assert [(linked / file).read_text() for file in ("name", "real/file")] == ["after", "before"]
    assert names(linked) == ["link", "name", "real"], "nothing pending is left"


def test_what_fails_leaves_the_former_content(linked, monkeypatch):
    monkeypatch.setattr(os, "rename", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        files.write(linked / "real" / "file", "after")
    assert names(linked / "real") == ["file"]
    assert (linked / "real" / "file").read_text() == "before"


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC])
def test_a_file_that_is_a_link_or_has_two_names_is_not_opened(linked, flags):
    with pytest.raises(OSError, match="symbolic link"):
        files.opened(linked / "name", flags)
    (linked / "twin").hardlink_to(linked / "real" / "file")
    with pytest.raises(PreflightError, match="one name"):
        files.opened(linked / "twin", flags)
    assert (linked / "twin").read_text() == "before"
    os.mkfifo(linked / "pipe")
    with pytest.raises((PreflightError, OSError)):
        os.close(files.opened(linked / "pipe", flags))


def test_a_file_that_a_user_names_is_read_if_it_is_plain_and_not_too_large(linked):
    assert files.read_plain(linked / "name", most=6) == b"before"
    os.mkfifo(linked / "pipe")
    places = {"pipe": "no plain file", "/dev/zero": "no plain file", "real": "directory", "name": "more than"}
    for name, reason in places.items():
        with pytest.raises(OSError, match=reason):
            files.read_plain(linked / name, most=5)
    with pytest.raises(OSError, match="symbolic link"):
        files.read_plain(linked / "name", follow=False)


def test_what_is_removed_is_the_link_and_not_what_it_leads_to(linked):
    (linked / "real" / "inner").symlink_to(linked)
    for path in ("link", "name", "never"):
        files.remove(linked / path)
    assert names(linked / "real") == ["file", "inner"]
    files.remove(linked / "real")
    assert names(linked) == []


@pytest.mark.parametrize(
    ("path", "mode", "trusted"),
    [
        ("real", 0o755, True), ("real", 0o1777, True), ("real", 0o777, False),
        ("link", 0o755, False), ("never", 0o755, False), ("real/file", 0o755, False),
    ],
)  # fmt: skip
def test_only_a_real_and_closed_folder_is_trusted(path, mode, trusted, linked):
    (linked / "real").chmod(mode)
    assert files.trusted(linked / path) is trusted


@needs.root
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(
    ("theirs", "folder"), [("real", "real"), ("real", "real/deep"), ("link", "link")], ids=str
)
def test_root_acts_in_no_folder_of_somebody_else_s(act, theirs, folder, linked):
    (linked / "real" / "deep").mkdir()
    (linked / "real" / "deep" / "file").write_text("before")
    os.chown(linked / theirs, NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises((PreflightError, OSError)):
        ACTS[act](linked / folder / "file")
    assert names(linked / "real") == ["deep", "file"]
    assert [file.read_text() for file in linked.rglob("real/**/file")] == ["before", "before"]


@needs.root
def test_files_of_another_user_are_read_without_following_that_user_s_links(linked):
    (linked / "secret").write_text("secret")
    (linked / "secret").chmod(0o600)
    theirs = linked / "real"
    (theirs / "log").symlink_to(linked / "secret")
    (theirs / "inner").symlink_to(linked)
    for path in (theirs / "file", theirs):
        os.chown(path, NOBODY, NOBODY)
    for path in (theirs / "log", theirs / "inner" / "secret"):
        with pytest.raises(OSError, match=r"symbolic link|Not a directory"):
            files.opened(path, owner=NOBODY)
    with os.fdopen(files.opened(theirs / "file", owner=NOBODY)) as file:
        assert file.read() == "before"
    assert len([*files.plain_files(theirs)]) == 1


@needs.linux
def test_what_is_read_is_in_memory_and_what_is_dropped_is_not(scratch):
    (scratch / "below").mkdir()
    (scratch / "empty").touch()
    assert page_cache.resident_share(scratch) == 0
    for number in range(3):
        (scratch / "below" / str(number)).write_bytes(os.urandom((1 << 20) + 1))
    page_cache.fill(scratch)
    filled = page_cache.resident_share(scratch)
    page_cache.evict(scratch)
    assert page_cache.resident_share(scratch) < filled, "what else reads or frees memory is not ours to say"
