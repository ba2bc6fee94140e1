"""Differences of a server's counters, by made-up snapshots in the form of each version."""

import copy
from typing import Any

import pytest

from benchlib.host.counters import Figures, differences, io_differences, lsn_bytes, statement_differences

DATABASE = {
    "xact_commit": 10, "xact_rollback": 0, "blks_read": 100, "blks_hit": 1000, "blk_read_time": 1.5, "blk_write_time": 0,
    "temp_files": 0, "temp_bytes": 0, "deadlocks": 0, "stats_reset": "then",
}  # fmt: skip
BGWRITER_10 = {
    "checkpoints_timed": 1, "checkpoints_req": 2, "checkpoint_write_time": 10, "checkpoint_sync_time": 1, "buffers_checkpoint": 50,
    "buffers_clean": 5, "maxwritten_clean": 0, "buffers_backend": 7, "buffers_backend_fsync": 0, "buffers_alloc": 90,
    "stats_reset": "then",
}  # fmt: skip
BGWRITER_17 = {"buffers_clean": 5, "maxwritten_clean": 0, "buffers_alloc": 90, "stats_reset": "then"}
CHECKPOINTER_17 = {
    "num_timed": 1, "num_requested": 2, "write_time": 10, "sync_time": 1, "buffers_written": 50, "stats_reset": "then",
}  # fmt: skip
WAL_18 = {"wal_records": 100, "wal_fpi": 5, "wal_bytes": 9000, "wal_buffers_full": 0, "stats_reset": "then"}
WAL_14 = WAL_18 | {"wal_write": 10, "wal_sync": 8, "wal_write_time": 3.0, "wal_sync_time": 30.0}


def io_row(who: str, what: str = "relation", context: str = "normal", **changes: Any) -> dict[str, Any]:
    never = dict.fromkeys(
        ("reads", "writes", "extends", "writebacks", "fsyncs", "hits", "evictions", "reuses")
    )
    times = dict.fromkeys(f"{name}_time" for name in ("read", "write", "extend", "writeback", "fsync"))
    return {
        "backend_type": who,
        "object": what,
        "context": context,
        "stats_reset": "then",
        **never,
        **times,
        **changes,
    }


IO_16 = [
    io_row(
        "client backend", reads=100, writes=2, extends=4, fsyncs=0, hits=1000, read_time=1.5, op_bytes=8192
    ),
    io_row("client backend", context="vacuum", writes=0, extends=0, reads=0, op_bytes=8192),
    io_row("client backend", "temp relation", writes=99, extends=99, op_bytes=8192),
    io_row("checkpointer", writes=50, fsyncs=3, op_bytes=8192),
]
IO_18 = [
    io_row("client backend", reads=10, read_bytes=819200, writes=1, write_bytes=16384, extends=1, extend_bytes=32768, fsyncs=0),
    io_row("checkpointer", writes=5, write_bytes=409600, fsyncs=3),
    io_row("client backend", "wal", writes=10, write_bytes=81920, fsyncs=8, write_time=3.0, fsync_time=30.0),
    io_row("walwriter", "wal", writes=1, write_bytes=8192, fsyncs=1, write_time=0.5, fsync_time=5.0),
    io_row("client backend", "wal", "init", writes=1, write_bytes=16777216, fsyncs=1, write_time=7.0, fsync_time=7.0),
]  # fmt: skip


def snapshot(version: int) -> dict[str, Any]:
    return {
        "lsn": "0/3000000",
        "at": 1000.0,
        "database": DATABASE,
        "bgwriter": BGWRITER_10 if version < 17 else BGWRITER_17,
        "wal": None if version < 14 else WAL_14 if version < 18 else WAL_18,
        "io": None if version < 16 else IO_16 if version < 18 else IO_18,
        "checkpointer": CHECKPOINTER_17 if version >= 17 else None,
        "block_size": 8192,
        "io_timed": True,
        "wal_timed": True if version >= 14 else None,
        "statements": None,
    }


def doubled(value: Any) -> Any:
    """A snapshot in which everything that counts has counted as much again."""
    if isinstance(value, dict):
        return {k: v if k in ("op_bytes", "block_size", "queryid") else doubled(v) for k, v in value.items()}
    if isinstance(value, list):
        return [doubled(each) for each in value]
    return value * 2 if isinstance(value, int | float) and not isinstance(value, bool) else value


def between(version: int, **changes: Any) -> Figures:
    before = snapshot(version)
    return differences(before, {**doubled(before), "lsn": "0/4000000", "at": 1060.0, **changes})


