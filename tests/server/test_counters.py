"""What a server counted, by made-up snapshots in the form of each version."""

from typing import Any

import pytest

from benchlib.server.counters import server_counts

THEN = {"stats_reset": "then"}
DATABASE = {"blks_read": 100, "temp_bytes": 0, **THEN}
BGWRITER_10 = {"checkpoints_timed": 1, "checkpoints_req": 2, "buffers_checkpoint": 50, "buffers_backend": 7}
CHECKPOINTER_17 = {"num_timed": 1, "num_requested": 2, "buffers_written": 50, **THEN}
WAL_14 = {"wal_records": 100, "wal_fpi": 5, "wal_bytes": 9000, **THEN}


def io_row(who: str, what: str = "relation", context: str = "normal", **counts: int | None) -> dict[str, Any]:
    key = {"backend_type": who, "object": what, "context": context, **THEN}
    return {**key, "writes": None, "extends": None, **counts}


IO_16 = [
    io_row("client backend", writes=2, extends=4, op_bytes=8192),
    io_row("client backend", context="vacuum", writes=0, extends=0, op_bytes=8192),
    io_row("client backend", "temp relation", writes=99, extends=99, op_bytes=8192),
    io_row("checkpointer", writes=50, op_bytes=8192),
]
IO_18 = [
    io_row("client backend", writes=1, write_bytes=16384, extends=1, extend_bytes=32768),
    io_row("startup", write_bytes=None, extend_bytes=None),
    io_row("checkpointer", writes=5, write_bytes=409600, extend_bytes=None),
    io_row("client backend", "wal", writes=10, write_bytes=81920, extend_bytes=None),
]


def snapshot(version: int) -> dict[str, Any]:
    return {
        "lsn": "0/3000000",
        "at": 1000.0,
        "database": DATABASE,
        "bgwriter": {"buffers_clean": 5, **THEN, **(BGWRITER_10 if version < 17 else {})},
        "wal": None if version < 14 else WAL_14,
        "io": None if version < 16 else IO_16 if version < 18 else IO_18,
        "checkpointer": CHECKPOINTER_17 if version >= 17 else None,
        "block_size": 8192,
    }


def doubled(value: Any) -> Any:
    """A snapshot in which everything that counts has counted as much again."""
    if isinstance(value, dict):
        return {k: v if k in ("op_bytes", "block_size") else doubled(v) for k, v in value.items()}
    if isinstance(value, list):
        return [doubled(each) for each in value]
    return value * 2 if isinstance(value, int | float) else value


def between(version: int, **changes: Any) -> dict[str, float | None]:
    before = snapshot(version)
    return server_counts(before, {**doubled(before), "lsn": "0/4000000", **changes})


@pytest.mark.parametrize("version", range(10, 19))
def test_one_name_for_all_versions(version):
    assert between(version) == {
        "blocks_read": 100,
        "temp_bytes": 0,
        "checkpoints_timed": 1,
        "checkpoints_requested": 2,
        "buffers_by_checkpointer": 50,
        "buffers_by_bgwriter": 5,
        "buffers_by_backends": 7 if version < 17 else 6,
        "full_page_images": 5 if version >= 14 else None,
        "wal_bytes": 16 << 20,
    }


VIEWS = dict.fromkeys(("lsn", "bgwriter", "io", "database", "wal", "checkpointer"))
RESET = {**CHECKPOINTER_17, "num_timed": 9, "stats_reset": "now"}


@pytest.mark.parametrize(
    ("version", "changes", "unknown"),
    [
        (17, {"checkpointer": RESET}, {"checkpoints_timed", "checkpoints_requested", "buffers_by_checkpointer"}),
        (14, {"database": {**DATABASE, "blks_read": 5, "temp_bytes": 0}}, {"blocks_read"}),
        (14, {"lsn": "0/1000000"}, {"wal_bytes"}),
        (18, {"io": [io_row("who was not there", write_bytes=8192)]}, {"buffers_by_backends"}),
        (18, VIEWS, {*between(18)}),
    ],
)  # fmt: skip
def test_what_was_reset_or_fell_and_what_we_may_not_see_is_null(version, changes, unknown):
    assert {name for name, count in between(version, **changes).items() if count is None} == unknown


def test_what_an_older_version_of_ours_has_kept_tells_how_far_the_wal_moved():
    counts = server_counts({"lsn": "1/FFFFFFF0", "at": 1.0}, {"lsn": "2/10", "at": 1.0})
    assert {name: count for name, count in counts.items() if count is not None} == {"wal_bytes": 32}
