"""How often a folder's device can flush a write: ``pg_test_fsync``, which bounds the rate of durable commits.

Source: PostgreSQL documentation, "pg_test_fsync".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchlib.errors import ServerError
from benchlib.host.shell import Shell
from benchlib.load.parse import parse_text

_LIMIT_S = 110


def fsync_rates(shell: Shell, program: Path, folder: Path) -> dict[str, Any]:
    """What each way of flushing reaches in a folder of the shell's user; see ``pg_test_fsync`` in :mod:`benchlib.load.parse`.

    It takes about 18 s, and writes and removes a file of 16 MiB.

    Raises:
        ServerError: it could not write there.
        ParseError: it did not print what it should.

    """
    file = folder / "pg_test_fsync.out"
    try:
        done = shell.run([program, f"--filename={file}", "--secs-per-test=1"], timeout_s=_LIMIT_S)
    finally:
        file.unlink(missing_ok=True)
    if done.returncode != 0:
        raise ServerError(f"pg_test_fsync failed: {(done.stderr.splitlines() or ['no output'])[-1]}")
    return parse_text(done.stdout, kind="pg_test_fsync")