@pytest.mark.parametrize("version", range(10, 19))
def test_one_name_for_all_versions(version: int) -> None:
    figures = between(version)
    assert figures["seconds"] == 60
    assert figures["wal_bytes"] == 16 << 20
    assert figures["commits"] == 10
    assert figures["checkpoints_timed"] == 1
    assert figures["checkpoints_requested"] == 2
    assert figures["checkpoint_write_ms"] == 10
    assert figures["buffers_by_checkpointer"] == 50
    assert figures["buffers_by_bgwriter"] == 5
    assert figures["buffers_by_backends"] == (7 if version < 17 else 6)
    assert figures["fsyncs_by_backends"] == 0
    assert figures["block_read_ms"] == 1.5
    if version >= 14:
        assert figures["wal_records"] == 100
        assert figures["wal_full_page_images"] == 5
        # the first 18 servers count it in pg_stat_io, process by process
        assert figures["wal_writes"] == (11 if version >= 18 else 10)
        assert figures["wal_syncs"] == (9 if version >= 18 else 8)
        assert figures["wal_sync_ms"] == (35 if version >= 18 else 30)
    else:
        assert {name for name, value in figures.items() if value is None} == {
            "wal_records", "wal_full_page_images", "wal_buffers_full", "wal_writes", "wal_syncs", "wal_write_ms", "wal_sync_ms",
        }  # fmt: skip


def test_every_version_has_the_same_names() -> None:
    assert {tuple(sorted(between(version))) for version in range(10, 19)} == {tuple(sorted(between(18)))}


def test_what_the_server_did_not_time_is_null() -> None:
    figures = between(16, io_timed=False, wal_timed=False)
    assert {name for name, value in figures.items() if value is None} == {
        "block_read_ms", "block_write_ms", "wal_write_ms", "wal_sync_ms",
    }  # fmt: skip
    after = doubled(snapshot(18)) | {"io_timed": False}
    timed = {row["object"]: row["write_ms"] for row in io_differences(snapshot(18), after)}
    assert timed == {"relation": None, "wal": 7.0}


def test_what_was_reset_meanwhile_is_null() -> None:
    reset = between(17, checkpointer={**CHECKPOINTER_17, "num_timed": 9, "stats_reset": "now"})
    assert reset["checkpoints_timed"] is None
    assert reset["commits"] == 10
    assert between(13, database={**DATABASE, "xact_commit": 5})["commits"] is None
    assert between(13, lsn="0/1000000")["wal_bytes"] is None


def test_what_we_may_not_see_is_null() -> None:
    figures = between(18, lsn=None, bgwriter=None, io=None, database=None, wal=None, checkpointer=None)
    assert {name for name, value in figures.items() if value is not None} == {"seconds"}


def test_snapshots_of_before_a_view_was_read() -> None:
    """Studies that were kept by an older version of this library have fewer views."""
    former = {
        name: snapshot(18)[name] for name in ("lsn", "at", "database", "bgwriter", "wal", "checkpointer")
    }
    figures = differences(former, former)
    assert figures["commits"] == 0
    assert figures["buffers_by_backends"] is None
    assert figures["block_read_ms"] is None
    assert statement_differences(former, former) is None


@pytest.mark.parametrize(("version", "extended"), [(16, 4 * 8192), (18, 32768)])
def test_io(version: int, extended: int) -> None:
    before = snapshot(version)
    rows = io_differences(before, doubled(before))
    assert len(rows) == len(before["io"])
    first = rows[0]
    assert (first["backend_type"], first["object"], first["context"]) == (
        "client backend",
        "relation",
        "normal",
    )
    assert first["read_bytes"] == 819200
    assert first["extend_bytes"] == extended
    assert first["writebacks"] is None  # such a process never does
    assert io_differences(snapshot(15), snapshot(15)) == []
    new = io_differences({**before, "io": []}, doubled(before))
    assert {row["writes"] for row in new} == {None}


def statement(number: int, calls: int, **columns: Any) -> dict[str, Any]:
    shared = {f"shared_blks_{name}": calls for name in ("hit", "read", "dirtied", "written")}
    return {
        "queryid": number, "query": f"SELECT {number}", "calls": calls, "rows": calls, "temp_blks_written": 0, **shared, **columns
    }  # fmt: skip


@pytest.mark.parametrize("time", ["total_time", "total_exec_time"])
def test_statements(time: str) -> None:
    before = snapshot(13) | {"statements": [statement(1, 5, **{time: 10.0}), statement(2, 5, **{time: 10.0})]}
    after = snapshot(13) | {
        "statements": [
            statement(1, 15, **{time: 40.0}),
            statement(2, 5, **{time: 10.0}),  # was not called
            *(statement(n, 1, **{time: float(n)}) for n in range(3, 60)),
        ]
    }
    rows = statement_differences(before, after)
    assert rows is not None
    assert len(rows) == 20
    assert [row["query"] for row in rows[:2]] == ["SELECT 59", "SELECT 58"]
    mine = next(
        row for row in statement_differences(before, after | {"statements": after["statements"][:2]}) or ()
    )
    assert (mine["calls"], mine["total_ms"], mine["mean_ms"], mine["shared_blocks_hit"]) == (
        10,
        30.0,
        3.0,
        10,
    )
    assert mine["wal_bytes"] is None


def test_nothing_is_changed() -> None:
    before = snapshot(18)
    after = doubled(before) | {"lsn": "0/4000000"}
    copies = copy.deepcopy((before, after))
    differences(before, after)
    assert (before, after) == copies


def test_positions() -> None:
    assert lsn_bytes("0/16B3740") == 0x16B3740
    assert lsn_bytes("2/0") == 2 << 32
