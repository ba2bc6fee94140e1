"""Checkpoints as servers of several versions write them into their logs."""

import pandas as pd
import pytest

from benchlib.server.checkpoints import checkpoints
from benchlib.server.cluster import shortened

LOG = """\
2026-01-31 12:00:00.000 UTC [10] LOG:  database system is ready to accept connections
2026-01-31 12:00:10.500 UTC [12] LOG:  checkpoint starting: time
2026-01-31 12:00:11.000 UTC [13] ERROR:  canceling statement due to user request
2026-01-31 12:00:14.750 UTC [12] LOG:  checkpoint complete: wrote 1077 buffers (6.6%); 0 WAL file(s) added, \
0 removed, 2 recycled; write=4.100 s, sync=0.103 s, total=4.250 s; sync files=19, longest=0.013 s, \
average=0.006 s; distance=15500 kB, estimate=15500 kB
2026-01-31 12:00:20 GMT [12] LOG:  checkpoint starting: wal
2026-01-31 12:00:21.000 UTC [12] LOG:  checkpoint complete: wrote 27 buffers (0.2%), wrote 3 SLRU buffers; 0 WAL \
file(s) added, 0 removed, 0 recycled; write=0.019 s, sync=0.055 s, total=0.115 s; sync files=21, longest=0.008 s, \
average=0.003 s; distance=161 kB, estimate=161 kB; lsn=0/17159C0, redo lsn=0/1715968
"""
_, TIMED, _, TIMED_ENDS, WAL, WAL_ENDS = LOG.splitlines()
SINCE = pd.Timestamp("2026-01-31 12:00:10", tz="UTC").timestamp()


def read(log: str) -> list[tuple[object, ...]]:
    """Start, end and kind of each; None for what the log does not tell."""
    frame = checkpoints(log, SINCE).astype(object)
    return [tuple(row) for row in frame.where(frame.notna(), None).to_numpy()]


@pytest.mark.parametrize(
    ("log", "rows"),
    [
        (LOG, [(0.5, 4.75, "timed"), (10.0, 11.0, "wal")]),
        (f"{TIMED_ENDS}\n{WAL}", [(None, 4.75, None), (10.0, None, "wal")]),  # it begins and ends in the midst of one
        (f"{TIMED_ENDS}\n{WAL_ENDS}", [(None, 4.75, None), (None, 11.0, None)]),
        (f"{TIMED}\n{TIMED}\n{TIMED_ENDS}", [(0.5, None, "timed"), (0.5, 4.75, "timed")]),  # a crash left one half done
        (TIMED.replace("time", "immediate force wait"), [(0.5, None, "requested")]),
        (TIMED.replace("time", "force wait time"), [(0.5, None, "timed")]),
        (TIMED.replace("checkpoint", "restartpoint"), []),
        (TIMED.replace("UTC", "CET"), []),
        (TIMED.replace("-01-", "-13-"), []),
    ],
)  # fmt: skip
def test_checkpoints_are_read_from_the_log(log, rows):
    assert read(log) == rows


def test_a_log_that_is_cut_keeps_its_checkpoints():
    """A server that logs each statement writes megabytes a trial."""
    chatty = LOG + "2026-01-31 12:00:22.000 UTC [13] LOG:  duration: 0.1 ms  statement: SELECT 1;\n" * 1000
    short = shortened(chatty.splitlines(keepends=True), 2_000)
    assert len(short) < 4_000
    assert read(short) == read(chatty)
    lines = LOG.splitlines(keepends=True)
    assert shortened(lines, len(LOG)) == shortened(lines, 10**6) == LOG
