"""Checkpoints as servers of several versions write them into their logs."""

import math

import pandas as pd
import pytest

from benchlib.server.checkpoints import checkpoints, shortened

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
SINCE = pd.Timestamp("2026-01-31 12:00:10", tz="UTC").timestamp()


def test_checkpoints() -> None:
    assert checkpoints(LOG, SINCE).to_dict("records") == [
        {"start_s": 0.5, "end_s": 4.75, "kind": "timed"},
        {"start_s": 10.0, "end_s": 11.0, "kind": "wal"},
    ]


def test_a_log_that_is_cut_keeps_its_checkpoints() -> None:
    """A server that logs each statement writes megabytes a trial."""
    chatty = LOG + "2026-01-31 12:00:22.000 UTC [13] LOG:  duration: 0.1 ms  statement: SELECT 1;\n" * 1000
    short = shortened(chatty, 2_000)
    assert len(short) < 4_000
    pd.testing.assert_frame_equal(checkpoints(short, SINCE), checkpoints(chatty, SINCE))
    assert shortened(LOG, len(LOG)) == shortened(LOG, 10**6) == LOG


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        ("time", "timed"),
        ("wal", "wal"),
        ("immediate force wait", "requested"),
        ("force wait time", "timed"),
    ],
)
def test_kinds(flags: str, kind: str) -> None:
    line = f"2026-01-31 12:00:10.500 UTC [12] LOG:  checkpoint starting: {flags}\n"
    assert checkpoints(line, SINCE)["kind"].tolist() == [kind]


def test_a_log_that_begins_and_ends_in_the_midst_of_one() -> None:
    lines = LOG.splitlines()
    rows = checkpoints("\n".join(lines[2:5]), SINCE)
    assert rows["end_s"].tolist()[0] == 4.75
    assert math.isnan(rows["start_s"][0])
    assert pd.isna(rows["kind"][0])
    assert rows["start_s"][1] == 10
    assert math.isnan(rows["end_s"][1])


def test_one_after_a_crash_that_left_another_half_done() -> None:
    starting = "2026-01-31 12:00:10.500 UTC [12] LOG:  checkpoint starting: wal"
    rows = checkpoints("\n".join([starting, *LOG.splitlines()[1:4]]), SINCE)
    assert rows["end_s"].isna().tolist() == [True, False]


@pytest.mark.parametrize(
    "log",
    [
        "2026-01-31 12:00:10.500 UTC [12] LOG:  restartpoint starting: time\n",
        "2026-01-31 12:00:10.500 CET [12] LOG:  checkpoint starting: time\n",
        "2026-13-31 12:00:10.500 UTC [12] LOG:  checkpoint starting: time\n",
    ],
)
def test_what_is_no_checkpoint_of_ours_or_has_no_time_is_none(log: str) -> None:
    assert checkpoints(log, SINCE).empty
