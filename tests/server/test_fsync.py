"""pg_test_fsync on a real folder: what it measures, and what it leaves."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchlib.errors import ServerError
from benchlib.host.shell import Completed, Shell, server_user
from benchlib.server import fsync
from benchlib.server.fsync import flushes_per_s, fsync_rates
from benchlib.server.installations import Installation

FOUND = {
    "methods": [
        {"section": "Compare file sync methods using one 8kB write", "method": "fdatasync", "ops_per_s": 80.3},
        {"section": "Compare file sync methods using one 8kB write", "method": "fsync_writethrough", "ops_per_s": None},
        {"section": "Compare file sync methods using two 8kB writes", "method": "fdatasync", "ops_per_s": 40.0},
        {"section": "Compare file sync methods using two 8kB writes", "method": "open_sync", "ops_per_s": 40.0},
    ]
}  # fmt: skip


def test_a_commit_flushes_one_page() -> None:
    assert flushes_per_s(FOUND, "fdatasync") == 80.3
    assert flushes_per_s(FOUND, "fsync_writethrough") is None, "Linux has no such method"
    assert flushes_per_s(FOUND, "open_sync") is None
    assert flushes_per_s(FOUND, "open_datasync") is None


@pytest.mark.pg
@pytest.mark.slow
def test_a_folder_s_device_is_measured_and_nothing_is_left(
    installed: Callable[[str], Installation], scratch: Path
) -> None:
    shell = Shell(server_user())
    folder = shell.make_directory(scratch / "here")
    found = fsync_rates(shell, installed("18").program("pg_test_fsync"), folder)
    assert found["complete"]
    assert found["seconds_per_test"] == 1
    assert (flushes_per_s(found, "fdatasync") or 0) > 1
    assert list(folder.iterdir()) == []


@pytest.mark.pg
def test_a_folder_that_is_not_ours_is_told(installed: Callable[[str], Installation], scratch: Path) -> None:
    with pytest.raises(ServerError, match=r"pg_test_fsync failed: .*could not open output file"):
        fsync_rates(Shell(server_user()), installed("18").program("pg_test_fsync"), scratch / "nowhere")


def test_its_file_goes_even_when_it_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(self: Shell, argv: list[str], **options: object) -> Completed:
        Path(argv[1].removeprefix("--filename=")).write_text("x")
        raise KeyboardInterrupt

    monkeypatch.setattr(fsync.Shell, "run", stopped)
    with pytest.raises(KeyboardInterrupt):
        fsync_rates(Shell(), Path("pg_test_fsync"), tmp_path)
    assert list(tmp_path.iterdir()) == []
