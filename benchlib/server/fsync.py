"""How often a folder's device can flush a write: ``pg_test_fsync``, which bounds the rate of durable commits.

Source: PostgreSQL documentation, "pg_test_fsync".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchlib.errors import ServerError
from benchlib.host.shell import Shell
from benchlib.load.parse import parse_text

_TESTS = 25


def fsync_rates(shell: Shell, program: Path, folder: Path, *, seconds_per_test: int = 1) -> dict[str, Any]:
    """What each way of flushing reaches in a folder of the shell's user; see ``pg_test_fsync`` in :mod:`benchlib.load.parse`.

    It takes about 18 times ``seconds_per_test``, and writes and removes a file of 16 MiB.

    Raises:
        ServerError: it could not write there; in its own words.
        ParseError: it did not print what it should.

    """
    file = folder / "pg_test_fsync.out"
    try:
        done = shell.run(
            [program, f"--filename={file}", f"--secs-per-test={seconds_per_test}"],
            timeout_s=60 + 2 * _TESTS * seconds_per_test,
        )
    finally:
        file.unlink(missing_ok=True)
    if done.returncode != 0:
        words = done.stderr.strip().splitlines() or ["it said nothing"]
        raise ServerError(f"pg_test_fsync failed: {words[-1]}")
    return parse_text(done.stdout, kind="pg_test_fsync")
