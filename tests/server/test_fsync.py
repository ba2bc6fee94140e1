"""pg_test_fsync on a real folder: what it measures, and what it leaves."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchlib.errors import ServerError
from benchlib.host.shell import Shell, server_user
from benchlib.server.installations import Installation
from benchlib.server.statistics import fsync_rates


@pytest.mark.pg
@pytest.mark.long
def test_a_folder_s_device_is_measured_and_nothing_is_left(
    installed: Callable[[str], Installation], scratch: Path
) -> None:
    shell = Shell(server_user())
    folder = shell.make_directory(scratch / "here")
    rates = fsync_rates(shell, installed("18").program("pg_test_fsync"), folder)
    assert rates["complete"]
    assert rates["seconds_per_test"] == 1
    assert any(row["method"] == "fdatasync" and row["ops_per_s"] > 1 for row in rates["methods"])
    assert list(folder.iterdir()) == []


@pytest.mark.pg
def test_a_folder_that_is_not_ours_is_told(installed: Callable[[str], Installation], scratch: Path) -> None:
    with pytest.raises(ServerError, match=r"pg_test_fsync failed: .*could not open output file"):
        fsync_rates(Shell(server_user()), installed("18").program("pg_test_fsync"), scratch / "nowhere")
